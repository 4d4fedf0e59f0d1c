"""PeriodicSaver: saves by epochs, steps and minutes, and keeps the newest."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Union

from paddle_resume.callbacks.base import ResumeCallback, SaveDir
from paddle_resume.errors import ConfigError
from paddle_resume.retention import KeepEveryEpochs, KeepNewest, RetentionPolicy
from paddle_resume.saver import SavePolicy
from paddle_resume.triggers import EveryEpochs, EveryMinutes, EverySteps, Trigger

__all__ = ["PeriodicSaver"]


class PeriodicSaver(ResumeCallback):
    """Saves the whole state of a training, each time completely or not at all.

    The last boundary of a training is always saved. Used without AutoResume it starts each run
    from nothing and moves what an earlier one left into `.before-<run>`.

    Args:
        save_dir: where the run's checkpoints are.
        snapshot_epoch: save at the end of every so many epochs; None for off.
        snapshot_step: save after every so many steps (batches, counted over the whole run).
        snapshot_minutes: save when the last commit is that long ago.
        keep_checkpoint_max: keep so many of the newest; None for all.
        keep_every_epoch: keep every so many epochs' ends for ever, on top of the newest; a
            multiple of snapshot_epoch.
        async_save: go on with the training while the disk is written.
        extra: name to an object with `state_dict()` and `set_state_dict(state)`.
        sign_key: name of an environment variable whose value signs each checkpoint; only what it
            signed is loaded.

    Raises:
        ConfigError: an argument is wrong.

    Example:
        >>> import paddle_resume as pr
        >>> saver = pr.PeriodicSaver("output/run1", snapshot_step=500, keep_checkpoint_max=2)
        >>> pr.PeriodicSaver("output/run1", snapshot_step=0)
        Traceback (most recent call last):
        paddle_resume.errors.ConfigError: snapshot_step=0: a whole number from 1, or None for off
    """

    def __init__(
        self,
        save_dir: SaveDir,
        snapshot_epoch: Optional[int] = 1,
        snapshot_step: Optional[int] = None,
        snapshot_minutes: Optional[Union[int, float]] = 30,
        keep_checkpoint_max: Optional[int] = 3,
        keep_every_epoch: Optional[int] = None,
        async_save: bool = True,
        extra: Optional[Mapping[str, Any]] = None,
        sign_key: Optional[str] = None,
    ) -> None:
        super().__init__(save_dir, extra, sign_key)
        if type(async_save) is not bool:
            raise ConfigError(f"async_save={async_save!r}: True or False expected")
        triggers: List[Trigger] = []
        if snapshot_epoch is not None:
            triggers.append(EveryEpochs(snapshot_epoch))
        if snapshot_step is not None:
            triggers.append(EverySteps(snapshot_step))
        if snapshot_minutes is not None:
            triggers.append(EveryMinutes(snapshot_minutes))
        if keep_every_epoch is not None and type(keep_every_epoch) is int and keep_every_epoch > 0:
            if snapshot_epoch is None or keep_every_epoch % snapshot_epoch:
                raise ConfigError(
                    f"keep_every_epoch={keep_every_epoch} with snapshot_epoch={snapshot_epoch}: "
                    "the epochs to keep are not all saved. Make keep_every_epoch a multiple of "
                    "snapshot_epoch."
                )
        retention: List[RetentionPolicy] = [KeepNewest(keep_checkpoint_max)]
        if keep_every_epoch is not None:
            retention.append(KeepEveryEpochs(keep_every_epoch))
        self.policy = SavePolicy(tuple(triggers), tuple(retention), async_save)
