"""One fsync, rename or checksum of the package turned off: the tests here have to notice each."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple, Union

from paddle_resume.checkpoint import aside, links, reader, store, writer
from paddle_resume.checkpoint import manifest as manifests

__all__ = ["BREAKS", "Patch"]

Patch = Tuple[Any, str, Any]
"""An object, the name of one of its attributes, and what to put there."""

_PathLike = Union[str, Path]
_fsync, _os_replace = os.fsync, os.replace


class _Anything(str):
    """Equal to whatever it is compared with."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def _no_fsync(function: str, of: str = "") -> List[Patch]:
    """Leaves out the fsync that a function asks for, of what has this in its path."""

    def fsync(handle: int) -> None:
        asking = sys._getframe(2).f_code.co_name  # behind fsync_folder or _sync
        if asking != function or of not in os.readlink(f"/proc/self/fd/{handle}"):
            _fsync(handle)

    return [(os, "fsync", fsync)]


def _commit_by_copy(temp: Path, final: Path) -> None:
    """As a program does it that knows no rename, but every fsync."""
    final.mkdir()
    for name in sorted(os.listdir(temp)):
        _write_in_place(final / name, (temp / name).read_bytes())
    shutil.rmtree(temp)


def _write_in_place(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    writer.fsync_folder(path.parent)


def _replace_in_two_steps(source: _PathLike, target: _PathLike) -> None:
    if not os.path.islink(source):
        return _os_replace(source, target)
    if os.path.lexists(target):
        os.unlink(target)
    os.symlink(os.readlink(source), target)
    os.unlink(source)


def _delete_in_place(self: store.Store, path: Path) -> None:
    shutil.rmtree(path)


BREAKS: Dict[str, List[Patch]] = {
    "fsync of a data file": _no_fsync("_write_file", "model.pdparams"),
    "fsync of the state file": _no_fsync("_write_file", "state.json"),
    "fsync of the manifest": _no_fsync("_write_durably", "manifest.json"),
    "fsync of the temporary folder": _no_fsync("write"),
    "fsync after the commit": _no_fsync("save"),
    "fsync above save_dir": _no_fsync("make_folder"),
    "fsync after a link": _no_fsync("point"),
    "fsync before a deletion": _no_fsync("delete"),
    "fsync of a replaced file": _no_fsync("_write_durably", "finished.json"),
    "fsync after a replacement": _no_fsync("replace_file"),
    "fsync after setting aside": _no_fsync("set_aside_bad"),
    "fsync after leaving behind": _no_fsync("leave_behind"),
    "rename that commits": [(store, "_commit", _commit_by_copy)],
    "rename of a link": [(os, "replace", _replace_in_two_steps)],
    "rename of a replaced file": [
        (module, "replace_file", _write_in_place) for module in (writer, links, aside)
    ],
    "rename before a deletion": [(store.Store, "delete", _delete_in_place)],
    "checksum of a file": [(reader._Hashes, "compare", lambda *_: None)],
    "checksum of the manifest": [(manifests, "_checksum", lambda found: _Anything("none"))],
}
"""What is turned off, and how; the last two are in the reader."""
