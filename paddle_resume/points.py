"""Consistent points: where a training can be saved although it has gone on since.

A boundary lies between two batches: all callbacks' on_train_batch_end have run, nothing of the
next batch has. From there to the start of the next update the trained weights and the optimizer's
slots stay as they are, so a copy of everything else, made at the boundary, is enough to save it
later: in a slow step, an evaluation, a wait for data, after an exception in forward or backward.
From the start of an update to the next boundary there is no such point.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

from paddle_resume.errors import ResumeError
from paddle_resume.types import (
    ANYTIME,
    PARTLY,
    UPDATE,
    Captured,
    Captures,
    Position,
    TrainingState,
)

__all__ = ["Point", "Points", "mark"]


@dataclasses.dataclass(frozen=True)
class Point:
    """A boundary, and what of the state would not stay as it is there.

    Attributes:
        position: the boundary.
        parts: name to what else than the optimizer's update may change.
        metrics: the training's logs.
        taken_at: `time.time()`.
        digest: hash of the trained weights; None where nothing but the update touches them.
    """

    position: Position
    parts: Mapping[str, Captured]
    metrics: Mapping[str, Any]
    taken_at: float
    digest: Optional[str] = None


class Points:
    """The last boundary of one training, and the gate before its updates.

    Its methods may be called from any thread.

    Args:
        parts: returns the training's parts.
        start: where the run begins: a point without parts, from which nothing was trained yet.

    Example:
        >>> points = Points(lambda: [], Position(0, 0, 0))
        >>> _ = points.reach(Position(0, 1, 1), {})
        >>> with points.held() as point:
        ...     print(point.position.step)
        1
        >>> points.begin_update()
        >>> with points.held() as point:
        ...     print(point)
        None
    """

    def __init__(self, parts: Callable[[], Sequence[Captures]], start: Position) -> None:
        self._parts = parts
        self._gate = threading.Lock()
        self._point: Optional[Point] = Point(start, {}, {}, time.time())

    def reach(self, position: Position, metrics: Mapping[str, Any], digest: bool = False) -> Point:
        """Notes a boundary.

        Args:
            position: where.
            metrics: the training's logs.
            digest: whether to hash the trained weights too: before an evaluation, for which they
                may be swapped.

        Returns:
            The point, from here on the last one.
        """
        parts = {part.name: mark(part) for part in self._parts() if part.moves != UPDATE}
        hashed = self._digest(parts) if digest else None
        point = Point(position, parts, metrics, time.time(), hashed)
        with self._gate:
            self._point = point
        return point

    def begin_update(self) -> None:
        """Waits until nobody holds the last point, which is gone from here on."""
        with self._gate:
            self._point = None

    @contextmanager
    def held(self) -> Iterator[Optional[Point]]:
        """Holds the next update back.

        Yields:
            The last point; None where an update has begun since.
        """
        with self._gate:
            yield self._point

    @property
    def last(self) -> Optional[Point]:
        """The last point; None where an update has begun since."""
        return self._point

    def is_whole(self, point: Point) -> bool:
        """Whether the trained weights are still those of the point; only while it is held."""
        return point.digest is None or point.digest == self._digest(point.parts)

    def complete(self, point: Point, at_once: bool) -> TrainingState:
        """Adds what only the update changes; only while the point is held.

        Args:
            point: the last point.
            at_once: whether nothing has run since the boundary.

        Returns:
            The whole state as host copies; each reason why it is not exact once.

        Raises:
            ResumeError: something that was taken for still has moved, or the training is over.
        """
        parts: Dict[str, Captured] = {}
        present = self._parts()
        missing = set(point.parts) - {part.name for part in present}
        if missing:
            raise ResumeError(f"{', '.join(sorted(missing))} can no longer be copied")
        for part in present:
            if part.moves == UPDATE:
                parts[part.name] = part.capture()
            elif part.moves == PARTLY:
                parts[part.name] = part.complete(point.parts[part.name], at_once)  # type: ignore
            else:
                parts[part.name] = point.parts[part.name]
        unsaved = [reason for part in parts.values() for reason in part.values.get("unsaved", ())]
        return TrainingState(point.position, parts, inexact=tuple(dict.fromkeys(unsaved)))

    def _digest(self, marked: Mapping[str, Captured]) -> str:
        digests: List[str] = [
            part.digest(marked[part.name])  # type: ignore[attr-defined]
            for part in self._parts()
            if part.moves == PARTLY
        ]
        return "-".join(digests)


def mark(part: Captures) -> Captured:
    """Copies what of a part something else than the optimizer's update may change."""
    return part.capture() if part.moves == ANYTIME else part.mark()  # type: ignore[attr-defined]
