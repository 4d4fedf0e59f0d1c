"""When a run is to save and stop: a policy, and pure decisions."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple, Union

from paddle_resume.errors import ConfigError

__all__ = ["EmergencyPolicy", "Stop", "reserve", "signal_number"]

_END = 0.2  # of the grace period: what Paddle and Python take to end the process
_UNMEASURED = 0.4  # of it, for a first save
_MOST = 1e7  # 115 days of seconds, 19 years of minutes: no clock overflows
_UNCATCHABLE = ("SIGKILL", "SIGSTOP")
_FAULTS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS")


@dataclass(frozen=True)
class EmergencyPolicy:
    """When to save and stop.

    Attributes:
        signals: numbers of those that stop the run.
        on_exception: whether an exception saves before it goes on its way.
        grace_s: seconds from a signal to the platform's SIGKILL.
        save_signal: number of the one that saves and goes on; None for none.
        stop_after_s: seconds after which the run stops as if by SIGTERM; None for never.
    """

    signals: Tuple[int, ...]
    on_exception: bool
    grace_s: float
    save_signal: Optional[int] = None
    stop_after_s: Optional[float] = None

    @property
    def numbers(self) -> Tuple[int, ...]:
        """Of all signals that the run answers."""
        return self.signals if self.save_signal is None else (*self.signals, self.save_signal)

    @classmethod
    def of(
        cls,
        signals: Union[str, Sequence[str]],
        on_exception: bool,
        grace_seconds: float,
        save_signal: Optional[str],
        stop_after_minutes: Optional[float],
    ) -> "EmergencyPolicy":
        """Makes one from EmergencySaver's arguments.

        Raises:
            ConfigError: an argument is wrong.
        """
        names = [signals] if isinstance(signals, str) else signals
        if not isinstance(names, (list, tuple)):
            raise ConfigError(f'signals={signals!r}: names such as ("SIGTERM", "SIGINT") expected')
        if type(on_exception) is not bool:
            raise ConfigError(f"on_exception={on_exception!r}: True or False expected")
        numbers = tuple(dict.fromkeys(signal_number("signals", name) for name in names))
        saves = None if save_signal is None else signal_number("save_signal", save_signal)
        if saves in numbers:
            raise ConfigError(
                f"save_signal={save_signal!r} is among signals={tuple(names)!r}: one saves and "
                "goes on, the others save and stop. Take another, such as SIGUSR1."
            )
        _check_positive("grace_seconds", grace_seconds)
        if stop_after_minutes is not None:
            _check_positive("stop_after_minutes", stop_after_minutes)
        stop_after_s = None if stop_after_minutes is None else 60.0 * stop_after_minutes
        return cls(numbers, on_exception, float(grace_seconds), saves, stop_after_s)


def signal_number(argument: str, name: str) -> int:
    """Returns the number of a signal.

    Args:
        argument: where it was given.
        name: such as `"SIGTERM"`.

    Raises:
        ConfigError: there is none of that name, or no process can catch it.

    Example:
        >>> signal_number("signals", "SIGTERM")
        15
    """
    known = signal.Signals.__members__
    if not isinstance(name, str) or name not in known:
        raise ConfigError(
            f"{argument}: {name!r} is no signal of this machine; names such as SIGTERM, SIGINT, "
            "SIGHUP, SIGUSR1 and SIGUSR2 are expected"
        )
    if name in _UNCATCHABLE:
        raise ConfigError(
            f"{argument}: {name} cannot be caught by any process. What it ends goes on from the "
            "newest periodic save; snapshot_minutes bounds what is lost."
        )
    if name in _FAULTS:
        raise ConfigError(
            f"{argument}: {name} means that the process is broken: no handler gets out of it. The "
            "run goes on from the newest periodic save; snapshot_step bounds what is lost."
        )
    if name in ("SIGCHLD", "SIGCLD"):
        raise ConfigError(f"{argument}: {name} comes at the end of each DataLoader worker")
    return int(known[name])


def _check_positive(name: str, value: float) -> None:
    if type(value) not in (int, float) or not 0 < value <= _MOST:
        raise ConfigError(f"{name}={value!r:.40}: a number above 0, up to {_MOST:g}, expected")


@dataclass(frozen=True)
class Stop:
    """A request to save and stop.

    Attributes:
        reason: the signal's name, or stop_after_minutes.
        code: what the process ends with.
        deadline: `time.monotonic()` at which the platform kills it.
        last_moment: the same clock, when the process must end by itself.
        interrupts: whether it ends in KeyboardInterrupt, and the process lives on.
    """

    reason: str
    code: int
    deadline: float
    last_moment: float
    interrupts: bool = False

    @classmethod
    def at(cls, now: float, reason: str, code: int, grace_s: float, interrupts: bool) -> "Stop":
        """Makes one that came now."""
        deadline = now + grace_s
        return cls(reason, code, deadline, deadline - _END / 2 * grace_s, interrupts)

    def exit_code(self, is_safe: bool) -> int:
        """What the process ends with; 1 where the last save could not be made."""
        return self.code if is_safe else 1


def reserve(takes_s: Optional[float], grace_s: float) -> float:
    """How much of the grace period is kept for the save.

    Args:
        takes_s: how long one takes; None where none was measured yet.
        grace_s: the grace period.

    Returns:
        Seconds before its end at which to start: twice the measured time, for a machine that is
        shutting down is a busy one, and what the process's own end takes.

    Example:
        >>> reserve(2.0, 25.0), reserve(None, 25.0), reserve(20.0, 25.0)
        (9.0, 15.0, 25.0)
    """
    takes = _UNMEASURED * grace_s if takes_s is None else 2 * takes_s
    return min(grace_s, takes + _END * grace_s)
