"""The simulated disk: what may be left, in cases that one can work out by hand."""

from __future__ import annotations

from typing import List

import pytest

from .model import Tree, replay
from .states import crash_states
from .trace import Call, parse


def call(name: str, *args: object, result: int = 0) -> Call:
    shown = tuple(arg if isinstance(arg, bytes) else str(arg) for arg in args)
    return Call(1, name, shown, result)


WRITE = [
    call("openat", "AT_FDCWD", b"/root/new", "O_WRONLY|O_CREAT|O_EXCL", "0666", result=3),
    call("write", 3, b"ab", 2, result=2),
]
FSYNC = [call("fsync", 3)]
RENAME = [call("rename", b"/root/new", b"/root/old")]
FSYNC_FOLDER = [
    call("openat", "AT_FDCWD", b"/root", "O_RDONLY|O_DIRECTORY", result=4),
    call("fsync", 4),
]
BEFORE: Tree = {"old": b"xy"}


def left(calls: List[Call]) -> List[Tree]:
    """What a power cut after any of these may leave."""
    start, ops = replay(calls, "/root", BEFORE, "/marks")
    return [state.tree for state in crash_states(start, ops, most=1000, seed=1)]


def test_a_file_renamed_without_an_fsync_may_be_empty_or_torn() -> None:
    found = [tree.get("old") for tree in left(WRITE + RENAME)]
    assert {b"xy", b"", b"a", b"ab", b"\0\0", b"\0b"} <= {*found}
    assert {*map(frozenset, left(WRITE + RENAME))} == {
        frozenset({"old"}),
        frozenset({"old", "new"}),
    }


def test_a_file_renamed_after_its_fsync_is_the_old_or_the_new() -> None:
    found = {tree["old"] for tree in left(WRITE + FSYNC + RENAME)}
    assert found == {b"xy", b"ab"}


def test_a_rename_is_certain_after_the_fsync_of_its_folder_alone() -> None:
    from_here = call("mkdir", b"/root/later", "0777")
    for calls, expected in (
        (WRITE + FSYNC + RENAME, {b"xy", b"ab"}),
        (WRITE + FSYNC + RENAME + FSYNC, {b"xy", b"ab"}),
        (WRITE + FSYNC + RENAME + FSYNC_FOLDER, {b"ab"}),
    ):
        start, ops = replay([*calls, from_here], "/root", BEFORE, "/marks")
        found = crash_states(start, ops, most=1000, seed=1)
        assert {s.tree["old"] for s in found if "later" in s.tree} == expected


def test_a_name_without_its_folder_is_nowhere() -> None:
    calls = [
        call("mkdir", b"/root/folder", "0777"),
        call("openat", "AT_FDCWD", b"/root/folder", "O_RDONLY|O_DIRECTORY", result=5),
        call("mkdir", b"/root/folder/inner", "0777"),
        call("fsync", 5),
    ]
    assert {frozenset(tree) for tree in left(calls)} == {
        frozenset({"old"}),
        frozenset({"old", "folder"}),
        frozenset({"old", "folder", "folder/inner"}),
    }


def test_a_call_that_the_model_does_not_know_is_no_blind_spot() -> None:
    with pytest.raises(NotImplementedError, match="copy_file_range"):
        replay([*WRITE, call("copy_file_range", 3, "NULL", 9, "NULL", 5, 0)], "/root", {}, "/m")


def test_calls_that_another_thread_interrupts_are_put_together() -> None:
    log = b"\n".join(
        (
            rb'7  write(3, "\x61\x62", 2 <unfinished ...>',
            b"8  fsync(4) = 0",
            b"7  <... write resumed>) = 2",
            rb'7  mkdir("\x2f", 0777) = -1 EEXIST (File exists)',
            b"8  +++ killed by SIGKILL +++",
        )
    )
    assert [(one.thread, one.name, one.result) for one in parse(log)] == [
        (8, "fsync", 0),
        (7, "write", 2),
        (7, "mkdir", -1),
    ]
    assert parse(log)[1].args == ("3", b"ab", "2")
