"""One writer for one save_dir, across processes, threads and forks."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_resume.checkpoint.lock import Lock
from paddle_resume.errors import ConfigError, LockedError

ROOT = str(Path(__file__).resolve().parents[2])
HOLDER = f"""
import sys
sys.path.insert(0, {ROOT!r})
from pathlib import Path
from paddle_resume.checkpoint.lock import Lock
lock = Lock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def hold(path: Path) -> "subprocess.Popen[bytes]":
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdout.readline() == b"held\n"
    return child


def test_another_process_is_named_and_its_death_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    child = hold(path)
    try:
        for _ in range(2):  # looking at it does not take it from its owner
            with pytest.raises(LockedError, match=f"pid {child.pid}, since 20.*wait for it"):
                Lock(path).acquire()
    finally:
        child.kill()
        child.communicate()
    lock = Lock(path)
    lock.acquire()
    assert json.loads(path.read_text())["pid"] == os.getpid()
    lock.release()


def test_an_orderly_release_lets_the_next_one_in(tmp_path: Path) -> None:
    lock = Lock(tmp_path / ".lock")
    for _ in range(3):
        lock.acquire()
        lock.release()
        lock.release()
    child = hold(tmp_path / ".lock")
    child.communicate()
    assert (tmp_path / ".lock").exists()


def test_a_second_fit_in_the_same_process_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "other").symlink_to("run")
    lock = Lock(tmp_path / "run" / ".lock")
    lock.acquire()
    for path in (tmp_path / "run" / ".lock", tmp_path / "other" / ".lock"):
        with pytest.raises(LockedError, match="another fit in this same process"):
            Lock(path).acquire()
    # The refusal did not open the file, which would have dropped the lock.
    other = subprocess.run(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run" / ".lock")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert b"LockedError" in other.stderr
    lock.release()


def test_a_forked_child_neither_holds_nor_frees_it(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    lock = Lock(path)
    lock.acquire()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            lock.release()  # as a destructor in a DataLoader worker might
            Lock(path).acquire()
        except LockedError as error:
            status = 0 if f"pid {os.getppid()}" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    other = subprocess.run(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.DEVNULL, capture_output=True
    )
    assert b"LockedError" in other.stderr
    lock.release()


def test_a_forked_child_does_not_keep_it_alive(tmp_path: Path) -> None:
    lock = Lock(tmp_path / ".lock")
    lock.acquire()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    lock.release()
    hold(tmp_path / ".lock").communicate()
    os.close(write)
    os.waitpid(child, 0)
    os.close(read)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff" * 100])
def test_an_unreadable_owner_is_unknown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / ".lock"
    child = hold(path)
    path.write_bytes(content)
    with pytest.raises(LockedError, match="pid unknown"):
        Lock(path).acquire()
    child.communicate()


def test_what_cannot_be_locked_is_a_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="cannot be opened"):
        Lock(tmp_path / "nothing" / ".lock").acquire()

    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "lockf", no_locks)
        with pytest.raises(ConfigError, match="No locks available"):
            Lock(tmp_path / ".lock").acquire()
    lock = Lock(tmp_path / ".lock")  # a failure leaves nothing held
    lock.acquire()
    lock.release()
