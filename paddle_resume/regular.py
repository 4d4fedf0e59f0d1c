"""Opens regular files and nothing else: no link is followed, and nothing hangs."""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from typing import Union

__all__ = ["NotRegular", "look", "open_regular", "read_regular"]

StrPath = Union[str, "os.PathLike[str]"]

_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}


class NotRegular(OSError):
    """A link, folder, pipe, socket or device stands where a file should be."""


def look(path: StrPath) -> os.stat_result:
    """Looks at a file without opening it: for a device that alone can do something.

    Args:
        path: the file.

    Returns:
        What the file system knows of it.

    Raises:
        NotRegular: it is something else than a regular file.
        OSError: it is not there, or cannot be looked at.
    """
    found = os.lstat(path)
    _refuse_others(path, found)
    return found


def open_regular(path: StrPath) -> FileIO:
    """Opens a regular file for reading, unbuffered.

    Args:
        path: the file.

    Returns:
        The open file.

    Raises:
        NotRegular: it is something else than a regular file.
        OSError: it is not there, or cannot be opened.

    Example:
        >>> open_regular("/dev/null")
        Traceback (most recent call last):
        paddle_resume.regular.NotRegular: [Errno 22] a device, not a regular file: '/dev/null'
    """
    look(path)
    # It may be replaced right now: O_NONBLOCK so that a pipe does not hang.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refuse_others(path, os.fstat(handle))
        return open(handle, "rb", buffering=0)
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: StrPath, at_most: int) -> bytes:
    """Reads a small regular file.

    Args:
        path: the file.
        at_most: bytes; more is no file of ours, and is not read.

    Returns:
        All of its content.

    Raises:
        NotRegular: it is something else than a regular file.
        OSError: it is not there, cannot be read, or is larger.
    """
    with open_regular(path) as file:
        data = bytearray()
        while len(data) <= at_most:
            piece = file.read(at_most + 1 - len(data))
            if not piece:
                return bytes(data)
            data += piece
    raise OSError(errno.EFBIG, f"larger than {at_most} bytes", os.fspath(path))


def _refuse_others(path: StrPath, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "a device")
        raise NotRegular(errno.EINVAL, f"{kind}, not a regular file", os.fspath(path))
