"""Which checkpoints go after a commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List

import pytest

from paddle_resume.errors import ConfigError
from paddle_resume.retention import KeepEveryEpochs, KeepNewest, Kept, select_for_deletion


def kept(step: int, run_id: str = "own", steps_in_epoch: int = 10) -> Kept:
    epoch = step // steps_in_epoch if step % steps_in_epoch == 0 else None
    return Kept(Path(str(step)), step, epoch, run_id)


EPOCHS = [kept(step) for step in (10, 20, 30, 40, 50, 60)]
MIXED = [kept(step) for step in (10, 15, 20, 25, 30)]
FOREIGN = [kept(10, "other"), kept(20, "other"), kept(30), kept(40), kept(50)]


@pytest.mark.parametrize(
    ("checkpoints", "policies", "protected", "gone"),
    [
        ([], [KeepNewest(3)], [], []),
        (EPOCHS[:3], [KeepNewest(3)], [], []),
        (EPOCHS, [KeepNewest(3)], [], [10, 20, 30]),
        (EPOCHS[::-1], [KeepNewest(3)], [], [10, 20, 30]),
        (EPOCHS, [KeepNewest(1)], [], [10, 20, 30, 40, 50]),
        (EPOCHS, [KeepNewest(None)], [], []),
        (EPOCHS, [KeepNewest(3)], [20], [10, 30]),
        (EPOCHS, [KeepNewest(2)], [60], [10, 20, 30, 40]),
        (EPOCHS, [KeepNewest(2), KeepEveryEpochs(2)], [], [10, 30]),
        (EPOCHS, [KeepNewest(3), KeepEveryEpochs(4)], [], [10, 20, 30]),
        (EPOCHS, [KeepNewest(1), KeepEveryEpochs(1)], [], []),
        (MIXED, [KeepNewest(1), KeepEveryEpochs(1)], [], [15, 25]),
        (EPOCHS, [], [], [10, 20, 30, 40, 50]),
        (FOREIGN, [KeepNewest(1)], [], [30, 40]),
        (FOREIGN[:2], [KeepNewest(1)], [], []),
        ([*FOREIGN, kept(60, "other")], [KeepNewest(1)], [], [30, 40]),
        ([kept(0)], [KeepNewest(1), KeepEveryEpochs(1)], [], []),
    ],
)
def test_selection(checkpoints: Any, policies: Any, protected: List[int], gone: List[int]) -> None:
    safe = [Path(str(step)) for step in protected]
    found = select_for_deletion(checkpoints, policies, safe, "own")
    assert [int(str(path)) for path in found] == gone


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"])
def test_other_numbers_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="keep_checkpoint_max"):
        KeepNewest(value)
    with pytest.raises(ConfigError, match="keep_every_epoch"):
        KeepEveryEpochs(value)
