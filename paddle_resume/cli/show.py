"""`paddle-resume show`: what is in one checkpoint."""

# No `from __future__ import annotations` here: on Python 3.9 typer then misses what Annotated says.

import dataclasses
from typing import Annotated, Any, Dict

import typer

from paddle_resume.cli.arguments import AsJson, CheckpointPath, SignKey, key_of
from paddle_resume.cli.output import cell, console, print_json, table

__all__ = ["show"]


def show(
    checkpoint: CheckpointPath,
    tensors: Annotated[bool, typer.Option("--tensors", help="Name every tensor.")] = False,
    state: Annotated[bool, typer.Option("--state", help="Show every other value.")] = False,
    as_json: AsJson = False,
    sign_key: SignKey = None,
) -> None:
    """Show one checkpoint: where it is in the training, its parts, its origin.

    It is verified first, and no code from it is run.
    """
    from paddle_resume.checkpoint.store import Store
    from paddle_resume.cli.paths import checkpoint_at

    path = checkpoint_at(checkpoint)
    manifest, found = Store(path.parent, key_of(sign_key)).load(path)
    if as_json:
        print_json(_to_json(path, manifest, found, tensors, state))
        return
    _show_origin(path, manifest, found)
    _show_parts(manifest, found)
    if tensors:
        _show_tensors(found)
    if state:
        _show_state(found)


def _to_json(path: Any, manifest: Any, found: Any, tensors: bool, state: bool) -> Dict[str, Any]:
    described = dataclasses.asdict(manifest)
    del described["sha256"]
    described["files"] = {
        name: {"size_bytes": size, "xxh3": digest}
        for name, (size, digest) in manifest.files.items()
    }
    parts: Dict[str, Any] = {}
    for name, part in found.parts.items():
        parts[name] = {
            "tensors": len(part.tensors),
            "size_bytes": sum(array.nbytes for array in part.tensors.values()),
            "values": len(part.values),
        }
        if tensors:
            parts[name]["names"] = {
                key: {"dtype": _dtype(array), "shape": list(array.shape)}
                for key, array in part.tensors.items()
            }
        if state:
            parts[name]["state"] = part.values
    return {"path": str(path), **described, "inexact": list(found.inexact), "parts": parts}


def _show_origin(path: Any, manifest: Any, found: Any) -> None:
    from paddle_resume.observe.log import human_size

    out, position = console(), manifest.position
    rows = table("", "")
    size = sum(size for size, _ in manifest.files.values())
    parent = manifest.parent
    facts = {
        "step": position.step,
        "epoch": f"{position.epoch} completed, {position.batch} batches of the next",
        "saved": f"{manifest.created} ({', '.join(manifest.reasons)})",
        "size": human_size(size),
        "run": manifest.run_id,
        "after": "a fresh start" if parent is None else f"step {parent[1]} of run {parent[0]}",
        "written by": ", ".join(f"{name} {text}" for name, text in manifest.versions.items()),
        "processes": manifest.world_size,
    }
    if manifest.origin is not None:
        facts["started from"] = manifest.origin.resume_from
    if found.inexact:
        facts["not exact"] = "; ".join(found.inexact)
    for name, value in facts.items():
        rows.add_row(cell(name, "dim"), cell(value))
    out.print(cell(path, "bold"))
    out.print(rows)


def _show_parts(manifest: Any, found: Any) -> None:
    from paddle_resume.observe.log import human_size

    out = console()
    files = table("file", ">size", "xxh3")
    for name, (size, digest) in manifest.files.items():
        files.add_row(cell(name), cell(human_size(size)), cell(digest, "dim"))
    parts = table("part", ">tensors", ">size", ">values")
    for name, part in found.parts.items():
        size = sum(array.nbytes for array in part.tensors.values())
        count = len(part.tensors)
        parts.add_row(cell(name), cell(count), cell(human_size(size)), cell(len(part.values)))
    out.print(files)
    out.print(parts)


def _show_tensors(found: Any) -> None:
    rows = table("part", "tensor", "dtype", "shape")
    for name, part in found.parts.items():
        for key, array in part.tensors.items():
            rows.add_row(cell(name), cell(key), cell(_dtype(array)), cell(list(array.shape)))
    console().print(rows)


def _show_state(found: Any) -> None:
    from paddle_resume.cli.values import leaves

    rows = table("value", "is")
    for name, part in found.parts.items():
        for key, value in leaves(part.values, name):
            rows.add_row(cell(key), cell(value))
    console().print(rows)


def _dtype(array: Any) -> str:
    # Paddle has no uint16: what its files hold as one is bfloat16.
    return "bfloat16" if array.dtype == "uint16" else str(array.dtype)
