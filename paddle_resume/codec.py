"""Python values as JSON plus arrays, and back, exactly and without pickle.

JSON holds what it can hold; everything else becomes an object with the key `"$"`, its kind.
Arrays and Paddle tensors go beside the JSON, by name. Floats survive to the last bit, because
`json` writes the shortest text that reads back as the same double.
"""

from __future__ import annotations

import base64
import collections
import math
import random
from typing import Any, Callable, Dict, Mapping, MutableMapping, Optional

import numpy as np

__all__ = ["Unencodable", "assign", "decode", "encode", "host_array", "is_tensor"]

_DEEPEST = 64


class Unencodable(TypeError):
    """A value that has no form on disk; the message names where it stands and its type."""


def is_tensor(value: Any) -> bool:
    """Whether a value is a Paddle tensor (without importing Paddle)."""
    return type(value).__module__.split(".")[0] == "paddle" and hasattr(value, "set_value")


def host_array(tensor: Any) -> np.ndarray:
    """Copies a tensor to the host.

    Args:
        tensor: a Paddle tensor of any shape and dtype, on any device.

    Returns:
        A new array of the same shape; bfloat16 comes as uint16, as in Paddle's own files.
    """
    return np.array(tensor.numpy(), order="C")


def encode(value: Any, tensors: MutableMapping[str, np.ndarray], path: str = "value") -> Any:
    """Turns a value into JSON.

    Args:
        value: None, bool, int, float, complex, str, bytes, list, tuple, dict, set, deque, numpy
            scalars and arrays, numpy and Python random generators, Paddle tensors, in any nesting.
        tensors: receives the arrays, under names that start with `path`.
        path: where the value stands.

    Returns:
        What `json.dumps(..., allow_nan=False)` takes.

    Raises:
        Unencodable: the value, or something in it, is of another type.

    Example:
        >>> arrays = {}
        >>> encode({"best": float("inf"), "seen": (1, 2)}, arrays)
        {'best': {'$': 'float', 'v': 'inf'}, 'seen': {'$': 'tuple', 'v': [1, 2]}}
        >>> decode(encode({3: b"x"}, arrays), arrays)
        {3: b'x'}
    """
    return _encode(value, tensors, path, 0)


def _encode(value: Any, tensors: MutableMapping[str, np.ndarray], path: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise Unencodable(f"{path} is nested more than {_DEEPEST} deep (or contains itself)")

    def inner(item: Any, name: object) -> Any:
        return _encode(item, tensors, f"{path}/{name}", depth + 1)

    def items(sequence: Any) -> list:
        return [inner(item, index) for index, item in enumerate(sequence)]

    # numpy's float64 is a float, so numpy comes first.
    if isinstance(value, np.generic):
        return _encode_scalar(value, path)
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$": "float", "v": repr(value)}
    if type(value) is complex:
        return {"$": "complex", "v": [inner(value.real, 0), inner(value.imag, 1)]}
    if type(value) is bytes:
        return {"$": "bytes", "v": base64.b64encode(value).decode()}
    if type(value) is list:
        return items(value)
    if type(value) is tuple:
        return {"$": "tuple", "v": items(value)}
    if type(value) in (set, frozenset):
        return {"$": type(value).__name__, "v": items(sorted(value, key=repr))}
    if type(value) is collections.deque:
        return {"$": "deque", "v": items(value), "maxlen": value.maxlen}
    if type(value) is dict or type(value) is collections.OrderedDict:
        return _encode_dict(value, inner)
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise Unencodable(f"{path} is an array of Python objects")
        return {"$": "array", "key": _put(np.array(value, order="C"), tensors, path)}
    if is_tensor(value):
        key = _put(host_array(value), tensors, path)
        return {"$": "tensor", "key": key, "stop_gradient": bool(value.stop_gradient)}
    if isinstance(value, np.random.RandomState):
        return {"$": "RandomState", "v": inner(value.get_state(legacy=False), "state")}
    if isinstance(value, np.random.Generator):
        return {"$": "Generator", "v": inner(value.bit_generator.state, "state")}
    if type(value) is random.Random:
        return {"$": "Random", "v": inner(value.getstate(), "state")}
    raise Unencodable(f"{path} is a {type(value).__module__}.{type(value).__qualname__}")


def _put(array: np.ndarray, tensors: MutableMapping[str, np.ndarray], path: str) -> str:
    """Puts an array aside under a name that is free: {"a/b": x, "a": {"b": y}} has two of one."""
    key, number = path, 1
    while key in tensors:
        number += 1
        key = f"{path}~{number}"
    tensors[key] = array
    return key


def _encode_scalar(value: np.generic, path: str) -> Any:
    if value.dtype.kind not in "biufc" or value.dtype.itemsize > 16:
        raise Unencodable(f"{path} is a numpy scalar of dtype {value.dtype}")
    raw = base64.b64encode(value.tobytes()).decode()
    return {"$": "scalar", "dtype": value.dtype.str, "v": raw, "is": repr(value.item())}


def _encode_dict(value: Mapping[Any, Any], inner: Callable[[Any, object], Any]) -> Any:
    ordered = isinstance(value, collections.OrderedDict)
    if not ordered and all(type(key) is str for key in value) and "$" not in value:
        return {key: inner(item, key) for key, item in value.items()}
    pairs = [
        [inner(key, f"{index}.key"), inner(item, f"{index}.value")]
        for index, (key, item) in enumerate(value.items())
    ]
    return {"$": "OrderedDict" if ordered else "dict", "v": pairs}


def decode(
    value: Any,
    tensors: Mapping[str, np.ndarray],
    make_tensor: Optional[Callable[[np.ndarray], Any]] = None,
) -> Any:
    """Turns what `encode` returned back into the value.

    Args:
        value: JSON.
        tensors: the arrays that `encode` put aside.
        make_tensor: makes what a Paddle tensor becomes; None for a Paddle tensor.

    Returns:
        An equal value of the same types; arrays and tensors are new objects.

    Raises:
        KeyError: an array is missing.
        ValueError: an object of an unknown kind.
    """
    return _Decoder(tensors, make_tensor or _paddle_tensor).decode(value)


def _paddle_tensor(array: np.ndarray) -> Any:
    import paddle

    return paddle.to_tensor(array)


class _Decoder:
    def __init__(
        self, tensors: Mapping[str, np.ndarray], make_tensor: Callable[[np.ndarray], Any]
    ) -> None:
        self._tensors = tensors
        self._make_tensor = make_tensor

    def decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        kind = value.get("$")
        if kind is None:
            return {key: self.decode(item) for key, item in value.items()}
        build = _SEQUENCES.get(kind)
        if build is not None:
            return build([self.decode(item) for item in value["v"]])
        special = getattr(self, f"_{kind}", None) if kind in _SPECIAL else None
        if special is None:
            raise ValueError(f"a value of the unknown kind {kind!r}")
        return special(value)

    def _float(self, value: Mapping[str, Any]) -> float:
        return float(value["v"])

    def _bytes(self, value: Mapping[str, Any]) -> bytes:
        return base64.b64decode(value["v"])

    def _deque(self, value: Mapping[str, Any]) -> Any:
        return collections.deque((self.decode(item) for item in value["v"]), value["maxlen"])

    def _scalar(self, value: Mapping[str, Any]) -> np.generic:
        scalar: np.generic = np.frombuffer(base64.b64decode(value["v"]), np.dtype(value["dtype"]))[
            0
        ]
        return scalar

    def _array(self, value: Mapping[str, Any]) -> np.ndarray:
        return np.array(self._tensors[value["key"]])

    def _tensor(self, value: Mapping[str, Any]) -> Any:
        tensor = self._make_tensor(self._tensors[value["key"]])
        if is_tensor(tensor):
            tensor.stop_gradient = value["stop_gradient"]
        return tensor

    def _RandomState(self, value: Mapping[str, Any]) -> np.random.RandomState:
        generator = np.random.RandomState()
        generator.set_state(self.decode(value["v"]))
        return generator

    def _Generator(self, value: Mapping[str, Any]) -> np.random.Generator:
        state = self.decode(value["v"])
        if state["bit_generator"] not in _BIT_GENERATORS:
            raise ValueError(f"an unknown bit generator {state['bit_generator']!r}")
        bit_generator = getattr(np.random, state["bit_generator"])()
        bit_generator.state = state
        return np.random.Generator(bit_generator)

    def _Random(self, value: Mapping[str, Any]) -> random.Random:
        generator = random.Random()
        generator.setstate(self.decode(value["v"]))
        return generator


_BIT_GENERATORS = frozenset({"MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"})
_SPECIAL = frozenset(
    {"float", "bytes", "deque", "scalar", "array", "tensor", "RandomState", "Generator", "Random"}
)
_SEQUENCES: Dict[str, Callable[[list], Any]] = {
    "complex": lambda parts: complex(*parts),
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
}


def assign(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute to a decoded value, in place where others may hold the same object.

    Args:
        owner: the object.
        name: its attribute.
        value: what `decode` returned. A random generator's state is put into the one that is
            there, a list's or dict's content too.
    """
    current: Any = getattr(owner, name, None)
    if isinstance(current, np.random.RandomState) and isinstance(value, np.random.RandomState):
        current.set_state(value.get_state(legacy=False))
    elif isinstance(current, np.random.Generator) and isinstance(value, np.random.Generator):
        current.bit_generator.state = value.bit_generator.state
    elif type(current) is random.Random and type(value) is random.Random:
        current.setstate(value.getstate())
    elif type(current) is list and type(value) is list:
        current[:] = value
    elif type(current) is dict and type(value) is dict:
        current.clear()
        current.update(value)
    elif is_tensor(current) and is_tensor(value) and list(current.shape) == list(value.shape):
        current.set_value(value)
    else:
        setattr(owner, name, value)
