"""A signal and something else at the same moment."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any, Dict

import paddle
import psutil
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
        slow_save=[0.7, 3],
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
        slow_save=[0.3, 4],
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


def test_a_caught_stop_that_is_kept_leaves_the_process_as_it_was(
    tmp_path: Path, start: Starter
) -> None:
    """A retry in the handler hears the next signal; after that the script's own handlers do."""
    run = start("keeps_the_stop", folder=str(tmp_path / "run"))
    run.wait_for("begin 2")
    run.signal(signal.SIGTERM)
    run.wait_for("again")
    run.wait_for("begin")
    run.signal(signal.SIGTERM)
    run.wait_for("caught 143")
    run.signal(signal.SIGTERM)
    assert run.end() == -signal.SIGTERM


@pytest.mark.parametrize("apart_ms", [0, 1, 3, 10, 30])
def test_workers_that_die_of_the_same_signal_cost_no_step(
    tmp_path: Path, start: Starter, expected: Dict[str, str], apart_ms: int
) -> None:
    """Paddle's handler of a worker's death raises in the main thread, at each of them once more:
    in the middle of the save, and of what answers the first."""
    folder = tmp_path / "run"
    run = start("train", folder=str(folder), workers=3, keys={"grace_seconds": 20})
    run.wait_for("begin 5")
    workers = psutil.Process(run.pid).children(recursive=True)
    run.signal(signal.SIGTERM)
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):  # ended with the run by now
            worker.kill()
        time.sleep(apart_ms / 1000)
    assert run.end() == 143, run.log
    assert steps(folder)[-1] >= run.steps()[-1] >= 4


def test_an_error_that_cannot_be_printed_goes_on_its_way(tmp_path: Path) -> None:
    from fit.models import fit, make

    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    class Raises(paddle.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, step: int, logs: Any = None) -> None:
            if step == 2:
                raise Broken

    with pytest.raises(Broken):
        fit(make(), [Raises(), *pr.resume_callbacks(tmp_path)], epochs=1)
    assert steps(tmp_path) == [2]


def test_a_folder_that_is_gone_is_not_said_to_be_saved(tmp_path: Path, start: Starter) -> None:
    folder = tmp_path / "run"
    run = start("train", folder=str(folder), evaluates=True, sleep={"eval begin": 1.0}, pace=0)
    run.wait_for("eval begin")
    until(lambda: "saved step 3" in run.log, "the epoch's save")
    shutil.rmtree(folder.rename(tmp_path / "gone"))  # at once: it may be writing just now
    run.signal(signal.SIGTERM)
    code = run.end()
    assert code == (143 if steps(folder) == [3] else 1), run.log
