"""Whatever a power cut leaves, the next start goes on from the old or the new checkpoint."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Optional

import pytest

from .check import Judge
from .machine import Machine
from .scenarios import SCENARIOS
from .states import crash_states, lying_states
from .tally import trying

SEED = 20251201
SAMPLE = 15
NEWEST = {
    "save and retention": "step_00000004",
    "best": "step_00000006",
    "another line with a best": "step_00000003",
}


@pytest.mark.parametrize("most", [None, pytest.param(16, marks=pytest.mark.long(3))])
@pytest.mark.parametrize("name", SCENARIOS)
def test_after_a_power_cut_at_any_point_the_old_or_the_new_is_there(
    machine: Machine, memory: Path, name: str, most: Optional[int]
) -> None:
    recording = machine.record(name)
    judge = Judge(SCENARIOS[name], recording.views, memory)
    states = list(crash_states(recording.start, recording.ops, most or 2, SEED))
    if most is None:
        states = random.Random(SEED).sample(states, SAMPLE)
    for number, state in enumerate(states):
        try:
            with trying("crash states"):
                judge.after_crash(state.tree, state.marks)
        except Exception as error:
            did = recording.ops[max(0, state.point - 3) : state.point]
            raise AssertionError(
                f"{name}, state {number} of seed {SEED}, after operation {state.point}, the last "
                f"of {did!r:.600}:\n{error}"
            ) from error


@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.long(3))])
@pytest.mark.parametrize("name", NEWEST)
def test_a_disk_that_lost_what_it_promised_costs_a_checkpoint_and_no_more(
    machine: Machine, memory: Path, name: str, count: int
) -> None:
    recording = machine.record(name)
    judge = Judge(SCENARIOS[name], recording.views, memory)
    newest = f"output/run1/{NEWEST[name]}"
    for tree in lying_states(recording.views[-1], newest, count, SEED):
        with trying("states of a lying disk"):
            judge.after_lie(tree)
