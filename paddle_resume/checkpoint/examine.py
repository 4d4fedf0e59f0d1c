"""Everything that is wrong with a checkpoint, where `reader.verify` stops at the first fault."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, List, Optional

from paddle_resume.checkpoint import reader
from paddle_resume.checkpoint.layout import STATE_FILE
from paddle_resume.checkpoint.manifest import MANIFEST_FILE
from paddle_resume.errors import CheckpointError
from paddle_resume.types import Manifest

__all__ = ["faults_of"]


def faults_of(
    folder: Path,
    manifest: Manifest,
    level: str,
    meter: reader.Meter,
    key: Optional[bytes] = None,
) -> "dict[str, str]":
    """Finds every fault of a checkpoint whose manifest is whole.

    Args:
        folder: the checkpoint.
        manifest: of the checkpoint.
        level: `"full"` or `"size"`.
        meter: hears of the bytes that are read.
        key: that must have signed it.

    Returns:
        File name to what is wrong with it; of a fault of the folder the name is the manifest's.
    """
    found: "dict[str, str]" = {}

    def look(name: str, check: Callable[[], object]) -> bool:
        try:
            check()
        except CheckpointError as error:
            found.setdefault(name, str(error))
        return name not in found

    look(MANIFEST_FILE, lambda: reader.verify_names(folder, manifest))
    read_all = level == "full" or key is not None
    for name, size in _sizes(manifest):
        whole = look(name, lambda name=name: reader.verify_size(folder, manifest, name))  # type: ignore[misc]
        if whole and read_all:
            look(name, lambda name=name: reader.verify_file(folder, manifest, name, meter, key))  # type: ignore[misc]
        else:
            meter.add(size)
    if read_all and STATE_FILE not in found:
        look(STATE_FILE, lambda: reader.read_values(folder, key))
    return found


def _sizes(manifest: Manifest) -> "List[tuple[str, int]]":
    return [(name, size) for name, (size, _) in manifest.files.items()]
