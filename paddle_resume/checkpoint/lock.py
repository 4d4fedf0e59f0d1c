"""One writer for one save_dir on one machine: a lock that a dead process cannot hold."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, Optional, Protocol, Tuple

from paddle_resume.errors import ConfigError, LockedError

__all__ = ["Holder", "Lock"]

# The one global state here: a POSIX lock belongs to the process, so it cannot keep a second fit of
# the same process out, and closing any handle of the file, even one opened to look at it, drops the
# lock. Whether this process holds it must therefore be known before the file is opened. The key
# has the pid, so that what a forked child (a DataLoader worker) inherits means nothing to it;
# `setdefault` and `pop` are atomic, where a mutex could be inherited while it is held.
_HELD: Dict[Tuple[int, str], "Lock"] = {}


class Holder(Protocol):
    """The run that a lock is taken for."""

    def is_alive(self) -> bool:
        """Whether it is still running; an interrupt may have ended it without its knowing."""
        ...

    def close(self) -> None:
        """Gives everything back, the lock too."""
        ...


class Lock:
    """An exclusive lock on a file, free as soon as its owner is gone, however it went.

    Args:
        path: the lock's file; it is created and never deleted.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     lock = Lock(Path(folder) / ".lock")
        ...     lock.acquire()
        ...     lock.release()
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: Optional[int] = None
        self._key: Optional[Tuple[int, str]] = None
        self._owner: Dict[str, Any] = {}
        self._holder: Optional[Holder] = None

    def acquire(self, holder: Optional[Holder] = None) -> None:
        """Takes the lock, or says at once who has it.

        Args:
            holder: the run it is taken for. A run of this process that is no longer alive is
                closed, and its lock taken over.

        Raises:
            LockedError: another process, or another live fit in this one, has it.
            ConfigError: the file system has no locks, or the file cannot be opened.
        """
        key = (os.getpid(), os.path.realpath(self._path))
        self._owner = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": " ".join(sys.argv),
        }
        self._holder = holder
        other = _HELD.setdefault(key, self)
        if other is not self:
            if other._holder is None or other._holder.is_alive():
                who = "another fit in this same process"
                raise LockedError(_message(self._path, other._owner, who))
            other._holder.close()
            other.release()
            return self.acquire(holder)
        try:
            self._handle = _take(self._path, self._owner)
        except BaseException:
            _HELD.pop(key, None)
            raise
        self._key = key

    def renew(self) -> None:
        """Makes sure that the lock is still held.

        Closing any handle of its file drops it, which a copy of the whole folder does.

        Raises:
            LockedError: another process has taken it meanwhile.
        """
        import fcntl

        if self._handle is None:
            return
        try:
            fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            who = "another process, which took it while this run went on"
            raise LockedError(_message(self._path, _read(self._handle), who)) from error

    def release(self) -> None:
        """Gives the lock back; does nothing where it is not held, as in a forked child."""
        if self._handle is None or self._key is None or self._key[0] != os.getpid():
            return
        os.close(self._handle)
        self._handle = None
        _HELD.pop(self._key, None)


def _take(path: Path, owner: Dict[str, Any]) -> int:
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW  # it is truncated below
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        raise ConfigError(f"{path} cannot be opened: {error.strerror}") from error
    import fcntl  # not on Windows, which is refused with its reason elsewhere

    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(owner).encode() + b"\n", 0)
    except OSError as error:
        holder = _read(handle)
        os.close(handle)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise LockedError(_message(path, holder, "another process")) from error
        raise ConfigError(
            f"{path} cannot be locked: {error.strerror}. Two runs could write over each other; "
            f"choose a save_dir on a file system with locks and room"
        ) from error
    except BaseException:
        os.close(handle)
        raise
    return handle


def _read(handle: int) -> Dict[str, Any]:
    """Who holds it; the owner may be just about to write that."""
    try:
        found = json.loads(os.pread(handle, 65536, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _message(path: Path, holder: Dict[str, Any], who: str) -> str:
    unknown = "unknown"
    return (
        f"{path.parent} is in use by {who}: host {holder.get('host', unknown)}, pid "
        f"{holder.get('pid', unknown)}, since {holder.get('since', unknown)} "
        f"({holder.get('command', unknown)}). Two runs would write over each other: wait for it, "
        f"stop it, or use another save_dir. Do not delete {path.name}: when its owner ends, "
        f"however it ends, the lock is free"
    )
