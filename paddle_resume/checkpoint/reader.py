"""Verifies a checkpoint and reads it; nothing is used before it is verified."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterator, Mapping, Optional, Tuple

import numpy as np
import xxhash

from paddle_resume.checkpoint import layout, pickles
from paddle_resume.checkpoint.faults import unreadable
from paddle_resume.checkpoint.manifest import MANIFEST_FILE, parse_json
from paddle_resume.checkpoint.manifest import read as read_manifest
from paddle_resume.errors import CheckpointError, ConfigError
from paddle_resume.types import Manifest, TrainingState

__all__ = ["LEVELS", "Progress", "load", "read_values", "verify"]

LEVELS = ("full", "size", "none")
"""How much `verify` looks at: every byte, the sizes, or the manifest alone."""

Progress = Callable[[int, int], None]
"""Is called with the bytes done and the bytes in total."""

_CHUNK = 4 << 20


def verify(folder: Path, level: str = "full", progress: Optional[Progress] = None) -> Manifest:
    """Tells whether a checkpoint is what was written.

    Args:
        folder: the checkpoint.
        level: one of `LEVELS`.
        progress: called as the bytes are read.

    Returns:
        Its manifest.

    Raises:
        CheckpointError: the first fault found: which file, what was expected, what was found.
    """
    manifest = _look(folder, level)
    if level == "full":
        meter = _Meter(manifest, progress)
        buffer = memoryview(bytearray(_CHUNK))
        for name, (size, digest) in manifest.files.items():
            with _opened(folder / name, size) as file:
                hashed = xxhash.xxh3_128()
                for count in iter(lambda: file.readinto(buffer), 0):  # type: ignore[attr-defined]
                    hashed.update(buffer[:count])
                    meter.add(count)
            _compare(folder / name, hashed, digest)
    return manifest


def load(
    folder: Path, level: str = "full", progress: Optional[Progress] = None
) -> Tuple[Manifest, TrainingState]:
    """Verifies and reads a checkpoint, each byte once.

    Args:
        folder: the checkpoint.
        level: one of `LEVELS`.
        progress: called as the bytes are read.

    Returns:
        Its manifest and the state it holds.

    Raises:
        CheckpointError: a fault was found, or its files do not fit together.
    """
    manifest = _look(folder, level)
    meter = _Meter(manifest, progress)
    contents: Dict[str, Mapping[str, Any]] = {}
    for name, (size, digest) in manifest.files.items():
        path = folder / name
        with _opened(path, None if level == "none" else size) as file:
            data, hashed = _read(file, level == "full", meter)
        if hashed is not None:
            _compare(path, hashed, digest)
        contents[name] = _parse(path, data)
    try:
        state = layout.join(contents)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    if state.position != manifest.position:
        raise CheckpointError(
            f"{folder}: its {layout.STATE_FILE} is of step {state.position.step}, its manifest of "
            f"step {manifest.position.step}: files of two checkpoints are mixed"
        )
    return manifest, state


def read_values(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """Reads what state.json holds of each part, and no tensor.

    Args:
        folder: the checkpoint.

    Returns:
        Part name to its values.

    Raises:
        CheckpointError: the file is damaged.
    """
    size, digest = read_manifest(folder).files.get(layout.STATE_FILE, (0, ""))
    path = folder / layout.STATE_FILE
    with _opened(path, size) as file:
        data = file.read()
    _compare(path, xxhash.xxh3_128(data), digest)
    parts = _parse(path, memoryview(data)).get("parts")
    if not isinstance(parts, dict) or not all(isinstance(part, dict) for part in parts.values()):
        raise CheckpointError(f"{path} has no parts")
    return parts


class _Meter:
    """Reports the bytes of a checkpoint as they are read."""

    def __init__(self, manifest: Manifest, progress: Optional[Progress]) -> None:
        self._total = sum(size for size, _ in manifest.files.values())
        self._progress = progress
        self._done = 0

    def add(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            try:
                self._progress(self._done, self._total)
            except Exception:  # a bar that cannot be drawn is no fault of the checkpoint
                self._progress = None


def _look(folder: Path, level: str) -> Manifest:
    """Checks everything that needs no reading of contents."""
    if level not in LEVELS:
        raise ConfigError(f"verify={level!r}: one of {', '.join(map(repr, LEVELS))} expected")
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder: there is no checkpoint")
    manifest = read_manifest(folder)
    if level == "none":
        return manifest
    try:
        present = {name for name in os.listdir(folder) if not name.startswith(".")}
    except OSError as error:
        raise unreadable(folder, error) from error
    extra = present - set(manifest.files) - {MANIFEST_FILE}
    if extra:
        raise CheckpointError(
            f"{folder} holds {', '.join(sorted(extra))}, which its manifest does not list: "
            f"someone added to it after it was written"
        )
    for name, (size, _) in manifest.files.items():
        _check(folder / name, size)
    return manifest


def _check(path: Path, size: Optional[int]) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{path} is not a regular file (a link, folder or device); refused")
    if size is not None and found.st_size != size:
        raise CheckpointError(f"{path} has {found.st_size} bytes; {size} were written")


@contextmanager
def _opened(path: Path, size: Optional[int]) -> Iterator[BinaryIO]:
    """Opens a checked file unbuffered; whatever the disk then says names the file."""
    _check(path, size)
    try:
        with open(path, "rb", buffering=0) as file:
            yield file
    except OSError as error:
        raise unreadable(path, error) from error


def _read(file: BinaryIO, hashing: bool, meter: _Meter) -> Tuple[memoryview, Optional[Any]]:
    """Reads a whole file, hashing each piece while it is in the processor's cache."""
    # numpy's memory, unlike a bytearray's, is not zeroed first.
    data = np.empty(os.fstat(file.fileno()).st_size, np.uint8).data
    hashed = xxhash.xxh3_128() if hashing else None
    done = 0
    while done < len(data):
        count = file.readinto(data[done : done + _CHUNK])  # type: ignore[attr-defined]
        if not count:
            break
        if hashed is not None:
            hashed.update(data[done : done + count])
        done += count
        meter.add(count)
    return data[:done], hashed


def _compare(path: Path, hashed: Any, expected: str) -> None:
    found = hashed.hexdigest()
    if found != expected:
        raise CheckpointError(
            f"{path} is damaged: its content has the checksum {found}; {expected} was written"
        )


def _parse(path: Path, data: memoryview) -> Mapping[str, Any]:
    try:
        return parse_json(bytes(data), path.name) if path.suffix == ".json" else pickles.load(data)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
