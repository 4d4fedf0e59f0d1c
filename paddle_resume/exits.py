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


def system_exit(code: int, caught: Callable[[], None], last_moment: float) -> SystemExit:
    """Makes a SystemExit that reaches the end of the process in time.

    Where nobody catches it, the process ends at the last moment even if a thread of the script's
    keeps the interpreter waiting.

    Args:
        code: what the process ends with.
        caught: called when it is dropped by a script that has caught it, and goes on.
        last_moment: `time.monotonic()` when it must be over.
    """
    error = SystemExit(code)
    error.on_its_way = _OnItsWay(code, caught, last_moment)  # type: ignore[attr-defined]
    return error


class _OnItsWay:
    """Lives as long as the exception that holds it."""

    def __init__(self, code: int, caught: Callable[[], None], last_moment: float) -> None:
        self._code = code
        self._caught = caught
        self._last_moment = last_moment

    def __del__(self) -> None:
        if sys._getframe().f_back is None:  # nobody has caught it: the interpreter itself drops it
            self._end()
        self._caught()

    def _end(self) -> NoReturn:
        """What the interpreter does now, but for the teardown of modules: with Paddle's it takes
        a second and more, in which no thread of Python's can see to it that it ends in time."""
        threading.Thread(target=self._end_in_time, daemon=True).start()
        try:
            threading._shutdown()  # type: ignore[attr-defined]  # waits for the script's threads
            atexit._run_exitfuncs()
        finally:
            exit_now(self._code)

    def _end_in_time(self) -> None:
        time.sleep(max(0.0, self._last_moment - time.monotonic()))
        exit_now(self._code)
