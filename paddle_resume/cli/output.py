"""What the commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

__all__ = ["cell", "console", "plain", "print_json", "table"]


def plain(value: Any) -> str:
    """Writes something from a checkpoint so that no terminal takes it for a command.

    Args:
        value: anything.

    Returns:
        Its text, what cannot be printed escaped.

    Example:
        >>> plain("weight\\x1b[2J")
        'weight\\\\x1b[2J'
    """
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in str(value)
    )


def print_json(value: Any) -> None:
    """Prints JSON, ASCII only: what is in a checkpoint may be no text at all."""
    typer.echo(json.dumps(value, indent=2))


def console() -> "Console":
    """Makes one for stdout; a pipe has no width: there nothing is folded."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def table(*columns: str, title: str = "") -> "Table":
    """Makes a table without lines; a column that begins with `>` is one of numbers."""
    from rich.table import Table

    made = Table(
        box=None,
        padding=(0, 2, 0, 0),
        title=cell(title) if title else None,
        title_justify="left",
        title_style="bold",
    )
    for name in columns:
        number = name.startswith(">")
        made.add_column(
            name.lstrip(">"), justify="right" if number else "left", overflow="fold", no_wrap=number
        )
    return made


def cell(value: Any, style: str = "") -> "Text":
    """Makes a cell's text, in which no markup means anything."""
    from rich.text import Text

    return Text(plain(value), style=style)
