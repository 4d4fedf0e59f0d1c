"""The evaluation's own workers, where they stay alive from one evaluation to the next."""

from __future__ import annotations

from typing import Any, Callable, List

from paddle_resume.data.source import start_workers
from paddle_resume.data.workers import WorkerStart
from paddle_resume.types import Captured

__all__ = ["EvaluationPool"]


class EvaluationPool:
    """Component: whether the evaluation's persistent workers were running.

    Starting them draws a seed from numpy's global stream, once. A resumed run must not draw it
    again in the middle of the training, so they are started before the streams are restored.

    Args:
        get: returns the evaluation's loader; None where there is none.
    """

    name = "evaluation"
    moves = "anytime"

    def __init__(self, get: Callable[[], Any]) -> None:
        self._get = get

    def capture(self) -> Captured:
        """Returns whether they run."""
        running = _persistent(self._get()) and self._get()._iterator is not None
        unsaved = [
            "the evaluation's persistent workers keep random streams that cannot be reached: "
            "exact as long as the evaluation's data draws nothing"
        ]
        return Captured(values={"running": running, "unsaved": unsaved if running else []})

    def restore(self, captured: Captured) -> List[str]:
        """Starts them where they ran; see `Component.restore`."""
        loader = self._get()
        if captured.values["running"] and _persistent(loader) and loader._iterator is None:
            iterator = start_workers(loader, WorkerStart(loader.worker_init_fn), batch_sampler=[])
            iterator._batch_sampler = loader.batch_sampler
        return []


def _persistent(loader: Any) -> bool:
    return bool(getattr(loader, "num_workers", 0) and getattr(loader, "_persistent_workers", False))
