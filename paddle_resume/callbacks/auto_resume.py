"""AutoResume: a restarted fit goes on where it stopped."""

from __future__ import annotations

import os
from typing import Any, Mapping, Optional, Union

from paddle_resume.callbacks.base import ResumeCallback, SaveDir
from paddle_resume.checkpoint.lineage import parse_resume_from
from paddle_resume.resumer import ResumePolicy

__all__ = ["AutoResume"]


class AutoResume(ResumeCallback):
    """Continues a training from its newest good checkpoint, bit for bit.

    It restores weights, optimizer, schedule, random streams, data position, metrics and the other
    callbacks. Finished epochs and batches are left out, for every callback, without reading their
    data. On an empty folder it starts afresh.

    Args:
        save_dir: where the run's checkpoints are.
        resume_from: `"auto"`: the newest good one. `"best"`, `"finite"` (the newest without NaN),
            `"never"`, `"epoch:50"`, `"step:500"` or a checkpoint (its folder, its `…/model`
            prefix, its `.pdparams`): where a new line starts. The same command started again goes
            on with that line.
        lr_policy: `"restore"` the checkpoint's learning rate and schedule, or `"override"` them
            with the script's, fast-forwarded to the restored step.
        partial: load what fits of a checkpoint of another model, and list the rest.
        verify: `"full"` checks every byte before loading, `"size"` the sizes, `"none"` nothing.
        extra: name to an object with `state_dict()` and `set_state_dict(state)`.
        sign_key: name of an environment variable whose value signs each checkpoint; only what it
            signed is loaded.

    Raises:
        ConfigError: an argument is wrong.

    Example:
        >>> import tempfile
        >>> import paddle
        >>> import paddle_resume as pr
        >>> folder = tempfile.mkdtemp()
        >>> net = paddle.nn.Linear(4, 2)
        >>> model = paddle.Model(net)
        >>> model.prepare(
        ...     paddle.optimizer.Adam(parameters=net.parameters()), paddle.nn.CrossEntropyLoss()
        ... )
        >>> data = paddle.io.TensorDataset([paddle.ones([8, 4]), paddle.zeros([8, 1], "int64")])
        >>> model.fit(
        ...     data, batch_size=4, epochs=2, verbose=0,
        ...     callbacks=[pr.AutoResume(folder), pr.PeriodicSaver(folder)],
        ... )
        >>> [checkpoint.step for checkpoint in pr.checkpoints(folder)]
        [2, 4]
    """

    def __init__(
        self,
        save_dir: SaveDir,
        resume_from: Union[str, "os.PathLike[str]"] = "auto",
        lr_policy: str = "restore",
        partial: bool = False,
        verify: str = "full",
        extra: Optional[Mapping[str, Any]] = None,
        sign_key: Optional[str] = None,
    ) -> None:
        super().__init__(save_dir, extra, sign_key)
        self.policy = ResumePolicy(parse_resume_from(resume_from), lr_policy, partial, verify)
