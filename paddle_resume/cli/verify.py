"""`paddle-resume verify`: whether checkpoints are what was written."""

# No `from __future__ import annotations` here: on Python 3.9 typer then misses what Annotated says.

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Any, Callable, Dict, Iterator, List, Optional

import typer

from paddle_resume.cli.arguments import AsJson, SignKey, WrongArgument, complete, key_of
from paddle_resume.cli.output import cell, console, print_json

__all__ = ["verify"]

_HOLDS = {
    "manifest.json": "the list of files and checksums",
    "state.json": "position, learning rate, random state, counters",
    "extra.pdparams": "other tensors: random state, metrics, accumulated gradients, extra",
    ".pdparams": "weights",
    ".pdopt": "the optimizer's state",
}


def verify(
    path: Annotated[
        Path,
        typer.Argument(
            help="The folder of a run, or one checkpoint.",
            metavar="SAVE_DIR|CHECKPOINT",
            autocompletion=complete,
        ),
    ],
    level: Annotated[
        str, typer.Option("--level", help="full reads every byte; size looks at names and sizes.")
    ] = "full",
    as_json: AsJson = False,
    sign_key: SignKey = None,
) -> None:
    """Verify checkpoints, and change nothing.

    Ends with exit code 0 where all are good, 1 where a fault is found, 2 where there is nothing to
    verify.
    """
    from paddle_resume.checkpoint.store import Store
    from paddle_resume.cli.paths import checkpoint_at, is_checkpoint, save_dir_at

    if level not in ("full", "size"):
        raise WrongArgument(f'--level {level}: "full" or "size" expected')
    key = key_of(sign_key)
    if is_checkpoint(path) or path.is_file() or path.with_name(path.name + ".pdparams").is_file():
        one = checkpoint_at(path)
        store, paths = Store(one.parent, key), [one]
    else:
        store = save_dir_at(path, key)
        paths = store.checkpoints()
    if not paths:
        raise WrongArgument(f"{path} holds no checkpoints")
    with _progress(show=not as_json and level == "full") as progress:
        found = _examine(store, paths, level, progress)
    if as_json:
        print_json({"level": level, "checkpoints": found})
    else:
        _show(found, level)
    if any(item["faults"] for item in found):
        raise typer.Exit(1)


def holds(name: str) -> str:
    """Tells what part of the state a file holds.

    Args:
        name: of the file.

    Example:
        >>> holds("model.pdparams"), holds("rank_00001.json")
        ('weights', 'what differs by process')
    """
    for end, what in _HOLDS.items():
        if name == end or (end.startswith(".") and name.endswith(end)):
            return what
    return "what differs by process" if name.startswith("rank_") else "not known"


def _examine(
    store: Any, paths: List[Path], level: str, progress: Optional[Callable[[int, int], None]]
) -> List[Dict[str, Any]]:
    from paddle_resume.checkpoint.manifest import MANIFEST_FILE
    from paddle_resume.checkpoint.reader import Meter
    from paddle_resume.errors import CheckpointError

    manifests, broken = {}, {}
    for path in paths:
        try:
            manifests[path] = store.read_manifest(path)
        except CheckpointError as error:
            broken[path] = {MANIFEST_FILE: str(error)}
    meter = Meter(list(manifests.values()), progress)
    found = []
    for path in paths:
        if path in broken:
            faults = broken[path]
        else:
            faults = store.faults_of(path, manifests[path], level, meter)
        entries = [{"file": name, "holds": holds(name), "why": why} for name, why in faults.items()]
        found.append({"path": str(path), "good": not faults, "faults": entries})
    return found


@contextlib.contextmanager
def _progress(show: bool) -> Iterator[Optional[Callable[[int, int], None]]]:
    if not (show and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    bar = Progress(
        BarColumn(), DownloadColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task("verify", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show(found: List[Dict[str, Any]], level: str) -> None:
    out = console()
    for item in found:
        if item["good"]:
            out.print(cell(f"good     {item['path']}", "green"))
            continue
        out.print(cell(f"damaged  {item['path']}", "red"))
        for fault in item["faults"]:
            out.print(cell(f"         {fault['file']} ({fault['holds']}): {fault['why']}"))
    bad = sum(not item["good"] for item in found)
    looked = "every byte read" if level == "full" else "names and sizes only"
    out.print(cell(f"{len(found) - bad} good, {bad} damaged ({looked})"))
    if bad:
        out.print(
            cell("The next start passes over a damaged one, and goes on from an older good one.")
        )
