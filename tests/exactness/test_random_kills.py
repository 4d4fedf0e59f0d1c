"""One run killed at many random moments, until it has come to its end."""

from __future__ import annotations

import os
import random
from typing import List, Tuple

import pytest

from .configs import Config, Kill
from .harness import Harness

SEED = 20240611
LONGEST = 1.1
"""Seconds: within them a start gets well into its training."""


def moments(count: int, seed: int) -> Tuple[Kill, ...]:
    """Returns kills after random times from the start, the same ones in each session."""
    draw = random.Random(seed)
    return tuple(Kill(("after", round(draw.uniform(0.02, LONGEST), 3))) for _ in range(count))


def long_run(count: int, workers: int) -> Config:
    """Returns a training that is not over before it has been killed `count` times."""
    return Config(
        f"random_kills_{workers}_workers",
        network="full",
        optimizer="adamw",
        decay=0.01,
        schedule="cosine",
        clip="global_norm",
        accumulate=2,
        data="loader",
        sampler="random",
        augment=("numpy", "python") if workers else (),
        workers=workers,
        callbacks=("draws",),
        samples=80,
        epochs=6 * count if workers == 0 else 4 * count,
        pause=0.005,
        save={"snapshot_step": 1},
    )


@pytest.mark.parametrize(
    ("count", "workers"),
    [
        pytest.param(8, 0, marks=pytest.mark.sample),
        pytest.param(100, 0, marks=pytest.mark.long(1)),
        pytest.param(100, 2, marks=pytest.mark.long(1)),
    ],
)
def test_a_run_killed_at_random_moments_ends_equal(
    harness: Harness, count: int, workers: int
) -> None:
    seed = int(os.environ.get("PADDLE_RESUME_SEED", SEED))
    config, kills = long_run(count, workers), moments(count, seed)
    print(f"{count} kills, PADDLE_RESUME_SEED={seed}, after", [kill.at[1] for kill in kills])
    reference = harness.reference(config)
    trail = harness.trail(config, kills)
    newest: List[int] = [0]
    for kill in kills:
        attempt = harness.attempt(trail, kill)
        if attempt.code == 0:
            break
        if attempt.code != -9:
            trail.fail(f"attempt {attempt.number} ended by itself")
        harness.nothing_left(trail)
        newest.append(attempt.newest or 0)
    else:
        attempt = harness.attempt(trail)
    killed = len(newest) - 1
    print(f"killed {killed} times; the newest checkpoint after each: {newest[1:]}")
    if attempt.code != 0:
        trail.fail(f"the last attempt ended with exit code {attempt.code}")
    harness.nothing_left(trail)
    harness.compare(trail, reference)
    assert newest == sorted(newest), "a checkpoint was lost"
    assert len(set(newest)) > killed // 3, "hardly any progress from one kill to the next"
    assert killed > count // 2, "the run was over too soon to be killed often enough"
