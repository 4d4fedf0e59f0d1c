"""SIGTERM at random moments of a training without anything slow: no step is lost or done twice."""

from __future__ import annotations

import random
import signal
from typing import Any, List

import pytest

from .harness import Bench, Round, Stopped, seed, step_of


@pytest.mark.parametrize(
    ("count", "workers", "accumulate"),
    [
        (6, 0, 1),
        (6, 2, 2),
        pytest.param(100, 0, 2, marks=pytest.mark.long(2)),
        pytest.param(100, 2, 1, marks=pytest.mark.long(2)),
    ],
)
def test_stopped_at_random_moments(bench: Bench, count: int, workers: int, accumulate: int) -> None:
    first = seed()
    draw = random.Random(f"{first}/{count}/{workers}")
    print(f"PADDLE_RESUME_SEED={first}")
    keys = {"snapshot_step": 5, "grace_seconds": 8, "save_signal": "SIGUSR1"}
    longest, early, before = 0.0, 0, 0
    # Long enough on the fastest machine: each step takes its time, and a stop comes within 0.4 s.
    spec = {"epochs": (2 if workers else 4) * count, "pause": {"forward": 0.02}}
    with bench.round("random", workers=workers, accumulate=accumulate, keys=keys, **spec) as made:
        batches: List[List[Any]] = []
        for number in range(count):
            run = made.start()
            if number % 4:  # else also on the way to the first step
                made.wait_for(made.has_logged)
            run.wait(draw.uniform(0.0, 0.4 if number % 4 else 1.2))
            if number % 4 and draw.random() < 0.3:
                run.signal(signal.SIGUSR1, group=workers > 0)
            found = made.stop(group=workers > 0, often=draw.choice([1, 1, 3]), within=8.0)
            longest = max(longest, found.elapsed)
            if found.code == 0:
                break  # the training is over
            heard = "SIGTERM: saving at the next step" in found.text
            early += not heard
            expected = [143] if heard or found.batches else [143, -signal.SIGTERM]
            made.check(found.code in expected, f"exit code {found.code}")
            made.check((found.newest or 0) == (found.last_boundary or before), "a step is lost")
            batches += check_goes_on(made, found, before)
            before = found.newest or 0
        else:
            made.start()
            found = made.end(200.0)
            made.check(found.code == 0, f"exit code {found.code}")
        batches += check_goes_on(made, found, before)
        reference = bench.reference(made.spec)
        made.check(batches == reference.batches, "another training")
        made.check(found.events[-1] == reference.events[-1], "another end")
        stops = len(made.stopped) - 1
        print(f"{stops} stops ({early} before fit), {len(batches)} steps, up to {longest:.2f} s")
        made.check(stops > count // 2, "the run was over too soon")


def check_goes_on(made: Round, found: Stopped, before: int) -> List[List[Any]]:
    """The attempt's steps follow on those before it."""
    got = [step_of(event) for event in found.batches]
    expected = list(range(before + 1, before + 1 + len(got)))
    made.check(got == expected, f"goes on after {before} with {got[:3]}")
    return found.batches
