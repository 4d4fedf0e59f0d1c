"""Decisions at the start of a fit that has a checkpoint: pure functions."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Collection, Iterator, Mapping, Optional

from paddle_resume.callbacks.loop_state import remaining
from paddle_resume.ending import with_ending
from paddle_resume.errors import CheckpointError, MismatchError
from paddle_resume.observe.log import log
from paddle_resume.types import TRAIN, TRAIN_END, Position, TrainingState

__all__ = ["Restart", "as_written", "batch_to_start_at", "refuse_another", "restart"]


@dataclass(frozen=True)
class Restart:
    """What a fit does with the state that it has found.

    Attributes:
        state: as loaded; where the run is finished, as it was at its end.
        why_finished: why there is nothing left to train; None where it goes on.
        epoch: hapi's index of the epoch that goes on.
        first_heard: hapi's index of the first epoch that the other callbacks hear of.
        had_finished: whether the run that wrote it had come to its end.
        stops_anew: whether it had ended: to train longer, it must not end again at once.
    """

    state: TrainingState
    why_finished: Optional[str]
    epoch: int
    first_heard: int
    had_finished: bool
    stops_anew: bool


def restart(
    state: TrainingState,
    epochs: int,
    num_iters: Optional[int],
    mark: Optional[Mapping[str, Any]],
) -> Restart:
    """Decides what to leave out.

    Args:
        state: as loaded.
        epochs: of this fit.
        num_iters: of this fit.
        mark: what finished.json says about the state's checkpoint; None where it says nothing.

    Returns:
        The decision.

    Raises:
        MismatchError: this fit is shorter than what was trained.
    """
    position = state.position
    end = _at_its_end(state, mark)
    left = remaining(end.parts["loop"].values, num_iters, position.step)
    refuse_to_go_back(position, epochs, num_iters, left)
    why = why_finished(position, epochs, left, mark)
    epoch = state.parts["loop"].values["epoch_index"]
    return Restart(
        state=end if why else state,
        why_finished=why,
        epoch=epoch,
        first_heard=epochs if why else epoch + (position.phase == TRAIN_END),
        had_finished=mark is not None,
        stops_anew=mark is not None or position.phase == TRAIN_END,
    )


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Reads what a checkpoint says of a run; that may be no content that was ever written.

    Raises:
        CheckpointError: it is none.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint's state is none that paddle_resume writes: {type(error).__name__}: "
            f"{error}. Someone has changed it, checksums included; use an older one "
            '(resume_from="step:...")'
        ) from error


def _at_its_end(state: TrainingState, mark: Optional[Mapping[str, Any]]) -> TrainingState:
    try:
        return with_ending(state, (mark or {}).get("ending"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning(
            "finished.json is damaged (%s: %s): what changed after the last step is not known, and "
            "stays as it was there",
            type(error).__name__,
            error,
        )
        return state


def refuse_another(
    before: Mapping[str, Any], now: Mapping[str, Any], trainable_at_the_end: str
) -> None:
    """Refuses to take a finished training for another stage of it, or for another fold.

    Args:
        before: the finished run's settings.
        now: this fit's.
        trainable_at_the_end: what the finished run trained in its last step; its callbacks may
            have frozen or unfrozen something.

    Raises:
        MismatchError: this fit would train something else.

    Example:
        >>> now = {"network": "n", "optimizer": "Adam", "optimizer.parameters": "8 of 8"}
        >>> before = {"optimizer": "Adam", "trainable": "2 of 8"}
        >>> refuse_another(before, {**now, "trainable": "8 of 8"}, "8 of 8")
        >>> refuse_another(before, {**now, "trainable": "8 of 8"}, "2 of 8")
        Traceback (most recent call last):
        paddle_resume.errors.MismatchError: this save_dir holds a finished training, which had \
2 of 8 trainable and this run has 8 of 8. Give each fit a folder of its own (another save_dir): \
then each is resumed by itself.
    """
    if before.get("network", now["network"]) != now["network"]:
        return  # no weight of it would fit, and the restore says which
    found = []
    if before.get("optimizer", now["optimizer"]) != now["optimizer"]:
        found.append(f"the optimizer {before['optimizer']} and this run uses {now['optimizer']}")
    name = "optimizer.parameters"
    if before.get(name, now[name]) != now[name]:
        found.append(f"an optimizer of {before[name]} and this run's has {now[name]}")
    known: Collection[Any] = (before.get("trainable", now["trainable"]), trainable_at_the_end)
    if now["trainable"] not in known:
        found.append(f"{before['trainable']} trainable and this run has {now['trainable']}")
    if found:
        raise MismatchError(
            f"this save_dir holds a finished training, which had {'; '.join(found)}. Give each fit "
            "a folder of its own (another save_dir): then each is resumed by itself."
        )


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
