"""What a run does between two batches: trigger, capture, snapshot."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set

from paddle_resume.best import BestScores
from paddle_resume.ending import changed
from paddle_resume.monitor import value_of
from paddle_resume.observe.events import EventLog, plain_metrics
from paddle_resume.observe.log import human_duration, log
from paddle_resume.points import Point, Points, mark
from paddle_resume.saver import SavePolicy, Saver
from paddle_resume.triggers import Moment
from paddle_resume.types import PARTLY, UPDATE, Captures, Position, Snapshot

__all__ = ["Boundaries", "Outcome", "make_room"]

_MARGIN_S = 0.3
_PATIENCE_S = 0.2


@dataclass(frozen=True)
class Outcome:
    """How a last save went.

    Attributes:
        is_safe: whether all that was trained is on disk.
        what: a sentence about it.
    """

    is_safe: bool
    what: str


class Boundaries:
    """The boundaries of one run, from its begin to its end.

    Args:
        saver: where snapshots go.
        policy: when to save.
        parts: returns the training's parts.
        events: where evaluations are noted.
        start: where the run begins.
        scores: the best so far; None where nobody asked for the best.
        every: whether each boundary is to be a point that can be saved later.
        said: reasons of inexactness that have been said already.
    """

    def __init__(
        self,
        saver: Saver,
        policy: SavePolicy,
        parts: Callable[[], Sequence[Captures]],
        events: EventLog,
        start: Position,
        scores: Optional[BestScores],
        every: bool,
        said: Set[str],
    ) -> None:
        self.points = Points(parts, start)
        self._saver = saver
        self._policy = policy
        self._events = events
        self._scores = scores
        self._every = every
        self._said = said
        if scores is not None:
            saver.crown(scores.best)

    def reach(
        self,
        position: Position,
        metrics: Mapping[str, Any],
        epoch_ends: bool,
        evaluates: bool,
        asked: Sequence[str] = (),
    ) -> None:
        """Passes a boundary, and saves it where that is due.

        Never raises for a part that cannot be copied, or for what the disk does.

        Args:
            position: the boundary.
            metrics: the training's logs.
            epoch_ends: whether its batch was its epoch's last.
            evaluates: whether the training has evaluations, so that their metrics count.
            asked: reasons to save it besides the triggers'.
        """
        started = time.perf_counter()
        reasons = self._due(position, epoch_ends) + list(asked)
        if epoch_ends and not evaluates and self._is_best(position, metrics):
            reasons.append("best")
        later = self._every or (epoch_ends and evaluates and self._scores is not None)
        if not reasons and not later:
            return
        try:
            point = self.points.reach(position, plain_metrics(metrics), epoch_ends and later)
        except Exception as error:  # a part that cannot be copied must not end the training
            self._not_reached(position, reasons, error)
            return
        if reasons:
            self._save(point, reasons, at_once=True, started=started)
        if "best" in reasons and self._scores is not None:
            self._saver.crown(self._scores.best)

    def begin_update(self) -> None:
        """See `Points.begin_update`; called before each of the optimizer's updates."""
        self.points.begin_update()

    def begin_evaluation(self) -> None:
        """Looks whether the weights were swapped for an evaluation."""
        point = self.points.last
        if self._scores is None or point is None or self.points.is_whole(point):
            return
        self._say_once(
            "the weights were swapped for the evaluation (a moving average?): the best checkpoint "
            "holds the weights of the training, and its metric is that of the others"
        )

    def end_evaluation(self, position: Position, metrics: Mapping[str, Any]) -> None:
        """Notes the metrics of an evaluation, and saves its step where it is the best.

        Args:
            position: the boundary before it.
            metrics: as hapi's logs have them.
        """
        step = position.step
        self._events.append("eval", step=step, epoch=position.epoch, metrics=plain_metrics(metrics))
        if not self._is_best(position, metrics):
            return
        assert self._scores is not None
        point = self.points.last
        if self._saver.has(step):
            self._saver.note(position, ["best"])
        elif point is not None and not point.parts:
            log.warning(
                "step %d, from which this run started, is the best so far; it is kept in its own "
                "folder only, and is not counted here",
                step,
            )
            self._scores.forget(step)
            return
        elif point is None or not self.points.is_whole(point):
            log.warning(
                "step %d is the best so far and cannot be saved: its weights have been changed "
                "since, by something else than the optimizer (swapped for the evaluation?). "
                "PeriodicSaver's snapshot_epoch=1 saves each epoch before its evaluation.",
                step,
            )
            self._scores.forget(step)
            return
        else:
            self._save(point, ["best"], at_once=False, started=time.perf_counter())
        self._saver.crown(self._scores.best)

    def save_last(self, reasons: Sequence[str], deadline: Optional[float]) -> Optional[Outcome]:
        """Saves the last point, and waits until it is on disk.

        Args:
            reasons: why.
            deadline: `time.monotonic()` at which the process will be killed; None for never.

        Returns:
            How it went; None where there is no point now.
        """
        with self.points.held() as point:
            if point is None:
                return None
            step = point.position.step
            if not point.parts and not self._saver.has(step):
                return Outcome(True, f"nothing was trained since step {step}")
            snapshot = None
            if self._saver.has(step):
                self._saver.note(point.position, reasons)
            elif not self.points.is_whole(point):
                return None
            else:
                self._make_room(deadline)
                try:
                    state = self.points.complete(point, at_once=False)
                except Exception as error:
                    self._saver.failed(point.position, reasons, error, is_last=True)
                    return Outcome(False, f"step {step} could not be copied: {error}")
                snapshot = Snapshot(state, tuple(reasons), point.taken_at, 0.0, point.metrics)
        if snapshot is None:
            self._saver.wait()
            is_saved = self._saver.has(step)
        else:
            is_saved = self._saver.save_now(snapshot)
        if is_saved:
            return Outcome(True, f"step {step} is saved")
        return Outcome(False, f"step {step} could not be saved")

    def ending(self, parts: Sequence[Captures]) -> Dict[str, Any]:
        """Returns what of some parts has changed since the last boundary; see `ending.changed`."""
        point = self.points.last
        if point is None or not point.parts:
            return {}
        now = {part.name: mark(part) for part in parts if part.moves != UPDATE}
        return changed(point.parts, now, [part.name for part in parts if part.moves == PARTLY])

    @property
    def takes_s(self) -> Optional[float]:
        """How long a last save would take, with what is in flight; None where none is measured."""
        takes = self._saver.takes_s
        return takes if takes is None or self._saver.in_flight is None else 2 * takes

    def _make_room(self, deadline: Optional[float]) -> None:
        """The save in flight is finished first if time allows, else dropped."""
        found = self._saver.in_flight
        if found is None:
            return
        if deadline is None:
            self._saver.wait()
            return
        takes = self._saver.takes_s or found[1]
        patience = make_room(deadline - time.monotonic(), takes, found[1])
        if not self._saver.wait(patience):
            log.info(
                "the save of step %d, in flight for %s, makes room for the last one",
                found[0],
                human_duration(found[1]),
            )
            self._saver.drop(_PATIENCE_S)

    def _due(self, position: Position, epoch_ends: bool) -> List[str]:
        moment = Moment(position, epoch_ends, time.monotonic(), self._saver.last_attempt)
        found = [trigger.due(moment) for trigger in self._policy.triggers]
        return list(dict.fromkeys(reason for reason in found if reason is not None))

    def _is_best(self, position: Position, metrics: Mapping[str, Any]) -> bool:
        if self._scores is None:
            return False
        self._scores.forget_if(lambda step: not self._saver.keeps(step))
        value = value_of(metrics, self._scores.policy.monitor)
        return value is not None and self._scores.offer(position.step, value)

    def _save(self, point: Point, reasons: Sequence[str], at_once: bool, started: float) -> None:
        self._saver.wait()
        if self._saver.last_step == point.position.step:
            self._saver.note(point.position, reasons)
            return
        try:
            state = self.points.complete(point, at_once)
        except Exception as error:
            self._saver.failed(point.position, reasons, error)
            return
        for reason in state.inexact:
            self._say_once(f"a resume from here would not be exact: {reason}")
        blocked_s = time.perf_counter() - started
        self._saver.save(Snapshot(state, tuple(reasons), point.taken_at, blocked_s, point.metrics))

    def _not_reached(self, position: Position, reasons: Sequence[str], error: Exception) -> None:
        if reasons:
            self._saver.failed(position, reasons, error)
            return
        self._say_once(
            "the state cannot be copied at each step, so a signal or an exception could not save "
            f"it: {type(error).__name__}: {error}"
        )

    def _say_once(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            log.warning("%s", reason)


def make_room(left: float, takes: float, has_run: float) -> float:
    """Decides how long to wait for the save in flight before it is dropped for another.

    Args:
        left: seconds until the process is killed.
        takes: seconds that a save takes.
        has_run: seconds that the one in flight has taken so far.

    Returns:
        Seconds; 0 where it is to be dropped at once.

    Example:
        >>> make_room(left=10.0, takes=2.0, has_run=1.0), make_room(3.0, 2.0, 0.5)
        (7.7, 0)
        >>> make_room(left=1.5, takes=2.0, has_run=1.5)  # no time for another: at least this one
        1.2
    """
    rest = max(0.0, takes - has_run)
    if left < takes:
        return max(0.0, left - _MARGIN_S)
    patience = left - takes - _MARGIN_S
    return patience if rest <= patience else 0
