"""Ways out of the process after a last save."""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import sys
import threading
import time
from typing import Any, Mapping, NoReturn, Sequence

from paddle_resume.runtime import free_shared_memory
from paddle_resume.signals import deafen

__all__ = ["exit_now", "in_notebook", "system_exit"]

_FLUSH_S = 0.5


def in_notebook() -> bool:
    """Whether IPython runs this process: it lives on after an interrupt, and after SystemExit."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def exit_now(code: int) -> NoReturn:
    """Ends the process in whatever thread, without waiting for anything.

    Args:
        code: what it ends with.
    """
    free_shared_memory()
    # In a thread of its own: another one may hold a file's lock for as long as its disk hangs.
    flushing = threading.Thread(target=_flush_files, daemon=True)
    try:
        flushing.start()
        flushing.join(_FLUSH_S)
    finally:
        os._exit(code)


def _flush_files() -> None:
    """What the script has written to its files: the interpreter would do so at its end."""
    files = [item for item in gc.get_objects() if isinstance(item, io.IOBase)]
    for file in (sys.stdout, sys.stderr, *files):
        try:
            file.flush()
        except (OSError, ValueError, AttributeError):
            pass  # closed, or not to be written to


def system_exit(code: int, numbers: Sequence[int], last_moment: float) -> SystemExit:
    """Makes a SystemExit that reaches the end of the process in time.

    As long as it is on its way, launchers' repeated signals change nothing. Where the script
    catches it, they are as before; where nobody does, the process ends at the last moment even if
    a thread of the script's keeps the interpreter waiting.

    Args:
        code: what the process ends with.
        numbers: of the signals that asked for it.
        last_moment: `time.monotonic()` when it must be over.
    """
    error = SystemExit(code)
    error.on_its_way = _OnItsWay(code, numbers, last_moment)  # type: ignore[attr-defined]
    return error


class _OnItsWay:
    """Lives as long as the exception that holds it."""

    def __init__(self, code: int, numbers: Sequence[int], last_moment: float) -> None:
        self._code = code
        self._numbers = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
        self._last_moment = last_moment
        for number in self._numbers:
            deafen(number)

    def __del__(self) -> None:
        if sys._getframe().f_back is None:  # nobody has caught it: the interpreter itself drops it
            self._end()
        self._set({number: signal.getsignal(number) for number in self._numbers})

    @staticmethod
    def _set(handlers: Mapping[int, Any]) -> None:
        """In Python too: at its end it gives every signal with a handler its default back."""
        for number, handler in handlers.items():
            try:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            except ValueError:
                pass  # the collector runs in some other thread: the process is deaf, not wrong

    def _end(self) -> NoReturn:
        """What the interpreter does now, but for the teardown of modules: with Paddle's it takes
        a second and more, in which no thread of Python's can see to it that it ends in time."""
        self._set(dict.fromkeys(self._numbers, signal.SIG_IGN))
        threading.Thread(target=self._end_in_time, daemon=True).start()
        try:
            threading._shutdown()  # type: ignore[attr-defined]  # waits for the script's threads
            atexit._run_exitfuncs()
        finally:
            exit_now(self._code)

    def _end_in_time(self) -> None:
        time.sleep(max(0.0, self._last_moment - time.monotonic()))
        exit_now(self._code)
