"""Verifies a checkpoint and reads it; nothing is used before it is verified."""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import xxhash

from paddle_resume.checkpoint import layout, pickles
from paddle_resume.checkpoint.faults import Unreadable, unreadable
from paddle_resume.checkpoint.manifest import MANIFEST_FILE, parse_json
from paddle_resume.checkpoint.manifest import read as read_manifest
from paddle_resume.errors import CheckpointError, ConfigError
from paddle_resume.regular import NotRegular, look, open_regular
from paddle_resume.types import Manifest, TrainingState

__all__ = [
    "LEVELS",
    "Meter",
    "Progress",
    "load",
    "read_values",
    "verify",
    "verify_file",
    "verify_names",
    "verify_size",
]

LEVELS = ("full", "size", "none")
"""How much `verify` looks at: every byte, the sizes, or the manifest alone."""

Progress = Callable[[int, int], None]
"""Is called with the bytes done and the bytes in total."""

_CHUNK = 4 << 20


def verify(
    folder: Path,
    level: str = "full",
    progress: Optional[Progress] = None,
    key: Optional[bytes] = None,
) -> Manifest:
    """Tells whether a checkpoint is what was written.

    Args:
        folder: the checkpoint.
        level: one of `LEVELS`.
        progress: called as the bytes are read.
        key: that must have signed it; with one, every byte is read at every level.

    Returns:
        Its manifest.

    Raises:
        CheckpointError: the first fault found: which file, what was expected, what was found.
    """
    manifest = _look(folder, level, key)
    if level == "full" or key is not None:
        meter = Meter([manifest], progress)
        for name in manifest.files:
            verify_file(folder, manifest, name, meter, key)
    return manifest


def verify_file(
    folder: Path, manifest: Manifest, name: str, meter: "Meter", key: Optional[bytes] = None
) -> None:
    """Compares every byte of one file with what was written.

    Args:
        folder: the checkpoint.
        manifest: of the checkpoint.
        name: of the file.
        meter: hears of the bytes that are read.
        key: see `verify`.

    Raises:
        CheckpointError: the fault.
    """
    hashes = _Hashes(manifest, name, key)
    buffer = memoryview(bytearray(_CHUNK))
    with _opened(folder / name, manifest.files[name][0]) as file:
        for count in iter(lambda: file.readinto(buffer), 0):
            hashes.update(buffer[:count])
            meter.add(count)
    hashes.compare(folder / name)


def load(
    folder: Path,
    level: str = "full",
    progress: Optional[Progress] = None,
    key: Optional[bytes] = None,
) -> Tuple[Manifest, TrainingState]:
    """Verifies and reads a checkpoint, each byte once.

    Args:
        folder: the checkpoint.
        level: one of `LEVELS`.
        progress: called as the bytes are read.
        key: see `verify`.

    Returns:
        Its manifest and the state it holds.

    Raises:
        CheckpointError: a fault was found, or its files do not fit together.
    """
    manifest = _look(folder, level, key)
    meter = Meter([manifest], progress)
    contents: Dict[str, Mapping[str, Any]] = {}
    for name, (size, _) in manifest.files.items():
        path = folder / name
        hashes = _Hashes(manifest, name, key) if level == "full" or key is not None else None
        with _opened(path, None if hashes is None and level == "none" else size) as file:
            data = _read(file, hashes, meter)
            if hashes is not None:
                hashes.compare(path)
            contents[name] = _parse(path, data)
    try:
        state = layout.join(contents)
    except CheckpointError as error:
        raise type(error)(f"{folder}: {error}") from error
    if state.position != manifest.position:
        raise CheckpointError(
            f"{folder}: its {layout.STATE_FILE} is of step {state.position.step}, its manifest of "
            f"step {manifest.position.step}: files of two checkpoints are mixed"
        )
    return manifest, state


def read_values(folder: Path, key: Optional[bytes] = None) -> Mapping[str, Mapping[str, Any]]:
    """Reads what state.json holds of each part, and no tensor.

    Args:
        folder: the checkpoint.
        key: see `verify`.

    Returns:
        Part name to its values.

    Raises:
        CheckpointError: the file is damaged.
    """
    manifest = read_manifest(folder, key)
    path = folder / layout.STATE_FILE
    if path.name not in manifest.files:
        raise CheckpointError(f"{path} is not in the manifest")
    hashes = _Hashes(manifest, path.name, key)
    with _opened(path, manifest.files[path.name][0]) as file:
        data = _read(file, hashes, Meter([manifest], None))
        hashes.compare(path)
        parts = _parse(path, data).get("parts")
    if not isinstance(parts, dict) or not all(isinstance(part, dict) for part in parts.values()):
        raise CheckpointError(f"{path} has no parts")
    return parts


class _Hashes:
    """What the bytes of a file must hash to; with a key also what nobody can forge."""

    def __init__(self, manifest: Manifest, name: str, key: Optional[bytes]) -> None:
        self._pairs: List[Tuple[Any, str]] = [(xxhash.xxh3_128(), manifest.files[name][1])]
        if key is not None:
            self._pairs.append((hashlib.sha256(), manifest.sha256[name]))

    def update(self, data: memoryview) -> None:
        for hashed, _ in self._pairs:
            hashed.update(data)

    def compare(self, path: Path) -> None:
        for hashed, expected in self._pairs:
            found = hashed.hexdigest()
            if found != expected:
                raise CheckpointError(
                    f"{path} is damaged: its content has the checksum {found}; {expected:.64} "
                    f"was written"
                )


class Meter:
    """Reports the bytes of checkpoints as they are read.

    Args:
        manifests: of all that will be read.
        progress: what is told; None for nobody.
    """

    def __init__(self, manifests: Sequence[Manifest], progress: Optional[Progress]) -> None:
        self._total = sum(size for each in manifests for size, _ in each.files.values())
        self._progress = progress
        self._done = 0

    def add(self, count: int) -> None:
        """Adds bytes that were read, or need not be."""
        self._done += count
        if self._progress is not None:
            try:
                self._progress(self._done, self._total)
            except Exception:  # a bar that cannot be drawn is no fault of the checkpoint
                self._progress = None


def _look(folder: Path, level: str, key: Optional[bytes]) -> Manifest:
    """Checks everything that needs no reading of contents."""
    if level not in LEVELS:
        raise ConfigError(f"verify={level!r}: one of {', '.join(map(repr, LEVELS))} expected")
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder: there is no checkpoint")
    manifest = read_manifest(folder, key)
    if level == "none" and key is None:
        return manifest
    verify_names(folder, manifest)
    for name in manifest.files:
        verify_size(folder, manifest, name)
    return manifest


def verify_names(folder: Path, manifest: Manifest) -> None:
    """Refuses files that were not written with the others.

    Args:
        folder: the checkpoint.
        manifest: of the checkpoint.

    Raises:
        CheckpointError: there are some.
    """
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


def verify_size(folder: Path, manifest: Manifest, name: str) -> None:
    """Looks for a file, without reading it.

    Args:
        folder: the checkpoint.
        manifest: of the checkpoint.
        name: of the file.

    Raises:
        CheckpointError: it is missing, of another size, or no file.
    """
    _check(folder / name, manifest.files[name][0])


def _check(path: Path, size: Optional[int]) -> None:
    try:
        found = look(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except NotRegular as error:
        raise CheckpointError(f"{path} is {error.strerror}; refused") from error
    except OSError as error:
        raise unreadable(path, error) from error
    if size is not None and found.st_size != size:
        raise CheckpointError(f"{path} has {found.st_size} bytes; {size} were written")


@contextmanager
def _opened(path: Path, size: Optional[int]) -> Iterator[FileIO]:
    """Opens a checked file unbuffered; whatever the disk then says names the file."""
    _check(path, size)
    try:
        with open_regular(path) as file:
            yield file
    except OSError as error:
        raise unreadable(path, error) from error
    except MemoryError as error:
        raise Unreadable(f"{path} cannot be read: there is not enough memory for it") from error


def _read(file: FileIO, hashes: Optional[_Hashes], meter: Meter) -> memoryview:
    """Reads a whole file, hashing each piece while it is in the processor's cache."""
    # numpy's memory, unlike a bytearray's, is not zeroed first.
    data = np.empty(os.fstat(file.fileno()).st_size, np.uint8).data
    done = 0
    while done < len(data):
        count = file.readinto(data[done : done + _CHUNK])
        if not count:
            break
        if hashes is not None:
            hashes.update(data[done : done + count])
        done += count
        meter.add(count)
    return data[:done]


def _parse(path: Path, data: memoryview) -> Mapping[str, Any]:
    try:
        return parse_json(bytes(data), path.name) if path.suffix == ".json" else pickles.load(data)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
