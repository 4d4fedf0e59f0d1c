"""The command `paddle-resume`: one function a subcommand, each of them a thin layer."""

# No `from __future__ import annotations` here: on Python 3.9 typer then misses what Annotated says.

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from paddle_resume._version import __version__
from paddle_resume.cli.arguments import WrongArgument
from paddle_resume.cli.config import ConfigCommand, config
from paddle_resume.cli.diff import diff
from paddle_resume.cli.listing import list_checkpoints
from paddle_resume.cli.output import plain
from paddle_resume.cli.prune import prune
from paddle_resume.cli.show import show
from paddle_resume.cli.verify import verify
from paddle_resume.errors import ResumeError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Fault tolerance for PaddlePaddle training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paddle-resume {__version__}")
        raise typer.Exit()


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Fault tolerance for PaddlePaddle training."""


@app.command()
def demo(
    folder: Annotated[
        Optional[Path],
        typer.Option("--dir", help="An empty or new folder for the runs; it is kept."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the comparison as JSON, progress on stderr.")
    ] = False,
) -> None:
    """Train on real data, be killed twice, go on, and prove that nothing differs.

    Ends with exit code 1 where anything differs from the uninterrupted run.
    """
    from rich.console import Console

    from paddle_resume.cli.demo import run_demo
    from paddle_resume.cli.demo_report import show as show_report

    console = Console(stderr=as_json, highlight=False)
    report = run_demo(folder, keep=keep, console=console)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        show_report(report, console)
    if not report.identical:
        raise typer.Exit(1)


app.command("list")(list_checkpoints)
app.command()(show)
app.command()(verify)
app.command()(diff)
app.command()(prune)
app.command(cls=ConfigCommand)(config)


def main() -> None:
    """The entry point: errors of ours end with their message and exit code 1; 2 for arguments."""
    try:
        app()
    except ResumeError as error:
        print(f"paddle-resume: {plain(error)}", file=sys.stderr)
        sys.exit(2 if isinstance(error, WrongArgument) else 1)
    except BrokenPipeError:  # of a pager, or head, that wants no more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
