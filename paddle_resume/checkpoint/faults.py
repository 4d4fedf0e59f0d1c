"""Why a checkpoint cannot be used, where that is not damage: going round it would lose it."""

from __future__ import annotations

import errno
from pathlib import Path

from paddle_resume.errors import CheckpointError
from paddle_resume.regular import NotRegular

__all__ = ["NewerFormat", "NotDamaged", "Unreadable", "unreadable"]

# The file itself is gone or broken; anything else (permission, too many open files, a network
# file system that is away) may be over at the next start.
_OF_THE_FILE = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO, errno.EFBIG)
)


class NotDamaged(CheckpointError):
    """The checkpoint may be good; it is neither passed over nor set aside."""


class NewerFormat(NotDamaged):
    """It is of a format from after this paddle_resume."""


class Unreadable(NotDamaged):
    """The machine could not read it now."""


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """Returns the error to raise where a file cannot be read.

    Args:
        path: the file.
        error: what the operating system said.

    Example:
        >>> import errno
        >>> type(unreadable(Path("a"), OSError(errno.EMFILE, "Too many open files"))).__name__
        'Unreadable'
    """
    of_the_file = isinstance(error, NotRegular) or error.errno in _OF_THE_FILE
    kind = CheckpointError if of_the_file else Unreadable
    return kind(f"{path} cannot be read: {error.strerror or error}")
