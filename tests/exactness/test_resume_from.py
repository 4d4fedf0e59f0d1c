"""`resume_from` names where a run starts; started again, it goes on from its own newest one."""

from __future__ import annotations

from pathlib import Path
from typing import List

import pytest

from .configs import Config, Kill
from .harness import Harness, checkpoint_steps

CONFIG = Config(
    "resume_from",
    network="full",
    schedule="cosine",
    data="loader",
    sampler="random",
    callbacks=("draws",),
    save={"snapshot_step": 1, "keep_checkpoint_max": None},
)
BRANCHED = 11
"""The step that the older branch came to."""


def set_aside(save_dir: Path) -> List[int]:
    """Returns the steps whose checkpoints are in `.before-*`."""
    return sorted(
        step for folder in save_dir.glob(".before-*") for step in checkpoint_steps(folder)
    )


@pytest.mark.parametrize(
    ("resume_from", "start"),
    [
        pytest.param("best", 5, marks=pytest.mark.sample),
        pytest.param("step:7", 7, marks=pytest.mark.long(1)),  # the end of an epoch
        pytest.param("step:4", 4, marks=pytest.mark.long(1)),
        pytest.param("epoch:1", 7, marks=pytest.mark.long(1)),
        pytest.param("never", 0, marks=pytest.mark.sample),
    ],
)
def test_a_run_started_from_elsewhere_goes_on_from_itself(
    harness: Harness, resume_from: str, start: int
) -> None:
    reference = harness.reference(CONFIG)
    first, second = Kill(("batch_end", 1, 1)), Kill(("batch_end", 1, 5))
    trail = harness.trail(CONFIG, (Kill(("batch_end", 1, 4)), first, second), f"_{start}")
    harness.attempt(trail, trail.kills[0], settle=BRANCHED)
    assert checkpoint_steps(trail.save_dir) == list(range(1, BRANCHED + 1))
    if resume_from == "best":
        (trail.save_dir / "best").symlink_to("step_00000005")
    older = list(range(start + 1, BRANCHED + 1))

    asked = {"resume_from": resume_from}
    for kill, settle in ((first, 8), (second, 12)):
        attempt = harness.attempt(trail, kill, settle=settle, resume=asked)
        if attempt.code != -9:
            trail.fail(f"attempt {attempt.number} was not killed at {kill}")
        if attempt.newest != settle:
            trail.fail(f"step {settle} was to be the newest checkpoint, not {attempt.newest}")
        if set_aside(trail.save_dir) != older:
            trail.fail(f"{set_aside(trail.save_dir)} are set aside, not all of {older}")
    attempt = harness.attempt(trail, resume=asked)
    if attempt.code != 0:
        trail.fail(f"the last attempt ended with exit code {attempt.code}")
    harness.nothing_left(trail)

    harness.compare(trail, reference, starts={1: start})
    assert set_aside(trail.save_dir) == older, "something of the older branch is lost"
    last = sum(event[0] == "batch_end" for event in reference)
    assert checkpoint_steps(trail.save_dir) == list(range(1, last + 1))
