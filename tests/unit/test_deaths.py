"""The first death of a worker interrupts the main thread, and no other one what answers it."""

from __future__ import annotations

import signal
import threading
from typing import Any, Iterator, List

import pytest

from paddle_resume.deaths import Deaths


class Died(Exception):
    pass


class Paddles:
    """A handler as Paddle's: it raises at each death, for as long as a worker is watched."""

    def __init__(self) -> None:
        self.heard: List[int] = []
        self.watches = True

    def __call__(self, number: int, frame: Any) -> None:
        self.heard.append(number)
        if self.watches:
            raise Died


@pytest.fixture
def paddles() -> Iterator[Paddles]:
    handler = Paddles()
    before = signal.signal(signal.SIGCHLD, handler)
    yield handler
    signal.signal(signal.SIGCHLD, before)


def die() -> None:
    signal.raise_signal(signal.SIGCHLD)


def test_the_first_one_interrupts_and_no_other_one(paddles: Paddles) -> None:
    deaths = Deaths()
    deaths.arm()
    deaths.arm()
    with pytest.raises(Died):
        die()
    die()
    die()
    assert len(paddles.heard) == 1


def test_what_was_missed_is_heard_once_it_may_interrupt_again(paddles: Paddles) -> None:
    deaths = Deaths()
    deaths.arm()
    deaths.hush()
    die()
    die()
    with pytest.raises(Died):
        deaths.listen()
    assert len(paddles.heard) == 1
    deaths.listen()  # that one is heard
    assert len(paddles.heard) == 1
    deaths.release()


def test_the_handler_is_back_and_hears_of_what_it_missed(paddles: Paddles) -> None:
    deaths = Deaths()
    deaths.arm()
    deaths.hush()
    die()
    paddles.watches = False  # the workers have been ended
    deaths.release()
    assert signal.getsignal(signal.SIGCHLD) is paddles
    assert len(paddles.heard) == 1
    deaths.release()
    assert len(paddles.heard) == 1


def test_one_that_came_in_front_stays_and_is_passed_on_to(paddles: Paddles) -> None:
    deaths = Deaths()
    deaths.arm()
    ours = signal.getsignal(signal.SIGCHLD)

    def in_front(number: int, frame: Any) -> None:
        assert callable(ours)
        ours(number, frame)

    signal.signal(signal.SIGCHLD, in_front)
    deaths.release()
    assert signal.getsignal(signal.SIGCHLD) is in_front
    for _ in range(2):
        with pytest.raises(Died):
            die()


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN])
def test_without_a_handler_there_is_nothing_to_stand_before(paddles: Paddles, handler: Any) -> None:
    signal.signal(signal.SIGCHLD, handler)
    deaths = Deaths()
    deaths.arm()
    deaths.hush()
    die()
    assert signal.getsignal(signal.SIGCHLD) == handler
    deaths.release()
    assert signal.getsignal(signal.SIGCHLD) == handler


def test_off_the_main_thread_it_leaves_all_as_it_is(paddles: Paddles) -> None:
    def there() -> None:
        deaths = Deaths()
        deaths.arm()
        deaths.hush()
        deaths.release()

    thread = threading.Thread(target=there)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGCHLD) is paddles and not paddles.heard
