"""Gradients that wait for the next update.

After an update hapi sets each gradient to zeros, and a gradient of zeros is not the same as none:
momentum and weight decay still move a parameter whose gradient is zero. So each parameter's
gradient is none, zeros (noted only) or pending in an accumulation (kept in full).
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

import numpy as np

from paddle_resume.codec import host_array
from paddle_resume.runtime import require_paddle
from paddle_resume.types import Captured

__all__ = ["Gradients"]


class Gradients:
    """Component: the gradient of each parameter.

    Args:
        parameters: structured name to parameter.
    """

    name = "grad"
    moves = "anytime"

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters

    def capture(self) -> Captured:
        """Returns pending gradients, and the names of those that are all zeros."""
        tensors: Dict[str, np.ndarray] = {}
        zeros: List[str] = []
        for name, parameter in self._parameters.items():
            gradient = parameter.grad
            if gradient is None:
                continue
            array = host_array(gradient)
            # Bytes, not numbers: minus zero is not zero here.
            if array.size and not array.reshape(-1).view(np.uint8).any():
                zeros.append(name)
            else:
                tensors[name] = array
        return Captured(tensors, {"zeros": zeros})

    def restore(self, captured: Captured) -> List[str]:
        """Sets each parameter's gradient; see `Component.restore`."""
        paddle = require_paddle()
        zeros = set(captured.values["zeros"])
        known = set(self._parameters)
        problems = []
        for name, parameter in self._parameters.items():
            array = captured.tensors.get(name)
            if array is not None and list(array.shape) != list(parameter.shape):
                problems.append(
                    f"the gradient of {name} is {list(array.shape)} in the checkpoint and the "
                    f"parameter {list(parameter.shape)} here"
                )
            elif array is not None:
                parameter.grad = paddle.to_tensor(array)
            elif name in zeros:
                parameter.grad = paddle.zeros_like(parameter)
            elif parameter.grad is not None:
                parameter.clear_gradient(False)
        lost = [name for name in (*captured.tensors, *zeros) if name not in known]
        return problems + [f"the gradient of {name} has no parameter here" for name in lost]
