"""What is saved in a folder, for scripts: the list of checkpoints, and one of them as arrays."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Union

import numpy as np

from paddle_resume.checkpoint import reader
from paddle_resume.checkpoint.store import EVENTS_FILE, Store
from paddle_resume.codec import decode
from paddle_resume.errors import CheckpointError
from paddle_resume.observe import events
from paddle_resume.observe.log import log
from paddle_resume.resumer import checkpoint_folder
from paddle_resume.types import Captured

__all__ = ["Checkpoint", "checkpoints", "load", "metrics_by_step"]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint.

    Attributes:
        path: its folder.
        step: batches trained over the whole run.
        epoch: epochs completed.
        created: ISO 8601 time, UTC.
        metrics: of the training at the save, and of the evaluation after it under `eval_…`.
        reason: why it was saved (`epoch`, `step`, `time`, `final`), joined by `+`.
        size_bytes: of all its files.
    """

    path: Path
    step: int
    epoch: int
    created: str
    metrics: Mapping[str, Any]
    reason: str
    size_bytes: int


def checkpoints(save_dir: Union[str, "os.PathLike[str]"]) -> List[Checkpoint]:
    """Lists the complete checkpoints of a folder.

    Args:
        save_dir: the folder.

    Returns:
        Oldest first; those whose manifest cannot be read are left out, with a warning.

    Raises:
        CheckpointError: there is no such folder.

    Example:
        >>> import tempfile
        >>> checkpoints(tempfile.mkdtemp())
        []
    """
    if not os.path.isdir(save_dir):
        raise CheckpointError(f"{save_dir} is not a folder: there are no checkpoints")
    store = Store(save_dir)
    metrics = metrics_by_step(store.save_dir / EVENTS_FILE)
    found = []
    for path in store.checkpoints():
        try:
            manifest = store.read_manifest(path)
        except CheckpointError as error:
            log.warning("left out: %s", error)
            continue
        found.append(
            Checkpoint(
                path=path,
                step=manifest.position.step,
                epoch=manifest.position.epoch,
                created=manifest.created,
                metrics=metrics.get(manifest.position.step, {}),
                reason="+".join(manifest.reasons),
                size_bytes=sum(size for size, _ in manifest.files.values()),
            )
        )
    return found


def load(checkpoint: Union[str, "os.PathLike[str]", Checkpoint]) -> Dict[str, Any]:
    """Reads a checkpoint, verified, without Paddle and without running code from it.

    Args:
        checkpoint: its folder, a link to it, a `…/model` prefix, or one of `checkpoints`.

    Returns:
        `{"model", "optimizer", "extra", "state"}`: name to numpy array (bfloat16 as uint16) for
        the first two, the optimizer under Paddle's own keys; `extra`'s name to the object's
        state; and the rest of the state as JSON values.

    Raises:
        CheckpointError: it does not exist or is damaged.
    """
    path = checkpoint.path if isinstance(checkpoint, Checkpoint) else checkpoint
    manifest, state = reader.load(checkpoint_folder(path))
    parts = state.parts
    return {
        "model": dict(parts["model"].tensors) if "model" in parts else {},
        "optimizer": dict(parts["optimizer"].tensors) if "optimizer" in parts else {},
        "extra": _extra(parts["extra"]) if "extra" in parts else {},
        "state": {
            "position": dataclasses.asdict(manifest.position),
            "inexact": list(state.inexact),
            **{name: part.values for name, part in parts.items()},
        },
    }


def _extra(part: Captured) -> Dict[str, Any]:
    try:
        objects = part.values["objects"]
        return {name: decode(value, part.tensors, np.array) for name, value in objects.items()}
    except Exception as error:  # odd content shows itself in any way
        raise CheckpointError(
            f"its part extra cannot be read: {type(error).__name__}: {error}"
        ) from error


def metrics_by_step(path: Path) -> Dict[int, Dict[str, Any]]:
    """Joins what events.jsonl knows of metrics, on the line that stands.

    Args:
        path: the file.

    Returns:
        Step to metrics: of the training, and of the evaluation under `eval_…`.
    """
    found: Dict[int, Dict[str, Any]] = {}
    for event in events.read(path):
        step, metrics = event.get("step"), event.get("metrics")
        if not isinstance(step, int):
            continue
        if event["event"] == "start":  # what came after its step was left behind, or comes again
            found = {known: value for known, value in found.items() if known <= step}
        elif event["event"] == "save" and isinstance(metrics, dict):
            found.setdefault(step, {}).update(metrics)
        elif event["event"] == "eval" and isinstance(metrics, dict):
            renamed = {f"eval_{name}": value for name, value in metrics.items()}
            found.setdefault(step, {}).update(renamed)
    return found
