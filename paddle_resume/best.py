"""Which scores are the best: a frozen policy, pure functions, and what a checkpoint remembers."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, Callable, Collection, Dict, FrozenSet, List, Mapping, Optional, Tuple, Union

from paddle_resume.errors import ConfigError
from paddle_resume.monitor import direction_of
from paddle_resume.observe.log import log
from paddle_resume.types import Captured

__all__ = [
    "Best",
    "BestPolicy",
    "BestScores",
    "Score",
    "among",
    "from_json",
    "ranked",
    "steps_named",
    "to_json",
]


@dataclass(frozen=True)
class BestPolicy:
    """What the best is.

    Attributes:
        monitor: the metric's name.
        mode: `"min"`, `"max"`, or `"auto"`, which reads it from the name.
        min_delta: what does not differ by more is not better.
        keep: how many of the best are kept.

    Raises:
        ConfigError: an attribute is wrong, or the name does not tell the mode.

    Example:
        >>> BestPolicy("eval_acc").direction
        'max'
    """

    monitor: str
    mode: str = "auto"
    min_delta: Union[int, float] = 0.0
    keep: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.monitor, str) or not self.monitor.strip():
            raise ConfigError(
                f'monitor={self.monitor!r}: the name of a metric expected, as "loss" or "acc"'
            )
        if self.mode not in ("auto", "min", "max"):
            raise ConfigError(f'mode={self.mode!r}: one of "auto", "min", "max" expected')
        if not _is_finite(self.min_delta) or self.min_delta < 0:
            raise ConfigError(f"min_delta={self.min_delta!r}: a number from 0 expected")
        if type(self.keep) is not int or self.keep < 1:
            raise ConfigError(f"keep_best_max={self.keep!r}: a whole number from 1 expected")
        if self.mode == "auto":
            direction_of(self.monitor)  # what it does not tell is an error here, not after hours

    @property
    def direction(self) -> str:
        """`"min"` or `"max"`: which values are better."""
        return direction_of(self.monitor) if self.mode == "auto" else self.mode

    def beats(self, value: float, other: float) -> bool:
        """Whether a value is better than another by more than min_delta.

        Example:
            >>> BestPolicy("loss").beats(0.5, 0.75), BestPolicy("loss").beats(0.5, 0.5)
            (True, False)
        """
        if self.direction == "max":
            return value - self.min_delta > other
        return value + self.min_delta < other


@dataclass(frozen=True)
class Score:
    """The monitored metric's value at a step."""

    step: int
    value: float


@dataclass(frozen=True)
class Best:
    """The best scores so far, best first, each of another step."""

    scores: Tuple[Score, ...] = ()


def ranked(best: Best, score: Score, policy: BestPolicy) -> Optional[Best]:
    """Ranks a new score among the best.

    It comes before the first one that it beats by more than min_delta, or last while there are
    fewer than are kept; so of equal ones the first stays first. NaN and infinity are never among
    the best: an infinite one would stay the best for ever.

    Args:
        best: so far.
        score: the new one. One that is there already changes nothing; a new value of a step that
            is there replaces the old one: a run that is resumed evaluates a step again.
        policy: what the best is.

    Returns:
        The best with the new one among them; None where it is not.

    Example:
        >>> best = ranked(Best(), Score(100, 0.75), BestPolicy("loss"))
        >>> ranked(best, Score(200, 0.5), BestPolicy("loss"))
        Best(scores=(Score(step=200, value=0.5),))
        >>> ranked(best, Score(200, float("nan")), BestPolicy("loss")) is None
        True
    """
    if not _is_finite(score.value):
        return None
    if score in best.scores:
        return best
    scores = [other for other in best.scores if other.step != score.step]
    beaten = (i for i, other in enumerate(scores) if policy.beats(score.value, other.value))
    place = next(beaten, len(scores))
    if place >= policy.keep:
        return None
    scores.insert(place, score)
    return Best(tuple(scores[: policy.keep]))


def among(best: Best, steps: Collection[int]) -> Best:
    """Leaves only the scores of some steps.

    Example:
        >>> among(Best((Score(200, 0.5), Score(100, 0.75))), {100})
        Best(scores=(Score(step=100, value=0.75),))
    """
    return Best(tuple(score for score in best.scores if score.step in steps))


def to_json(best: Best, policy: BestPolicy) -> Dict[str, Any]:
    """Writes the best as JSON values: what best.json and a checkpoint hold.

    Example:
        >>> to_json(Best((Score(200, 0.5),)), BestPolicy("loss"))["best"]
        [{'step': 200, 'monitor': 'loss', 'value': 0.5}]
    """
    name = policy.monitor
    scores = [{"step": s.step, "monitor": name, "value": s.value} for s in best.scores]
    return {"monitor": name, "mode": policy.direction, "best": scores}


def from_json(content: Any, policy: BestPolicy) -> Optional[Best]:
    """Reads what `to_json` wrote, in this or an earlier run.

    Args:
        content: JSON values, whatever they are.
        policy: this run's.

    Returns:
        The best, no more of them than are kept; None where the content is damaged, or speaks of
        another metric or mode.

    Example:
        >>> from_json({"monitor": "loss", "mode": "min", "best": []}, BestPolicy("acc")) is None
        True
    """
    if not isinstance(content, Mapping):
        return None
    if [content.get("monitor"), content.get("mode")] != [policy.monitor, policy.direction]:
        return None
    scores = [_score(entry) for entry in _entries(content)]
    good = tuple(score for score in scores if score is not None)
    if len({score.step for score in good}) != len(scores):
        return None
    return Best(good[: policy.keep])


def steps_named(content: Any) -> FrozenSet[int]:
    """The steps that best.json names, whatever the metric; of damaged content those that are told.

    Example:
        >>> sorted(steps_named({"best": [{"step": 200, "value": 0.5}, {"step": 100, "value": 1}]}))
        [100, 200]
    """
    scores = (_score(entry) for entry in _entries(content))
    return frozenset(score.step for score in scores if score is not None)


def _entries(content: Any) -> List[Any]:
    entries = content.get("best") if isinstance(content, Mapping) else None
    return entries if isinstance(entries, list) else [None]


def _score(entry: Any) -> Optional[Score]:
    if not isinstance(entry, Mapping):
        return None
    step, value = entry.get("step"), entry.get("value", math.nan)
    if type(step) is not int or step < 0 or not _is_finite(value):
        return None
    return Score(step, float(value))


def _is_finite(value: Any) -> bool:
    # True is a number to Python and a mistake here; an int may be too large for a float.
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max


class BestScores:
    """Component: the best scores so far, which a checkpoint remembers.

    Args:
        policy: what the best is.

    Example:
        >>> scores = BestScores(BestPolicy("acc"))
        >>> scores.offer(100, 0.5), scores.offer(200, 0.5), scores.offer(300, 0.75)
        (True, False, True)
        >>> scores.best
        Best(scores=(Score(step=300, value=0.75),))
    """

    name = "best"
    moves = "anytime"

    def __init__(self, policy: BestPolicy) -> None:
        self.policy = policy
        self._taken: List[Score] = []  # also those that better ones have pushed out since
        self._best = Best()
        self._said = False

    @property
    def best(self) -> Best:
        """The best scores so far."""
        return self._best

    def offer(self, step: int, value: float) -> bool:
        """Takes a new score where it is among the best.

        Args:
            step: that was evaluated.
            value: of the monitored metric.

        Returns:
            Whether it is among the best now: its checkpoint is to be kept.
        """
        score = Score(step, value)
        found = ranked(self._best, score, self.policy)
        if found is None:
            return False
        self._taken.append(score)
        self._best = found
        return True

    def forget(self, step: int) -> None:
        """Forgets the score of one step; see `forget_if`."""
        self.forget_if(lambda other: other == step)

    def forget_if(self, is_lost: Callable[[int], bool]) -> None:
        """Forgets scores without a checkpoint, which would bar real ones.

        What they had pushed out is among the best again.

        Args:
            is_lost: whether the checkpoint of a step could not be saved, or is gone.
        """
        self._taken = [score for score in self._taken if not is_lost(score.step)]
        self._rank()

    def capture(self) -> Captured:
        """Returns the best scores."""
        return Captured(values=to_json(self._best, self.policy))

    def restore(self, captured: Captured) -> List[str]:
        """Takes over the best scores; see `Component.restore`."""
        self.seed(captured.values)
        return []

    def seed(self, content: Mapping[str, Any]) -> None:
        """Takes over what a checkpoint holds; of another metric: starts anew.

        Args:
            content: what `to_json` returned, in this or an earlier process.
        """
        self._taken = list(self._read(content).scores)
        self._rank()

    def recall(self, content: Optional[Mapping[str, Any]], is_kept: Callable[[int], bool]) -> None:
        """Adds what best.json holds; a checkpoint may name some that could not be saved.

        Args:
            content: of best.json; None where there is none.
            is_kept: whether a step's checkpoint is there, and lies before the run's start: what
                lies behind comes again.
        """
        named = () if content is None else self._read(content).scores
        known = {score.step: score for score in (*named, *self._taken)}
        self._taken = [known[step] for step in sorted(known) if is_kept(step)]
        self._rank()

    def _rank(self) -> None:
        self._best = Best()
        for score in self._taken:
            self._best = ranked(self._best, score, self.policy) or self._best

    def _read(self, content: Mapping[str, Any]) -> Best:
        found = from_json(content, self.policy)
        if found is None and not self._said:
            self._said = True
            log.warning(
                "the best so far was counted for monitor=%r, mode=%r and is counted anew for "
                "monitor=%r, mode=%r",
                content.get("monitor"),
                content.get("mode"),
                self.policy.monitor,
                self.policy.direction,
            )
        return found or Best()
