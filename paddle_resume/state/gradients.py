"""Gradients that wait for the next update.

After an update hapi sets each gradient to zeros, and a gradient of zeros is not the same as none:
momentum and weight decay still move a parameter whose gradient is zero. So each parameter's
gradient is none, zeros (noted only) or pending in an accumulation (kept in full).
"""

from __future__ import annotations

from typing import Any, Collection, Dict, List, Mapping

import numpy as np

from paddle_resume.codec import host_array
from paddle_resume.runtime import require_paddle
from paddle_resume.types import Captured

__all__ = ["Gradients"]


class Gradients:
    """Component: the gradient of each parameter.

    Args:
        parameters: structured name to parameter.
        cleared: names of those whose gradients a step sets to zeros.
    """

    name = "grad"
    moves = "anytime"

    def __init__(self, parameters: Mapping[str, Any], cleared: Collection[str] = ()) -> None:
        self._parameters = parameters
        self._cleared = cleared
        self._zeros_at: Dict[str, int] = {}

    def note_cleared(self) -> None:
        """To be called right after the gradients were set to zeros: reading them all to find that
        out costs as much as copying the weights.

        A backward puts a new tensor in the place of one that was cleared, so as long as the
        memory is the same, there are zeros.
        """
        self._zeros_at = {}
        for name in self._cleared:
            parameter = self._parameters[name]
            address = _address(parameter.grad)
            if address is not None and parameter.trainable:
                self._zeros_at[name] = address

    def capture(self) -> Captured:
        """Returns pending gradients, and the names of those that are all zeros."""
        tensors: Dict[str, np.ndarray] = {}
        zeros: List[str] = []
        for name, parameter in self._parameters.items():
            gradient = parameter.grad
            if gradient is None:
                continue
            if name in self._zeros_at and self._zeros_at[name] == _address(gradient):
                zeros.append(name)
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


def _address(gradient: Any) -> "int | None":
    if gradient is None or not gradient.is_dense() or not gradient._is_initialized():
        return None
    address: int = gradient.data_ptr()
    return address
