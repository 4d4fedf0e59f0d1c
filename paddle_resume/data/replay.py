"""Anything that can only be read from its start: the batches done are read again and dropped."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, MutableMapping, Optional

import numpy as np

from paddle_resume.codec import decode, encode
from paddle_resume.data.source import Values, workers_tied
from paddle_resume.data.thread import end_thread
from paddle_resume.data.worker_signals import end_workers
from paddle_resume.observe.log import log
from paddle_resume.runtime import require_paddle
from paddle_resume.state.rng import host_streams

__all__ = ["ReplaySource"]


class ReplaySource:
    """See `Source`.

    A loader with state_dict() and set_state_dict() is not replayed: it speaks for itself.

    Args:
        loader: any iterable of batches.
    """

    owns_host = False
    owns_paddle = False

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._speaks = hasattr(loader, "state_dict") and hasattr(loader, "set_state_dict")
        self._threaded = _loads_beside(loader)
        self._drawn_inside = False
        self._drawn_between = False
        self._running: Any = None

    def open(
        self,
        start: int,
        saved: Optional[Mapping[str, Any]],
        tensors: Mapping[str, np.ndarray],
    ) -> Iterator[Any]:
        """See `Source.open`."""
        if saved is not None and self._speaks and "loader" in saved:
            self._loader.set_state_dict(decode(saved["loader"], tensors))
            return self._watched(workers_tied(self._loader))
        if start:
            log.info(
                "reading %d batches again: this loader can only be read from its start "
                "(give it, or its dataset, state_dict() and set_state_dict() to skip them)",
                start,
            )
        iterator = workers_tied(self._loader)
        for _ in range(start):
            next(iterator, None)
        return self._watched(iterator)

    def capture(
        self, done: int, tensors: MutableMapping[str, np.ndarray], unsaved: List[str]
    ) -> Values:
        """See `Source.capture`."""
        if self._speaks:
            return {"loader": encode(self._loader.state_dict(), tensors, "loader")}
        if getattr(self._loader, "_persistent_workers", False):
            unsaved.append(
                "persistent workers of an iterable dataset keep random streams that cannot be "
                "reached: after a restart they are seeded anew"
            )
        drawn = self._drawn_inside and self._drawn_between
        if drawn or (self._threaded and (self._drawn_inside or self._drawn_between)):
            unsaved.append(
                "this loader can only be read again from its start, and both it and the training "
                "may draw from Python's and numpy's streams: exact only if one of them does not"
            )
        return {}

    def close(self, hurry: bool = False) -> None:
        """See `Source.close`: as for `ThreadSource`, where the loader is one of Paddle's."""
        running, self._running = self._running, None
        end_thread(running, hurry)
        end_workers(running, hurry)
        if hasattr(running, "close"):
            running.close()

    def _watched(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Notices who draws random numbers: the loader, or the training between two batches."""
        self._running = iterator
        given: Optional[Dict[str, Any]] = None
        while True:
            before = host_streams()
            self._drawn_between = self._drawn_between or (given is not None and given != before)
            batch = next(iterator, self)
            given = host_streams()
            self._drawn_inside = self._drawn_inside or given != before
            if batch is self:
                return
            yield batch


def _loads_beside(loader: Any) -> bool:
    """Whether a loader, or one that it holds, loads in a thread or in workers that stay."""
    kind = require_paddle().io.DataLoader
    held = [loader, *getattr(loader, "__dict__", {}).values()]
    return any(
        isinstance(item, kind) and (item.num_workers == 0 or item._persistent_workers)
        for item in held
    )
