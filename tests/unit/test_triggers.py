"""When a save is due."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from paddle_resume.errors import ConfigError
from paddle_resume.triggers import EveryEpochs, EveryMinutes, EverySteps, Moment, Trigger
from paddle_resume.types import EPOCH_END, TRAIN, Position


def at(step: int, ends: bool = False, since: float = 0.0) -> Moment:
    epoch, batch = divmod(step, 10)
    return Moment(
        Position(epoch, batch, step, EPOCH_END if ends else TRAIN), ends, 1e6 + since, 1e6
    )


@pytest.mark.parametrize(
    ("trigger", "moment", "due"),
    [
        (EveryEpochs(1), at(10, True), "epoch"),
        (EveryEpochs(1), at(10, False), None),
        (EveryEpochs(1), at(15), None),
        (EveryEpochs(3), at(20, True), None),
        (EveryEpochs(3), at(30, True), "epoch"),
        (EverySteps(500), at(499), None),
        (EverySteps(500), at(500), "step"),
        (EverySteps(500), at(1000, True), "step"),
        (EverySteps(1), at(7), "step"),
        (EveryMinutes(30), at(7, since=1799.9), None),
        (EveryMinutes(30), at(7, since=1800), "time"),
        (EveryMinutes(0.5), at(7, since=31), "time"),
        (EveryMinutes(1), at(7, since=-5), None),
    ],
)
def test_due(trigger: Trigger, moment: Moment, due: Optional[str]) -> None:
    assert trigger.due(moment) == due


@pytest.mark.parametrize("value", [0, -1, True, "3", None, float("nan"), float("inf")])
def test_other_numbers_are_refused(value: Any) -> None:
    for kind, name in (
        (EveryEpochs, "snapshot_epoch"),
        (EverySteps, "snapshot_step"),
        (EveryMinutes, "snapshot_minutes"),
    ):
        with pytest.raises(ConfigError, match=f"{name}={value!r}"):
            kind(value)


def test_counts_are_whole_numbers() -> None:
    with pytest.raises(ConfigError):
        EverySteps(1.5)  # type: ignore[arg-type]
