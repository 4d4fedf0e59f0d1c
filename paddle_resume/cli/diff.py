"""`paddle-resume diff`: in what two checkpoints differ."""

# No `from __future__ import annotations` here: on Python 3.9 typer then misses what Annotated says.

import dataclasses
from typing import Any, Dict, List

import typer

from paddle_resume.cli.arguments import AsJson, CheckpointPath, SignKey, key_of
from paddle_resume.cli.output import cell, console, print_json, table

__all__ = ["diff"]


def diff(
    a: CheckpointPath,
    b: CheckpointPath,
    as_json: AsJson = False,
    sign_key: SignKey = None,
) -> None:
    """Compare two checkpoints, bit for bit: tensors by how much, state value by value.

    Both are verified first. Ends with exit code 0 where nothing differs, 1 where something does.
    """
    from paddle_resume.checkpoint.store import Store
    from paddle_resume.cli.paths import checkpoint_at
    from paddle_resume.cli.tensors import differences
    from paddle_resume.cli.values import changes

    key = key_of(sign_key)
    paths = [checkpoint_at(path) for path in (a, b)]
    one, other = (Store(path.parent, key).load(path)[1] for path in paths)
    tensors = differences(_tensors(one), _tensors(other))
    state = changes(_values(one), _values(other))
    if as_json:
        names = [str(path) for path in paths]
        print_json({"a": names[0], "b": names[1], "tensors": tensors, "state": state})
    else:
        _show(paths, tensors, state)
    if tensors or state:
        raise typer.Exit(1)


def _tensors(state: Any) -> Dict[str, Any]:
    return {
        f"{name}/{key}": array
        for name, part in state.parts.items()
        for key, array in part.tensors.items()
    }


def _values(state: Any) -> Dict[str, Any]:
    return {
        "position": dataclasses.asdict(state.position),
        "inexact": list(state.inexact),
        **{name: part.values for name, part in state.parts.items()},
        **{f"rank {rank}": values for rank, values in state.by_rank.items()},
    }


def _show(paths: List[Any], tensors: List[Dict[str, Any]], state: List[Dict[str, Any]]) -> None:
    out = console()
    for name, path in zip("AB", paths):
        out.print(cell(f"{name}  {path}", "bold"))
    if not tensors and not state:
        out.print(cell("nothing differs", "green"))
        return
    if tensors:
        rows = table("tensor", ">values that differ", ">by at most", ">relative", "")
        for item in tensors:
            rows.add_row(
                cell(item["tensor"]),
                cell("" if item["differ"] is None else f"{item['differ']} of {item['size']}"),
                cell(_number(item["max_abs"])),
                cell(_number(item["max_rel"])),
                cell(item["what"]),
            )
        out.print(rows)
    if state:
        rows = table("value", "A", "B")
        for item in state:
            rows.add_row(cell(item["value"]), cell(item["a"]), cell(item["b"]))
        out.print(rows)
    out.print(cell(f"{len(tensors)} tensor(s) and {len(state)} other value(s) differ"))


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.3g}"
