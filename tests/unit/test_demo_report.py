"""The demo's comparison, on runs made up here."""

from __future__ import annotations

import io
from typing import Any, List, Optional, Tuple

import numpy as np
import pytest

from paddle_resume.cli.demo_report import Event, Report, Run, compare, show

Place = Tuple[int, int]
EPOCHS, BATCHES = 2, 3
WEIGHTS = {"linear.weight": np.arange(6, dtype="float32").reshape(2, 3)}
OPTIMIZER = {"LR_Scheduler": {"last_lr": 0.1}, "w_moment1_0": np.ones(2, "float32")}


def training(start: Place = (0, 0), stop: Optional[Place] = None) -> List[Event]:
    """The events from a batch to another; time passes by one with each."""
    events = [Event("start", 0.0, start[0])]
    for epoch in range(EPOCHS):
        for batch in range(BATCHES):
            if start <= (epoch, batch) and (stop is None or (epoch, batch) < stop):
                loss = (1.0 / (1 + epoch * BATCHES + batch)).hex()
                events.append(Event("train", float(len(events)), epoch, batch, loss))
        if start <= (epoch, BATCHES) and (stop is None or (epoch, BATCHES) < stop):
            events.append(Event("eval", float(len(events)), epoch, 0, (0.5).hex()))
            events.append(Event("eval_end", float(len(events)), epoch, accuracy=0.5 + epoch / 10))
    return events


def whole() -> Run:
    return Run([training()], [], 8.0, dict(WEIGHTS), dict(OPTIMIZER))


def killed() -> Run:
    starts = [training(stop=(1, 2)), training(start=(1, 0))]
    return Run(starts, [("in mid-epoch", 0.5)], 9.0, dict(WEIGHTS), dict(OPTIMIZER))


def text(report: Report) -> str:
    from rich.console import Console

    stream = io.StringIO()
    show(report, Console(file=stream, width=120))
    return stream.getvalue()


def test_a_run_that_goes_on_is_identical() -> None:
    report = compare(whole(), killed())
    assert report.identical
    assert report.steps == (6, 6)
    assert report.starts == (1, 2)
    (kill,) = report.kills
    assert (kill.repeated_steps, kill.repeated_batches) == (2, 0)
    assert kill.restart_seconds == pytest.approx(0.5)
    assert kill.repeat_seconds == pytest.approx(2.0)
    assert report.seconds_lost == pytest.approx(2.5)
    assert [seam.where.split(" (")[0] for seam in report.seams] == ["step 4", "step 5", "step 6"]
    assert "Identical" in text(report)


def one_ulp_in_the_weights(run: Run) -> None:
    changed = WEIGHTS["linear.weight"].copy()
    changed[0, 1] = np.nextafter(changed[0, 1], np.float32(2))
    run.weights = {"linear.weight": changed}


def another_learning_rate(run: Run) -> None:
    run.optimizer = {**OPTIMIZER, "LR_Scheduler": {"last_lr": 0.2}}


def another_loss_in_a_repeated_step(run: Run) -> None:
    run.starts[1][1] = Event("train", 1.0, 1, 0, (0.3).hex())


def a_step_is_missing(run: Run) -> None:
    del run.starts[1][3]


def a_step_too_many(run: Run) -> None:
    run.starts[1].append(Event("train", 9.0, 2, 0, (0.1).hex()))


def another_accuracy(run: Run) -> None:
    run.starts[1][-1] = Event("eval_end", 9.0, 1, accuracy=0.61)


def from_nothing(run: Run) -> None:
    run.starts[1] = training()


@pytest.mark.parametrize(
    "change, expected",
    [
        (one_ulp_in_the_weights, "weights linear.weight: not identical"),
        (another_learning_rate, "optimizer LR_Scheduler/last_lr: not identical"),
        (another_loss_in_a_repeated_step, "step 4: 0.3, not 0.25"),
        (a_step_is_missing, "step 6: missing"),
        (a_step_too_many, "step 7: only in the killed run"),
        (another_accuracy, "evaluation 2, result: 0.61, not 0.6"),
        (from_nothing, "restart 1: began from nothing, no checkpoint was used"),
    ],
)
def test_whatever_differs_is_named(change: Any, expected: str) -> None:
    run = killed()
    change(run)
    report = compare(whole(), run)
    assert list(report.differences) == [expected]
    assert not report.identical
    assert expected in text(report)
    assert "Not identical" in text(report)


def test_the_report_is_plain_json() -> None:
    import json

    values = json.loads(json.dumps(compare(whole(), killed()).to_json()))
    assert values["identical"] is True
    assert values["kills"][0]["repeated_steps"] == 2
