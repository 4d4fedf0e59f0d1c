"""EmergencySaver: a last save when the run is told to stop, or fails."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Union

from paddle_resume.callbacks.base import ResumeCallback, SaveDir
from paddle_resume.stops import EmergencyPolicy

__all__ = ["EmergencySaver"]


class EmergencySaver(ResumeCallback):
    """Saves when a signal or an exception ends the training, so that no step is lost.

    A signal is answered at the next boundary between two batches; where a step, an evaluation or
    a wait for data would outlast the grace period, a thread of its own saves the last boundary
    instead. The process then ends with SystemExit and 128 + the signal's number, so that the
    platform starts it again; with 1 where nothing could be saved. In IPython SIGINT saves and
    raises KeyboardInterrupt.

    Args:
        save_dir: where the run's checkpoints are.
        signals: names of those that save and stop. A second SIGINT, over a second after the
            first, ends the process at once.
        on_exception: save before an exception goes on its way, where a point exists: in forward,
            in backward, in a callback before or after the update: see docs/stopping.md.
        grace_seconds: seconds from the signal to the platform's SIGKILL; the save is durable
            before.
        save_signal: name of one that saves at the next boundary and goes on.
        stop_after_minutes: minutes after fit's start at which to stop as if by SIGTERM, for a
            queue with a time limit.
        extra: name to an object with `state_dict()` and `set_state_dict(state)`.
        sign_key: name of an environment variable whose value signs each checkpoint; only what it
            signed is loaded.

    Raises:
        ConfigError: an argument is wrong.

    Example:
        >>> import paddle_resume as pr
        >>> saver = pr.EmergencySaver("output/run1", signals=("SIGTERM", "SIGINT"))
        >>> pr.EmergencySaver("output/run1", grace_seconds=0)
        Traceback (most recent call last):
        paddle_resume.errors.ConfigError: grace_seconds=0: a number above 0, up to 1e+07, expected
    """

    def __init__(
        self,
        save_dir: SaveDir,
        signals: Union[str, Sequence[str]] = ("SIGTERM", "SIGINT", "SIGHUP"),
        on_exception: bool = True,
        grace_seconds: Union[int, float] = 25.0,
        save_signal: Optional[str] = None,
        stop_after_minutes: Optional[Union[int, float]] = None,
        extra: Optional[Mapping[str, Any]] = None,
        sign_key: Optional[str] = None,
    ) -> None:
        super().__init__(save_dir, extra, sign_key)
        self.policy = EmergencyPolicy.of(
            signals, on_exception, grace_seconds, save_signal, stop_after_minutes
        )
