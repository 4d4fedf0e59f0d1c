"""BestSaver: saves when a metric is better than ever before, and keeps the best."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Union

from paddle_resume.best import BestPolicy
from paddle_resume.callbacks.base import ResumeCallback, SaveDir
from paddle_resume.monitor import contradicts
from paddle_resume.observe.log import log

__all__ = ["BestSaver"]


class BestSaver(ResumeCallback):
    """Saves the whole state when a metric is better than ever before, and keeps the best.

    The metric is that of the evaluation. A fit without eval data may monitor a training metric:
    its value at each epoch's end. Of equal values the first stays the best; NaN and infinity are
    never the best. What the best is survives a restart. The link `best` names its checkpoint,
    best.json its step and value; retention never deletes it.

    Args:
        save_dir: where the run's checkpoints are.
        monitor: the metric: one of fit's own names, as "loss" or "acc_top1", without a prefix.
        mode: `"max"` where more is better, `"min"` where less is; `"auto"` reads it from the
            name (accuracy, mAP, F1: more; loss, error, WER: less).
        min_delta: better is only what differs by more.
        keep_best_max: keep so many of the best, on top of PeriodicSaver's newest.
        extra: name to an object with `state_dict()` and `set_state_dict(state)`.
        sign_key: name of an environment variable whose value signs each checkpoint; only what it
            signed is loaded.

    Raises:
        ConfigError: an argument is wrong, or monitor's name does not tell the mode. A monitor
            that fit does not have is an error before the first step.

    Example:
        >>> import paddle_resume as pr
        >>> saver = pr.BestSaver("output/run1", monitor="acc", keep_best_max=2)
        >>> pr.BestSaver("output/run1", monitor="tokens_per_s", mode="max").policy.direction
        'max'
        >>> pr.BestSaver("output/run1", mode="most")
        Traceback (most recent call last):
        paddle_resume.errors.ConfigError: mode='most': one of "auto", "min", "max" expected
    """

    def __init__(
        self,
        save_dir: SaveDir,
        monitor: str = "loss",
        mode: str = "auto",
        min_delta: Union[int, float] = 0.0,
        keep_best_max: int = 1,
        extra: Optional[Mapping[str, Any]] = None,
        sign_key: Optional[str] = None,
    ) -> None:
        super().__init__(save_dir, extra, sign_key)
        self.policy = BestPolicy(monitor, mode, min_delta, keep_best_max)
        if contradicts(monitor, mode):
            log.warning(
                "BestSaver keeps the %s of monitor=%r, whose name says the opposite; "
                'mode="auto" would go by the name',
                "lowest" if mode == "min" else "highest",
                monitor,
            )
        self.needs_evaluation = False  # set by resume_callbacks, which does not know the fit
