"""VisualDL's log file: how some of its points are taken out.

The file is a row of records, each its length in 8 bytes and that many bytes of protobuf
(visualdl/writer/record_writer.py). A process that was killed may have left the last one torn.
"""

from __future__ import annotations

import os
import shutil
import struct
from typing import BinaryIO, Callable, Iterator, List, Sequence, Tuple

__all__ = ["MARK", "take_out"]

MARK = "vdlrecords"
"""What the name of every file contains that VisualDL shows."""

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20

Range = Tuple[int, int]


def take_out(path: str, unwanted: Callable[[str, int], bool], aside: str) -> int:
    """Takes scalar points out of a log file, and a torn end.

    The file is replaced atomically; where nothing is to go it is not touched.

    Args:
        path: the log file; nobody may be writing to it.
        unwanted: called with the tag and the step of each scalar.
        aside: name of a file beside it that the points taken out are added to.

    Returns:
        How many bytes of whole records were taken out.

    Raises:
        OSError: the disk is full or failed, or permission is missing; the file is as before.
        ValueError: it holds something else than records; it is as before.
    """
    path = os.path.realpath(path)  # a link stays one
    aside = os.path.join(os.path.dirname(path), aside)
    with open(path, "rb") as file:
        kept, taken = _sort(file, unwanted)
        if taken:
            # First: a crash in between leaves points twice, never lost.
            if os.path.exists(aside):
                with open(aside, "rb") as before:
                    whole = (0, os.path.getsize(aside))
                    _replace(aside, [(before, [whole]), (file, taken)])
            else:
                _replace(aside, [(file, taken)])
        if kept != [(0, os.path.getsize(path))]:
            _replace(path, [(file, kept)])
    return sum(end - start for start, end in taken)


def _sort(file: BinaryIO, unwanted: Callable[[str, int], bool]) -> Tuple[List[Range], List[Range]]:
    """Returns what to keep and what to take out; a torn end is in neither."""
    from visualdl.proto.record_pb2 import Record

    kept: List[Range] = []
    taken: List[Range] = []
    for start, data in _records(file):
        try:
            record = Record.FromString(data)
        except Exception as error:  # protobuf's DecodeError
            raise ValueError(f"no record of VisualDL at byte {start}: {error}") from error
        goes = any(
            value.WhichOneof("one_value") == "value" and unwanted(value.tag, value.id)
            for value in record.values
        )
        ranges = taken if goes else kept
        end = start + _LENGTH.size + len(data)
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    return kept, taken


def _records(file: BinaryIO) -> Iterator[Tuple[int, bytes]]:
    """Yields where each whole record starts, and its content."""
    size = os.fstat(file.fileno()).st_size
    start = 0
    while size - start > _LENGTH.size:
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        end = start + _LENGTH.size + length
        # After a power loss, a file system may have filled the end with zeros.
        if length == 0 or end > size:
            return
        yield start, file.read(length)
        start = end


def _replace(path: str, pieces: Sequence[Tuple[BinaryIO, Sequence[Range]]]) -> None:
    """Writes ranges of open files into a new file, and puts it in the place of `path`."""
    folder, name = os.path.split(path)
    # Always the same name, which VisualDL does not read: what a crash leaves is overwritten.
    temp = os.path.join(folder, ".tmp-" + name.replace(MARK, "records"))
    try:
        with open(temp, "wb") as target:
            for source, ranges in pieces:
                for start, end in ranges:
                    _copy(source, start, end, target)
            target.flush()
            os.fsync(target.fileno())
        if os.path.exists(path):
            shutil.copymode(path, temp)
        os.replace(temp, path)
    except BaseException:
        if os.path.exists(temp):
            os.unlink(temp)
        raise
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _copy(source: BinaryIO, start: int, end: int, target: BinaryIO) -> None:
    source.seek(start)
    while start < end:
        data = source.read(min(_CHUNK, end - start))
        if not data:
            raise OSError(f"{source.name} became shorter while it was read")
        target.write(data)
        start += len(data)
