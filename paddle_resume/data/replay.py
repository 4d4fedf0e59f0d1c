"""Anything that can only be read from its start: the batches done are read again and dropped."""

from __future__ import annotations

from typing import Any, Iterator, List, Mapping, MutableMapping, Optional

import numpy as np

from paddle_resume.codec import decode, encode
from paddle_resume.data.source import Values, workers_tied
from paddle_resume.observe.log import log

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

    def open(
        self,
        start: int,
        saved: Optional[Mapping[str, Any]],
        tensors: Mapping[str, np.ndarray],
    ) -> Iterator[Any]:
        """See `Source.open`."""
        if saved is not None and self._speaks and "loader" in saved:
            self._loader.set_state_dict(decode(saved["loader"], tensors))
            return workers_tied(self._loader)
        iterator = workers_tied(self._loader)
        if start:
            log.info(
                "reading %d batches again: this loader can only be read from its start "
                "(give it, or its dataset, state_dict() and set_state_dict() to skip them)",
                start,
            )
        for _ in range(start):
            next(iterator, None)
        return iterator

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
        return {}

    def close(self) -> None:
        """See `Source.close`."""
