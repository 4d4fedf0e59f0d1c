"""A real training under strace: after a power cut at any point, it goes on as if none had been."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Optional

import pytest

from paddle_resume.checkpoint.layout import parse_folder_name
from paddle_resume.checkpoint.lineage import parse_resume_from
from paddle_resume.checkpoint.store import Store
from paddle_resume.resumer import ResumePolicy, start

from .check import LOST, Fault, Files, check_visible, checkpoints_in, lay_out
from .machine import STRACE, TESTS, Machine, recorded
from .model import Tree
from .scenarios import SAVE_DIR, save_dir_in
from .states import crash_states
from .tally import trying

SEED = 20251204
TRAINING = TESTS / "smoke" / "training.py"


def train(root: Path, out: Path, *under: str) -> Dict[str, Any]:
    """Trains to the end; returns the losses of each step and a hash of the weights."""
    command = [
        *under,
        sys.executable,
        str(TRAINING),
        str(out),
        "--save-dir",
        str(save_dir_in(root)),
    ]
    env = {**os.environ, "PYTHONPATH": str(TESTS.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return {str(line[:-1]): line[-1] for line in lines}


@pytest.mark.long(3)
def test_a_real_training_goes_on_exactly_after_a_power_cut(
    machine: Machine, memory: Path, tmp_path: Path
) -> None:
    root, log = tmp_path / "root", tmp_path / "strace"
    root.mkdir()
    expected = train(root, tmp_path / "out", *STRACE, "-o", str(log))
    recording = recorded(log.read_bytes(), root, {}, None)
    states = list(crash_states(recording.start, recording.ops, 4, SEED))
    for state in states:
        with trying("crash states of a real training"):
            around = recording.around(state.marks)
            check_visible(state.tree, around)
            lay_out(state.tree, memory)
            if answer_of(memory, state.tree) not in [newest_in(tree) for tree in around]:
                raise Fault(LOST, f"neither the old nor the new: after operation {state.point}")
    for number, state in enumerate(random.Random(SEED).sample(states, 8)):
        with trying("trainings after a power cut"):
            lay_out(state.tree, memory)
            found = train(memory, tmp_path / f"out{number}")
            assert found == {key: expected[key] for key in found}
            assert str(["weights"]) in found


def answer_of(root: Path, tree: Tree) -> Optional[Files]:
    """The files of the checkpoint that a start goes on from."""
    folder = save_dir_in(root)
    policy = ResumePolicy(parse_resume_from("auto"))
    plan, _ = start(Store(folder), policy, lambda path: contextlib.nullcontext(lambda *_: None))
    if plan.rejected:
        raise Fault(LOST, f"it could be seen and was not good: {plan.rejected}")
    if plan.source is None:
        return None
    return checkpoints_in(tree)[f"{SAVE_DIR}/{plan.source.name}"]


def newest_in(tree: Tree) -> Optional[Files]:
    """The files of the newest checkpoint."""
    found = {
        parse_folder_name(os.path.basename(path)): files
        for path, files in checkpoints_in(tree).items()
    }
    steps = [step for step in found if step is not None]
    return found[max(steps)] if steps else None
