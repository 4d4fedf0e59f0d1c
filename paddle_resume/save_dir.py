"""Where a run's checkpoints go: the argument save_dir, and the variable that moves it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Mapping, Optional

__all__ = ["VARIABLE", "replacement", "save_dir_from_environment"]

VARIABLE = "PADDLE_RESUME_SAVE_DIR"


def save_dir_from_environment(
    save_dir: Path, environment: Optional[Mapping[str, str]] = None
) -> Path:
    """Applies `PADDLE_RESUME_SAVE_DIR`, with which a platform moves a run without touching it.

    The variable replaces save_dir. A value that ends with a slash is a prefix, for a process that
    uses several: each save_dir keeps its own path below it. What a variable means thus never
    depends on what else the process does, or in which order.

    Args:
        save_dir: as the program gives it.
        environment: `os.environ` where None.

    Returns:
        The folder to use; save_dir itself where the variable is not set or empty.

    Example:
        >>> save_dir_from_environment(Path("output/run1"), {})
        PosixPath('output/run1')
        >>> save_dir_from_environment(Path("output/run1"), {VARIABLE: "/mnt/job7"})
        PosixPath('/mnt/job7')
        >>> save_dir_from_environment(Path("output/run1"), {VARIABLE: "/mnt/job7/"})
        PosixPath('/mnt/job7/output/run1')
    """
    value = _value(environment)
    if not value:
        return save_dir
    if not _is_prefix(value):
        return Path(value).expanduser()
    return Path(value).expanduser() / _below(save_dir)


def replacement(environment: Optional[Mapping[str, str]] = None) -> Optional[Path]:
    """Returns the folder that stands in for any save_dir, a missing one too.

    Args:
        environment: `os.environ` where None.

    Returns:
        The folder; None where the variable is not set, or a prefix.

    Example:
        >>> replacement({VARIABLE: "/mnt/job7"})
        PosixPath('/mnt/job7')
        >>> replacement({VARIABLE: "/mnt/job7/"}) is None
        True
    """
    value = _value(environment)
    return Path(value).expanduser() if value and not _is_prefix(value) else None


def _value(environment: Optional[Mapping[str, str]]) -> str:
    return (os.environ if environment is None else environment).get(VARIABLE, "")


def _is_prefix(value: str) -> bool:
    return value.endswith("/")


def _below(save_dir: Path) -> str:
    """The path without a root; one that leads upwards is taken from the root, to stay below."""
    path = os.path.normpath(save_dir)
    if os.path.isabs(path) or path.split(os.sep)[0] == os.pardir:
        path = os.path.abspath(path).lstrip(os.sep)
    return path
