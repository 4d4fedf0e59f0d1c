"""Saves in one go, killed at random moments and started again: nothing is lost, nothing leaks."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest

from paddle_resume.checkpoint.layout import parse_folder_name
from paddle_resume.checkpoint.store import Store

from .machine import TESTS
from .run import KEPT
from .soaking import SAID_EVERY
from .tally import count, trying

SEED = 20251203
NAMED = {".lock", "events.jsonl", "latest", "best", "best.json"}
PLACES = KEPT + 1
"""The newest and the best."""


def start(save_dir: Path, samples: Path, steps: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "crash.soaking", str(save_dir), str(samples), str(steps)]
    path = f"{TESTS.parent}{os.pathsep}{TESTS}"
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("steps", "calm", "life", "most_s"),
    [(200, 100, 25, 120), pytest.param(10_000, 2_500, 80, 3600, marks=pytest.mark.long(3))],
)
def test_saves_in_one_go_leave_nothing_behind(
    tmp_path: Path, steps: int, calm: int, life: int, most_s: float
) -> None:
    """The last `calm` saves are made by one process, the others by ones of `life` on average."""
    draw, deadline = random.Random(SEED), time.monotonic() + most_s
    save_dir, samples = tmp_path / "run", tmp_path / "samples.jsonl"
    kills, newest = 0, 0
    while True:
        assert time.monotonic() < deadline, f"{newest} of {steps} saves within {most_s} s"
        child = start(save_dir, samples, steps)
        assert child.stdout is not None and child.stderr is not None
        said = child.stdout.readline()
        assert said, child.stderr.read()
        assert int(said) == newest, f"it goes on from step {said}, {newest} was the newest"
        if newest >= steps - calm:
            _, errors = child.communicate(timeout=most_s)
            assert child.returncode == 0, errors
            break
        for _ in range(round(draw.expovariate(1 / life)) // SAID_EVERY):
            child.stdout.readline()
        time.sleep(draw.uniform(0, 0.05))
        child.kill()
        child.communicate()
        with trying("kills in the soak"):
            kills += 1
            newest = after_kill(save_dir, newest)
    count("saves in the soak", steps)
    store = Store(save_dir)
    assert store.path_of(steps) in store.checkpoints()
    assert len(store.checkpoints()) <= PLACES
    other = {name for name in os.listdir(save_dir) if parse_folder_name(name) is None}
    assert other <= {*NAMED, "finished.json"}, "something is left"
    lives = by_process(samples)
    print(f"{steps} saves, {kills} kills, seed {SEED}; the last process: {lives[-1][-1]}")
    assert kills >= 2
    assert_no_growth(lives)


def after_kill(save_dir: Path, before: int) -> int:
    """Checks what a kill has left; returns the newest step."""
    store = Store(save_dir)
    found = store.checkpoints()
    for path in found:
        store.verify(path)
    # One more: it may have been killed between its commit and its deletion.
    assert len(found) <= PLACES + 1, found
    left = [name for name in os.listdir(save_dir) if name.startswith(".tmp-")]
    assert len(left) <= 2, f"more is left than one save and one deletion: {left}"
    newest = parse_folder_name(found[-1].name) if found else 0
    assert newest is not None and newest >= before, "a checkpoint was lost"
    return newest


def by_process(samples: Path) -> List[List[Dict[str, Any]]]:
    """Returns the samples of each process, in the order of their starts."""
    lives: Dict[int, List[Dict[str, Any]]] = {}
    for line in samples.read_text().splitlines():
        sample = json.loads(line)
        lives.setdefault(sample["pid"], []).append(sample)
    return list(lives.values())


def assert_no_growth(lives: List[List[Dict[str, Any]]]) -> None:
    """Fails where a process holds more and more, or a later one more than the first."""
    every = [sample for life in lives for sample in life]
    for what in ("descriptors", "threads"):
        found = [sample[what] for sample in every]
        assert max(found) - min(found) <= 1, f"{what} from {min(found)} to {max(found)}"
    last = lives[-1]
    grown = last[-1]["memory"] / last[min(3, len(last) - 1)]["memory"]
    assert grown < 1.05, f"the last process holds {grown:.2f} times what it held after its start"
