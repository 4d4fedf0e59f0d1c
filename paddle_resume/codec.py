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
from typing import Any, Callable, Dict, Mapping, MutableMapping

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
        tensors[path] = np.array(value, order="C")
        return {"$": "array", "key": path}
    if is_tensor(value):
        tensors[path] = host_array(value)
        return {"$": "tensor", "key": path, "stop_gradient": bool(value.stop_gradient)}
    if isinstance(value, np.random.RandomState):
        return {"$": "RandomState", "v": inner(value.get_state(legacy=False), "state")}
    if isinstance(value, np.random.Generator):
        return {"$": "Generator", "v": inner(value.bit_generator.state, "state")}
    if type(value) is random.Random:
        return {"$": "Random", "v": inner(value.getstate(), "state")}
    raise Unencodable(f"{path} is a {type(value).__module__}.{type(value).__qualname__}")


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


def decode(value: Any, tensors: Mapping[str, np.ndarray]) -> Any:
    """Turns what `encode` returned back into the value.

    Args:
        value: JSON.
        tensors: the arrays that `encode` put aside.

    Returns:
        An equal value of the same types; arrays and tensors are new objects.

    Raises:
        KeyError: an array is missing.
        ValueError: an object of an unknown kind.
    """
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("$")
    if kind is None:
        return {key: decode(item, tensors) for key, item in value.items()}
    if kind not in _DECODERS:
        raise ValueError(f"a value of the unknown kind {kind!r}")
    return _DECODERS[kind](value, tensors)


def _decode_scalar(value: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> np.generic:
    return np.frombuffer(base64.b64decode(value["v"]), np.dtype(value["dtype"]))[0]


def _decode_tensor(value: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Any:
    import paddle

    return paddle.to_tensor(tensors[value["key"]], stop_gradient=value["stop_gradient"])


def _decode_random_state(value: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Any:
    generator = np.random.RandomState()
    generator.set_state(decode(value["v"], tensors))
    return generator


def _decode_generator(value: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Any:
    state = decode(value["v"], tensors)
    known = {"MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"}
    if state["bit_generator"] not in known:
        raise ValueError(f"an unknown bit generator {state['bit_generator']!r}")
    bit_generator = getattr(np.random, state["bit_generator"])()
    bit_generator.state = state
    return np.random.Generator(bit_generator)


def _decode_random(value: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> random.Random:
    generator = random.Random()
    generator.setstate(decode(value["v"], tensors))
    return generator


def _sequence(build: Callable[[list], Any]) -> Callable[..., Any]:
    return lambda value, tensors: build([decode(item, tensors) for item in value["v"]])


_DECODERS: Dict[str, Callable[[Mapping[str, Any], Mapping[str, np.ndarray]], Any]] = {
    "float": lambda value, tensors: float(value["v"]),
    "complex": _sequence(lambda parts: complex(*parts)),
    "bytes": lambda value, tensors: base64.b64decode(value["v"]),
    "tuple": _sequence(tuple),
    "set": _sequence(set),
    "frozenset": _sequence(frozenset),
    "deque": lambda value, tensors: collections.deque(
        (decode(item, tensors) for item in value["v"]), value["maxlen"]
    ),
    "dict": _sequence(dict),
    "OrderedDict": _sequence(collections.OrderedDict),
    "array": lambda value, tensors: np.array(tensors[value["key"]]),
    "scalar": _decode_scalar,
    "tensor": _decode_tensor,
    "RandomState": _decode_random_state,
    "Generator": _decode_generator,
    "Random": _decode_random,
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
