"""hapi's own state in a fit: where the loop stands, and what it has reported."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

import numpy as np

from paddle_resume.callbacks.fit_session import FitHooks
from paddle_resume.codec import Unencodable, decode, encode
from paddle_resume.types import Captured

__all__ = ["LoopState"]


class LoopState:
    """Component: epoch index, batches done, num_iters, stop_training and the shared logs.

    Args:
        hooks: into the fit.
    """

    name = "loop"
    moves = "anytime"

    def __init__(self, hooks: FitHooks) -> None:
        self._hooks = hooks
        self.epoch_index = 0
        self.batches_done = 0
        self.step = 0
        self.iterations_left: Optional[int] = None

    def capture(self) -> Captured:
        """Returns the loop's state."""
        tensors: Dict[str, np.ndarray] = {}
        logs, unsaved = {}, []
        for name, value in self._hooks.logs.items():
            try:
                logs[str(name)] = encode(value, tensors, f"logs/{name}")
            except Unencodable as error:
                unsaved.append(f"an entry of fit's logs cannot be saved: {error}")
        values = {
            "epoch_index": self.epoch_index,
            "batches_done": self.batches_done,
            "step": self.step,
            "num_iters": self._hooks.num_iters,
            "iterations_left": self.iterations_left,
            "stop_training": bool(self._hooks.model.stop_training),
            "logs": logs,
            "unsaved": unsaved,
        }
        return Captured(tensors, values)

    def restore(self, captured: Captured) -> List[str]:
        """Sets what hapi reads; see `Component.restore`."""
        values = captured.values
        self.epoch_index = values["epoch_index"]
        self.batches_done = values["batches_done"]
        logs = self._hooks.logs
        logs.clear()
        logs.update(decode(values["logs"], captured.tensors))
        self._hooks.model.stop_training = values["stop_training"]
        left = remaining(values, self._hooks.num_iters, values["step"])
        self.iterations_left = left
        if left is not None:
            self._hooks.set_iterations_left(left)
        return []


def remaining(values: Mapping[str, Any], num_iters: Optional[int], step: int) -> Optional[int]:
    """Returns the iterations that are left of this run's num_iters.

    Args:
        values: what `LoopState.capture` returned.
        num_iters: of this run's fit.
        step: trained so far, all of which count where the checkpoint's fit had no num_iters.

    Returns:
        The number, negative where more have been done; None where fit has no num_iters.

    Example:
        >>> remaining({"num_iters": 20, "iterations_left": 5}, 30, step=15)
        15
    """
    if num_iters is None:
        return None
    if values["num_iters"] is None:
        return num_iters - step
    return int(values["iterations_left"] + num_iters - values["num_iters"])
