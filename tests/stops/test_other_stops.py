"""Other signals, and other reasons to save: SIGINT, SIGHUP, save_signal, stop_after_minutes."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any, Tuple

import pytest

from .harness import Bench, several
from .places import Times, keys_of, play

FAST = Times(grace=4.0, save=0.3, slow=30.0)
FULL = Times(grace=8.0, save=2.0, slow=60.0)
PAUSE = {"on_train_batch_begin": 0.1}


def interrupted(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    """Ctrl-C, which a terminal sends to all."""
    return play(bench, "eval", times, draw, group=True, workers=2, number=signal.SIGINT, code=130)


def hung_up(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    return play(bench, "forward", times, draw, number=signal.SIGHUP, code=129)


def another_thread(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    """A thread of the user's, not a daemon, would keep the interpreter from ending."""
    with bench.round("thread", keys=keys_of(times)) as made:
        made.start(
            fault={"at": ["forward", 10], "how": "sleep", "seconds": times.slow},
            thread=times.slow,
        )
        made.wait_for(made.begun.exists)
        time.sleep(draw.uniform(0.0, 0.5))
        stopped = made.stop(within=times.grace)
        made.check_saved(stopped, 143, 9, "SIGTERM")
        made.resume()
        return "step 9", stopped.elapsed


def stormed(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    """SIGTERM each millisecond, to meet every moment on the way out."""
    workers = draw.choice([0, 2])
    spec = {"workers": workers, "pause": {"forward": 0.02}, "epochs": 5}
    with bench.round("storm", keys=keys_of(times), **spec) as made:
        run = made.start(fault={"at": ["on_train_batch_end", 10], "how": "sleep", "seconds": 0.0})
        made.wait_for(made.begun.exists)
        started = time.monotonic()
        while not run.wait(0.001) and time.monotonic() < started + times.grace:
            run.signal(signal.SIGTERM, group=workers > 0)
        stopped = made.end(20.0, started, times.grace)
        made.check_saved(stopped, 143, stopped.last_boundary, "SIGTERM")
        made.resume(pause={})
        return f"step {stopped.newest}", stopped.elapsed


def interrupted_twice(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    """The second Ctrl-C, over a second later, ends it at once."""
    with bench.round("twice", keys=keys_of(times)) as made:
        run = made.start(fault={"at": ["forward", 10], "how": "lock"})
        made.wait_for(made.begun.exists)
        run.signal(signal.SIGINT)
        time.sleep(0.3)
        run.signal(signal.SIGINT)  # an impatient finger, within the second: nothing changes
        time.sleep(0.9)
        made.check(not run.wait(0), "ended by the second one, too soon after the first")
        stopped = made.stop(signal.SIGINT, within=0.7)
        made.check((stopped.code, stopped.newest) == (130, 7), f"{stopped.code}, {stopped.newest}")
        made.resume()
        return "at once", stopped.elapsed


def saves_and_goes_on(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    keys = keys_of(times, save_signal="SIGUSR1")
    with bench.round("save_signal", keys=keys, pause=PAUSE, workers=2) as made:
        run = made.start(fault={"at": ["on_train_batch_begin", 9], "how": "sleep", "seconds": 0.3})
        made.wait_for(made.begun.exists)
        for _ in range(3):
            run.signal(signal.SIGUSR1, group=True)
            time.sleep(draw.uniform(0.0, 0.05))
        found = made.end()
        made.check(found.code == 0, f"exit code {found.code}")
        asked = [step for step, reasons in found.reasons.items() if "signal" in reasons]
        made.check(asked == [9], f"saved for the signal: {asked}")
        made.check_equal(found, 0)
        return "step 9", found.elapsed


def saves_in_a_slow_step(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    """It is answered at the next boundary, and a SIGTERM after it is not forgotten."""
    keys = keys_of(times, save_signal="SIGUSR1")
    with bench.round("save_then_stop", keys=keys) as made:
        run = made.start(fault={"at": ["forward", 10], "how": "sleep", "seconds": times.slow})
        made.wait_for(made.begun.exists)
        run.signal(signal.SIGUSR1)
        time.sleep(draw.uniform(0.0, 0.2))
        stopped = made.stop(within=times.grace)
        made.check_saved(stopped, 143, 9, "SIGTERM")
        made.resume()
        return "step 9", stopped.elapsed


def stops_in_time(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    minutes = times.save / 12  # 1.5 s, 10 s
    keys = keys_of(times, stop_after_minutes=minutes)
    pause = {"on_train_batch_begin": minutes * 60 / 12}
    with bench.round("stop_after", keys=keys, pause=pause) as made:
        made.start()
        stopped = made.end()
        reason = "stop_after_minutes"
        made.check_saved(stopped, 143, stopped.last_boundary, reason)
        made.check(0 < stopped.last_boundary < 21, "it did not stop in the middle")
        made.resume(pause={}, keys=keys_of(times))
        return "stopped", stopped.elapsed


def stops_in_a_slow_step(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    minutes = times.save / 12
    with bench.round("stop_after_slow", keys=keys_of(times, stop_after_minutes=minutes)) as made:
        made.start(fault={"at": ["forward", 10], "how": "lock"})
        made.wait_for(made.has_logged)  # its minutes have begun before
        stopped = made.end(60.0, time.monotonic(), within=60 * minutes + times.grace)
        made.check_saved(stopped, 143, 9, "stop_after_minutes")
        made.resume(keys=keys_of(times))
        return "stopped", stopped.elapsed


CASES = [
    interrupted,
    hung_up,
    another_thread,
    stormed,
    interrupted_twice,
    saves_and_goes_on,
    saves_in_a_slow_step,
    stops_in_time,
    stops_in_a_slow_step,
]


def test_other_reasons(bench: Bench) -> None:
    several(
        lambda number, draw: CASES[number](bench, FAST, draw),
        rounds=len(CASES),
        at_once=len(CASES),
        name="other reasons",
    )


@pytest.mark.long(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_twenty_times(bench: Bench, case: Any) -> None:
    several(lambda _, draw: case(bench, FULL, draw), rounds=20, at_once=5, name=case.__name__)


def test_nohup_stays_deaf(bench: Bench) -> None:
    """What was ignored at the start stays ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with bench.round("nohup", plain=True, pause=PAUSE) as made:
            run = made.start()
            made.wait_for((made.folder / "log_0.jsonl").exists)
            for _ in range(5):
                run.signal(signal.SIGHUP, group=True)
                time.sleep(0.1)
            found = made.end()
            made.check(found.code == 0 and os.path.exists(made.save_dir), f"{found.code}")
            made.check_equal(found, 0)
    finally:
        signal.signal(signal.SIGHUP, before)
