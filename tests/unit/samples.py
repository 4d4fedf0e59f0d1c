"""A small state with every kind of part, and a store that holds some of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional, Tuple

import numpy as np

from paddle_resume.checkpoint.store import Store
from paddle_resume.types import Captured, Manifest, Origin, Position, Snapshot, TrainingState


def make_state(step: int = 500, scale: int = 1, **changes: Any) -> TrainingState:
    """The same step gives the same state; `scale` makes its tensors longer."""
    rng = np.random.default_rng(step)
    weight = rng.standard_normal((3 * scale, 4)).astype("float32")
    names = {"fc.weight": "linear_0.w_0", "fc.bias": "linear_0.b_0"}
    scheduler = {"last_epoch": step, "last_lr": 0.1}
    parts = {
        "model": Captured(
            {"fc.weight": weight, "fc.bias": np.arange(4, dtype="uint16")},
            {"kind": "network", "parameter_names": names},
        ),
        "optimizer": Captured(
            {"linear_0.w_0_moment1_0": weight * 2, "master_weights/linear_0.w_0": weight * 3},
            {"kind": "optimizer", "file": "model", "pdopt": {"LR_Scheduler": scheduler}},
        ),
        "rng": Captured(
            {"numpy/keys": np.arange(6, dtype="uint32")}, {"python": [3, [1, 2], None]}
        ),
        "best": Captured(values={"value": 0.25}),
    }
    position = Position(epoch=step // 100, batch=step % 100, step=step)
    return TrainingState(position, parts, **changes)


def make_snapshot(step: int = 500, scale: int = 1) -> Snapshot:
    """A snapshot of `make_state`."""
    return Snapshot(make_state(step, scale), ("step",), taken_at=1.7e9, blocked_s=0.0)


def save(
    store: Store, step: int = 500, run_id: str = "run-a", origin: Optional[Origin] = None
) -> Path:
    """Commits one checkpoint."""
    return store.save(make_snapshot(step), run_id, ("run-a", 1), origin, 1, {"numpy": "2"})[0]


def make_store(folder: Path, *steps: int) -> Store:
    """A prepared store with checkpoints."""
    store = Store(folder)
    store.create()
    for step in steps:
        save(store, step)
    return store


def make_entry(
    step: int,
    run_id: str = "run-a",
    origin: Optional[Origin] = None,
    epoch: int = 0,
    batch: int = 1,
) -> Tuple[Path, Manifest]:
    """A checkpoint's folder and manifest, without a disk."""
    position = Position(epoch, batch, step)
    manifest = Manifest(1, run_id, None, origin, position, ("step",), "now", {}, 1, {})
    return Path(f"step_{step:08d}"), manifest


def assert_same(left: TrainingState, right: TrainingState) -> None:
    """Bit for bit, dtypes and order of names included."""
    assert left.position == right.position
    assert left.inexact == right.inexact
    assert {**left.by_rank} == {**right.by_rank}
    assert set(left.parts) == set(right.parts)
    for name, part in left.parts.items():
        other = right.parts[name]
        assert dict(part.values) == dict(other.values)
        assert list(part.tensors) == list(other.tensors)
        for key, tensor in part.tensors.items():
            assert tensor.dtype == other.tensors[key].dtype
            assert tensor.shape == other.tensors[key].shape
            assert tensor.tobytes() == other.tensors[key].tobytes()
