"""A training without Paddle: the real session, saver and store, on states that a step tells."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Dict, Optional

import numpy as np

from paddle_resume.best import BestPolicy, BestScores
from paddle_resume.checkpoint.lineage import parse_resume_from
from paddle_resume.resumer import ResumePolicy
from paddle_resume.retention import KeepEveryEpochs, KeepNewest
from paddle_resume.saver import SavePolicy
from paddle_resume.session import Session
from paddle_resume.state.finite import not_finite
from paddle_resume.types import ANYTIME, Captured, Position, TrainingState

__all__ = ["KEPT", "Run", "assert_exact", "parts_of", "versions"]

KEPT = 2


def versions() -> Dict[str, str]:
    """Stands in for the one thing that a save asks Paddle for: its import takes seconds."""
    return {"paddle_resume": "test", "paddle": "none", "numpy": np.__version__, "python": "test"}


def parts_of(step: int) -> Dict[str, Captured]:
    """The state at a step: every step has its own, every process the same."""
    draw = np.random.default_rng(step)
    weight = draw.standard_normal((32, 40)).astype("float32")
    words = random.Random(step)
    return {
        "model": Captured(
            {"fc.weight": weight, "fc.bias": np.arange(40, dtype="uint16") + step % 999},
            {
                "kind": "network",
                "parameter_names": {"fc.weight": "linear_0.w_0", "fc.bias": "linear_0.b_0"},
            },
        ),
        "optimizer": Captured(
            {"linear_0.w_0_moment1_0": weight * 2},
            {"kind": "optimizer", "file": "model", "pdopt": {"LR_Scheduler": {"last_epoch": step}}},
        ),
        "rng": Captured({"keys": np.full(64, step, "uint32")}, {"python": words.getrandbits(60)}),
    }


class _Part:
    """One part of the state at the step that the run is at."""

    moves = ANYTIME

    def __init__(self, name: str, run: "Run") -> None:
        self.name = name
        self._run = run

    def capture(self) -> Captured:
        return parts_of(self._run.step)[self.name]


class Run:
    """One start of a run, as a callback makes it.

    Args:
        save_dir: its folder.
        resume_from: as for `AutoResume`.
        best: whether the best is kept too.
        in_background: as `async_save`.

    Attributes:
        step: where it is.
        state: what was loaded at its start; None for a fresh one.
        session: what it is made of.
    """

    def __init__(
        self,
        save_dir: Path,
        resume_from: str = "auto",
        best: bool = False,
        in_background: bool = False,
    ) -> None:
        scores = BestScores(BestPolicy("acc")) if best else None
        self.session = Session(
            save_dir,
            str(save_dir),
            ResumePolicy(parse_resume_from(resume_from)),
            SavePolicy(
                (),
                (KeepNewest(KEPT), KeepEveryEpochs(1000)),
                in_background,
                scores.policy if scores else None,
            ),
        )
        self._parts = [_Part(name, self) for name in parts_of(0)]
        self._scores = scores
        try:
            self.state = self.session.open(0, self)
        except BaseException:
            self.session.close()
            raise
        self.step = 0 if self.state is None else self.state.position.step
        if scores is not None and self.state is not None and "best" in self.state.parts:
            scores.restore(self.state.parts["best"])

    def begin(self) -> None:
        """Lets it write."""
        parts: Any = [*self._parts, *([self._scores] if self._scores else [])]
        start = Position(0, self.step, self.step) if self.state is None else self.state.position
        self.session.begin(start, lambda: parts, lambda: None, self._scores)

    def save(self, acc: Optional[float] = None) -> int:
        """Trains one step, and saves it.

        Args:
            acc: the metric after it; None for none.

        Returns:
            The newest step on the disk.
        """
        self.step += 1
        assert self.session.boundaries is not None
        metrics = {} if acc is None else {"acc": acc}
        position = Position(0, self.step, self.step)
        self.session.boundaries.reach(position, metrics, acc is not None, False, ["step"])
        return self.session.wait_for_saved_step() or 0

    def is_alive(self) -> bool:
        """See `Holder`."""
        return True

    def close(self) -> None:
        """See `Holder`."""
        self.session.close()


def assert_exact(state: TrainingState) -> None:
    """Fails where a loaded state is not, bit for bit, that of its step."""
    expected = parts_of(state.position.step)
    expected["health"] = Captured(values={"not_finite": not_finite(expected)})
    found = {name: part for name, part in state.parts.items() if name != "best"}
    assert set(found) == set(expected)
    for name, part in expected.items():
        assert dict(found[name].values) == dict(part.values), name
        assert list(found[name].tensors) == list(part.tensors), name
        for key, tensor in part.tensors.items():
            other = found[name].tensors[key]
            assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape), key
            assert other.tobytes() == tensor.tobytes(), key
