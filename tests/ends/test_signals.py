"""A signal saves the last boundary and ends the process; what it must not do to others."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest
from fit.models import STEPS, disk, fill

import paddle_resume as pr

from .runs import Run, Starter, until

EPOCHS = 3
LAST = EPOCHS * STEPS


@pytest.fixture(scope="module")
def expected(starter: Starter) -> Dict[str, str]:
    """Returns the end of the uninterrupted trainings: shuffled, and in order."""
    runs = {
        "shuffled": starter("train", pace=0),
        "in order": starter("train", pace=0, slow_data={"0": 0}),
    }
    assert [run.end() for run in runs.values()] == [0, 0]
    return {name: run.told("digest") for name, run in runs.items()}


def steps(folder: Path) -> List[int]:
    """The steps that are saved."""
    return [checkpoint.step for checkpoint in pr.checkpoints(folder)] if folder.exists() else []


def goes_on(start: Starter, folder: Path, after: int, expected: str, **ask: Any) -> Run:
    """Starts it again: it goes on right there, to the very same end."""
    run = start("train", folder=str(folder), pace=0, **ask)
    assert run.end() == 0, run.log
    assert run.steps() == list(range(after + 1, LAST + 1))
    assert run.told("digest") == expected
    assert (folder / "finished.json").exists()
    return run


@pytest.mark.parametrize("name, code", [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129)])
@pytest.mark.parametrize("moment", ["begin 5", "done 5"])
def test_saves_the_last_boundary_and_ends(
    tmp_path: Path, start: Starter, expected: Dict[str, str], name: str, code: int, moment: str
) -> None:
    folder = tmp_path / "run"
    keys = {"snapshot_epoch": None}
    run = start("train", folder=str(folder), keys=keys, atexit=True)
    run.wait_for(moment)
    run.signal(getattr(signal, name))
    assert run.end() == code
    assert f"{name}: saving at the next step" in run.log
    assert "Traceback" not in run.log
    assert steps(folder) == [run.steps()[-1]], "the last boundary"
    assert run.words[-3:] == [f"left {code}", "finally", "atexit"]
    assert [c.reason for c in pr.checkpoints(folder)] == [name]
    goes_on(start, folder, run.steps()[-1], expected["shuffled"])


def test_a_new_interpreter_ends_alike(tmp_path: Path, start: Starter) -> None:
    folder = tmp_path / "run"
    run = start.new("train", [], [], folder=str(folder), atexit=True)
    run.wait_for("begin 5")
    run.signal(signal.SIGTERM)
    assert run.end() == 143
    assert run.words[-3:] == ["left 143", "finally", "atexit"]
    assert steps(folder)[-1] == run.steps()[-1]


@pytest.mark.parametrize("name, code", [("SIGTERM", 143), ("SIGINT", 130)])
def test_signals_change_nothing_on_the_way_out(
    tmp_path: Path, start: Starter, name: str, code: int
) -> None:
    """They come in the script's `finally`, at the end of the script, and in its atexit function."""
    ask = {"folder": str(tmp_path / "run"), "atexit": True, "slow_exit": 0.4}
    run = start.new("train", [], [], **ask)
    run.wait_for("begin 5")
    for _ in range(9):
        run.signal(getattr(signal, name))
        time.sleep(0.1)
        if not run.is_alive():
            break
    assert run.end() == code
    assert run.words[-2:] == ["finally", "atexit"]
    assert "second Ctrl-C" not in run.log


def test_signals_that_launchers_repeat_change_nothing(
    tmp_path: Path, start: Starter, expected: Dict[str, str]
) -> None:
    folder = tmp_path / "run"
    run = start("train", folder=str(folder), slow={"5": 0.8}, pace=0)
    run.wait_for("forward 5")
    for _ in range(3):
        run.signal(signal.SIGTERM)
        time.sleep(0.2)
    assert run.end() == 143
    assert steps(folder)[-1] == run.steps()[-1] == 5
    assert run.log.count("saving at the next step") == 1
    goes_on(start, folder, 5, expected["shuffled"])


def test_a_second_interrupt_after_a_second_ends_at_once(tmp_path: Path, start: Starter) -> None:
    folder = tmp_path / "run"
    keys = {"snapshot_step": 2}
    run = start("train", folder=str(folder), slow={"5": 60.0}, pace=0.0, keys=keys)
    run.wait_for("forward 5")
    run.signal(signal.SIGINT)
    until(lambda: "saving at the next step" in run.log, "the first is noticed")
    time.sleep(1.1)
    began = time.monotonic()
    run.signal(signal.SIGINT)
    assert run.end() == 130
    assert time.monotonic() - began < 0.5
    assert "step_00000004" in run.log.splitlines()[-1], "it names the newest checkpoint"
    assert "finally" not in run.words
    assert steps(folder)[-1] == 4


def test_a_second_interrupt_within_a_second_does_not(tmp_path: Path, start: Starter) -> None:
    folder = tmp_path / "run"
    run = start("train", folder=str(folder), slow={"5": 1.5}, pace=0.0)
    run.wait_for("forward 5")
    for _ in range(3):
        run.signal(signal.SIGINT)
        time.sleep(0.25)
    assert run.end() == 130
    assert "finally" in run.words
    assert steps(folder)[-1] == 5
    assert "second Ctrl-C" not in run.log


def test_what_is_ignored_at_the_start_stays_ignored(
    tmp_path: Path, start: Starter, expected: Dict[str, str]
) -> None:
    folder = tmp_path / "run"
    run = start.new("train", ["nohup"], [signal.SIGTERM], folder=str(folder))
    for moment in ("begin 2", "begin 5"):
        run.wait_for(moment)
        for number in (signal.SIGHUP, signal.SIGTERM):
            run.signal(number)
    assert run.end() == 0, run.log
    assert run.told("digest") == expected["shuffled"]
    assert run.steps() == list(range(1, LAST + 1))
    assert "saving at the next step" not in run.log


def test_nohup_leaves_the_other_signals(tmp_path: Path, start: Starter) -> None:
    folder = tmp_path / "run"
    run = start.new("train", ["nohup"], [], folder=str(folder))
    run.wait_for("begin 3")
    run.signal(signal.SIGHUP)
    run.wait_for("begin 5")
    run.signal(signal.SIGTERM)
    assert run.end() == 143
    assert steps(folder)[-1] == run.steps()[-1] >= 4


@pytest.mark.parametrize("evaluates", [False, True])
def test_after_the_last_step_it_is_finished(
    tmp_path: Path, start: Starter, expected: Dict[str, str], evaluates: bool
) -> None:
    folder = tmp_path / "run"
    ask: Dict[str, Any] = {"folder": str(folder), "evaluates": evaluates}
    run = start("train", sleep={"train end": 0.3}, pace=0, **ask)
    run.wait_for("train end")
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.log
    assert (folder / "finished.json").exists()
    again = start("train", **ask)
    assert again.end() == 0
    assert again.steps() == []
    assert again.told("digest")
    if not evaluates:
        assert again.told("digest") == expected["shuffled"]


def test_in_the_final_save(tmp_path: Path, start: Starter, expected: Dict[str, str]) -> None:
    folder = tmp_path / "run"
    # state_dict() is called once before the first step and once at each boundary.
    ask: Dict[str, Any] = {"folder": str(folder), "extra": {"save": {str(LAST + 1): 0.4}}}
    run = start("train", pace=0, **ask)
    run.wait_for("saving")
    assert run.steps()[-1] == LAST
    run.signal(signal.SIGTERM)
    assert run.end() == 143
    assert steps(folder)[-1] == LAST
    goes_on(start, folder, LAST, expected["shuffled"], extra={})


@pytest.mark.parametrize("event", ["epoch end 1", "eval begin", "eval end", "epoch 1"])
def test_between_two_epochs(tmp_path: Path, start: Starter, event: str) -> None:
    whole = start("train", pace=0, evaluates=True)
    folder = tmp_path / "run"
    ask: Dict[str, Any] = {"folder": str(folder), "evaluates": True}
    run = start("train", pace=0, sleep={event: 0.2}, **ask)
    run.wait_for(event)
    run.signal(signal.SIGTERM)
    assert run.end() == 143
    after = run.steps()[-1]
    assert steps(folder)[-1] == after
    assert whole.end() == 0
    goes_on(start, folder, after, whole.told("digest"), evaluates=True)


def test_while_a_fresh_run_waits_for_its_first_batch(
    tmp_path: Path, start: Starter, expected: Dict[str, str]
) -> None:
    folder = tmp_path / "run"
    run = start("train", folder=str(folder), slow_data={"0": 0.5})
    run.wait_for("load 0")
    run.signal(signal.SIGTERM)
    assert run.end() == 143
    assert run.steps() == [] and steps(folder) == []
    assert "nothing was trained since step 0" in run.log
    goes_on(start, folder, 0, expected["in order"], slow_data={"0": 0})


def test_while_a_resumed_run_waits_for_its_first_batch(
    tmp_path: Path, start: Starter, expected: Dict[str, str]
) -> None:
    folder = tmp_path / "run"
    keys = {"grace_seconds": 1.0}
    run = start("train", folder=str(folder), slow_data={"0": 0}, pace=0.03, keys=keys)
    run.wait_for("done 4")
    run.signal(signal.SIGTERM)
    assert run.end() == 143
    after = run.steps()[-1]
    assert after % STEPS, "it goes on within an epoch"
    first = str(after % STEPS * 8)
    saved = steps(folder)
    # A wait that outlasts the grace period: the watching thread ends the process.
    again = start("train", folder=str(folder), slow_data={first: 60.0}, keys=keys)
    again.wait_for(f"load {first}")
    began = time.monotonic()
    again.signal(signal.SIGTERM)
    assert again.end() == 143, again.log
    assert time.monotonic() - began < 2.0
    assert again.steps() == [] and steps(folder) == saved
    goes_on(start, folder, after, expected["in order"], slow_data={"0": 0})


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_while_a_checkpoint_is_loaded(
    tmp_path: Path, start: Starter, expected: Dict[str, str], name: str
) -> None:
    folder = tmp_path / "run"
    run = start("train", folder=str(folder), extra={}, pace=0.03)
    run.wait_for("done 4")
    run.signal(signal.SIGTERM)
    assert run.end() == 143
    after, saved = run.steps()[-1], steps(folder)
    again = start("train", folder=str(folder), extra={"restore": 0.3})
    again.wait_for("restoring")
    number = getattr(signal, name)
    again.signal(number)
    assert again.end(10.0) in (-number, 128 + number)
    assert again.steps() == [] and steps(folder) == saved
    goes_on(start, folder, after, expected["shuffled"], extra={})


def test_a_signal_before_fit_finds_nothing_of_ours(tmp_path: Path, start: Starter) -> None:
    run = start("train", folder=str(tmp_path / "run"), sleep={"train begin": 5.0})
    run.wait_for("train begin")
    run.signal(signal.SIGTERM)
    assert run.end(10.0) in (-signal.SIGTERM, 143)
    assert steps(tmp_path / "run") == []


def test_a_save_that_cannot_be_made_exits_with_1(tmp_path: Path, start: Starter) -> None:
    with disk(tmp_path / "disk", "size=2m") as mounted:
        folder = mounted / "run"
        keys = {"snapshot_step": 2}
        run = start("train", folder=str(folder), keys=keys, slow={"5": 0.5}, pace=0)
        run.wait_for("forward 5")
        until(lambda: steps(folder)[-1:] == [4], "step 4 is saved")
        fill(mounted / "filler")
        run.signal(signal.SIGTERM)
        assert run.end() == 1
        assert run.told("left") == "1"
        assert steps(folder)[-1] == 4
        error = [line for line in run.log.splitlines() if "step 5 could not be saved" in line]
        assert "step_00000004" in error[-1], "the newest good checkpoint is named"


def test_the_scripts_own_handlers_and_descriptor_come_back(tmp_path: Path, start: Starter) -> None:
    run = start("handlers", folder=str(tmp_path / "run"))
    run.wait_for("begin 5")
    run.signal(signal.SIGTERM)
    assert run.end() == 0, run.log
    assert run.told("left") == "143"
    assert run.told("woken") == str(int(signal.SIGTERM))
    assert run.words[-1] == "all back"
    assert re.search("own handler of SIGTERM rests", run.log)


def test_save_signal_saves_and_goes_on(
    tmp_path: Path, start: Starter, expected: Dict[str, str]
) -> None:
    folder = tmp_path / "run"
    keys = {"save_signal": "SIGUSR1", "snapshot_epoch": None, "keep_checkpoint_max": None}
    run = start("train", folder=str(folder), keys=keys)
    run.wait_for("begin 5")
    run.signal(signal.SIGUSR1)
    assert run.end() == 0
    first, last = steps(folder)
    assert 5 <= first < last == LAST
    assert run.told("digest") == expected["shuffled"]


@pytest.mark.parametrize("where", ["step", "data"])
def test_a_signal_to_a_child_is_the_childs(tmp_path: Path, start: Starter, where: str) -> None:
    run = start("children", folder=str(tmp_path / "run"), where=where)
    assert run.end() == 0, run.log
    assert run.words[-1] == "trained"
    ends = [word for word in run.words if word.startswith("child")]
    assert set(ends) <= {"child 15", "child 1"} and len(ends) >= 2
    assert "pool 49" in run.words
    assert "saving at the next step" not in run.log
    assert steps(tmp_path / "run")[-1] == 2 * STEPS
