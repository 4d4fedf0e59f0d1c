"""Pickles that run code where Python's own reader, or an allowlist in front of it, opens them."""

from __future__ import annotations

import collections
import os
import pickle
import struct
from typing import Any, Dict, Tuple

import numpy as np

EXTENSION = 0xE7
"""Of copyreg, which the test registers for os.mkdir."""


class Call:
    """Is pickled as a call."""

    def __init__(self, function: Any, *args: Any) -> None:
        self._call = (function, args)

    def __reduce__(self) -> Any:
        return self._call


class CallEx:
    """Is pickled as a call of `__new__` with keywords."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return 1 / 0


def _text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _in_dict(opcodes: bytes) -> bytes:
    return b"\x80\x04}" + _text("w") + opcodes + b"s."


def runs_code(mark: str) -> Dict[str, bytes]:
    """Pickles that make the folder `mark` when they are run."""
    path = _text(mark)
    line = mark.encode()
    made = f"__import__('os').mkdir({mark!r})"
    found = {}
    for protocol in range(6):
        found[f"reduce, protocol {protocol}"] = pickle.dumps({"w": Call(os.mkdir, mark)}, protocol)
    holders: Dict[str, Any] = {
        "alone": Call(os.mkdir, mark),
        "in a list": [Call(os.mkdir, mark)],
        "in a tuple": {"a": (1, Call(os.mkdir, mark))},
        "as a key": {Call(hash_of, mark): 1},
        "in an ordered dict": collections.OrderedDict(w=Call(os.mkdir, mark)),
        "in an array of objects": {"w": np.array([Call(os.mkdir, mark)], dtype=object)},
        "beside good arrays": {"a": np.ones(3), "b": Call(os.mkdir, mark)},
        "eval": {"w": Call(eval, made)},
        "exec": {"w": Call(exec, made)},
        "map": {"w": Call(list, Call(map, eval, [made]))},
        "partial": {"w": Call(_functools().partial(os.mkdir, mark))},
        "timeit": {"w": Call(_timeit(), made, "pass", number_default(), 1)},
    }
    for what, value in holders.items():
        found[what] = pickle.dumps(value, 4)
    found.update(
        {
            "inst": b"\x80\x02}" + _text("w") + b"(" + path + b"iposix\nmkdir\ns.",
            "obj": _in_dict(b"(cposix\nmkdir\n" + path + b"o"),
            "global and reduce": _in_dict(b"cposix\nmkdir\n" + path + b"\x85R"),
            "stack global": _in_dict(_text("posix") + _text("mkdir") + b"\x93" + path + b"\x85R"),
            "a dotted name": _in_dict(
                _text("os") + _text("path.os.mkdir") + b"\x93" + path + b"\x85R"
            ),
            "getattr": _in_dict(
                b"cbuiltins\ngetattr\n(cbuiltins\n__import__\n" + _text("os") + b"\x85R"
                + _text("mkdir") + b"tR" + path + b"\x85R"
            ),
            "an extension": _in_dict(b"\x82" + bytes([EXTENSION]) + path + b"\x85R"),
            "an extension of 2 bytes": _in_dict(b"\x83\xe7\0" + path + b"\x85R"),
            "an extension of 4 bytes": _in_dict(b"\x84\xe7\0\0\0" + path + b"\x85R"),
            "newobj": _in_dict(
                b"csubprocess\nPopen\n" + path + b"\x85" + b"\x810" + b"cposix\nmkdir\n" + path
                + b"\x85R"
            ),
            "newobj_ex": _in_dict(
                b"cfunctools\npartial\ncposix\nmkdir\n" + path + b"\x86}\x92)R"
            ),
            "build": _in_dict(
                b"cfunctools\npartial\ncposix\ngetpid\n\x85\x81(cposix\nmkdir\n" + path
                + b"\x85}}tb)R"
            ),
            "reconstruct of another class": _in_dict(
                b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR0"
                b"cposix\nmkdir\n" + path + b"\x85R"
            ),
            "after good arrays": pickle.dumps({"a": np.ones(2)}, 4)[:-1]
            + b"0cposix\nmkdir\n" + path + b"\x85R.",
            "twice, the second is bad": pickle.dumps({}) + _in_dict(
                b"cposix\nmkdir\n" + path + b"\x85R"
            ),
            "of Python 2": b"(dS'w'\ncposix\nmkdir\n(S'" + line + b"'\ntRs.",
        }
    )  # fmt: skip
    return found


def hash_of(mark: str) -> str:
    os.mkdir(mark)
    return mark


def number_default() -> Any:
    import time

    return time.perf_counter


def _functools() -> Any:
    import functools

    return functools


def _timeit() -> Any:
    import timeit

    return timeit.timeit


def _array(shape: bytes, data: bytes) -> bytes:
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR(K\x01"
        + shape + b"cnumpy\ndtype\n(" + _text("u1") + b"\x89\x88tR\x89" + data + b"tb"
    )  # fmt: skip


def fill_the_memory(size: int) -> Dict[str, bytes]:
    """Short files, each about `size` bytes, that ask for very much memory, or time."""
    half = size // 2
    text = b"X" + struct.pack("<I", half) + bytes(half)
    data = b"B" + struct.pack("<I", half) + bytes(half)
    start = b"\x80\x04("
    laughs = b"](K\x01K\x01e"
    for level in range(200):
        index = bytes([level])
        laughs += b"q" + index + b"](" + b"h" + index + b"h" + index + b"e"
    numbers = b"(" + (b"\x8a\xff" + b"\x7f" * 255) * (half // 257) + b"t"
    found: Dict[str, Tuple[bytes, bytes, bytes]] = {
        "a text encoded again and again": (
            text + b"q\x00c_codecs\nencode\nq\x01" + _text("latin1") + b"q\x02",
            b"h\x01h\x00h\x02\x86R",
            b"t.",
        ),
        "bytes named again and again": (_text("b") + data + b"q\x00]q\x01", b"h\x00", b"t."),
        "an array made again and again": (
            data + b"q\x00",
            _array(b"J" + struct.pack("<i", half) + b"\x85", b"h\x00"),
            b"t.",
        ),
        "a dict made of a list again and again": (
            b"](" + b"".join(_text(f"{n:07}") + b"N\x86" for n in range(half // 15))
            + b"e\x85q\x00ccollections\nOrderedDict\nq\x01",
            b"h\x01h\x00R",
            b"t.",
        ),
        "a tuple made of a list again and again": (
            b"](" + b"N" * half + b"e\x85q\x00cbuiltins\ntuple\nq\x01",
            b"h\x01h\x00R",
            b"t.",
        ),
        "a tuple made of bytes again and again": (
            data + b"\x85q\x00cbuiltins\ntuple\nq\x01",
            b"h\x01h\x00R",
            b"t.",
        ),
        "empty dicts": (b"", b"}", b"t."),
        "empty lists": (b"", b"]", b"t."),
        "tuples of one": (b"", b"N\x85", b"t."),
        "marks": (b"", b"(", b"t."),
        "all of it remembered": (b"]", b"\x94", b"t."),
        "short bytes": (b"", b"C\x02ab", b"t."),
        "byte arrays": (b"", b"\x96\x02\0\0\0\0\0\0\0ab", b"t."),
        "bytes of 2 kB, named again and again": (
            b"B\0\x08\0\0" + bytes(2048) + b"q\x00", b"h\x00", b"t."
        ),
        "arrays without data": (
            _array(b"K\x00\x85", b"C\x00") + b"cnumpy.core.multiarray\n_reconstruct\nq\x00"
            b"cnumpy\nndarray\nK\x00\x85C\x01b\x87q\x01",
            b"h\x00h\x01R",
            b"t.",
        ),
        "a billion laughs, called": (laughs, b"", b")R."),
        "a billion laughs as a name": (laughs + b"q\xfa", b"", b"h\xfa\x93."),
        "a billion laughs as a shape": (
            laughs + b"q\xfa", _array(b"h\xfa", b"C\x01a"), b"t."
        ),
        "a billion laughs as a key": (b"}" + laughs + b"q\xfa", b"", b"Ns."),
        "a shape of huge numbers": (_array(numbers, b"C\x01a"), b"", b"t."),
        "a shape of many large sizes": (
            _array(b"(" + (b"\x8a\x08" + b"\x7f" * 8) * (half // 10) + b"t", b"C\x01a"), b"", b"t."
        ),
        "a number of a million digits": (
            b"\x8b" + struct.pack("<i", half) + b"\x7f" * half, b"", b"t."
        ),
        "lists in lists": (b"", b"](", b"."),
        "tuples in tuples": (b"N", b"\x85", b"."),
        "a terabyte claimed": (b"\x8e" + struct.pack("<Q", 1 << 40), b"", b"."),
        "a frame of a terabyte": (b"\x95" + struct.pack("<Q", 1 << 40), b"", b"."),
    }  # fmt: skip
    made = {}
    for what, (first, again, last) in found.items():
        count = max(0, size - len(first)) // len(again) if again else 1
        made[what] = start + first + again * count + last
    return made
