"""The frozen types that flow through paddle_resume. Every layer may import this module."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, Optional, Protocol, Tuple

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "ANYTIME",
    "EPOCH_END",
    "PARTLY",
    "TRAIN",
    "TRAIN_END",
    "UPDATE",
    "Captured",
    "Captures",
    "Component",
    "Manifest",
    "Origin",
    "PartlyMoving",
    "Position",
    "ResumePlan",
    "SaveResult",
    "Snapshot",
    "TrainingState",
    "values_of",
]

UPDATE = "update"
ANYTIME = "anytime"
PARTLY = "partly"

EPOCH_END = "epoch_end"
"""Phase: the epoch's last batch is done; on_epoch_end and the evaluation are still to come."""
TRAIN = "train"
"""Phase: between two batches of an epoch."""
TRAIN_END = "train_end"
"""Phase: the epoch, its on_epoch_end and its evaluation are done; training ends here."""


@dataclass(frozen=True, order=True)
class Position:
    """A boundary between two batches; positions are ordered as the training passes them.

    Attributes:
        epoch: epochs completed.
        batch: batches done of the next epoch.
        step: batches trained over the whole run, over restarts.
        phase: `TRAIN`, `EPOCH_END` or `TRAIN_END`.

    Example:
        >>> Position(epoch=1, batch=0, step=100, phase=EPOCH_END) < Position(1, 3, 103)
        True
    """

    epoch: int
    batch: int
    step: int
    phase: str = TRAIN


@dataclass(frozen=True)
class Captured:
    """What one component holds.

    Attributes:
        tensors: name to host array (bfloat16 as uint16, as Paddle's own files hold it).
        values: JSON values.
    """

    tensors: Mapping[str, "np.ndarray"] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


class Captures(Protocol):
    """One part of the training's state, as a save sees it.

    Attributes:
        name: the part's key in `TrainingState.parts`.
        moves: `UPDATE` where only the optimizer's update changes it, `PARTLY` where that holds
            for some of its tensors (see `PartlyMoving`), else `ANYTIME`.
    """

    name: str
    moves: str

    def capture(self) -> Captured:
        """Returns the part's state, copied to the host."""
        ...


class PartlyMoving(Captures, Protocol):
    """A part some of whose tensors only the optimizer's update changes."""

    def mark(self) -> Captured:
        """Returns what else than the update may change, copied to the host."""
        ...

    def complete(self, marked: Captured, at_once: bool) -> Captured:
        """Adds the rest, as long as no update has begun since.

        Args:
            marked: what `mark` returned.
            at_once: whether nothing at all has run since.

        Returns:
            What `capture` would have returned then.

        Raises:
            ResumeError: something that was taken for still has moved.
        """
        ...

    def digest(self, marked: Captured) -> str:
        """Returns a hash of the trained weights that `complete` would add.

        Args:
            marked: what `mark` returned: what was trained then.
        """
        ...


class Component(Captures, Protocol):
    """One part of the training's state that is put back at once when a run resumes."""

    def restore(self, captured: Captured) -> "list[str]":
        """Puts the state back.

        Args:
            captured: what `capture` returned, in this or an earlier process.

        Returns:
            The problems found, a sentence each; empty when all of it was restored.
        """
        ...


@dataclass(frozen=True)
class TrainingState:
    """The whole state of a training at one position.

    Attributes:
        position: where.
        parts: component name to what it holds.
        by_rank: what differs by rank, rank to JSON values.
        inexact: why a resume from here is not exact; empty when it is.
    """

    position: Position
    parts: Mapping[str, Captured]
    by_rank: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    inexact: Tuple[str, ...] = ()


def values_of(state: TrainingState) -> Mapping[str, Mapping[str, Any]]:
    """Returns each part's values, without its tensors.

    Example:
        >>> values_of(TrainingState(Position(0, 1, 1), {"a": Captured(values={"b": 1})}))
        {'a': {'b': 1}}
    """
    return {name: part.values for name, part in state.parts.items()}


@dataclass(frozen=True)
class Snapshot:
    """A state on its way to the disk.

    Attributes:
        state: the training's state as host copies.
        reasons: which triggers asked for it.
        taken_at: `time.time()` of the boundary.
        blocked_s: seconds that the training waited for the copy.
        metrics: the training's metrics at the boundary.
    """

    state: TrainingState
    reasons: Tuple[str, ...]
    taken_at: float
    blocked_s: float
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Origin:
    """Where a run started, when it was not simply from the newest checkpoint.

    Attributes:
        resume_from: the argument as given.
        run_id: the run of the checkpoint it started from; None for a start from nothing.
        step: that checkpoint's step; None for a start from nothing.
    """

    resume_from: str
    run_id: Optional[str] = None
    step: Optional[int] = None


@dataclass(frozen=True)
class Manifest:
    """What manifest.json holds.

    Attributes:
        format: version of the layout on disk.
        run_id: the run that wrote the checkpoint; kept over restarts.
        parent: (run_id, step) of the checkpoint before it in its line; None for a first one.
        origin: where its run started; None for an ordinary fresh start.
        position: the boundary it was taken at.
        reasons: which triggers asked for it.
        created: ISO 8601 time, UTC.
        files: file name to (size in bytes, xxh3-128 in hex).
        world_size: number of processes that wrote it.
        versions: of paddle_resume, paddle, numpy and python.
        sha256: file name to SHA-256 in hex; empty where it is not signed.
    """

    format: int
    run_id: str
    parent: Optional[Tuple[str, int]]
    origin: Optional[Origin]
    position: Position
    reasons: Tuple[str, ...]
    created: str
    files: Mapping[str, Tuple[int, str]]
    world_size: int
    versions: Mapping[str, str]
    sha256: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SaveResult:
    """How a save went.

    Attributes:
        path: the checkpoint's folder.
        position: the boundary it was taken at.
        size_bytes: of all its files.
        blocked_s: seconds that the training waited.
        durable_s: seconds from the start of the copy to the commit.
    """

    path: Path
    position: Position
    size_bytes: int
    blocked_s: float
    durable_s: float


@dataclass(frozen=True)
class ResumePlan:
    """What a start does.

    Attributes:
        action: `"fresh"`, `"continue"` or `"finished"`.
        source: the checkpoint to load; None for a fresh start.
        run_id: the id that this run writes under.
        parent: (run_id, step) that the first checkpoint of this run descends from.
        origin: recorded in each checkpoint of this run.
        rejected: checkpoint folder and why it was not used, newest first.
        leave_behind: checkpoint folders to move to `.before-<run_id>/` first.
    """

    action: str
    source: Optional[Path]
    run_id: str
    parent: Optional[Tuple[str, int]] = None
    origin: Optional[Origin] = None
    rejected: Tuple[Tuple[Path, str], ...] = ()
    leave_behind: Tuple[Path, ...] = ()
