"""Writes the files of a checkpoint so that they are on the disk when it returns."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Mapping, Optional, Union

import xxhash

from paddle_resume.checkpoint import pickles
from paddle_resume.checkpoint.manifest import MANIFEST_FILE, dump_json, dumps
from paddle_resume.types import Manifest

__all__ = ["Dropped", "fsync_folder", "make_folder", "replace_file", "temp_name", "write"]

_CHUNK = 4 << 20  # hashed and written while it is in the processor's cache


class Dropped(Exception):
    """The one who asked for a save no longer wants it."""


def write(
    folder: Path,
    contents: Mapping[str, Mapping[str, Any]],
    manifest: Manifest,
    is_dropped: Callable[[], bool],
    key: Optional[bytes] = None,
) -> Manifest:
    """Writes the files of a checkpoint into an empty folder, its manifest last.

    Args:
        folder: exists and is empty.
        contents: file name to content, as `layout.split` returns them.
        manifest: its files are yet unknown.
        is_dropped: asked between two pieces, whether to give up.
        key: that signs the manifest; None for no signature.

    Returns:
        The manifest as written, with its files.

    Raises:
        Dropped: `is_dropped` said so.
        CheckpointError: a value cannot be written.
        OSError: the disk is full, failed, or went away.
    """
    written: Dict[str, _HashingFile] = {}
    for name, content in contents.items():
        written[name] = _write_file(folder / name, content, is_dropped, key is not None)
    complete = replace(
        manifest,
        files={name: (file.size, file.xxh3.hexdigest()) for name, file in written.items()},
        sha256={name: file.sha256.hexdigest() for name, file in written.items() if file.sha256},
    )
    _write_durably(folder / MANIFEST_FILE, dumps(complete, key))
    fsync_folder(folder)
    return complete


def fsync_folder(folder: Path) -> None:
    """Makes the names in a folder durable.

    Args:
        folder: an existing folder.

    Raises:
        OSError: the disk failed.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Makes a folder and the missing ones above it, so that a power cut takes none of them back.

    Args:
        path: the folder; it may exist.

    Raises:
        OSError: it cannot be made.
    """
    missing = list(itertools.takewhile(lambda one: not one.exists(), (path, *path.parents)))
    path.mkdir(parents=True, exist_ok=True)
    # One that is there already may have been made by a start that was killed before this line.
    for made in missing or [path]:
        with contextlib.suppress(PermissionError):  # one may look up names without listing them
            fsync_folder(made.parent)


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a small file atomically and durably.

    Args:
        path: the file; it may exist.
        data: its new content.

    Raises:
        OSError: it could not; the old content stands.
    """
    temp = path.with_name(temp_name(path.name))
    try:
        _write_durably(temp, data)
        os.replace(temp, path)
    except BaseException:
        temp.unlink() if temp.exists() else None
        raise
    fsync_folder(path.parent)


def temp_name(stem: str) -> str:
    """A name that no other process and no earlier try uses, and no discovery looks at."""
    return f".tmp-{stem}-{os.getpid()}-{secrets.token_hex(4)}"


class _HashingFile:
    """Hashes and counts what passes through to a file."""

    def __init__(self, file: BinaryIO, is_dropped: Callable[[], bool], securely: bool) -> None:
        self._file = file
        self._is_dropped = is_dropped
        self.xxh3 = xxhash.xxh3_128()
        self.sha256 = hashlib.sha256() if securely else None
        self.size = 0

    def write(self, data: Union[bytes, memoryview]) -> int:
        view = memoryview(data)
        for start in range(0, len(view), _CHUNK):
            if self._is_dropped():
                raise Dropped
            chunk = view[start : start + _CHUNK]
            self.xxh3.update(chunk)
            if self.sha256 is not None:
                self.sha256.update(chunk)
            self._file.write(chunk)
        self.size += len(view)
        return len(view)


def _write_file(
    path: Path, content: Mapping[str, Any], is_dropped: Callable[[], bool], securely: bool
) -> _HashingFile:
    with open(path, "xb") as file:
        hashing = _HashingFile(file, is_dropped, securely)
        if path.suffix == ".json":
            hashing.write(dump_json(content, path.name))
        else:
            pickles.dump(content, hashing)
        _sync(file)
    return hashing


def _write_durably(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        _sync(file)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
