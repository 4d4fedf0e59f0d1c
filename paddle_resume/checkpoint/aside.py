"""Moves checkpoints out of the discovery's sight; nothing here deletes."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, Collection, Mapping, Optional, Set

from paddle_resume.checkpoint import links
from paddle_resume.checkpoint.layout import parse_folder_name
from paddle_resume.checkpoint.writer import fsync_folder, replace_file
from paddle_resume.observe.log import log

__all__ = ["leave_behind", "set_aside_bad"]


def set_aside_bad(save_dir: Path, path: Path, why: str) -> Path:
    """Renames a damaged checkpoint to `.bad-<name>-<n>`.

    Args:
        save_dir: where it is.
        path: the checkpoint.
        why: the fault; it is written to `.why.txt` beside its files.

    Returns:
        Where it is now.

    Raises:
        OSError: it could not be moved.
    """
    number = 1
    while os.path.lexists(save_dir / f".bad-{path.name}-{number}"):
        number += 1
    aside = save_dir / f".bad-{path.name}-{number}"
    os.rename(path, aside)
    try:
        replace_file(aside / ".why.txt", why.encode("utf-8", "replace") + b"\n")
    except OSError as error:
        log.warning("%s: the reason could not be written into it: %s", aside, error)
    fsync_folder(save_dir)
    return aside


def leave_behind(
    save_dir: Path,
    paths: Collection[Path],
    run_id: str,
    described: Mapping[str, Optional[Mapping[str, Any]]],
) -> Optional[Path]:
    """Moves checkpoints that are not of a run's line to `.before-<run_id>/`.

    Files and links that speak of them go with them.

    Args:
        save_dir: where they are.
        paths: the checkpoints.
        run_id: the run that goes on.
        described: name and content of the files that may speak of them; None for a damaged one.

    Returns:
        The folder they are in now; None where there were none.

    Raises:
        OSError: one could not be moved; the next start tries again.
    """
    if not paths:
        return None
    behind = save_dir / f".before-{run_id}"
    behind.mkdir(exist_ok=True)
    steps = {parse_folder_name(path.name) for path in paths}
    # These first: after a crash in between, the checkpoints are still in the way and the next start
    # repeats it. The other way round, finished.json would stand without its checkpoint.
    for name, content in described.items():
        if (save_dir / name).exists() and (content is None or _steps_in(content) & steps):
            _move(save_dir / name, behind)
    for path in sorted(paths):
        _move(path, behind)
    for name in links.LINKS:
        if links.follow(save_dir, name) is None:
            for place in links.places(save_dir, name):
                if place.is_symlink() or place.is_file():
                    _move(place, behind)
    fsync_folder(behind)
    fsync_folder(save_dir)
    return behind


def _move(path: Path, folder: Path) -> None:
    target = folder / path.name
    while os.path.lexists(target):
        target = folder / f"{path.name}-{secrets.token_hex(4)}"
    os.rename(path, target)


def _steps_in(value: Any) -> Set[Any]:
    """Every "step" in a JSON value, at whatever depth."""
    if isinstance(value, dict):
        own = {value["step"]} if isinstance(value.get("step"), int) else set()
        return own.union(*(_steps_in(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(_steps_in(item) for item in value))
    return set()
