"""What to keep: small policies, and a pure function from checkpoints to those to delete."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Collection, List, Optional, Protocol, Sequence, Set

from paddle_resume.errors import ConfigError

__all__ = ["KeepEveryEpochs", "KeepNewest", "Kept", "RetentionPolicy", "select_for_deletion"]


@dataclass(frozen=True)
class Kept:
    """A committed checkpoint, as retention sees it.

    Attributes:
        path: its folder.
        step: its step.
        epoch_completed: how many epochs were just completed; None inside an epoch.
        run_id: the run that wrote it.
    """

    path: Path
    step: int
    epoch_completed: Optional[int]
    run_id: str


class RetentionPolicy(Protocol):
    """Names checkpoints to keep; what no policy names may go."""

    def keep(self, checkpoints: Sequence[Kept]) -> Set[Path]:
        """Chooses.

        Args:
            checkpoints: this run's, oldest first.

        Returns:
            The folders to keep.
        """
        ...


@dataclass(frozen=True)
class KeepNewest:
    """Keeps the newest ones.

    Attributes:
        n: how many; None for all.

    Raises:
        ConfigError: n is below 1.
    """

    n: Optional[int]

    def __post_init__(self) -> None:
        if self.n is not None and (type(self.n) is not int or self.n < 1):
            raise ConfigError(
                f"keep_checkpoint_max={self.n!r}: a whole number from 1, or None to keep all"
            )

    def __str__(self) -> str:
        return "all" if self.n is None else f"the newest {self.n}"

    def keep(self, checkpoints: Sequence[Kept]) -> Set[Path]:
        """See `RetentionPolicy`."""
        start = 0 if self.n is None else -self.n
        return {kept.path for kept in checkpoints[start:]}


@dataclass(frozen=True)
class KeepEveryEpochs:
    """Keeps milestones: the ends of every k-th epoch.

    Attributes:
        k: the distance in epochs.

    Raises:
        ConfigError: k is below 1.
    """

    k: int

    def __post_init__(self) -> None:
        if type(self.k) is not int or self.k < 1:
            raise ConfigError(
                f"keep_every_epoch={self.k!r}: a whole number from 1, or None for no milestones"
            )

    def __str__(self) -> str:
        return f"the end of every {self.k} epochs"

    def keep(self, checkpoints: Sequence[Kept]) -> Set[Path]:
        """See `RetentionPolicy`."""
        return {
            kept.path
            for kept in checkpoints
            if kept.epoch_completed and not kept.epoch_completed % self.k
        }


def select_for_deletion(
    checkpoints: Sequence[Kept],
    policies: Sequence[RetentionPolicy],
    protected: Collection[Path],
    run_id: str,
) -> List[Path]:
    """Decides what to delete after a commit.

    Only this run's own checkpoints are counted and deleted. What several policies keep adds up:
    the newest are kept whatever they are, milestones come on top.

    Args:
        checkpoints: all of the save_dir, in any order.
        policies: what to keep.
        protected: never deleted, whatever the policies say.
        run_id: the run that writes.

    Returns:
        The folders to delete, oldest first; never the newest of all.

    Example:
        >>> all_ = [Kept(Path(f"step_{n}"), n, n // 10, "run") for n in (10, 20, 30, 40)]
        >>> select_for_deletion(all_, [KeepNewest(1), KeepEveryEpochs(2)], [Path("step_10")], "run")
        [PosixPath('step_30')]
    """
    own = sorted((kept for kept in checkpoints if kept.run_id == run_id), key=lambda k: k.step)
    safe = set(protected).union(*(policy.keep(own) for policy in policies))
    if checkpoints:
        safe.add(max(checkpoints, key=lambda kept: kept.step).path)
    return [kept.path for kept in own if kept.path not in safe]
