"""Ways out of the process after a last save."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import threading
import time
from typing import Callable, NoReturn

from paddle_resume.runtime import free_shared_memory

__all__ = ["Stopped", "exit_now", "in_notebook"]

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


class Stopped(SystemExit):
    """A SystemExit that reaches the end of the process in time.

    Where nobody catches it, the interpreter asks for its code. From there on nothing of the script
    runs but its threads and its atexit functions, and the process ends at the last moment even if
    one of them keeps the interpreter waiting.

    Args:
        code: what the process ends with.
        ending: called once nobody can catch it any more.
        dropped: called when it is gone: the script has caught it, and goes on.
        last_moment: `time.monotonic()` when the process must be over.
    """

    def __init__(
        self,
        code: int,
        ending: Callable[[], None],
        dropped: Callable[[], None],
        last_moment: float,
    ) -> None:
        super().__init__(code)
        self._code = code
        self._ending = ending
        self._dropped = dropped
        self._last_moment = last_moment

    @property
    def code(self) -> int:  # type: ignore[override]
        """What the process ends with."""
        if sys._getframe().f_back is None and not sys.is_finalizing():
            self._end()  # no script asks: the interpreter does, for nobody has caught it
        return self._code

    @classmethod
    def is_on_its_way(cls, dropped: Callable[[], None]) -> bool:
        """Whether one is being handled by a `finally` or an `except`, or ends the interpreter.

        Only in the thread that has raised it.

        Args:
            dropped: the function that it was made with.
        """
        error, seen = sys.exc_info()[1], 0
        while error is not None and seen < 100:
            if isinstance(error, cls) and error._dropped == dropped:
                return True
            error, seen = error.__cause__ or error.__context__, seen + 1
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
        return frame.f_code is cls.code.fget.__code__  # type: ignore[attr-defined]

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._dropped()

    def _end(self) -> NoReturn:
        """What the interpreter does now, but for the teardown of modules: with Paddle's it takes
        a second and more, in which no thread of Python's can see to it that it ends in time."""
        self._ending()
        threading.Thread(target=self._end_in_time, daemon=True).start()
        try:
            threading._shutdown()  # type: ignore[attr-defined]  # waits for the script's threads
            atexit._run_exitfuncs()
        finally:
            exit_now(self._code)

    def _end_in_time(self) -> None:
        time.sleep(max(0.0, self._last_moment - time.monotonic()))
        exit_now(self._code)
