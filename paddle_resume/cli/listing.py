"""`paddle-resume list`: the checkpoints in a folder."""

# No `from __future__ import annotations` here: on Python 3.9 typer then misses what Annotated says.

from pathlib import Path
from typing import Any, Dict, List

from paddle_resume.cli.arguments import AsJson, SaveDir, SignKey, key_of
from paddle_resume.cli.output import cell, console, plain, print_json, table

__all__ = ["list_checkpoints"]


def list_checkpoints(save_dir: SaveDir, as_json: AsJson = False, sign_key: SignKey = None) -> None:
    """List the checkpoints in a folder, oldest first.

    Reads their manifests, no weights: `verify` looks at every byte.
    """
    from paddle_resume.cli.contents import read_contents
    from paddle_resume.cli.paths import save_dir_at

    store = save_dir_at(save_dir, key_of(sign_key))
    contents = read_contents(store)
    if as_json:
        print_json(_to_json(store.save_dir, contents))
    else:
        _show(store.save_dir, contents)


def _to_json(save_dir: Path, contents: Any) -> Dict[str, Any]:
    return {
        "save_dir": str(save_dir),
        "checkpoints": [_entry(found) for found in contents.checkpoints],
        "aside": [{"path": str(item.path), "why": item.why} for item in contents.aside],
        "leftovers": [str(path) for path in contents.leftovers],
    }


def _entry(found: Any) -> Dict[str, Any]:
    entry: Dict[str, Any] = {
        "path": str(found.path),
        "step": found.step,
        "fault": found.fault or None,
        "marks": list(found.marks),
        "metrics": found.metrics,
    }
    manifest = found.manifest
    if manifest is not None:
        position = manifest.position
        entry.update(
            epoch=position.epoch,
            batch=position.batch,
            phase=position.phase,
            created=manifest.created,
            reasons=list(manifest.reasons),
            size_bytes=found.size_bytes,
            run_id=manifest.run_id,
        )
    return entry


def _show(save_dir: Path, contents: Any) -> None:
    from paddle_resume.observe.log import human_size

    out = console()
    if not contents.checkpoints:
        out.print(cell(f"{save_dir} holds no checkpoints"))
    else:
        shown = table(">step", ">epoch", ">batch", "saved (UTC)", ">size", "reason", "metrics", "")
        for found in contents.checkpoints:
            shown.add_row(*_row(found))
        out.print(shown)
        total = sum(found.size_bytes or 0 for found in contents.checkpoints)
        out.print(cell(f"{len(contents.checkpoints)} in {save_dir}, {human_size(total)}"))
    for item in contents.aside:
        out.print(cell(f"set aside: {item.path.name}: {item.why}", "yellow"))
    if contents.leftovers:
        count = len(contents.leftovers)
        words = f"{count} leftover(s) of interrupted saves; the next start, or prune, removes them"
        out.print(cell(words, "dim"))


def _row(found: Any) -> List[Any]:
    from paddle_resume.observe.log import human_size

    if found.manifest is None:
        return [
            cell(found.step, "red"),
            "",
            "",
            "",
            "",
            "",
            cell(found.fault, "red"),
            cell("damaged", "red"),
        ]
    position = found.manifest.position
    return [
        cell(found.step),
        cell(position.epoch),
        cell(position.batch),
        cell(found.manifest.created[:19].replace("T", " ")),
        cell(human_size(found.size_bytes)),
        cell(", ".join(found.manifest.reasons)),
        cell(_metrics(found.metrics)),
        cell(" ".join(found.marks), "green"),
    ]


def _metrics(metrics: Any) -> str:
    return " ".join(f"{plain(name)}={_number(value)}" for name, value in metrics.items())


def _number(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return f"{value:.4g}" if isinstance(value, float) else plain(value)
