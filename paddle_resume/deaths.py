"""The ends of child processes, which interrupt the main thread once and no more.

Paddle's handler of SIGCHLD raises a SystemError wherever the main thread is, for each worker that
was killed anew: within what answers the first of them, or within a queue's lock, which then stays
taken for ever.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Optional

__all__ = ["Deaths"]


class Deaths:
    """Stands before the handler of SIGCHLD that it finds, from `arm` to `release`.

    Once that has raised, it hears of no other death before `listen`. Only in the main thread;
    elsewhere it does nothing, for no handler is called there.

    Example:
        >>> heard = []
        >>> before = signal.signal(signal.SIGCHLD, lambda number, frame: heard.append(number))
        >>> deaths = Deaths()
        >>> deaths.arm()
        >>> deaths.hush()
        >>> signal.raise_signal(signal.SIGCHLD)
        >>> heard
        []
        >>> deaths.release()
        >>> heard == [signal.SIGCHLD]
        True
        >>> _ = signal.signal(signal.SIGCHLD, before)
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._is_armed = False
        self._is_hushed = False
        self._has_missed = False

    def arm(self) -> None:
        """Takes its place, again where another handler has come in front of it."""
        found = signal.getsignal(signal.SIGCHLD)
        if found != self._on_death and callable(found) and _is_main():
            self._before = found
            self._is_armed = True
            signal.signal(signal.SIGCHLD, self._on_death)

    def hush(self) -> None:
        """From here on the handler hears of no death."""
        self._is_hushed = True

    def listen(self) -> None:
        """From here on it hears of them again; at once, where there was one meanwhile.

        Raises:
            Exception: what the handler raises.
        """
        self._is_hushed = False
        missed, self._has_missed = self._has_missed, False
        if missed and _is_main():
            signal.raise_signal(signal.SIGCHLD)

    def release(self) -> None:
        """Gives the place back, and has the handler hear of what it missed.

        Raises:
            Exception: what the handler raises.
        """
        self._is_armed = False  # where another handler is in front, it only passes deaths on
        if _is_main() and signal.getsignal(signal.SIGCHLD) == self._on_death:
            signal.signal(signal.SIGCHLD, self._before)
        self.listen()

    def _on_death(self, number: int, frame: Optional[FrameType]) -> None:
        if self._is_hushed:
            self._has_missed = True
            return
        try:
            self._before(number, frame)
        except BaseException:
            self._is_hushed = self._is_armed
            raise


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
