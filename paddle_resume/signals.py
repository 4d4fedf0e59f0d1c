"""Signals, seen at once by a thread of their own, whatever the main thread is doing.

Python runs a signal's handler in the main thread, and only when that returns from C++: a long
operation delays it for as long as it takes. The interpreter's own C handler writes the number to
a file descriptor at once (`signal.set_wakeup_fd`), which a thread can wait for.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import struct
import threading
from types import FrameType
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

from paddle_resume.observe.log import log

__all__ = ["SignalWatch", "give_back"]

_CLOSE = b"\0"  # no signal has this number
_CREDENTIALS = struct.calcsize("3i")


def give_back(handlers: Mapping[int, Any]) -> None:
    """Gives signals their handlers back, but for those that have another one by now.

    Args:
        handlers: signal to what `SignalWatch.close` has returned; ignored since.
    """
    for number, handler in handlers.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            try:
                signal.signal(number, handler)
            except ValueError:
                pass  # not in the main thread: the process is deaf, not wrong


class SignalWatch:
    """Watches signals from `start` to `close`.

    Args:
        numbers: of the signals; one that is ignored at the start stays ignored.
        noticed: called with each signal's number, in the watching thread.
        tick: called in the watching thread after each signal and whenever it asked to be;
            returns in how many seconds to call it again, None for after the next signal.
        handle: called with each signal's number in the main thread, when that runs Python code;
            it may raise.

    Example:
        >>> seen = []
        >>> watch = SignalWatch([signal.SIGUSR1], seen.append, lambda: None, lambda number: None)
        >>> watch.start()
        >>> signal.raise_signal(signal.SIGUSR1)
        >>> _ = watch.close()
        >>> seen
        [10]
    """

    def __init__(
        self,
        numbers: Sequence[int],
        noticed: Callable[[int], None],
        tick: Callable[[], Optional[float]],
        handle: Callable[[int], None],
    ) -> None:
        self._numbers = numbers
        self._noticed = noticed
        self._tick = tick
        self._handle = handle
        self._pid = os.getpid()
        self._previous: Dict[int, Any] = {}
        self._fd_before = -1
        self._receiver: Optional[socket.socket] = None
        self._sender: Optional[socket.socket] = None
        self._thread: Optional[threading.Thread] = None

    def start(self) -> None:
        """Installs the handlers and starts the thread; only in the main thread."""
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        if hasattr(socket, "SO_PASSCRED"):
            # A forked child writes to the same socket until it changes its handlers; the kernel
            # tells who did.
            self._receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._fd_before = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in self._numbers:
            previous = signal.getsignal(number)
            if previous is signal.SIG_IGN:
                # nohup; set again, for Paddle puts handlers of its own in front of it.
                signal.signal(number, signal.SIG_IGN)
                continue
            self._previous[number] = signal.SIG_DFL if previous is None else previous
            signal.signal(number, self._on_signal)
            if callable(previous) and previous is not signal.default_int_handler:
                log.info(
                    "the script's own handler of %s rests while the training runs",
                    signal.Signals(number).name,
                )
        # A daemon: a run that ends without its knowing must not keep the process alive.
        thread = threading.Thread(target=self._watch, name="paddle_resume-signals", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:  # a limit of the machine
            self.close()
            raise

    def close(self, deaf: bool = False) -> Dict[int, Any]:
        """Puts everything back, once each signal so far is noticed; may be called twice.

        Args:
            deaf: ignore the signals from here on; at once, for between two handlers one of them
                would end the process.

        Returns:
            Where deaf: what each signal did before; see `give_back`.
        """
        thread, self._thread = self._thread, None
        if thread is None or self._sender is None or self._receiver is None:
            return {}
        ours = {
            n: was for n, was in self._previous.items() if signal.getsignal(n) == self._on_signal
        }
        for number, previous in ours.items():
            signal.signal(number, signal.SIG_IGN if deaf else previous)
        self._previous = {}
        signal.set_wakeup_fd(self._fd_before)
        if thread.is_alive():
            self._sender.setblocking(True)
            self._sender.send(_CLOSE)
            thread.join()
        self._sender.close()
        self._receiver.close()
        return ours if deaf else {}

    def wake(self) -> None:
        """Has the main thread call `handle` soon, even out of a wait."""
        number = next(iter(self._previous), None)
        main = threading.main_thread().ident
        if number is not None and main is not None:
            signal.pthread_kill(main, number)

    def _watch(self) -> None:
        receiver = self._receiver
        assert receiver is not None
        poll = select.poll()  # select() knows no descriptor above 1023
        poll.register(receiver, select.POLLIN)
        wait = self._tick()
        while True:
            ready = poll.poll(None if wait is None else math.ceil(1000 * wait))
            data, own = self._receive(receiver) if ready else (b"", True)
            if own:
                for number in data:
                    if number == _CLOSE[0]:
                        return
                    if number in self._numbers:
                        self._noticed(number)
                self._pass_on(data)
            wait = self._tick()

    def _receive(self, receiver: socket.socket) -> Tuple[bytes, bool]:
        """Returns what was written, and whether this process did."""
        data, extra, _, _ = receiver.recvmsg(64, socket.CMSG_SPACE(_CREDENTIALS))
        for level, kind, content in extra:
            if level == socket.SOL_SOCKET and kind == getattr(socket, "SCM_CREDENTIALS", None):
                return data, struct.unpack("3i", content[:_CREDENTIALS])[0] == self._pid
        return data, True

    def _pass_on(self, data: bytes) -> None:
        """Who waited for signals before (an event loop) hears of them too."""
        if self._fd_before >= 0 and data:
            try:
                os.write(self._fd_before, data)
            except OSError:
                pass  # full or closed: as Python itself does

    def _on_signal(self, number: int, frame: Optional[FrameType]) -> None:
        if os.getpid() != self._pid:
            # A forked child that is not one of ours: as if we had never been here.
            signal.signal(number, self._previous.get(number, signal.SIG_DFL))
            os.kill(os.getpid(), number)
            return
        self._handle(number)
