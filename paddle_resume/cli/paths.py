"""The paths that commands take, and what was meant by a wrong one."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Iterator, List, Optional

from paddle_resume.checkpoint.layout import parse_folder_name
from paddle_resume.checkpoint.links import LINKS
from paddle_resume.checkpoint.store import Store
from paddle_resume.cli.arguments import WrongArgument
from paddle_resume.errors import CheckpointError
from paddle_resume.resumer import checkpoint_folder

__all__ = ["checkpoint_at", "is_checkpoint", "save_dir_at"]

_MOST = 5


def save_dir_at(path: Path, key: Optional[bytes] = None) -> Store:
    """Opens the folder that holds checkpoints.

    Args:
        path: as given.
        key: that must have signed them; None for no signatures.

    Returns:
        Its store.

    Raises:
        WrongArgument: it is missing, a checkpoint, or a folder of such folders.
    """
    _there(path)
    if is_checkpoint(path):
        raise WrongArgument(f"{path} is one checkpoint; its folder is expected: {path.parent}")
    if not path.is_dir():
        raise WrongArgument(f"{path} is no folder; one that holds checkpoints is expected")
    store = Store(path, key)
    inside = [] if _is_save_dir(path) else _save_dirs(path)
    if inside:
        raise WrongArgument(f"{path} holds no checkpoints itself. Did you mean {_one_of(inside)}?")
    return store


def checkpoint_at(path: Path) -> Path:
    """Finds the checkpoint that a path means.

    Args:
        path: its folder, a link to it, a `…/model` prefix, or a `.pdparams` file in it.

    Returns:
        Its folder.

    Raises:
        WrongArgument: it is missing, or a folder of checkpoints.
    """
    if not path.with_name(path.name + ".pdparams").is_file():
        _there(path)
    if path.name not in LINKS and _is_save_dir(path):
        newest = Store(path).checkpoints()[-1:]
        hint = f" The newest is {newest[0]}" if newest else ""
        raise WrongArgument(f"{path} holds checkpoints; one of them is expected.{hint}")
    try:
        return checkpoint_folder(path)
    except CheckpointError as error:
        raise WrongArgument(str(error)) from error


def is_checkpoint(path: Path) -> bool:
    """Whether a path is that of a checkpoint's folder, or of a link to one."""
    return path.is_dir() and parse_folder_name(path.resolve().name) is not None


def _there(path: Path) -> None:
    if os.path.lexists(path):
        return
    known = next(parent for parent in path.absolute().parents if parent.is_dir())
    wrong = path.absolute().parts[len(known.parts)]
    near = difflib.get_close_matches(wrong, sorted(_folders(known)), _MOST, 0.6)
    rest = path.absolute().parts[len(known.parts) + 1 :]
    meant = [known.joinpath(name, *rest) for name in near]
    meant = [each for each in meant if each.is_dir()] or [known / name for name in near]
    if meant:
        raise WrongArgument(f"{path} does not exist. Did you mean {_one_of(meant)}?")
    raise WrongArgument(f"{path} does not exist; {known} does, and holds nothing of such a name")


def _folders(path: Path) -> Iterator[str]:
    try:
        with os.scandir(path) as entries:
            yield from (entry.name for entry in entries if entry.is_dir())
    except OSError:
        return


def _is_save_dir(path: Path) -> bool:
    if not path.is_dir():
        return False
    store = Store(path)
    return bool(store.checkpoints()) or store.signs_of_earlier_run() is not None


def _save_dirs(path: Path) -> List[Path]:
    return [path / name for name in sorted(_folders(path)) if _is_save_dir(path / name)]


def _one_of(paths: List[Path]) -> str:
    shown = [str(path) for path in paths[:_MOST]]
    more = f" (and {len(paths) - _MOST} more)" if len(paths) > _MOST else ""
    return " or ".join(shown) + more
