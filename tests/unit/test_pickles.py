"""Pickles of data: what plain Paddle reads is written, and nothing read is executed."""

from __future__ import annotations

import io
import os
import pickle
import random
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any, Dict

import numpy as np
import pytest

from paddle_resume.checkpoint import pickles
from paddle_resume.errors import CheckpointError

ARRAYS: Dict[str, np.ndarray] = {
    "float32": np.arange(12, dtype="float32").reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "strided": np.arange(48.0).reshape(6, 8)[::2, ::-3],
    "every second": np.arange(10, dtype="int8")[::-2],
    "a column": np.arange(12.0)[1::3],
    "bfloat16": np.arange(5, dtype="uint16"),
    "empty": np.zeros((0, 3)),
    "scalar": np.array(3.5),
    "bool": np.array([True, False]),
    "half": np.ones(2, "float16"),
    "complex": np.full(2, 1 + 2j, "complex64"),
    "text": np.array(["ab", "ü"]),
    "one byte": np.zeros(1, "int8"),
}
VALUES: Dict[str, Any] = {
    "int": 3,
    "big": -(10**30),
    "float": 0.1,
    "nan": float("inf"),
    "text": "ü" * 300,
    "bytes": b"\x00\xff",
    "none": None,
    "bools": [True, False],
    "tuple": (1, (2.5, ()), []),
    "numpy": np.float64(0.1),
    "deep": {"a": {"b": {"c": [np.int32(4)]}}},
    7: "a number as key",
}


def dumps(mapping: Dict[Any, Any]) -> bytes:
    file = io.BytesIO()
    pickles.dump(mapping, file)
    return file.getvalue()


def assert_arrays(found: Dict[str, Any]) -> None:
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


def test_it_reads_back() -> None:
    found = pickles.load(dumps({**ARRAYS, "values": VALUES}))
    assert_arrays(found)
    assert found["values"] == VALUES
    assert all(found[name].flags.writeable and found[name].flags.aligned for name in ARRAYS)


def test_plain_pickle_reads_what_is_written() -> None:
    data = dumps({**ARRAYS, "values": VALUES})
    found = pickle.loads(data, encoding="latin1")
    assert_arrays(found)
    assert found["values"] == VALUES
    assert data[:2] == b"\x80\x04"
    assert b"numpy._core" not in data  # numpy before 1.26 has no such module


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_pickle_and_paddle_write_is_read(protocol: int) -> None:
    lone = ("eager_tmp_0", ARRAYS["half"])
    tied = OrderedDict(ARRAYS, again=ARRAYS["float32"], lone=lone, values=VALUES)
    found = pickles.load(io.BytesIO(pickle.dumps(tied, protocol)))
    assert_arrays(found)
    assert found["values"] == VALUES
    assert found["again"] is found["float32"]


def test_big_endian_arrays_are_read() -> None:
    assert pickles.load(pickle.dumps({"a": np.arange(3, dtype=">i4")}))["a"].tolist() == [0, 1, 2]


def test_more_data_than_its_shape_is_refused() -> None:
    data = (
        b"\x80\x04}X\x01\x00\x00\x00a" + ARRAY + b"(K\x01K\x00\x85" + DTYPE + b"\x89C\x04abcdtbs."
    )
    with pytest.raises(CheckpointError, match="with other data"):
        pickles.load(data)


def test_a_file_object_gets_the_buffers_themselves() -> None:
    array = np.zeros(1 << 16)
    written = []

    class Sink:
        def write(self, data: Any) -> None:
            written.append(data)

    pickles.dump({"a": array}, Sink())
    big = [data for data in written if len(data) > 1000]
    assert len(big) == 1
    assert np.shares_memory(np.frombuffer(big[0], "uint8"), array)


@pytest.mark.parametrize(
    "value",
    [
        np.array([{}], dtype=object),
        np.zeros(2, [("a", "i4")]),
        np.ma.masked_array([1.0], [True]),
        {1, 2},
        1j,
        object(),
        Path("x"),
        {(1, 2): 3},
        np.datetime64("2020-01-01"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_data_is_not_written(value: Any) -> None:
    with pytest.raises(CheckpointError, match="outer/inner"):
        dumps({"outer": {"inner": value}})


class Runs:
    """Unpickled by Python, it runs a command."""

    def __init__(self, what: Any, *args: Any) -> None:
        self.call = (what, args)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, protocol: int) -> None:
    proof = tmp_path / "ran"
    attack = pickle.dumps({"w": Runs(os.system, f"touch {proof}")}, protocol)
    with pytest.raises(CheckpointError, match="would run code"):
        pickles.load(attack)
    assert not proof.exists()
    pickle.loads(attack)
    assert proof.exists()  # the attack is a real one


@pytest.mark.parametrize(
    ("what", "args", "name"),
    [
        (eval, ("1",), "builtins.eval"),
        (getattr, ("", "join"), "builtins.getattr"),
        (np.load, ("x",), "numpy.load"),
        (pickle.loads, (b"",), "_pickle.loads"),
        (bytearray, (10**6,), "builtins.bytearray"),
    ],
)
def test_the_global_is_named(what: Any, args: Any, name: str) -> None:
    with pytest.raises(CheckpointError, match=f"{name}, which would run code; refused"):
        pickles.load(pickle.dumps({"a": Runs(what, *args)}, 4))


def test_object_arrays_are_refused() -> None:
    with pytest.raises(CheckpointError):
        pickles.load(pickle.dumps({"a": np.array([{}, None])}, 4))
    with pytest.raises(CheckpointError):
        pickles.load(pickle.dumps({"a": np.zeros(2, [("a", "i4")])}, 4))


def _nested(opening: bytes, closing: bytes) -> bytes:
    return b"\x80\x04}X\x01\x00\x00\x00a" + opening * 200000 + closing * 200000 + b"s."


DTYPE = b"cnumpy\ndtype\nX\x02\x00\x00\x00f4\x89\x88\x87R"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
HUGE = struct.pack("<i", 2**31 - 1)
MALFORMED = {
    "empty": b"",
    "text": b"hello",
    "only a stop": b".",
    "not a dict": pickle.dumps([1, 2]),
    "claims 8 EB": b"\x80\x04}X\x01\x00\x00\x00a\x8e" + b"\xff" * 8 + b"s.",
    "claims 4 GB": b"\x80\x04}X\x01\x00\x00\x00aB\xff\xff\xff\xffs.",
    "an empty memo": b"\x80\x04j\xff\xff\xff\xff.",
    "deep lists": _nested(b"](", b"e"),
    "deep tuples": b"\x80\x04}X\x01\x00\x00\x00a)" + b"\x85" * 200000 + b"s.",
    "a deep tuple as key": b"\x80\x04})" + b"\x85" * 500000 + b"Ns.",
    "a list within itself": b"\x80\x04}X\x01\x00\x00\x00a]q\x00h\x00as.",
    "a dict within itself": b"\x80\x04}q\x00X\x01\x00\x00\x00ah\x00s.",
    "a huge array": b"\x80\x04}X\x01\x00\x00\x00a" + ARRAY + b"(K\x01J" + HUGE + b"J" + HUGE
    + b"\x86" + DTYPE + b"\x89C\x04abcdtbs.",
    "a negative shape": b"\x80\x04}X\x01\x00\x00\x00a" + ARRAY + b"(K\x01J\xff\xff\xff\xff\x85"
    + DTYPE + b"\x89C\x00tbs.",
    "less data than its shape": b"\x80\x04}X\x01\x00\x00\x00a" + ARRAY + b"(K\x01K\x02\x85"
    + DTYPE + b"\x89C\x04abcdtbs.",
    "an array without data": b"\x80\x04}X\x01\x00\x00\x00a" + ARRAY + b"s.",
    "a lone dtype": b"\x80\x04}X\x01\x00\x00\x00a" + DTYPE + b"s.",
    "a lone global": b"\x80\x04}X\x01\x00\x00\x00acnumpy\nndarray\ns.",
    "a global called wrongly": b"\x80\x04}X\x01\x00\x00\x00acnumpy\nndarray\n)Rs.",
    "a state for a dict": b"\x80\x04}}b.",
    "an unhashable key": b"\x80\x04}]Ns.",
    "more after its end": dumps({}) + b"x",
}  # fmt: skip


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_input_is_a_checkpoint_error(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        pickles.load(data)


def test_huge_indices_and_frames_take_no_memory() -> None:
    # Python's own reader allocates tens of GB for this one, and reads ahead a whole frame.
    assert pickles.load(b"\x80\x04}r\xff\xff\xff\xff.") == {}
    assert pickles.load(b"\x80\x04\x95" + b"\xff" * 8 + b"}.") == {}


def test_bytes_named_again_and_again_do_not_fill_the_memory() -> None:
    size = 1 << 20
    one = ARRAY + b"(K\x01J" + struct.pack("<i", size // 4) + b"\x85" + DTYPE + b"\x89h\x00tb"
    data = b"\x80\x04B" + struct.pack("<I", size) + bytes(size) + b"q\x000}X\x01\x00\x00\x00a]("
    with pytest.raises(CheckpointError):
        pickles.load(data + one * 5000 + b"es.")
    kept = b"\x80\x04}(X\x01\x00\x00\x00bB" + struct.pack("<I", size) + bytes(size) + b"q\x00"
    with pytest.raises(CheckpointError, match="larger than itself"):
        pickles.load(kept + b"X\x01\x00\x00\x00a](" + one * 5000 + b"eu.")


def test_shared_lists_do_not_multiply_the_work() -> None:
    bomb: Any = []
    for _ in range(60):
        bomb = [bomb, bomb]
    found = pickles.load(pickle.dumps({"a": bomb}, 4))
    assert found["a"][0] is found["a"][1]


def test_whatever_is_done_to_a_pickle_only_checkpoint_errors_come() -> None:
    mapping = {**ARRAYS, "values": VALUES}
    whole = [dumps(mapping), *(pickle.dumps(mapping, protocol) for protocol in (2, 4, 5))]
    rnd = random.Random(5)
    refused = 0
    for _ in range(4000):
        data = bytearray(rnd.choice(whole))
        start, end = sorted(rnd.randrange(len(data)) for _ in range(2))
        action = rnd.randrange(4)
        if action == 0:
            data[start] = rnd.randrange(256)
        elif action == 1:
            del data[start:]
        elif action == 2:
            del data[start : start + rnd.randrange(20)]
        else:
            data[start:start] = bytes(rnd.choice(b"()}]tR\x85sueabh.q\x8a\x8e0") for _ in range(5))
        try:
            pickles.load(bytes(data))
        except CheckpointError:
            refused += 1
    assert refused > 3000
