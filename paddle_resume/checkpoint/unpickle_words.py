"""What the globals in a pickle of arrays stand for, and the arrays built from checked sizes."""

from __future__ import annotations

import math
import re
from typing import Any, Dict, Optional, Set, Tuple

import numpy as np

from paddle_resume.errors import CheckpointError

__all__ = [
    "BYTES",
    "DICT",
    "DTYPE",
    "ENCODE",
    "FROMBUFFER",
    "NDARRAY",
    "RECONSTRUCT",
    "SCALAR",
    "TUPLE",
    "WORDS",
    "Dtype",
    "PendingArray",
    "copy_array",
    "finish",
]

_MOST_AXES = 64  # numpy's own limit
_DEPTH = 100  # of containers in containers: far above what a state needs, below Python's recursion


class Word(str):
    """A global that the format knows; it is never imported."""


RECONSTRUCT, NDARRAY, DTYPE = Word("_reconstruct"), Word("ndarray"), Word("dtype")
SCALAR, FROMBUFFER = Word("scalar"), Word("_frombuffer")
ENCODE, BYTES = Word("encode"), Word("bytes")
TUPLE, DICT = Word("tuple"), Word("OrderedDict")
WORDS: Dict[Tuple[str, str], Word] = {
    ("numpy", "ndarray"): NDARRAY,
    ("numpy", "dtype"): DTYPE,
    ("collections", "OrderedDict"): DICT,
    ("_codecs", "encode"): ENCODE,  # bytes, as protocol 2 writes them,
    ("__builtin__", "bytes"): BYTES,  # and empty ones
    ("builtins", "tuple"): TUPLE,  # a (name, array) pair, as paddle.save writes a lone tensor
    ("__builtin__", "tuple"): TUPLE,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): RECONSTRUCT for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): SCALAR for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): FROMBUFFER for core in ("core", "_core")},
}


class PendingArray:
    """An array that was named; without a value until its data follows."""

    value: Optional["np.ndarray[Any, Any]"] = None


class Dtype:
    """A dtype of numbers or text; its byte order may follow."""

    def __init__(self, spec: str) -> None:
        if not re.fullmatch(r"[<>|=]?[biufcSU][0-9]{1,9}", spec):
            raise CheckpointError(f"it holds an array of dtype {spec!r:.40}, not numbers; refused")
        self.kind = spec.lstrip("<>|=")
        self.order = spec[0] if spec[0] in "<>" else "="

    def build(self, state: Tuple[Any, ...]) -> None:
        """Takes the byte order; the rest of a state is for structured dtypes."""
        if any(item is not None for item in state[2:5]) or state[1] not in ("<", ">", "|", "="):
            raise CheckpointError("it holds an array of a structured dtype; refused")
        self.order = state[1]

    def get(self) -> "np.dtype[Any]":
        """The dtype itself."""
        return np.dtype(self.order + self.kind)


def copy_array(shape: Any, dtype: Any, buffer: Any, fortran: bool) -> "np.ndarray[Any, Any]":
    """Copies an array out of the pickle, so that it is aligned and does not keep the whole file.

    Args:
        shape: sizes.
        dtype: a `Dtype`.
        buffer: its bytes; text where Python 2 wrote them.
        fortran: whether the first index is the fastest.

    Returns:
        The array.

    Raises:
        CheckpointError: the shape and the bytes do not fit together.
    """
    if isinstance(buffer, str):
        buffer = buffer.encode("latin-1")
    real = dtype.get()
    # Looked at before it is shown: a hostile one takes for ever to multiply, or to write out.
    sizes_fit = all(type(size) is int and 0 <= size < 1 << 63 for size in shape)
    if type(shape) is not tuple or len(shape) > _MOST_AXES or not sizes_fit:
        raise CheckpointError("it holds an array whose shape is no row of sizes; refused")
    needed = math.prod(shape) * real.itemsize
    if not isinstance(buffer, (bytes, memoryview)) or len(buffer) != needed:
        raise CheckpointError(f"it holds an array of shape {shape!r:.80} with other data")
    if not needed:
        return np.empty(shape, real)
    order: Any = "F" if fortran else "C"
    return np.frombuffer(buffer, real).reshape(shape, order=order).copy(order="K")


def finish(value: Any) -> Any:
    """Turns what was interpreted into plain values.

    Args:
        value: what the pickle left.

    Returns:
        It, without any of the stand-ins of this module.

    Raises:
        CheckpointError: a stand-in is where no value can be, or the nesting has no end.
    """
    return _Finish().finish(value, 0)


class _Finish:
    """Keeps one object that is named twice one object: the work does not multiply."""

    def __init__(self) -> None:
        self._done: Dict[int, Any] = {}
        self._open: Set[int] = set()

    def finish(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is PendingArray:
            if value.value is None:
                raise CheckpointError("the pickle is damaged (an array without data)")
            return value.value
        if kind in (Word, Dtype):
            raise CheckpointError("the pickle is damaged (a part of an array stands alone)")
        if kind not in (dict, list, tuple, memoryview):
            return value
        if id(value) in self._done:
            return self._done[id(value)]
        if kind is memoryview:
            return self._done.setdefault(id(value), bytes(value))
        if depth > _DEPTH or id(value) in self._open:
            raise CheckpointError("it holds values nested too deeply, or within themselves")
        self._open.add(id(value))
        result: Any
        if kind is dict:
            result = {key: self.finish(item, depth + 1) for key, item in value.items()}
        else:
            result = kind(self.finish(item, depth + 1) for item in value)
        self._done[id(value)] = result
        return result
