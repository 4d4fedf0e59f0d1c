"""Only regular files are opened; nothing hangs, and nothing is read without end."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from paddle_resume.regular import NotRegular, look, open_regular, read_regular


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


OTHERS = {
    "a folder": Path.mkdir,
    "a named pipe": os.mkfifo,
    "a socket": bind,
    "a link": lambda path: path.symlink_to("file"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_no_file_is_named_and_not_opened(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    (tmp_path / "file").write_text("x")
    OTHERS[what](tmp_path / "other")
    opened = []
    monkeypatch.setattr(os, "open", lambda *arguments: opened.append(arguments))
    for action in (look, open_regular, lambda path: read_regular(path, 10)):
        with pytest.raises(NotRegular, match=f"{what}, not a regular file"):
            action(tmp_path / "other")
    with pytest.raises(NotRegular, match="a device"):
        open_regular("/dev/zero")
    assert opened == []


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_one_that_takes_the_file_s_place_meanwhile_is_not_read(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    real, handles = os.open, set(os.listdir("/proc/self/fd"))

    def swapped(*arguments: Any) -> int:
        path.unlink()
        make(path)
        return real(*arguments)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(NotRegular):
        open_regular(path)
    assert set(os.listdir("/proc/self/fd")) == handles


def test_a_small_file_is_read_whole_and_a_larger_one_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_regular(path, 10) == b"0123456789"
    with pytest.raises(OSError, match="larger than 9 bytes") as caught:
        read_regular(path, 9)
    assert caught.value.errno == errno.EFBIG
    os.truncate(path, 1 << 40)  # it is not even tried
    with pytest.raises(OSError, match="larger"):
        read_regular(path, 9)
