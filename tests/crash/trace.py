"""Reads what strace wrote: the system calls of a process, in the order in which they returned."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterator, List, Tuple, Union

__all__ = ["CALLS", "Call", "parse"]

CALLS = (
    *("openat", "open", "creat", "close", "dup", "dup2", "dup3"),
    *("write", "writev", "pwrite64", "pwritev", "ftruncate", "truncate", "fallocate"),
    *("sendfile", "copy_file_range", "splice", "fsync", "fdatasync", "sync", "syncfs"),
    *("mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "link", "linkat"),
    *("rename", "renameat", "renameat2", "symlink", "symlinkat"),
)
"""Whatever changes files, and what is needed to tell which."""

_LINE = re.compile(rb"(\d+) +(\w+)\((.*)\) += (-?\d+)")
_UNFINISHED = re.compile(rb"(\d+) +(\w+)\((.*) <unfinished \.\.\.>")
_RESUMED = re.compile(rb"(\d+) +<\.\.\. (\w+) resumed>(.*)")
_ARGUMENT = re.compile(rb'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?|([^,"]+)')


@dataclass(frozen=True)
class Call:
    """A system call that returned.

    Attributes:
        thread: its id.
        name: of the call.
        args: texts as bytes, everything else as strace shows it.
        result: what it returned; negative where it failed.
    """

    thread: int
    name: str
    args: Tuple[Union[bytes, str], ...]
    result: int


def parse(log: bytes) -> List[Call]:
    """Reads a log of `strace -f -xx`.

    Args:
        log: what `-o` wrote.

    Returns:
        The calls; those that a kill cut off, signals and exits are left out.

    Raises:
        ValueError: a text was cut off.

    Example:
        >>> parse(rb'7 mkdir("\\x2f\\x61", 0777) = 0')
        [Call(thread=7, name='mkdir', args=(b'/a', '0777'), result=0)]
    """
    found = []
    for line in _whole_lines(log):
        match = _LINE.match(line)
        if match is not None:
            args = tuple(_arguments(match[3]))
            found.append(Call(int(match[1]), match[2].decode(), args, int(match[4])))
    return found


def _whole_lines(log: bytes) -> Iterator[bytes]:
    """Puts together the calls that another thread's interrupted."""
    begun: Dict[bytes, bytes] = {}
    for line in log.splitlines():
        unfinished, resumed = _UNFINISHED.match(line), _RESUMED.match(line)
        if unfinished is not None:
            thread, name, args = unfinished.groups()
            begun[thread] = thread + b" " + name + b"(" + args
        elif resumed is not None and resumed[1] in begun:
            yield begun.pop(resumed[1]) + resumed[3]
        else:
            yield line


def _arguments(text: bytes) -> Iterator[Union[bytes, str]]:
    for match in _ARGUMENT.finditer(text):
        if match[2]:
            raise ValueError("strace cut a text off")
        if match[3] is None:
            yield bytes.fromhex(match[1].decode().replace("\\x", ""))
        elif match[3].strip():
            yield match[3].strip().decode()
