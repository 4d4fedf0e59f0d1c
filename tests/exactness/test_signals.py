"""Stopped by a signal or an exception, a training goes on from that very step, bit for bit.

All four callbacks are there, PeriodicSaver's triggers are off. `make test` runs the sample of
`stopping.py`; PADDLE_RESUME_LONG=1 every training at every point.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import List, Tuple

import pytest

from .configs import CONFIGS, Config, Kill
from .harness import Harness
from .stopping import SAMPLE, SIGNALS, STOPPED, TRAIN_END, exception_lists, signal_lists
from .test_random_kills import LONGEST, SEED, long_run

Case = Tuple[Config, Tuple[Kill, ...]]


def names_of(cases: List[Case]) -> List[str]:
    return [f"{config.name}:{'+'.join(str(kill) for kill in kills)}" for config, kills in cases]


BY_SIGNALS = [(config, kills) for config in STOPPED.values() for kills in signal_lists(config)]
BY_EXCEPTIONS = [
    (config, kills) for config in STOPPED.values() for kills in exception_lists(config)
]


@pytest.mark.sample
@pytest.mark.parametrize(("config", "kills"), SAMPLE, ids=names_of(SAMPLE))
def test_a_stopped_training_goes_on_from_that_very_step(
    harness: Harness, config: Config, kills: Tuple[Kill, ...]
) -> None:
    count = len(BY_SIGNALS) + len(BY_EXCEPTIONS)
    print(f"one of the {len(SAMPLE)} cases of the fixed sample; {count} are there in all")
    harness.check_stopped(config, kills)


@pytest.mark.long(2)
@pytest.mark.parametrize(("config", "kills"), BY_SIGNALS, ids=names_of(BY_SIGNALS))
def test_every_training_goes_on_from_every_signal(
    harness: Harness, config: Config, kills: Tuple[Kill, ...]
) -> None:
    harness.check_stopped(config, kills)


@pytest.mark.long(2)
@pytest.mark.parametrize(("config", "kills"), BY_EXCEPTIONS, ids=names_of(BY_EXCEPTIONS))
def test_every_training_goes_on_from_every_exception(
    harness: Harness, config: Config, kills: Tuple[Kill, ...]
) -> None:
    harness.check_stopped(config, kills)


# What ends the last epoch (on_epoch_end, the evaluation) comes after its last boundary.


@pytest.mark.long(2)
@pytest.mark.parametrize(
    "name",
    list(STOPPED),
)
def test_a_training_stopped_when_it_is_over_gives_its_final_state(
    harness: Harness, name: str
) -> None:
    harness.check_stopped(STOPPED[name], (TRAIN_END,))


def test_each_signal_comes_at_each_kind_of_point() -> None:
    assert {config.name for config, _ in BY_SIGNALS} == {*CONFIGS, "swapped"}
    assert {config.name for config, _ in BY_EXCEPTIONS} == {*CONFIGS, "swapped"}
    found = {(kill.at[0], kill.by) for _, kills in BY_SIGNALS for kill in kills}
    points = ("batch_begin", "batch_end", "eval_batch_end")
    assert found >= {(point, name) for point in points for name in SIGNALS}
    failing = {kill.at[0] for _, kills in BY_EXCEPTIONS for kill in kills}
    assert failing == {"epoch_begin", "batch_begin", "epoch_end", "eval_batch_end"}


@pytest.mark.parametrize(
    ("name", "kill"),
    [
        ("swapped", Kill(("eval_batch_end", 0, 1), by="exception")),
        ("full", Kill(("batch_end", 0, 3), by="exception")),
    ],
    ids=["swapped weights", "within a step"],
)
def test_where_no_point_is_nothing_is_saved_and_nothing_is_false(
    harness: Harness, name: str, kill: Kill
) -> None:
    config = replace(STOPPED[name], save={"snapshot_epoch": None, "snapshot_step": 2})
    trail = harness.trail(config, (kill,))
    settle = harness.due(config, harness.reference(config), kill)
    failed = harness.attempt(trail, kill, settle=settle)
    if failed.code != 1 or failed.newest != settle:
        trail.fail(f"step {settle}, the newest from before, was to stay the newest")
    said = failed.tail(100)
    if "there is nothing whole to save: the newest checkpoint is " not in said:
        trail.fail("the newest checkpoint was to be named")
    harness.nothing_left(trail)
    harness.attempt(trail)
    harness.compare(trail, harness.reference(config))


# ---------------------------------------------------------------------------- random moments


def moments(count: int, seed: int) -> Tuple[Kill, ...]:
    """Returns signals after random times from the start, the same ones in each session."""
    draw = random.Random(seed)
    return tuple(
        Kill(("after", round(draw.uniform(0.02, LONGEST), 3)), by=SIGNALS[number % 3])
        for number in range(count)
    )


@pytest.mark.parametrize(
    ("count", "workers"),
    [
        pytest.param(4, 0, marks=pytest.mark.sample),
        pytest.param(4, 2),
        pytest.param(100, 0, marks=pytest.mark.long(2)),
        pytest.param(100, 2, marks=pytest.mark.long(2)),
    ],
)
def test_a_run_stopped_at_random_moments_ends_equal(
    harness: Harness, count: int, workers: int
) -> None:
    seed = int(os.environ.get("PADDLE_RESUME_SEED", SEED))
    none = {"snapshot_epoch": None, "snapshot_step": None}
    config = replace(long_run(count, workers), ours="3120", save=none)
    kills = moments(count, seed)
    print(f"{count} signals, PADDLE_RESUME_SEED={seed}, after", [str(kill) for kill in kills])
    reference = harness.reference(config)
    trail = harness.trail(config, kills)
    stopped = before_fit = 0
    for kill in kills:
        attempt = harness.attempt(trail, kill)
        harness.nothing_left(trail)
        if attempt.code == 0:
            break
        if attempt.code < 0:  # before fit had begun, the signal does what it always does
            if attempt.batches:
                trail.fail(f"attempt {attempt.number} trained, and the signal just killed it")
            before_fit += 1
            continue
        harness.all_saved(trail)
        stopped += 1
    else:
        attempt = harness.attempt(trail)
    print(f"stopped {stopped} times, killed before fit {before_fit} times")
    if attempt.code != 0:
        trail.fail(f"the last attempt ended with exit code {attempt.code}")
    harness.nothing_left(trail)
    harness.compare(trail, reference)
    assert stopped >= max(1, count // 3), "the run was hardly ever stopped while it trained"
