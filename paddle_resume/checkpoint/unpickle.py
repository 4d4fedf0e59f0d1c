"""A reader of pickles that hold data only: no code of a file's choosing can run.

Python's own unpickler imports and calls what a file names, and an allowlist in front of it still
leaves numpy's constructors, huge memo indices and hashes of deep tuples to a hostile or damaged
file. This one interprets the opcodes that arrays and plain values need. The few globals that numpy
writes are words of the format to it, never imported; arrays are built from checked sizes. What it
holds grows with the size of the file and never beyond: a short file cannot fill the memory.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any, Callable, Dict, List, Optional

from paddle_resume.checkpoint import unpickle_words as words
from paddle_resume.errors import CheckpointError

__all__ = ["Reader"]

# What objects take, in bytes, with their copies at the end. `dump` makes 54 of each byte at most,
# where it writes nothing but empty dicts.
_MOST_PER_BYTE, _ALWAYS = 64, 1 << 20
_CONTAINER, _ENTRY, _SLOT, _REDUCED = 160, 100, 8, 120
_SMALL = 1024  # bytes; what is larger is not copied


class Reader:
    """Interprets one pickle.

    Args:
        data: the whole pickle.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data.cast("B") if data.format != "B" else data
        self._at = 0
        self._stack: List[Any] = []
        self._marks: List[int] = []
        self._memo: Dict[int, Any] = {}
        self._room = 2 * len(data) + 4096  # bytes of arrays
        self._objects_room = _MOST_PER_BYTE * len(data) + _ALWAYS

    def read(self) -> Any:
        """Interprets it.

        Returns:
            What it holds: dicts, lists, tuples, text, bytes, numbers, None and arrays.

        Raises:
            CheckpointError: it names something that would run code or that data does not need.
            Exception: of any kind, where it is malformed.
        """
        data, steps = self._data, _STEPS
        while True:
            code = data[self._at]
            self._at += 1
            if code == pickle.STOP[0]:
                break
            step = steps.get(code)
            if step is None:
                raise CheckpointError(
                    f"the pickle is damaged, or would run code: no data needs its opcode "
                    f"{bytes([code])!r} (at byte {self._at - 1}); refused"
                )
            step(self)
        if self._at != len(data) or len(self._stack) != 1 or self._marks:
            raise CheckpointError(f"the pickle is damaged (it ends at byte {self._at - 1})")
        return words.finish(self._stack[0])

    def take(self, size: int) -> memoryview:
        """The next bytes; a claimed size beyond the end is an error before any memory is used."""
        if size > len(self._data) - self._at:
            raise CheckpointError(
                f"the pickle is truncated: {size} bytes claimed at byte {self._at}, "
                f"{len(self._data) - self._at} left"
            )
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        if self._marks and len(self._stack) <= self._marks[-1]:
            raise CheckpointError("the pickle is damaged (nothing to take)")
        return self._stack.pop()

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def grow(self, size: int) -> None:
        """Takes a new object of so many bytes into account."""
        self._objects_room -= size
        if self._objects_room < 0:
            raise CheckpointError("it holds far more values than a file of its size can; refused")

    def push_new(self, container: Any) -> None:
        self.grow(_CONTAINER)
        self.push(container)

    def pop_mark(self) -> List[Any]:
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def tuple(self, size: int) -> None:
        self.push_tuple([self.pop() for _ in range(size)][::-1])

    def push_tuple(self, items: List[Any]) -> None:
        if items:
            self.grow(_CONTAINER)
        self.push(tuple(items))

    def add_items(self, items: List[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise CheckpointError("the pickle is damaged (a dict expected)")
        for key, value in zip(items[::2], items[1::2]):
            # Other kinds of keys are never ours, and the hash of a deep tuple ends the process.
            if type(key) not in (str, int, bool, float, type(None)):
                raise CheckpointError(f"it holds a dict with a key of type {type(key).__name__}")
            target[key] = value

    def add_elements(self, items: List[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise CheckpointError("the pickle is damaged (a list expected)")
        target.extend(items)

    def put(self, index: Optional[int] = None) -> None:
        # Unlike the list that Python's own reader keeps, a dict does not grow to a huge index.
        index = len(self._memo) if index is None else index
        if index not in self._memo:
            self.grow(_ENTRY)
        self._memo[index] = self._stack[-1]

    def get(self, index: int) -> None:
        self.push(self._memo[index])

    def line(self) -> str:
        end = bytes(self._data[self._at : self._at + 256]).index(b"\n")
        text = str(self.take(end), "utf-8")
        self._at += 1
        return text

    def word(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise CheckpointError("the pickle is damaged (it names something not by a name)")
        found = words.WORDS.get((module, name))
        if found is None:
            raise CheckpointError(f"it names {module}.{name}, which would run code; refused")
        self.push(found)

    def stack_word(self) -> None:
        name, module = self.pop(), self.pop()
        self.word(module, name)

    def reduce(self) -> None:
        args, what = self.pop(), self.pop()
        self.grow(_REDUCED)
        if what is words.RECONSTRUCT and len(args) == 3 and args[0] is words.NDARRAY:
            self.push(words.PendingArray())
        elif what is words.DTYPE:
            self.push(words.Dtype(args[0]))
        elif what is words.SCALAR:
            dtype, buffer = args
            self.push(self.array((), dtype, buffer, False)[()])
        elif what is words.FROMBUFFER:
            buffer, dtype, shape, order = args
            self.push(self.array(shape, dtype, buffer, order == "F"))
        elif what is words.ENCODE and args[1] in ("latin1", "latin-1"):
            self.take_room(len(args[0]))
            self.push(memoryview(args[0].encode("latin-1")))
        elif what is words.BYTES and not args:
            self.push(b"")
        elif what is words.DICT:
            self.grow(sum(_ENTRY * len(pairs) for pairs in args))
            self.push(_pairs(*args))
        elif what is words.TUPLE:
            self.grow(sum(_SLOT * len(items) for items in args))
            self.push(tuple(*args))
        else:
            raise CheckpointError("the pickle is damaged (it calls what cannot be called so)")

    def build(self) -> None:
        state, target = self.pop(), self._stack[-1]
        if type(target) is words.Dtype:
            target.build(state)
        elif type(target) is words.PendingArray:
            shape, dtype, fortran, buffer = state[-4:]
            target.value = self.array(shape, dtype, buffer, bool(fortran))
        else:
            raise CheckpointError("the pickle is damaged (it sets the state of a plain value)")

    def take_room(self, size: int) -> None:
        # Bytes named again and again could fill the memory from a small file.
        self._room -= size
        if self._room < 0:
            raise CheckpointError("it holds arrays that are larger than itself; refused")

    def array(self, shape: Any, dtype: Any, buffer: Any, fortran: bool) -> Any:
        self.take_room(len(buffer))
        return words.copy_array(shape, dtype, buffer, fortran)


def _pairs(pairs: Any = ()) -> Dict[str, Any]:
    if any(type(key) is not str for key, _ in pairs):
        raise CheckpointError("it holds a dict whose keys are not names")
    return dict(pairs)


def _text(size_form: str, coding: str, errors: str = "strict") -> Callable[[Reader], None]:
    return lambda r: r.push(str(r.take(r.number(size_form)), coding, errors))


def _bytes(size_form: str) -> Callable[[Reader], None]:
    def push(reader: Reader) -> None:
        data = reader.take(reader.number(size_form))
        reader.push(data if len(data) > _SMALL else bytes(data))

    return push


def _long(size_form: str) -> Callable[[Reader], None]:
    return lambda r: r.push(int.from_bytes(r.take(r.number(size_form)), "little", signed=True))


_STEPS: Dict[int, Callable[[Reader], Any]] = {
    code[0]: step
    for code, step in (
        (pickle.PROTO, lambda r: r.take(1)),
        (pickle.FRAME, lambda r: r.take(8)),
        (pickle.MARK, Reader.mark),
        (pickle.NONE, lambda r: r.push(None)),
        (pickle.NEWTRUE, lambda r: r.push(True)),
        (pickle.NEWFALSE, lambda r: r.push(False)),
        (pickle.BININT, lambda r: r.push(r.number("<i"))),
        (pickle.BININT1, lambda r: r.push(r.number("<B"))),
        (pickle.BININT2, lambda r: r.push(r.number("<H"))),
        (pickle.LONG1, _long("<B")),
        (pickle.LONG4, _long("<I")),
        (pickle.BINFLOAT, lambda r: r.push(r.number(">d"))),
        (pickle.SHORT_BINUNICODE, _text("<B", "utf-8", "surrogatepass")),
        (pickle.BINUNICODE, _text("<I", "utf-8", "surrogatepass")),
        (pickle.BINUNICODE8, _text("<Q", "utf-8", "surrogatepass")),
        (pickle.SHORT_BINSTRING, _text("<B", "latin-1")),
        (pickle.BINSTRING, _text("<I", "latin-1")),
        (pickle.SHORT_BINBYTES, _bytes("<B")),
        (pickle.BINBYTES, _bytes("<I")),
        (pickle.BINBYTES8, _bytes("<Q")),
        (pickle.BYTEARRAY8, _bytes("<Q")),
        (pickle.EMPTY_DICT, lambda r: r.push_new({})),
        (pickle.EMPTY_LIST, lambda r: r.push_new([])),
        (pickle.EMPTY_TUPLE, lambda r: r.push(())),
        (pickle.TUPLE, lambda r: r.push_tuple(r.pop_mark())),
        (pickle.TUPLE1, lambda r: r.tuple(1)),
        (pickle.TUPLE2, lambda r: r.tuple(2)),
        (pickle.TUPLE3, lambda r: r.tuple(3)),
        (pickle.SETITEM, lambda r: r.add_items([r.pop(), r.pop()][::-1])),
        (pickle.SETITEMS, lambda r: r.add_items(r.pop_mark())),
        (pickle.APPEND, lambda r: r.add_elements([r.pop()])),
        (pickle.APPENDS, lambda r: r.add_elements(r.pop_mark())),
        (pickle.BINPUT, lambda r: r.put(r.number("<B"))),
        (pickle.LONG_BINPUT, lambda r: r.put(r.number("<I"))),
        (pickle.MEMOIZE, lambda r: r.put()),
        (pickle.BINGET, lambda r: r.get(r.number("<B"))),
        (pickle.LONG_BINGET, lambda r: r.get(r.number("<I"))),
        (pickle.GLOBAL, lambda r: r.word(r.line(), r.line())),
        (pickle.STACK_GLOBAL, Reader.stack_word),
        (pickle.REDUCE, Reader.reduce),
        (pickle.BUILD, Reader.build),
    )
}
