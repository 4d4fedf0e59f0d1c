"""Paddle's file format, without running what a file names.

A .pdparams is a pickle of dicts of numpy arrays. `dump` writes one that plain `paddle.load` reads,
`load` reads one by interpreting it as data (see `unpickle`).
"""

from __future__ import annotations

import pickle
import struct
from typing import Any, BinaryIO, Callable, Dict, Mapping, Protocol, Tuple, Union

import numpy as np

from paddle_resume.checkpoint.unpickle import Reader
from paddle_resume.errors import CheckpointError

__all__ = ["Sink", "dump", "load"]

_PLAIN = (type(None), bool, int, float, str, bytes)
_DEPTH = 64  # of dicts in dicts; a state needs three


class Sink(Protocol):
    """What `dump` writes to."""

    def write(self, data: Union[bytes, memoryview], /) -> Any:
        """Takes the next bytes."""
        ...


def dump(mapping: Mapping[str, Any], fileobj: Sink) -> None:
    """Writes a dict of arrays and plain values as a pickle that plain `paddle.load` reads.

    Array buffers go to `fileobj.write` as they are: pickle's own protocol 4 copies each one and
    keeps the copies until the end, which would double the memory of a save. The names are those
    of numpy 1, which numpy 1 and 2 both import.

    Args:
        mapping: its values are arrays, None, bool, int, float, str, bytes, numpy scalars, or
            dicts, lists and tuples of them.
        fileobj: a binary file, or anything with its `write`.

    Raises:
        CheckpointError: a value is of another kind.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> dump({"w": np.zeros(2, "float32"), "epoch": 3}, file)
        >>> load(file.getvalue())
        {'w': array([0., 0.], dtype=float32), 'epoch': 3}
    """
    fileobj.write(pickle.PROTO + b"\x04")
    _emit(dict(mapping), fileobj.write, ())
    fileobj.write(pickle.STOP)


def load(source: Union[BinaryIO, bytes, bytearray, memoryview]) -> Dict[Any, Any]:
    """Reads a pickled dict of arrays and plain values; nothing in it is executed.

    Args:
        source: the pickle, or a binary file that holds it.

    Returns:
        The dict; its arrays own their memory.

    Raises:
        CheckpointError: it names something that would run code, or is malformed in whatever way.
    """
    data = source if isinstance(source, (bytes, bytearray, memoryview)) else source.read()
    try:
        result = Reader(memoryview(data)).read()
    except (CheckpointError, MemoryError):
        raise
    # Malformed input shows itself in many ways (struct, index, type, value, ...); each
    # means the same to the caller.
    except Exception as error:
        raise CheckpointError(f"the pickle is damaged ({type(error).__name__}: {error})") from error
    if not isinstance(result, dict):
        raise CheckpointError(f"it holds a {type(result).__name__}; a dict of tensors expected")
    return result


def _emit(value: Any, write: Callable[[Any], Any], path: Tuple[Any, ...]) -> None:
    """Writes the opcodes that build one value."""
    if len(path) > _DEPTH:
        raise CheckpointError(f"{_at(path[:3])} is nested too deeply to be saved")
    if isinstance(value, np.ndarray):
        _emit_array(value, write, path)
    elif isinstance(value, np.generic):
        write(pickle.GLOBAL + b"numpy.core.multiarray\nscalar\n" + _dtype(value.dtype, path))
        write(_plain(value.tobytes()) + pickle.TUPLE2 + pickle.REDUCE)
    elif isinstance(value, Mapping):
        write(pickle.EMPTY_DICT + pickle.MARK)
        for key, item in value.items():
            if type(key) not in (str, int):
                raise CheckpointError(f"{_at(path)} has the key {key!r}; only names can be saved")
            write(_plain(key))
            _emit(item, write, (*path, key))
        write(pickle.SETITEMS)
    elif type(value) in (list, tuple):
        is_list = type(value) is list
        write((pickle.EMPTY_LIST if is_list else b"") + pickle.MARK)
        for index, item in enumerate(value):
            _emit(item, write, (*path, index))
        write(pickle.APPENDS if is_list else pickle.TUPLE)
    elif type(value) in _PLAIN:
        write(_plain(value))
    else:
        raise CheckpointError(f"{_at(path)} is a {type(value).__name__}, which cannot be saved")


def _emit_array(value: "np.ndarray[Any, Any]", write: Callable[[Any], Any], path: Any) -> None:
    if type(value) is not np.ndarray:
        raise CheckpointError(f"{_at(path)} is a {type(value).__name__}; a plain array expected")
    dtype = _dtype(value.dtype, path)
    flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    write(
        pickle.GLOBAL
        + b"numpy.core.multiarray\n_reconstruct\n"
        + pickle.GLOBAL
        + b"numpy\nndarray\n"
        + _plain((0,))
        + _plain(b"b")
        + pickle.TUPLE3
        + pickle.REDUCE
        + pickle.MARK
        + _plain(1)
        + _plain(value.shape)
        + dtype
        + pickle.NEWFALSE
        + pickle.BINBYTES8
        + struct.pack("<Q", flat.nbytes)
    )
    write(flat.data)
    write(pickle.TUPLE + pickle.BUILD)


def _dtype(dtype: "np.dtype[Any]", path: Any) -> bytes:
    # 256 is where numpy's numbers for types registered by other packages begin.
    if dtype.kind not in "biufcSU" or dtype.num >= 256 or not dtype.itemsize:
        raise CheckpointError(f"{_at(path)} has dtype {dtype}, which cannot be saved")
    return _plain(dtype)


def _plain(value: Any) -> bytes:
    """The opcodes of one small value: protocol 3 has no frames, so they stand anywhere."""
    return pickle.dumps(value, 3)[2:-1]


def _at(path: Tuple[Any, ...]) -> str:
    return "/".join(map(str, path)) or "the whole"
