"""Decisions at the start of a fit that has a checkpoint: pure functions."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from paddle_resume.errors import MismatchError
from paddle_resume.types import TRAIN, TRAIN_END, Position

__all__ = ["batch_to_start_at", "refuse_to_go_back", "why_finished"]


def refuse_to_go_back(
    position: Position, epochs: int, num_iters: Optional[int], left: Optional[int]
) -> None:
    """Refuses a fit that is shorter than what was trained.

    Args:
        position: of the checkpoint.
        epochs: of this fit.
        num_iters: of this fit.
        left: of num_iters.

    Raises:
        MismatchError: it is shorter.

    Example:
        >>> refuse_to_go_back(Position(3, 2, 23), 4, None, None)
        >>> refuse_to_go_back(Position(3, 0, 21), 2, None, None)
        Traceback (most recent call last):
        paddle_resume.errors.MismatchError: epochs=2, but 3 epoch(s) and 0 batch(es) were trained \
(step 21). Raise epochs, or give another save_dir for a new run.
    """
    if num_iters is not None and left is not None and left < 0:
        raise MismatchError(
            f"num_iters={num_iters}, but {-left} iterations more than that were trained (step "
            f"{position.step}). Raise num_iters, or give another save_dir for a new run."
        )
    if epochs < position.epoch or (epochs == position.epoch and position.phase == TRAIN):
        name, given = ("epochs", epochs) if num_iters is None else ("num_iters", num_iters)
        raise MismatchError(
            f"{name}={given}, but {position.epoch} epoch(s) and {position.batch} batch(es) were "
            f"trained (step {position.step}). Raise {name}, or give another save_dir for a new run."
        )


def why_finished(
    position: Position, epochs: int, left: Optional[int], mark: Optional[Mapping[str, Any]]
) -> Optional[str]:
    """Decides whether there is nothing left to train.

    Args:
        position: of the checkpoint.
        epochs: of this fit.
        left: of this fit's num_iters; None where it has none.
        mark: what finished.json says about the checkpoint; None where it says nothing.

    Returns:
        Why: `"epochs"`, `"num_iters"` or `"stopped"`; None where the training goes on.

    Example:
        >>> mark = {"why": "epochs", "epochs": 3}
        >>> why_finished(Position(3, 0, 21, "epoch_end"), 3, None, mark)
        'epochs'
        >>> why_finished(Position(3, 0, 21, "epoch_end"), 5, None, mark) is None
        True
    """
    if mark is None:
        # Killed between the last save and the mark; before that, its evaluation is still to come.
        ended = epochs == position.epoch and position.phase == TRAIN_END
        return "epochs" if ended else None
    if left is not None:
        return "num_iters" if left == 0 else None
    if mark["why"] == "stopped":
        return "stopped" if epochs <= mark["epochs"] else None
    return "epochs" if epochs == mark["epochs"] else None


def batch_to_start_at(
    position: Position,
    saved: Mapping[str, Any],
    length: Optional[int],
    batch_size: Optional[int],
) -> int:
    """Finds the resumed epoch's first batch, where batch size or length may have changed.

    Args:
        position: of the checkpoint.
        saved: the checkpoint's data position.
        length: batches in an epoch now; None where nobody can tell.
        batch_size: samples in a batch now; None where nobody can tell.

    Returns:
        The batch; with another batch size, the one at the same sample, rounded down.

    Example:
        >>> saved = {"batches_done": 6, "length": 8, "batch_size": 8}
        >>> batch_to_start_at(Position(0, 6, 6), saved, length=4, batch_size=16)
        3
    """
    done = int(saved["batches_done"])
    if (saved["length"], saved["batch_size"]) == (length, batch_size):
        return done  # whatever the length tells: that is where it stood
    if position.phase != TRAIN:
        return done if length is None else length
    if saved["batch_size"] and batch_size:
        done = done * int(saved["batch_size"]) // batch_size
    return done if length is None else min(done, length)
