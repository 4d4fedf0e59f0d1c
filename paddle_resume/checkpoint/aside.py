"""Moves checkpoints out of the discovery's sight; nothing here deletes."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, Collection, List, Mapping, Optional, Set

from paddle_resume.checkpoint import links
from paddle_resume.checkpoint.layout import folder_name, parse_folder_name
from paddle_resume.checkpoint.manifest import dump_json
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

    Files and links that speak of them go with them. A file that also speaks of others goes as it
    is, and stays with the rest; the link of its name then names the first of these.

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
    stays = {
        name: _leave_description(save_dir / name, content, steps, behind)
        for name, content in described.items()
    }
    for path in sorted(paths):
        _move(path, behind)
    for name in links.LINKS:
        if links.follow(save_dir, name) is None:
            for place in links.places(save_dir, name):
                if place.is_symlink() or place.is_file():
                    _move(place, behind)
            for step in _steps_in(stays.get(f"{name}.json"))[:1]:
                links.point(save_dir, name, save_dir / folder_name(step))
    fsync_folder(behind)
    fsync_folder(save_dir)
    return behind


def _leave_description(
    path: Path, content: Optional[Mapping[str, Any]], steps: Set[Optional[int]], behind: Path
) -> Optional[Mapping[str, Any]]:
    """Leaves a file behind, or only what it says of some steps; returns the content that stays."""
    if not path.exists() or (content is not None and not steps & {*_steps_in(content)}):
        return content
    rest = None if content is None else _without(content, steps)
    if rest is None:
        _move(path, behind)
    else:
        replace_file(_free(behind / path.name), path.read_bytes())
        replace_file(path, dump_json(rest, path.name))
    return rest


def _move(path: Path, folder: Path) -> None:
    os.rename(path, _free(folder / path.name))


def _free(path: Path) -> Path:
    free = path
    while os.path.lexists(free):
        free = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
    return free


def _steps_in(value: Any) -> List[int]:
    """Every "step" in a JSON value, at whatever depth, in its order."""
    if isinstance(value, dict):
        own = [value["step"]] if isinstance(value.get("step"), int) else []
        return own + _steps_in(list(value.values()))
    if isinstance(value, list):
        return [step for item in value for step in _steps_in(item)]
    return []


def _without(content: Mapping[str, Any], steps: Set[Optional[int]]) -> Optional[Mapping[str, Any]]:
    """What is left of a file's lists without the entries of some steps; None where nothing is."""
    left = {
        key: [item for item in value if not steps & {*_steps_in(item)}]
        if isinstance(value, list)
        else value
        for key, value in content.items()
    }
    found = _steps_in(left)
    return left if found and not steps & {*found} else None
