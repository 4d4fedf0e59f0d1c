"""What several commands take: paths, `--json`, `--sign-key`. Imports nothing that is slow to."""

# No `from __future__ import annotations` here: on Python 3.9 typer then misses what Annotated says.

import os
from pathlib import Path
from typing import Annotated, List, Optional

import typer

from paddle_resume.errors import ConfigError

__all__ = ["AsJson", "CheckpointPath", "SaveDir", "SignKey", "WrongArgument", "complete", "key_of"]


class WrongArgument(ConfigError):
    """An argument names nothing that the command could use."""


def complete(incomplete: str) -> List[str]:
    """Completes the path of a folder, for the shell.

    Args:
        incomplete: what is typed so far.

    Returns:
        The folders that begin so; hidden ones only after a dot.
    """
    folder, begun = os.path.split(incomplete)
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
    except OSError:
        return []
    return sorted(
        os.path.join(folder, name)
        for name in names
        if name.startswith(begun) and name.startswith(".") == begun.startswith(".")
    )


SaveDir = Annotated[
    Path, typer.Argument(help="The folder of a run.", metavar="SAVE_DIR", autocompletion=complete)
]
CheckpointPath = Annotated[
    Path,
    typer.Argument(
        help="A checkpoint: its folder, latest, best, or the …/model prefix.",
        autocompletion=complete,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SignKey = Annotated[
    Optional[str],
    typer.Option(
        "--sign-key",
        metavar="NAME",
        help="The environment variable with the key: what it has not signed counts as damaged.",
    ),
]


def key_of(name: Optional[str]) -> Optional[bytes]:
    """Reads the key that `--sign-key` names.

    Args:
        name: of the variable; None for no signatures.

    Raises:
        WrongArgument: there is no such variable, or it holds no key.
    """
    from paddle_resume.checkpoint.signing import sign_key

    try:
        return sign_key(name)
    except ConfigError as error:
        raise WrongArgument(str(error).replace("sign_key=", "--sign-key ", 1)) from error
