"""Networks: parameters, buffers and which parameters are frozen, by structured name."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Set, Tuple

import numpy as np
import xxhash

from paddle_resume.codec import host_array
from paddle_resume.errors import ResumeError
from paddle_resume.runtime import require_paddle
from paddle_resume.types import ANYTIME, PARTLY, Captured

__all__ = ["Buffers", "Network"]

_SMALL = 1 << 18  # elements: what costs less to copy than to think about


class Network:
    """Component: the state_dict of a Layer, and `stop_gradient` of each of its parameters.

    BatchNorm's mean and variance are parameters in Paddle (with stop_gradient), so they are here:
    the forward moves them, where only the optimizer's update moves trained weights. Large frozen
    parameters are taken for still until one has been seen to move.

    Args:
        layer: the network.
        name: the part's name, which names its file too.
        partial: restore what fits where the checkpoint is of another model.
    """

    moves = PARTLY

    def __init__(self, layer: Any, name: str = "model", partial: bool = False) -> None:
        self.name = name
        self._layer = layer
        self._partial = partial
        self._still: Dict[str, Tuple[bytes, int]] = {}
        self._moving: Set[str] = set()

    def capture(self) -> Captured:
        """Returns parameters and persistable buffers; tied ones share one array."""
        return self.complete(self.mark(), at_once=True)

    def mark(self) -> Captured:
        """Returns what the forward may move; see `PartlyMoving.mark`."""
        tensors = self._initialized()
        frozen = {name: bool(p.stop_gradient) for name, p in self._layer.named_parameters()}
        kinds = {id(p): bool(p.stop_gradient) for p in self._layer.parameters()}
        moving = {}
        for name, tensor in tensors.items():
            is_frozen = kinds.get(id(tensor))  # None for a buffer
            if is_frozen is None or (is_frozen and self._is_moving(name, tensor)):
                moving[name] = tensor
        values = {
            "kind": "network",
            "parameter_names": {name: tensor.name for name, tensor in tensors.items()},
            "stop_gradient": frozen,
        }
        return Captured(_copies(moving), values)

    def complete(self, marked: Captured, at_once: bool) -> Captured:
        """Adds the trained weights; see `PartlyMoving.complete`."""
        tensors = self._initialized()
        rest = _copies({n: tensor for n, tensor in tensors.items() if n not in marked.tensors})
        for name in self._still.keys() & rest.keys():
            if _digest(rest[name]) == self._still[name][0]:
                continue
            del self._still[name]
            self._moving.add(name)
            if not at_once:
                raise ResumeError(
                    f"{self.name}: the frozen parameter {name} was changed by something else than "
                    "the optimizer, so what it was at the last step is gone"
                )
        # In the network's own order, whichever way they came.
        together = {**rest, **marked.tensors}
        ordered = {n: together[n] for n in marked.values["parameter_names"] if n in together}
        return Captured(ordered, marked.values)

    def digest(self, marked: Captured) -> str:
        """Returns a hash of the trained weights; see `PartlyMoving.digest`."""
        frozen = marked.values["stop_gradient"]
        hashed = xxhash.xxh3_128()
        for name, parameter in self._layer.named_parameters():
            if not frozen.get(name, True):
                hashed.update(_digest(host_array(parameter)))
        return hashed.hexdigest()

    def _is_moving(self, name: str, tensor: Any) -> bool:
        """Whether a frozen parameter has to be copied at each boundary.

        A small one (BatchNorm's statistics) always; a large one (a frozen backbone, or the
        second encoder of a momentum contrast) once its second boundary finds it changed.
        """
        if name in self._moving or int(tensor.size) <= _SMALL:
            return True
        digest, seen = self._still.get(name, ("", 0))
        if seen < 2:
            found = _digest(host_array(tensor))
            if seen and found != digest:
                del self._still[name]
                self._moving.add(name)
                return True
            self._still[name] = (found, seen + 1)
        return False

    def _initialized(self) -> Dict[str, Any]:
        state = self._layer.state_dict()
        return {name: tensor for name, tensor in state.items() if tensor._is_initialized()}

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
    moves = ANYTIME

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


def _copies(tensors: Mapping[str, Any]) -> Dict[str, np.ndarray]:
    copies: Dict[int, np.ndarray] = {}
    for tensor in tensors.values():
        if id(tensor) not in copies:
            copies[id(tensor)] = host_array(tensor)
    return {name: copies[id(tensor)] for name, tensor in tensors.items()}


def _digest(array: np.ndarray) -> bytes:
    return xxhash.xxh3_128_digest(np.ascontiguousarray(array).data)


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
