"""Random number streams: Python's, numpy's, and Paddle's for each device.

A stream's words are kept as base64 of little-endian integers. Paddle's CPU generator is a C++
`std::mt19937_64`: 312 words and a position, which its text form shows on every version. Paddle
3.x takes that text back; 2.6 drops it, so there the words are written into the engine itself,
after the memory has been checked word by word against the text.
"""

from __future__ import annotations

import base64
import ctypes
import random
from typing import Any, Dict, Mapping, Sequence

import numpy as np

from paddle_resume.runtime import require_paddle
from paddle_resume.types import Captured

__all__ = [
    "RandomStreams",
    "all_streams",
    "host_streams",
    "paddle_streams",
    "set_all_streams",
    "set_host_streams",
    "set_paddle_streams",
]

_ENGINE_WORDS = 312 + 1


class RandomStreams:
    """Every stream of the main process; they are set when the resumed loader is ready."""

    name = "rng"
    moves = "anytime"

    def capture(self) -> Captured:
        """Returns all streams' states."""
        return Captured(values=all_streams())


def all_streams() -> Dict[str, Any]:
    """Returns the states of every stream, as JSON."""
    return {**host_streams(), "paddle": paddle_streams()}


def set_all_streams(values: Mapping[str, Any]) -> "list[str]":
    """Sets every stream to what `all_streams` returned.

    Returns:
        The streams that could not be set, a sentence each.
    """
    set_host_streams(values)
    return set_paddle_streams(values["paddle"])


def host_streams() -> Dict[str, Any]:
    """Returns the states of `random` and of numpy's global generator, as JSON.

    Example:
        >>> before = host_streams()
        >>> first = (random.random(), np.random.rand())
        >>> set_host_streams(before)
        >>> first == (random.random(), np.random.rand())
        True
    """
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state()
    kind, key, pos, has_gauss, cached = legacy
    return {
        "python": {"version": version, "words": _pack(words, "<u4"), "gauss": gauss},
        "numpy": {
            "kind": kind,
            "key": _pack(key, "<u4"),
            "pos": int(pos),
            "has_gauss": int(has_gauss),
            "gauss": float(cached),
        },
    }


def set_host_streams(values: Mapping[str, Any]) -> None:
    """Sets `random` and numpy's global generator to what `host_streams` returned."""
    python, numpy_ = values["python"], values["numpy"]
    words = tuple(int(word) for word in _unpack(python["words"], "<u4"))
    random.setstate((python["version"], words, python["gauss"]))
    key = _unpack(numpy_["key"], "<u4").astype(np.uint32)
    np.random.set_state((numpy_["kind"], key, numpy_["pos"], numpy_["has_gauss"], numpy_["gauss"]))


def paddle_streams() -> Dict[str, Any]:
    """Returns the states of Paddle's default generators: device name to JSON."""
    return {device: _dump(generator) for device, generator in _generators().items()}


def set_paddle_streams(values: Mapping[str, Any]) -> "list[str]":
    """Sets Paddle's default generators to what `paddle_streams` returned.

    Returns:
        The streams that this machine lacks, or that the checkpoint lacks, a sentence each.
    """
    generators = _generators()
    problems = []
    for device, generator in generators.items():
        if device in values:
            _load(generator, values[device])
        else:
            problems.append(f"the random stream of {device} is not in the checkpoint")
    for device in values:
        if device not in generators:
            problems.append(f"the random stream of {device} has no device here")
    return problems


def _generators() -> Dict[str, Any]:
    paddle = require_paddle()
    core = paddle.framework.core
    found = {"cpu": core.default_cpu_generator()}
    # Asking the GPU wheel for a generator of an absent device ends the process: count first.
    if core.is_compiled_with_cuda():
        for index in range(core.get_cuda_device_count()):
            found[f"gpu:{index}"] = core.default_cuda_generator(index)
    if core.is_compiled_with_xpu():
        for index in range(core.get_xpu_device_count()):
            found[f"xpu:{index}"] = core.default_xpu_generator(index)
    for kind in paddle.device.get_all_custom_device_type() or []:
        for index in range(core.get_custom_device_count(kind)):
            place = core.CustomPlace(kind, index)
            found[f"{kind}:{index}"] = core.default_custom_device_generator(place)
    return found


def _dump(generator: Any) -> Dict[str, Any]:
    text = str(generator.get_state()).split()
    values: Dict[str, Any] = {"seed": int(text[1]), "offset": int(text[2])}
    if len(text) > _ENGINE_WORDS:
        values["engine"] = _pack([int(word) for word in text[-_ENGINE_WORDS:]], "<u8")
    return values


def _load(generator: Any, values: Mapping[str, Any]) -> None:
    device = int(str(generator.get_state()).split()[0])
    generator.manual_seed(values["seed"])
    state = generator.get_state()
    words = _unpack(values["engine"], "<u8") if "engine" in values else None
    if words is not None and len(state.__getstate__()) == 4:
        engine = " ".join(str(int(word)) for word in words).encode()
        state = _rebuild(state, (device, values["seed"], values["offset"], list(engine)))
    elif words is not None:
        _poke(state, words)
    else:
        state = _rebuild(state, (device, values["seed"], values["offset"]))
    generator.set_state(state)
    found = _dump(generator)
    if found != dict(values):
        raise RuntimeError(
            "paddle_resume could not set Paddle's random generator: the state read back differs "
            "from the one written. This Paddle keeps it in a way that paddle_resume does not know."
        )


def _rebuild(state: Any, content: Sequence[Any]) -> Any:
    kind: Any = type(state)
    fresh = kind.__new__(kind)
    fresh.__setstate__(tuple(content))
    return fresh


def _poke(state: Any, words: np.ndarray) -> None:
    """Writes the engine of a Paddle 2.6 generator state: (device, seed, offset, words) in C++."""
    text = str(state).split()
    known = [int(word) for word in text[-_ENGINE_WORDS:]]
    holder = id(state) + object.__basicsize__  # pybind11 keeps the C++ object's address here
    address = ctypes.c_void_p.from_address(holder).value
    if address is None:
        raise RuntimeError("paddle_resume: Paddle's generator state holds no C++ object")
    header = (ctypes.c_uint64 * 3).from_address(address)
    engine = (ctypes.c_uint64 * _ENGINE_WORDS).from_address(address + ctypes.sizeof(header))
    if header[1] != int(text[1]) or header[2] != int(text[2]) or list(engine) != known:
        raise RuntimeError(
            "paddle_resume does not recognise how this Paddle keeps its random generator in "
            "memory, and will not write to it. Use Paddle 2.6.x or 3.x."
        )
    for index, word in enumerate(words):
        engine[index] = int(word)


def _pack(words: Sequence[int], dtype: str) -> str:
    return base64.b64encode(np.asarray(words, dtype=dtype).tobytes()).decode()


def _unpack(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=dtype)
