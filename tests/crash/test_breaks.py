"""Each fsync, rename and checksum, turned off in the code: a test here fails."""

from __future__ import annotations

from pathlib import Path
from typing import Dict

import pytest

from .breaks import BREAKS
from .check import Fault, Judge
from .machine import Machine
from .scenarios import SCENARIOS
from .states import crash_states, lying_states
from .test_power_cuts import NEWEST, SEED

READERS = ("checksum of a file", "checksum of the manifest")
FOUND_BY: Dict[str, str] = {
    "fsync of a data file": "save and retention",
    "fsync of the state file": "save and retention",
    "fsync of the manifest": "save and retention",
    "fsync of the temporary folder": "save and retention",
    "fsync after the commit": "save and retention",
    "fsync above save_dir": "first save",
    "fsync after a link": "first save",
    "fsync before a deletion": "save and retention",
    "fsync of a replaced file": "end",
    "fsync after a replacement": "end",
    "fsync after setting aside": "damaged newest",
    "fsync after leaving behind": "another line",
    "rename that commits": "save and retention",
    "rename of a link": "save and retention",
    "rename of a replaced file": "end",
    "rename before a deletion": "save and retention",
}


def test_each_break_is_looked_for() -> None:
    assert {*FOUND_BY, *READERS} == set(BREAKS)


@pytest.mark.parametrize("broken", FOUND_BY)
def test_a_barrier_that_is_left_out_is_noticed(machine: Machine, memory: Path, broken: str) -> None:
    name = FOUND_BY[broken]
    recording = machine.record(name, broken)
    judge = Judge(SCENARIOS[name], recording.views, memory)
    with pytest.raises(Fault) as noticed:
        # The last ones first: what was promised by then is noticed soonest.
        for state in reversed([*crash_states(recording.start, recording.ops, 6, SEED)]):
            judge.after_crash(state.tree, state.marks)
    print(f"without the {broken}: {noticed.value}")


@pytest.mark.parametrize("broken", READERS)
def test_a_checksum_that_is_not_compared_is_noticed(
    machine: Machine, memory: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "save and retention"
    recording = machine.record(name)
    judge = Judge(SCENARIOS[name], recording.views, memory)
    for patch in BREAKS[broken]:
        monkeypatch.setattr(*patch)
    newest = f"output/run1/{NEWEST[name]}"
    with pytest.raises(Fault) as noticed:
        for tree in lying_states(recording.views[-1], newest, 200, SEED):
            judge.after_lie(tree)
    print(f"without the {broken}: {noticed.value}")
