"""A signal where no point can be saved: in the update, in the first step, with other weights."""

from __future__ import annotations

import random
import time
from typing import Any, Dict, Tuple

import pytest

from .harness import Bench, several
from .places import Times, fsync_of, keys_of, settle

FAST = Times(grace=4.0, save=0.3, slow=30.0)
FULL = Times(grace=8.0, save=2.0, slow=60.0)
WITHOUT_BEST = ["AutoResume", "PeriodicSaver", "EmergencySaver"]


def stuck_in_update(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    with bench.round("update", keys=keys_of(times), workers=2) as made:
        made.start(
            fault={"at": ["on_train_batch_end", 10], "how": "sleep", "seconds": times.slow},
            fsync=fsync_of(times.save),
        )
        made.wait_for(made.begun.exists)
        time.sleep(draw.uniform(0.0, 0.5))
        stopped = made.stop(group=draw.random() < 0.5, within=times.grace)
        made.check_named(stopped, 7)
        made.resume()
        return "step 7 named", stopped.elapsed


def slow_in_update(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    with bench.round("slow_update", keys=keys_of(times)) as made:
        made.start(
            fault={"at": ["on_train_batch_end", 10], "how": "sleep", "seconds": times.grace / 3},
            fsync=fsync_of(times.save),
        )
        made.wait_for(made.begun.exists)
        settle(made)
        time.sleep(draw.uniform(0.0, times.grace / 10))
        stopped = made.stop(within=times.grace)
        made.check_saved(stopped, 143, 10, "SIGTERM")
        made.resume()
        return "step 10 saved", stopped.elapsed


def nothing_saved_yet(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    with bench.round("nothing", keys=keys_of(times)) as made:
        made.start(
            fault={"at": ["on_train_batch_end", 2], "how": "sleep", "seconds": times.slow},
            fsync=fsync_of(times.save),
        )
        made.wait_for(made.begun.exists)
        time.sleep(draw.uniform(0.0, 0.5))
        stopped = made.stop(within=times.grace)
        made.check((stopped.code, stopped.newest) == (1, None), f"{stopped.code}")
        made.check("there is no checkpoint" in stopped.text, "it is not said")
        made.resume()
        return "nothing saved", stopped.elapsed


def first_step(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    with bench.round("first_step", keys=keys_of(times), workers=2) as made:
        made.start(
            fault={"at": ["forward", 1], "how": "sleep", "seconds": times.slow},
            fsync=fsync_of(times.save),
        )
        made.wait_for(made.begun.exists)
        time.sleep(draw.uniform(0.0, 0.5))
        stopped = made.stop(group=True, within=times.grace)
        made.check((stopped.code, stopped.newest) == (143, None), f"{stopped.code}")
        made.check("nothing was trained" in stopped.text, "it is not said")
        made.resume()
        return "nothing trained", stopped.elapsed


CASES = [stuck_in_update, slow_in_update, nothing_saved_yet, first_step]


def test_within_the_update(bench: Bench) -> None:
    several(
        lambda number, draw: CASES[number](bench, FAST, draw),
        rounds=len(CASES),
        at_once=len(CASES),
        name="update",
    )


@pytest.mark.long(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_twenty_times(bench: Bench, case: Any) -> None:
    several(lambda _, draw: case(bench, FULL, draw), rounds=20, at_once=5, name=case.__name__)


# ---------------------------------------------------------------------------- other weights


def swapped(bench: Bench, times: Times, draw: random.Random, **spec: Any) -> Tuple[str, float]:
    """A long evaluation of other weights, and nothing else that holds the epoch's end."""
    options: Dict[str, Any] = {"keys": keys_of(times), "average": True, **spec}
    with bench.round("swapped", **options) as made:
        made.start(
            fault={"at": ["eval_forward", 0, 1], "how": "sleep", "seconds": times.slow},
            fsync=fsync_of(times.save),
        )
        made.wait_for(made.begun.exists)
        time.sleep(draw.uniform(0.0, 0.5))
        stopped = made.stop(within=times.grace)
        made.check_named(stopped, 6)
        made.check("swapped" in stopped.text, "that the weights were swapped is not said")
        made.resume()
        return "nothing false saved", stopped.elapsed


def swapped_without_best(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    return swapped(bench, times, draw, ours=WITHOUT_BEST)


def swapped_for_a_while(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    """The evaluation ends in time, and with it the other weights."""
    pause = times.grace / 3 / 3
    with bench.round("for_a_while", keys=keys_of(times), average=True) as made:
        made.start(
            fault={"at": ["eval_forward", 0, 0], "how": "sleep", "seconds": 0.0},
            pause={"eval_forward": pause},
            fsync=fsync_of(times.save),
        )
        made.wait_for(made.begun.exists)
        time.sleep(draw.uniform(0.0, pause))
        stopped = made.stop(within=times.grace)
        made.check_saved(stopped, 143, 7, "SIGTERM")
        made.resume(pause={})
        return "saved after it", stopped.elapsed


def saved_before(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    """The epoch's end was saved before its evaluation, with the weights of the training."""
    keys = {"grace_seconds": times.grace}
    with bench.round("saved_before", keys=keys, average=True) as made:
        made.start(
            fault={"at": ["eval_forward", 0, 1], "how": "sleep", "seconds": times.slow},
            fsync=fsync_of(times.save),
        )
        made.wait_for(made.begun.exists)
        time.sleep(draw.uniform(0.0, 0.5))
        stopped = made.stop(within=times.grace)
        made.check_saved(stopped, 143, 7, "SIGTERM")
        made.check("epoch" in stopped.reasons[7], "it was not saved before")
        made.resume()
        return "step 7 stands", stopped.elapsed


def failed_while_swapped(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    with bench.round("failed_swapped", keys=keys_of(times), average=True) as made:
        fault = {"at": ["on_eval_batch_end", 0, 1], "how": "raise"}
        made.start(fault=fault, pause={"eval_forward": 0.3})
        stopped = made.end()
        made.check_named(stopped, 6)
        made.check("swapped" in stopped.text, "that the weights were swapped is not said")
        made.check(stopped.text.rstrip().endswith("Boom: at on_eval_batch_end"), "another error")
        made.resume(pause={})
        return "nothing false saved", stopped.elapsed


SWAPPED = [swapped, swapped_without_best, swapped_for_a_while, saved_before, failed_while_swapped]


def test_other_weights_in_the_evaluation(bench: Bench) -> None:
    several(
        lambda number, draw: SWAPPED[number](bench, FAST, draw),
        rounds=len(SWAPPED),
        at_once=len(SWAPPED),
        name="swapped",
    )


@pytest.mark.long(2)
@pytest.mark.parametrize("case", SWAPPED, ids=lambda case: case.__name__)
def test_other_weights_twenty_times(bench: Bench, case: Any) -> None:
    several(lambda _, draw: case(bench, FULL, draw), rounds=20, at_once=5, name=case.__name__)
