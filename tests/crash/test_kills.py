"""SIGKILL at each system call of a save, and at random moments: the old or the new is there."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import List, Optional, Tuple

import pytest

from .check import Judge, lay_out
from .machine import Machine, Recording
from .model import tree_of
from .scenarios import SCENARIOS
from .tally import trying

SEED = 20251202
SAMPLE = 2


def kill_points(recording: Recording) -> List[Tuple[str, int]]:
    """Returns each system call of a recording as its name and its number among those."""
    points, count = [], Counter()  # type: ignore[var-annotated]
    for call in recording.calls:
        count[call.thread, call.name] += 1
        points.append((call.name, count[call.thread, call.name]))
    return list(dict.fromkeys(points))


@pytest.mark.parametrize("count", [SAMPLE, pytest.param(None, marks=pytest.mark.long(3))])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_kill_at_any_system_call_leaves_the_old_or_the_new(
    machine: Machine, memory: Path, name: str, count: Optional[int]
) -> None:
    recording = machine.record(name)
    judge = Judge(SCENARIOS[name], recording.views, memory)
    points = kill_points(recording)
    if count is not None:
        points = random.Random(SEED).sample(points, count)
    killed = 0
    for point in points:
        root, where = machine.folder(), machine.folder()
        lay_out(recording.start.tree(), root)
        status = machine.play(name, root, where, kill_at=point)
        killed += status == -signal.SIGKILL
        if status == -signal.SIGKILL:
            _judge(judge, root, where, f"{name}, killed at {point[0]} number {point[1]}")
    assert killed >= 0.9 * len(points), "most points were not reached"


@pytest.mark.parametrize("count", [5, pytest.param(150, marks=pytest.mark.long(3))])
@pytest.mark.parametrize("name", ["save in the background", "best"])
def test_a_kill_at_a_random_moment_leaves_the_old_or_the_new(
    machine: Machine, memory: Path, name: str, count: int
) -> None:
    recording, draw = machine.record(name), random.Random(SEED)
    judge = Judge(SCENARIOS[name], recording.views, memory)
    killed, takes_s = 0, 0.05
    for _ in range(4 * count):
        root, where = machine.folder(), machine.folder()
        lay_out(recording.start.tree(), root)
        began = time.monotonic()
        after = draw.uniform(0, takes_s)
        status = machine.play(name, root, where, kill_after=after)
        if status == 0:
            takes_s = time.monotonic() - began
            continue
        _judge(judge, root, where, f"{name}, killed after {after:.4f} s")
        killed += 1
        if killed == count:
            break
    assert killed == count, f"only {killed} of them were killed before their end"


def _judge(judge: Judge, root: Path, where: Path, what: str) -> None:
    marks = where / "marks"
    passed = len(marks.read_text().splitlines()) if marks.exists() else 0
    try:
        with trying("kills"):
            judge.after_crash(tree_of(root), passed)
    except Exception as error:
        raise AssertionError(f"{what}, {passed} marks passed:\n{error}") from error
    shutil.rmtree(root)
    shutil.rmtree(where)
