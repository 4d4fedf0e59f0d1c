"""What is in a save_dir, from names, manifests, links and events.jsonl alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from paddle_resume.best import steps_named
from paddle_resume.catalog import metrics_by_step
from paddle_resume.checkpoint.layout import parse_folder_name
from paddle_resume.checkpoint.store import BEST_JSON, EVENTS_FILE, FINISHED_JSON, Store
from paddle_resume.errors import CheckpointError
from paddle_resume.regular import read_regular
from paddle_resume.types import Manifest

__all__ = ["Aside", "Contents", "Found", "read_contents"]

_REASON_FILE = ".why.txt"
_LONGEST_REASON = 4096


@dataclass(frozen=True)
class Found:
    """A checkpoint's folder.

    Attributes:
        path: its path.
        step: of its name.
        manifest: None where it cannot be read.
        fault: why it cannot; empty where it can.
        metrics: of the training at the save, and of the evaluation after it under `eval_…`.
        marks: of `latest`, `best` and `finished` those that name it.
    """

    path: Path
    step: int
    manifest: Optional[Manifest]
    fault: str
    metrics: Mapping[str, Any]
    marks: Tuple[str, ...]

    @property
    def size_bytes(self) -> Optional[int]:
        """Of all its files; None where that is not known."""
        return None if self.manifest is None else bytes_of(self.manifest)


@dataclass(frozen=True)
class Aside:
    """What was set aside, and is never taken for a checkpoint.

    Attributes:
        path: its path.
        why: the reason.
    """

    path: Path
    why: str


@dataclass(frozen=True)
class Contents:
    """What is in a save_dir.

    Attributes:
        checkpoints: oldest first.
        aside: damaged ones, and those of lines that were left.
        leftovers: of interrupted saves.
    """

    checkpoints: Tuple[Found, ...]
    aside: Tuple[Aside, ...]
    leftovers: Tuple[Path, ...]


def bytes_of(manifest: Manifest) -> int:
    """The size of all files of a checkpoint."""
    return sum(size for size, _ in manifest.files.values())


def read_contents(store: Store) -> Contents:
    """Looks through a save_dir; reads no weights.

    Args:
        store: the save_dir.
    """
    metrics = metrics_by_step(store.save_dir / EVENTS_FILE)
    marks = _marks(store)
    found = [_found(store, path, metrics, marks) for path in store.checkpoints()]
    names = sorted(os.listdir(store.save_dir))
    return Contents(
        tuple(found),
        tuple(_asides(store.save_dir, names)),
        tuple(store.save_dir / name for name in names if name.startswith(".tmp-")),
    )


def _found(
    store: Store,
    path: Path,
    metrics: Mapping[int, Mapping[str, Any]],
    marks: Mapping[str, "frozenset[int]"],
) -> Found:
    step = parse_folder_name(path.name)
    assert step is not None
    manifest, fault = None, ""
    try:
        manifest = store.read_manifest(path)
    except CheckpointError as error:
        fault = str(error)
    own = tuple(name for name, steps in marks.items() if step in steps)
    return Found(path, step, manifest, fault, metrics.get(step, {}), own)


def _marks(store: Store) -> Dict[str, "frozenset[int]"]:
    marks = {name: _step_of(store.read_link(name)) for name in ("latest", "best")}
    marks["best"] |= steps_named(store.read_json(BEST_JSON))
    finished = (store.read_json(FINISHED_JSON) or {}).get("step")
    marks["finished"] = frozenset([finished] if isinstance(finished, int) else [])
    return marks


def _step_of(path: Optional[Path]) -> "frozenset[int]":
    step = None if path is None else parse_folder_name(path.name)
    return frozenset() if step is None else frozenset([step])


def _asides(save_dir: Path, names: List[str]) -> List[Aside]:
    found = []
    for name in names:
        if name.startswith(".bad-"):
            found.append(Aside(save_dir / name, _reason(save_dir / name)))
        elif name.startswith(".before-"):
            steps = len([*(save_dir / name).glob("step_*")])
            found.append(
                Aside(save_dir / name, f"{steps} checkpoint(s) of a line that the run left")
            )
    return found


def _reason(bad: Path) -> str:
    try:
        text = read_regular(bad / _REASON_FILE, _LONGEST_REASON)
    except OSError:
        return "the reason was not written down"
    return text.decode("utf-8", "replace").strip()
