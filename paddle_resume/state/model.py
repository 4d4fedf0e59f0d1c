"""Networks: parameters, buffers and which parameters are frozen, by structured name."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import numpy as np

from paddle_resume.codec import host_array
from paddle_resume.runtime import require_paddle
from paddle_resume.types import Captured

__all__ = ["Buffers", "Network"]


class Network:
    """Component: the state_dict of a Layer, and `stop_gradient` of each of its parameters.

    BatchNorm's mean and variance are parameters in Paddle (with stop_gradient), so they are here.

    Args:
        layer: the network.
        name: the part's name, which names its file too.
        partial: restore what fits where the checkpoint is of another model.
    """

    moves = "anytime"

    def __init__(self, layer: Any, name: str = "model", partial: bool = False) -> None:
        self.name = name
        self._layer = layer
        self._partial = partial

    def capture(self) -> Captured:
        """Returns parameters and persistable buffers; tied ones share one array."""
        copies: Dict[int, np.ndarray] = {}
        tensors = {}
        names = {}
        for name, tensor in self._layer.state_dict().items():
            if not tensor._is_initialized():
                continue
            if id(tensor) not in copies:
                copies[id(tensor)] = host_array(tensor)
            tensors[name] = copies[id(tensor)]
            names[name] = tensor.name
        frozen = {name: bool(p.stop_gradient) for name, p in self._layer.named_parameters()}
        values = {"kind": "network", "parameter_names": names, "stop_gradient": frozen}
        return Captured(tensors, values)

    def restore(self, captured: Captured) -> List[str]:
        """Sets parameters and buffers; see `Component.restore`.

        Where something does not fit and `partial` is off, nothing is touched.
        """
        problems, fitting = self._compare(captured.tensors)
        if problems and not self._partial:
            return problems
        own = self._layer.state_dict()
        with require_paddle().no_grad():
            for name in fitting:
                _put(self._layer, name, own.get(name), captured.tensors[name])
        frozen = captured.values["stop_gradient"]
        for name, parameter in self._layer.named_parameters():
            if name in frozen:
                parameter.stop_gradient = frozen[name]
        return problems

    def _compare(self, saved: Mapping[str, np.ndarray]) -> Tuple[List[str], List[str]]:
        own = self._layer.state_dict()
        parameters = {id(p) for _, p in self._layer.named_parameters()}
        problems = [
            f"{self.name}: {name} {_describe(saved[name])} is in the checkpoint, not in the network"
            for name in saved
            if name not in own and _owner(self._layer, name) is None
        ]
        # A buffer that is None until the first forward is in no state_dict, but has its place.
        fitting = [name for name in saved if name not in own and _owner(self._layer, name)]
        for name, tensor in own.items():
            if not tensor._is_initialized() and name not in saved:
                continue
            if name not in saved:
                problems.append(
                    f"{self.name}: {name} {list(tensor.shape)} is in the network, not in the "
                    "checkpoint"
                )
            # A buffer may grow or shrink as the training goes on; a parameter may not.
            elif id(tensor) in parameters and _differs(tensor, saved[name]):
                problems.append(
                    f"{self.name}: {name} is {_describe(saved[name])} in the checkpoint and "
                    f"{list(tensor.shape)} {_host_dtype(tensor)} in the network"
                )
            else:
                fitting.append(name)
        return problems, fitting


class Buffers:
    """Component: buffers that no state_dict holds (`persistable=False`).

    Args:
        layers: part name to Layer.
    """

    name = "buffer"
    moves = "anytime"

    def __init__(self, layers: Mapping[str, Any]) -> None:
        self._layers = layers

    def capture(self) -> Captured:
        """Returns the buffers that hold something."""
        tensors = {
            f"{part}/{name}": host_array(buffer)
            for part, layer in self._layers.items()
            for name, buffer in _unsaved_buffers(layer).items()
            if buffer._is_initialized()
        }
        return Captured(tensors)

    def restore(self, captured: Captured) -> List[str]:
        """Sets the buffers; see `Component.restore`."""
        problems = []
        with require_paddle().no_grad():
            for key, array in captured.tensors.items():
                part, name = key.split("/", 1)
                layer = self._layers.get(part)
                if layer is None or _owner(layer, name) is None:
                    problems.append(f"buffer {key} is in the checkpoint, not in the network")
                    continue
                _put(layer, name, _unsaved_buffers(layer).get(name), array)
        return problems


def _unsaved_buffers(layer: Any) -> Dict[str, Any]:
    saved = {id(tensor) for tensor in layer.state_dict().values()}
    return {name: buffer for name, buffer in layer.named_buffers() if id(buffer) not in saved}


def _put(layer: Any, name: str, tensor: Any, array: np.ndarray) -> None:
    """Sets a tensor in place; a buffer of another shape is replaced, as forward would."""
    if tensor is not None and not _differs(tensor, array):
        tensor.set_value(array)
        return
    owner = _owner(layer, name)
    leaf = name.rsplit(".", 1)[-1]
    if owner is None or leaf not in owner._buffers:
        raise RuntimeError(f"{name} is no buffer of the network")
    fresh = require_paddle().to_tensor(array)
    if tensor is not None:
        fresh.name = tensor.name
    owner._buffers[leaf] = fresh


def _owner(layer: Any, name: str) -> Any:
    path, _, leaf = name.rpartition(".")
    for prefix, sublayer in layer.named_sublayers(include_self=True):
        if prefix == path and leaf in sublayer._buffers:
            return sublayer
    return None


def _differs(tensor: Any, array: np.ndarray) -> bool:
    if not tensor._is_initialized():
        return True
    return list(tensor.shape) != list(array.shape) or _host_dtype(tensor) != array.dtype.name


def _host_dtype(tensor: Any) -> str:
    name = str(tensor.dtype).rsplit(".", 1)[-1]
    return {"bfloat16": "uint16"}.get(name, name)


def _describe(array: np.ndarray) -> str:
    return f"{list(array.shape)} {array.dtype.name}"
