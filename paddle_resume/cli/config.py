"""`paddle-resume config`: the settings that a config means, and where each comes from."""

# No `from __future__ import annotations` here: on Python 3.9 typer then misses what Annotated says.

import json
import sys
from typing import Annotated, Any, List, Optional, Sequence

import typer
from typer.core import TyperCommand

from paddle_resume.errors import ConfigError

__all__ = ["ConfigCommand", "config", "spread_overrides"]

_FLAGS = ("-o", "--override")


def spread_overrides(arguments: Sequence[str]) -> List[str]:
    """Lets one `-o` take several values, as PaddleDetection's does.

    Args:
        arguments: of the command.

    Returns:
        The same with an `-o` for each value.

    Example:
        >>> spread_overrides(["run.yml", "-o", "a.b=1", "c=2", "--json"])
        ['run.yml', '-o', 'a.b=1', '-o', 'c=2', '--json']
    """
    found: List[str] = []
    inside = False
    for argument in arguments:
        if argument in _FLAGS:
            inside = True
        elif inside and found[-1] not in _FLAGS:
            inside = "=" in argument and not argument.startswith("-")
            if inside:
                found.append(_FLAGS[0])
        found.append(argument)
    return found


class ConfigCommand(TyperCommand):
    """A command whose `-o` takes several values."""

    def parse_args(self, ctx: Any, args: List[str]) -> List[str]:
        """See `spread_overrides`."""
        return super().parse_args(ctx, spread_overrides(args))


def config(
    file: Annotated[str, typer.Argument(help="A YAML file.", metavar="FILE")],
    override: Annotated[
        Optional[List[str]],
        typer.Option(
            *_FLAGS,
            metavar="KEY=VALUE ...",
            help="Settings that win over the file: -o snapshot_epoch=2 best.monitor=acc",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the settings that a config means, and where each comes from.

    Ends with exit code 2 where the config is wrong.
    """
    from paddle_resume.config.settings import describe

    try:
        settings = describe(file, override)
    except ConfigError as error:
        typer.echo(f"paddle-resume: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        found = {item.key: {"value": item.value, "source": item.source} for item in settings}
        typer.echo(json.dumps({"file": file, "settings": found}, indent=2, ensure_ascii=False))
    else:
        _show(file, settings)


def _show(file: str, settings: Sequence[Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(file), title_justify="left")
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", overflow="fold")
    for item in settings:
        style = "dim" if item.source == "default" else ""
        # As in YAML, which JSON is: true and null, not True and None.
        value = item.value if isinstance(item.value, str) else json.dumps(item.value)
        table.add_row(Text(item.key), Text(value), Text(item.source), style=style)
    # A pipe has no width: there nothing is folded.
    width = None if sys.stdout.isatty() else 200
    Console(highlight=False, width=width).print(table)
