"""A signal and something else at the same moment."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any, Dict

import pytest

import paddle_resume as pr

from .runs import Starter, until
from .test_signals import expected, goes_on, steps

__all__ = ["expected"]


@pytest.mark.parametrize("saves_exceptions", [True, False])
def test_an_error_after_a_signal_is_a_stop(
    tmp_path: Path, start: Starter, expected: Dict[str, str], saves_exceptions: bool
) -> None:
    """A signal to all of a job ends its helpers too, and then the step fails without them."""
    folder = tmp_path / "run"
    keys = {"on_exception": saves_exceptions}
    run = start("train", folder=str(folder), pace=0, slow={"5": 0.3}, fails=5, keys=keys)
    run.wait_for("forward 5")
    run.signal(signal.SIGTERM)
    assert run.end() == 143
    assert "ValueError: the step has failed" in run.log
    assert steps(folder)[-1] == 4
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    stops = [event for event in events if event["event"] == "signal"]
    assert [(event["reason"], event["saved"]) for event in stops] == [("SIGTERM", True)]
    goes_on(start, folder, 4, expected["shuffled"])


@pytest.mark.parametrize("saves_exceptions", [True, False])
def test_an_error_while_the_watcher_saves(
    tmp_path: Path, start: Starter, expected: Dict[str, str], saves_exceptions: bool
) -> None:
    """It waits for the save in flight, when the step fails: what it commits is whole."""
    folder = tmp_path / "run"
    keys = {"on_exception": saves_exceptions, "snapshot_step": 3, "grace_seconds": 5}
    run = start(
        "train",
        folder=str(folder),
        pace=0,
        slow={"5": 2.6},  # the watcher begins after 2 s, as long as no save was measured
        fails=5,
        keys=keys,
        slow_save=[3, 0.7],
    )
    run.wait_for("forward 5")
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.log
    for checkpoint in pr.checkpoints(folder):
        assert pr.load(checkpoint)["model"], "an empty checkpoint"
    assert steps(folder)[-1] == 4
    goes_on(start, folder, 4, expected["shuffled"])


def test_with_more_open_files_than_select_knows(
    tmp_path: Path, start: Starter, expected: Dict[str, str]
) -> None:
    folder = tmp_path / "run"
    run = start("train", folder=str(folder), descriptors=1100)
    run.wait_for("begin 5")
    assert int(run.told("descriptors")) >= 1024
    run.signal(signal.SIGTERM)
    assert run.end() == 143
    goes_on(start, folder, steps(folder)[-1], expected["shuffled"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_an_error_is_on_its_way_out(
    tmp_path: Path, start: Starter, number: int
) -> None:
    """The save in flight keeps the way out busy; what the signal does is what it did before."""
    folder = tmp_path / "run"
    run = start(
        "train",
        folder=str(folder),
        pace=0,
        slow={"5": 0.1},
        fails=5,
        keys={"snapshot_step": 4},
        slow_save=[4, 0.3],
    )
    run.wait_for("forward 5")
    until(lambda: "saved step 4" in run.log or run.signal(number) is None, "signalled")
    code = run.end()
    assert code in (-number, 128 + number, 1), run.log
    assert "RecursionError" not in run.log
    assert steps(folder)[-1] == 4


def test_the_scripts_own_hooks_come_back(tmp_path: Path) -> None:
    from fit.models import fit, make

    model = make()
    optimizer: Any = model._optimizer
    plain, calls = optimizer.minimize, []

    def minimize(*arguments: Any) -> Any:
        calls.append(1)
        return plain(*arguments)

    optimizer.minimize = minimize
    fit(model, pr.resume_callbacks(tmp_path), epochs=1)
    assert vars(optimizer)["minimize"] is minimize and calls
