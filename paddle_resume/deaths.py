"""The ends of child processes, kept from whom they would interrupt.

Paddle's handler of SIGCHLD raises a SystemError wherever the main thread is, once for each worker
that was killed: within a save, or within a queue's lock, which then stays taken.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, List, Optional

__all__ = ["UnheardDeaths"]


class UnheardDeaths:
    """Keeps the handler of SIGCHLD away, from `start` to `stop`; off the main thread, nothing.

    Example:
        >>> heard = []
        >>> before = signal.signal(signal.SIGCHLD, lambda number, frame: heard.append(number))
        >>> deaths = UnheardDeaths()
        >>> deaths.start()
        >>> signal.raise_signal(signal.SIGCHLD)
        >>> heard
        []
        >>> deaths.stop()
        >>> heard == [signal.SIGCHLD]
        True
        >>> _ = signal.signal(signal.SIGCHLD, before)
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._is_on = False
        self._came: List[int] = []

    def start(self) -> None:
        """Takes the handler away, whatever that raises meanwhile; may be called twice."""
        if self._is_on or threading.current_thread() is not threading.main_thread():
            return
        while not self._is_on:
            try:
                self._before = signal.getsignal(signal.SIGCHLD)
                signal.signal(signal.SIGCHLD, self._note)
                self._is_on = True
            except Exception:  # of the handler: one more has died, and it is not away yet
                continue

    def stop(self) -> None:
        """Puts the handler back; it hears once if there was something to hear.

        Raises:
            Exception: what that handler raises.
        """
        if not self._is_on or threading.current_thread() is not threading.main_thread():
            return
        self._is_on = False
        if signal.getsignal(signal.SIGCHLD) != self._note:
            return  # somebody else's by now
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if self._before is None else self._before)
        if self._came:
            signal.raise_signal(signal.SIGCHLD)

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        self._came.append(number)
