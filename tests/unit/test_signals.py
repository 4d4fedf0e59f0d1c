"""The watch over signals: real ones, in this process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Callable, Iterator, List

import pytest

from paddle_resume.signals import Deaf, SignalWatch

USR1, USR2 = int(signal.SIGUSR1), int(signal.SIGUSR2)


class Heard:
    """What a watch reports."""

    def __init__(self) -> None:
        self.noticed: List[int] = []
        self.handled: List[int] = []
        self.ticks = 0

    def tick(self) -> None:
        self.ticks += 1

    def watch(self, *numbers: int) -> SignalWatch:
        return SignalWatch(numbers, self.noticed.append, self.tick, self.handled.append)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (USR1, USR2)}
    threads = set(threading.enumerate())
    yield
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    assert signal.set_wakeup_fd(-1) == -1
    assert set(threading.enumerate()) <= threads  # one of an earlier test may have ended


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 5.0
    while not true() and time.monotonic() < end:
        time.sleep(0.002)
    assert true()


def test_a_signal_is_seen_by_both() -> None:
    heard = Heard()
    watch = heard.watch(USR1)
    watch.start()
    os.kill(os.getpid(), USR1)
    until(lambda: heard.noticed == [USR1] and heard.handled == [USR1])
    watch.close()
    watch.close()


def test_every_signal_before_the_end_is_noticed() -> None:
    heard = Heard()
    watch = heard.watch(USR1, USR2)
    watch.start()
    for _ in range(20):
        signal.raise_signal(USR1)
        signal.raise_signal(USR2)
    watch.close()
    assert heard.noticed == [USR1, USR2] * 20


def test_it_is_noticed_while_the_main_thread_is_in_c() -> None:
    seen: List[float] = []
    watch = SignalWatch([USR1], lambda n: seen.append(time.monotonic()), lambda: None, print)
    watch.start()
    sent: List[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), USR1)

    timer = threading.Timer(0.2, send)
    timer.start()
    deadline = time.monotonic() + 1.0
    handler_ran = threading.Event()
    while time.monotonic() < deadline:  # each call is one operation in C
        sum(range(200_000))
    timer.join()
    watch.close()
    assert len(seen) == 1 and not handler_ran.is_set()
    assert seen[0] - sent[0] < 0.5


def test_one_ignored_at_the_start_stays_ignored() -> None:
    before = signal.signal(USR1, signal.SIG_IGN)
    try:
        heard = Heard()
        watch = heard.watch(USR1)
        watch.start()
        assert signal.getsignal(USR1) is signal.SIG_IGN
        os.kill(os.getpid(), USR1)
        watch.close()
        assert heard.noticed == []
        assert signal.getsignal(USR1) is signal.SIG_IGN
    finally:
        signal.signal(USR1, before)


def test_a_childs_signal_is_not_ours() -> None:
    heard = Heard()
    watch = heard.watch(USR1)
    watch.start()
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    time.sleep(0.1)
    os.kill(child, USR1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == USR1  # as if we had not been here
    time.sleep(0.05)
    watch.close()
    assert heard.noticed == [] and heard.handled == []


def test_who_waited_before_hears_it_too() -> None:
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.fileno())
    heard = Heard()
    watch = heard.watch(USR1)
    watch.start()
    signal.raise_signal(USR1)
    until(lambda: heard.noticed == [USR1])
    watch.close()
    assert receiver.recv(8) == bytes([USR1])
    assert signal.set_wakeup_fd(-1) == sender.fileno()
    receiver.close()
    sender.close()


def test_a_handler_that_was_changed_meanwhile_is_left() -> None:
    before = signal.getsignal(USR1)
    heard = Heard()
    watch = heard.watch(USR1)
    watch.start()
    other = lambda number, frame: None  # noqa: E731
    signal.signal(USR1, other)
    watch.close()
    assert signal.getsignal(USR1) is other
    signal.signal(USR1, before)


def test_deaf_while_something_lasts() -> None:
    heard = Heard()
    before = signal.signal(USR2, lambda number, frame: heard.handled.append(-number))
    lasts = [True]
    try:
        watch = heard.watch(USR1, USR2)
        watch.start()
        deaf = watch.close(deaf_while=lambda: lasts[0])
        assert deaf is not None
        signal.raise_signal(USR1)
        signal.raise_signal(USR2)
        assert heard.noticed == heard.handled == []
        signal.signal(USR1, signal.default_int_handler)  # the script's own by now: not ours to set
        lasts[0] = False
        signal.raise_signal(USR2)  # nobody has told: it is asked
        assert heard.handled == [-USR2]
        deaf.give_back()
        assert signal.getsignal(USR1) is signal.default_int_handler
    finally:
        signal.signal(USR1, signal.SIG_DFL)
        signal.signal(USR2, before)


def test_a_watch_after_a_deaf_one_hears() -> None:
    heard = Heard()
    watch = heard.watch(USR1)
    watch.start()
    watch.close(deaf_while=lambda: True)
    again = heard.watch(USR1)
    again.start()
    signal.raise_signal(USR1)
    again.close()
    assert heard.noticed == heard.handled == [USR1]


def test_an_event_loop_that_comes_and_goes_takes_no_signal_away() -> None:
    """asyncio sets the wakeup descriptor to none when its loop closes."""

    async def short() -> None:
        asyncio.get_running_loop().add_signal_handler(USR2, lambda: None)

    for rearms in (True, False):
        heard = Heard()
        watch = heard.watch(USR1)
        watch.start()
        asyncio.run(short())
        if rearms:  # as at each boundary
            watch.rearm()
        signal.raise_signal(USR1)
        watch.close()
        assert heard.noticed == heard.handled == [USR1]


def test_the_longest_wait_overflows_no_clock() -> None:
    watch = SignalWatch([USR1], print, lambda: 1e300, print)
    watch.start()
    time.sleep(0.05)
    watch.close()


STORMED = """
import os, time
from paddle_resume.signals import Deaf, SignalWatch
watch = SignalWatch([10], lambda number: None, lambda: None, lambda number: None)
watch.start()
print("storm", flush=True)
time.sleep(0.03)
watch.close(deaf_while=lambda: True)
time.sleep(0.03)
os._exit(7)
"""


def test_no_moment_of_its_end_lets_a_signal_through() -> None:
    """With the default's handler for a moment, one of so many would end the process."""
    for _ in range(5):
        command = [sys.executable, "-c", STORMED]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"storm\n"
            end = time.monotonic() + 10.0
            while process.poll() is None and time.monotonic() < end:
                os.kill(process.pid, USR1)
        assert process.returncode == 7


def test_it_is_called_again_when_it_asked_for_it() -> None:
    heard = Heard()

    def tick() -> float:
        heard.ticks += 1
        return 0.01

    watch = SignalWatch([USR1], heard.noticed.append, tick, heard.handled.append)
    watch.start()
    until(lambda: heard.ticks > 5)
    watch.close()


def test_wake_runs_the_handler_in_the_main_thread() -> None:
    heard = Heard()
    watch = heard.watch(USR1)
    watch.start()
    watch.wake()
    until(lambda: heard.handled == [USR1])
    watch.close()


def test_a_storm_does_not_go_deeper_and_deeper() -> None:
    """Each answer meets the next signal: without an end to it, that is a RecursionError."""
    asked: List[int] = []

    def meets_the_next() -> bool:
        asked.append(1)
        signal.raise_signal(USR1)
        return True

    before = signal.signal(USR1, Deaf({USR1: signal.getsignal(USR1)}, meets_the_next))
    try:
        signal.raise_signal(USR1)
        signal.raise_signal(USR1)
    finally:
        signal.signal(USR1, before)
    assert len(asked) == 2

    noticed: List[int] = []
    handled: List[int] = []

    def handle(number: int) -> None:
        handled.append(number)
        os.kill(os.getpid(), USR1)

    watch = SignalWatch([USR1], noticed.append, lambda: None, handle)
    watch.start()
    signal.raise_signal(USR1)
    watch.close()
    assert handled == [USR1] and noticed == [USR1, USR1]
