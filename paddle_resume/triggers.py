"""When to save: small frozen triggers, pure functions of the moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Protocol, Union

from paddle_resume.errors import ConfigError
from paddle_resume.types import Position

__all__ = ["EveryEpochs", "EveryMinutes", "EverySteps", "Moment", "Trigger"]


@dataclass(frozen=True)
class Moment:
    """A boundary after a batch, as triggers see it.

    Attributes:
        position: the boundary; at an epoch's end its epoch counts that epoch.
        epoch_ends: whether the batch was its epoch's last.
        monotonic: `time.monotonic()`.
        last_save: the same clock at the start of the last save, of whatever reason, or of the run.
    """

    position: Position
    epoch_ends: bool
    monotonic: float
    last_save: float


class Trigger(Protocol):
    """Tells whether a save is due."""

    def due(self, now: Moment) -> Optional[str]:
        """Decides.

        Args:
            now: the boundary.

        Returns:
            The reason to save, a word; None where there is none.
        """
        ...


@dataclass(frozen=True)
class EveryEpochs:
    """Due at the end of every n-th epoch.

    Attributes:
        n: the distance in epochs.

    Raises:
        ConfigError: n is below 1.

    Example:
        >>> EveryEpochs(2).due(Moment(Position(4, 0, 40), True, 9.0, 0.0))
        'epoch'
    """

    n: int

    def __post_init__(self) -> None:
        _check_count("snapshot_epoch", self.n)

    def due(self, now: Moment) -> Optional[str]:
        """See `Trigger`."""
        return "epoch" if now.epoch_ends and now.position.epoch % self.n == 0 else None


@dataclass(frozen=True)
class EverySteps:
    """Due after every n-th step of the whole run.

    Attributes:
        n: the distance in steps.

    Raises:
        ConfigError: n is below 1.
    """

    n: int

    def __post_init__(self) -> None:
        _check_count("snapshot_step", self.n)

    def due(self, now: Moment) -> Optional[str]:
        """See `Trigger`."""
        return "step" if now.position.step % self.n == 0 else None


@dataclass(frozen=True)
class EveryMinutes:
    """Due when the last save, whatever its reason, is that long ago.

    Attributes:
        minutes: how long.

    Raises:
        ConfigError: it is not above 0.
    """

    minutes: Union[int, float]

    def __post_init__(self) -> None:
        if type(self.minutes) not in (int, float) or not 0 < self.minutes < float("inf"):
            raise ConfigError(
                f"snapshot_minutes={self.minutes!r}: a number above 0, or None for off"
            )

    def due(self, now: Moment) -> Optional[str]:
        """See `Trigger`."""
        return "time" if now.monotonic - now.last_save >= 60 * self.minutes else None


def _check_count(name: str, value: int) -> None:
    # type() and not isinstance: True is an int to Python and a mistake here.
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name}={value!r}: a whole number from 1, or None for off")
