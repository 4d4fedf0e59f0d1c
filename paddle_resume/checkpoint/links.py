"""`latest` and `best`: conveniences for people, replaced atomically; discovery never uses them."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Optional, Tuple

from paddle_resume.checkpoint.layout import parse_folder_name
from paddle_resume.checkpoint.writer import fsync_folder, replace_file, temp_name
from paddle_resume.observe.log import log
from paddle_resume.regular import read_regular

__all__ = ["LINKS", "follow", "places", "point"]

LINKS = ("latest", "best")


def places(save_dir: Path, name: str) -> Tuple[Path, Path]:
    """Where a link may be: the link itself, and the text file where links are not possible."""
    return save_dir / name, save_dir / f"{name}.txt"


def point(save_dir: Path, name: str, target: Path) -> None:
    """Points a link to a checkpoint.

    Args:
        save_dir: where the link and the checkpoint are.
        name: of the link.
        target: the checkpoint.

    Raises:
        OSError: neither a link nor a text file can be written.
    """
    place, text = places(save_dir, name)
    if os.path.lexists(place) and not place.is_symlink():
        aside = save_dir / f".before-link-{name}-{secrets.token_hex(4)}"
        os.rename(place, aside)
        log.warning("%s was not a link; it is kept as %s", place, aside.name)
    temp = save_dir / temp_name(name)
    try:
        os.symlink(target.name, temp)
    except OSError:
        # FAT and some network file systems have none. One that came with a copy would be stale.
        if place.is_symlink():
            place.unlink()
        replace_file(text, target.name.encode() + b"\n")
        return
    os.replace(temp, place)
    if text.exists():
        text.unlink()
    fsync_folder(save_dir)


def follow(save_dir: Path, name: str) -> Optional[Path]:
    """Follows a link.

    Args:
        save_dir: where it is.
        name: of the link.

    Returns:
        The checkpoint it names; None where there is none, or it names nothing of this folder.
    """
    place, text = places(save_dir, name)
    try:
        found = os.readlink(place) if place.is_symlink() else _name_in(text)
    except (OSError, ValueError):
        return None
    path = save_dir / found  # a plain name: it leads nowhere else
    is_ours = parse_folder_name(found) is not None
    return path if is_ours and path.is_dir() and not path.is_symlink() else None


def _name_in(text: Path) -> str:
    return read_regular(text, 4096).decode("utf-8").strip()
