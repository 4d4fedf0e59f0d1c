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
import weakref
from types import FrameType
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

from paddle_resume.observe.log import log

__all__ = ["Deaf", "SignalWatch"]

_LONGEST_S = 3600.0
_SETTLE_S = 1.0
_CLOSE, _BARRIER = b"\0", b"\xff"  # no signals have these numbers
_CREDENTIALS = struct.calcsize("3i")


class Deaf:
    """A signal handler that does nothing while something lasts; then all is as it was before.

    Args:
        handlers: signal to its handler of before.
        lasts: asked in the main thread at each signal.
    """

    def __init__(self, handlers: Mapping[int, Any], lasts: Callable[[], bool]) -> None:
        self._handlers = handlers
        self._lasts = lasts
        self._is_asking = False

    def __call__(self, number: int, frame: Optional[FrameType]) -> None:
        if self._is_asking:
            return  # they come faster than this answers: it would go deeper and deeper
        self._is_asking = True
        try:
            lasts = self._lasts()
        finally:
            self._is_asking = False
        if not lasts:
            self.give_back()
            signal.raise_signal(number)

    def give_back(self) -> None:
        """Puts the handlers of before back, but where there is another one by now."""
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is self:
                try:
                    signal.signal(number, handler)
                except ValueError:
                    return  # not in the main thread: at the next signal, then


# A Python handler in a forked child may come too late, when that waits in C: a pool's worker would
# survive its pool's SIGTERM. Hooks on fork cannot be taken back, so they look for who is there.
_ACTIVE: "weakref.WeakSet[SignalWatch]" = weakref.WeakSet()
_FORKING = threading.local()


def _before_fork() -> None:
    numbers = {number for watch in list(_ACTIVE) for number in watch.numbers}
    _FORKING.mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers) if numbers else None


def _after_fork() -> None:
    if _FORKING.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _FORKING.mask)


def _after_fork_in_child() -> None:
    for watch in list(_ACTIVE):
        watch.leave_to_child()
    _ACTIVE.clear()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork,
        after_in_child=_after_fork_in_child,
    )


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
        self.numbers = numbers
        self._noticed = noticed
        self._tick = tick
        self._handle = handle
        self._pid = os.getpid()
        self._previous: Dict[int, Any] = {}
        self._fd_before = -1
        self._receiver: Optional[socket.socket] = None
        self._sender: Optional[socket.socket] = None
        self._thread: Optional[threading.Thread] = None
        self._is_unsettled = False
        self._is_handling = False
        self._settled = threading.Event()

    def start(self) -> None:
        """Installs the handlers and starts the thread; only in the main thread."""
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        if hasattr(socket, "SO_PASSCRED"):
            # A child that is forked in C, to run another program, writes to the same socket until
            # it does; the kernel tells who did.
            self._receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._fd_before = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in self.numbers:
            previous = signal.getsignal(number)
            if isinstance(previous, Deaf):  # a script that has caught a stop, and goes on
                previous.give_back()
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
        _ACTIVE.add(self)
        try:
            thread.start()
        except RuntimeError:  # a limit of the machine
            self.close()
            raise

    def settle(self) -> None:
        """Waits until each signal that the main thread has heard of is noticed; only there."""
        if not self._is_unsettled or self._sender is None or self._thread is None:
            return
        self._is_unsettled = False
        self._settled.clear()
        try:
            self._sender.send(_BARRIER)
        except BlockingIOError:
            return  # a storm of signals has filled it: one of them will be noticed
        self._settled.wait(_SETTLE_S)

    def rearm(self) -> bool:
        """Takes the wakeup descriptor again, which an event loop that ends has set to none.

        Only in the main thread.

        Returns:
            Whether somebody else had it.
        """
        sender = self._sender
        if sender is None or self._thread is None:
            return False
        found = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        if found == sender.fileno():
            return False
        self._fd_before = found
        return True

    def close(self, deaf_while: Optional[Callable[[], bool]] = None) -> Optional[Deaf]:
        """Puts everything back, once each signal so far is noticed; may be called twice.

        Args:
            deaf_while: do nothing at the signals while this is so. At once: between two handlers
                one of them would end the process.

        Returns:
            The handler that does nothing; None where the handlers of before are back.
        """
        _ACTIVE.discard(self)
        thread, self._thread = self._thread, None
        if thread is None or self._sender is None or self._receiver is None:
            return None
        ours = self._handlers_before()
        deaf = None if deaf_while is None else Deaf(ours, deaf_while)
        for number, previous in ours.items():
            signal.signal(number, previous if deaf is None else deaf)
        self._previous = {}
        self._put_descriptor_back(self._sender.fileno())
        if thread.is_alive():
            self._sender.setblocking(True)
            self._sender.send(_CLOSE)
            thread.join()
        self._sender.close()
        self._receiver.close()
        return deaf

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
            ready = poll.poll(None if wait is None else math.ceil(1000 * min(wait, _LONGEST_S)))
            data, own = self._receive(receiver) if ready else (b"", True)
            if own:
                for number in data:
                    if number == _CLOSE[0]:
                        return
                    if number == _BARRIER[0]:
                        self._settled.set()
                    if number in self.numbers:
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
        data = data.replace(_BARRIER, b"")
        if self._fd_before >= 0 and data:
            try:
                os.write(self._fd_before, data)
            except OSError:
                pass  # full or closed: as Python itself does

    def _on_signal(self, number: int, frame: Optional[FrameType]) -> None:
        self._is_unsettled = True
        if self.rearm() and self._sender is not None:
            self._sender.send(bytes([number]))  # the watching thread has not heard of it
        if self._is_handling:
            return  # as in Deaf; the watching thread hears of each
        self._is_handling = True
        try:
            self._handle(number)
        finally:
            self._is_handling = False

    def leave_to_child(self) -> None:
        """In a forked child: as if we had never been there."""
        for number, previous in self._handlers_before().items():
            signal.signal(number, previous)
        if self._sender is not None:
            self._put_descriptor_back(self._sender.fileno())

    def _handlers_before(self) -> Dict[int, Any]:
        """Of those signals that nobody else has taken over since."""
        before = self._previous.items()
        return {n: handler for n, handler in before if signal.getsignal(n) == self._on_signal}

    def _put_descriptor_back(self, ours: int) -> None:
        try:
            found = signal.set_wakeup_fd(self._fd_before)
        except (ValueError, OSError):  # closed meanwhile, with its event loop
            found = signal.set_wakeup_fd(-1)
        if found not in (ours, -1):
            signal.set_wakeup_fd(found)  # somebody else's by now
