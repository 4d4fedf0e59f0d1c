"""`paddle-resume prune`: deletes old checkpoints of a run that is not running."""

# No `from __future__ import annotations` here: on Python 3.9 typer then misses what Annotated says.

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Dict, List, Optional, Tuple

import typer

from paddle_resume.cli.arguments import AsJson, SaveDir, SignKey, key_of
from paddle_resume.cli.output import cell, console, print_json

__all__ = ["prune"]


def prune(
    save_dir: SaveDir,
    keep: Annotated[int, typer.Option("--keep", min=1, help="How many of the newest stay.")],
    keep_every_epoch: Annotated[
        Optional[int],
        typer.Option(
            "--keep-every-epoch", min=1, help="The end of every so many epochs stays too."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Delete nothing, say what would.")
    ] = False,
    as_json: AsJson = False,
    sign_key: SignKey = None,
) -> None:
    """Delete old checkpoints. The best, the newest without NaN and damaged ones stay as well.

    Of those that stay one at least is verified to be good before anything is deleted. A folder
    that a run is using is refused.
    """
    from paddle_resume.cli.paths import save_dir_at
    from paddle_resume.errors import CheckpointError

    store = save_dir_at(save_dir, key_of(sign_key))
    store.lock()
    try:
        plan = _plan(store, keep, keep_every_epoch)
        if plan.good is None and plan.doomed:
            raise CheckpointError(
                f"none of the checkpoints in {save_dir} is good: nothing is deleted. "
                f"`paddle-resume verify {save_dir}` says what is wrong with each"
            )
        gone, failed = ([], {}) if dry_run else _delete(store, plan.doomed)
    finally:
        store.unlock()
    if as_json:
        print_json(_to_json(plan, gone, failed, dry_run))
    else:
        _show(plan, gone, failed, dry_run)
    if failed:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Plan:
    """What goes and what stays.

    Attributes:
        doomed: oldest first.
        stays: path to why, oldest first.
        good: of what stays, one that is verified; None where none is.
        leftovers: of interrupted saves.
    """

    doomed: Tuple[Path, ...]
    stays: Dict[Path, str]
    good: Optional[Path]
    leftovers: Tuple[Path, ...]


def _plan(store: Any, keep: int, every: Optional[int]) -> _Plan:
    from paddle_resume.cli.contents import read_contents
    from paddle_resume.retention import KeepEveryEpochs, KeepNewest, Kept

    contents = read_contents(store)
    known = [found for found in contents.checkpoints if found.manifest is not None]
    kept = []
    for found in known:
        assert found.manifest is not None
        position = found.manifest.position
        completed = position.epoch if position.batch == 0 else None
        kept.append(Kept(found.path, position.step, completed, found.manifest.run_id))
    stays = {found.path: "damaged" for found in contents.checkpoints if found.manifest is None}
    for path in KeepNewest(keep).keep(kept):
        stays[path] = f"one of the newest {keep}"
    for path in KeepEveryEpochs(every).keep(kept) if every else set():
        stays.setdefault(path, f"the end of every {every} epochs")
    for found in known:
        for mark in found.marks:
            stays.setdefault(found.path, mark)
    paths = [found.path for found in reversed(known)]
    finite = next((path for path in paths if _is_finite(store, path)), None)
    if finite is not None:
        stays.setdefault(finite, "the newest without NaN")
    good = next((path for path in paths if path in stays and _is_good(store, path)), None)
    if good is None:
        good = next((path for path in paths if path not in stays and _is_good(store, path)), None)
        if good is not None:
            stays[good] = "the newest good one"
    doomed = tuple(found.path for found in known if found.path not in stays)
    return _Plan(doomed, dict(sorted(stays.items())), good, contents.leftovers)


def _is_good(store: Any, path: Path) -> bool:
    from paddle_resume.errors import CheckpointError

    try:
        store.verify(path)
    except CheckpointError:
        return False
    return True


def _is_finite(store: Any, path: Path) -> bool:
    from paddle_resume.errors import CheckpointError
    from paddle_resume.state.finite import Health

    try:
        return not Health.read(store.read_values(path))
    except CheckpointError:
        return False


def _delete(store: Any, doomed: Tuple[Path, ...]) -> Tuple[List[Path], Dict[Path, str]]:
    from paddle_resume.checkpoint.layout import parse_folder_name
    from paddle_resume.checkpoint.store import EVENTS_FILE
    from paddle_resume.observe.events import EventLog

    events = EventLog(store.save_dir / EVENTS_FILE)
    gone, failed = [], {}
    for path in doomed:
        error = store.delete(path)
        if error is not None:
            failed[path] = str(error)
        else:
            gone.append(path)
            events.append("prune", step=parse_folder_name(path.name), by="paddle-resume prune")
    store.clean_leftovers()
    return gone, failed


def _to_json(plan: _Plan, gone: List[Path], failed: Dict[Path, str], dry_run: bool) -> Any:
    return {
        "dry_run": dry_run,
        "delete": [str(path) for path in plan.doomed],
        "deleted": [str(path) for path in gone],
        "failed": {str(path): why for path, why in failed.items()},
        "kept": {str(path): why for path, why in plan.stays.items()},
        "leftovers": [str(path) for path in plan.leftovers],
    }


def _show(plan: _Plan, gone: List[Path], failed: Dict[Path, str], dry_run: bool) -> None:
    out = console()
    for path in sorted({*plan.doomed, *plan.stays}):
        if path in plan.stays:
            out.print(cell(f"kept     {path} ({plan.stays[path]})"))
        elif path in failed:
            out.print(cell(f"FAILED   {path}: {failed[path]}", "red"))
        else:
            out.print(cell(f"{'would go' if dry_run else 'deleted '} {path}", "yellow"))
    words = f"{len(plan.doomed)} would be deleted" if dry_run else f"{len(gone)} deleted"
    out.print(cell(f"{words}, {len(plan.stays)} kept"))
