"""The trainings of `configs.py` with all four callbacks, stopped by signals and exceptions.

Nothing is saved but what EmergencySaver saves, and what is the best: a resume that begins right
after the last batch trained shows that the stop itself was saved.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Dict, Iterable, List, Mapping, Tuple

from .configs import CONFIGS, Config, Kill

__all__ = [
    "EXCEPTIONS",
    "SAMPLE",
    "SIGNALS",
    "STOPPED",
    "TRAIN_END",
    "UNSAVED",
    "exception_lists",
    "signal_lists",
]

Kills = Tuple[Kill, ...]

SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")
EXCEPTIONS = ("exception",)
OFF = {"snapshot_epoch": None, "snapshot_step": None}
ORDERS = ["".join(order) for order in itertools.permutations("0123")]
NO_BEST = ("unfreeze", "swapped", "reduce_lr", "eval_freq")
"""BestSaver would have saved each epoch's end that is the best before the signal comes."""
ADDED = (
    # The evaluation is of other weights than those that are trained.
    Config("swapped", callbacks=("swap",), network="full", schedule="cosine"),
)


def _stopped(number: int, config: Config) -> Config:
    ours = config.ours if config.ours == "all" else ORDERS[number % len(ORDERS)]
    if config.name in NO_BEST:
        ours = ours.replace("2", "")
    return replace(config, ours=ours, save=OFF)


STOPPED: Dict[str, Config] = {
    config.name: _stopped(number, config)
    for number, config in enumerate([*CONFIGS.values(), *ADDED])
}
"""Each with all four callbacks, in an order of its own."""

UNSAVED: Mapping[Tuple[str, str, str], str] = {
    ("swapped", "eval_batch_end", "exception"): (
        "the weights are swapped for the evaluation: what was trained is in the user's callback"
    ),
    ("*", "batch_end", "exception"): (
        "the optimizer's update has begun and its step's callbacks have not ended: no point"
    ),
}
"""(training, event, what happens there): why nothing can be saved, by the contract. A signal there
waits for the next point instead; where nothing was trained yet, there is nothing to be saved."""


_ORDER = ("epoch_begin", "batch", "epoch_end", "eval_begin", "eval_batch", "eval_end")


def _when(point: Tuple[Any, ...]) -> Tuple[int, int, int]:
    """Returns what sorts the points of a run as it comes to them."""
    event, epoch, step = (*point, 0, 0)[:3]
    name = event.rsplit("_", 1)[0] if "batch" in event else event
    return (epoch, _ORDER.index(name), 2 * step + event.endswith("_end"))


TRAIN_END = Kill(("train_end",), by="SIGTERM")
"""When the run is over, and a callback's on_train_end takes its time."""


def _points(*points: Tuple[Any, ...]) -> Kills:
    return tuple(Kill(point) for point in sorted(points, key=_when))


def _evaluations(config: Config, *points: Tuple[Any, ...]) -> List[Tuple[Any, ...]]:
    return list(points) if config.eval else []


def signal_lists(config: Config) -> List[Kills]:
    """Returns the lists of points at which one training is stopped by signals."""
    last, epoch = config.steps - 1, 1 if config.eval_freq == 1 else 2
    if config.name == "num_iters_in_eval":
        lists = [
            _points(("batch_begin", 0, 0), ("batch_end", 0, 0), ("eval_batch_end", 0, 0)),
            _points(("batch_end", 0, 3), ("batch_end", 0, 6), ("eval_batch_end", 0, 1)),
            _points(("batch_begin", 0, 5), ("epoch_end", 0)),
        ]
    elif config.kills is not None:  # over before its third epoch, or without an evaluation
        evaluated = _evaluations(config, ("eval_batch_end", 0, 1))
        lists = [
            _points(("epoch_begin", 0), ("batch_end", 0, last), ("batch_begin", 1, 2)),
            _points(("batch_end", 1, 3), ("epoch_end", 0), *evaluated),
            _points(("batch_end", 1, 4), ("epoch_begin", 1), ("batch_end", 1, 0)),
            _points(("batch_end", 0, 4), ("batch_begin", 1, 0)),
        ]
    else:
        evaluated = [
            _evaluations(config, ("eval_begin", 0), ("eval_batch_end", epoch, 1)),
            _evaluations(config, ("eval_batch_end", epoch, 0)),
            _evaluations(config, ("eval_end", epoch)),
        ]
        lists = [
            _points(
                ("epoch_begin", 0),
                ("batch_end", 0, 0),
                ("batch_begin", 0, 5),
                ("batch_end", 0, last),
                ("batch_end", 1, 3),
                ("batch_end", 2, last),
                *evaluated[0],
            ),
            _points(
                ("batch_end", 0, 4),
                ("epoch_end", 0),
                ("batch_begin", 1, 1),
                ("batch_end", 1, last - 2),
                ("batch_begin", 2, 0),
                *evaluated[1],
            ),
            _points(("epoch_begin", 1), ("batch_end", 1, 4), *evaluated[2]),
        ]
    return [
        tuple(replace(kill, by=SIGNALS[(row + at) % 3]) for at, kill in enumerate(kills))
        for row, kills in enumerate(lists)
    ]


def exception_lists(config: Config) -> List[Kills]:
    """Returns the lists of points at which a user's callback fails in one training."""
    epoch = 1 if config.eval_freq == 1 else 2
    if config.name == "num_iters_in_eval":
        found = [
            [("epoch_begin", 0), ("batch_begin", 0, 3), ("eval_batch_end", 0, 0)],
            [("batch_begin", 0, 6), ("epoch_end", 0)],
        ]
    else:
        evaluated = _evaluations(config, ("eval_batch_end", 0, 1))
        late = _evaluations(config, ("eval_batch_end", epoch, 0)) if config.kills is None else []
        found = [
            [("batch_begin", 0, 3), ("epoch_end", 0), ("batch_begin", 1, 0), *late],
            [("epoch_begin", 0), ("epoch_begin", 1), ("batch_begin", 1, 1), *evaluated],
        ]
    return [
        _exceptions(point for point in points if not _is_unsaved(config, point)) for points in found
    ]


def _exceptions(points: Iterable[Tuple[Any, ...]]) -> Kills:
    return tuple(replace(kill, by="exception") for kill in _points(*points))


def _is_unsaved(config: Config, point: Tuple[Any, ...]) -> bool:
    return any((name, point[0], "exception") in UNSAVED for name in (config.name, "*"))


SAMPLE: List[Tuple[Config, Kills]] = []
"""The cases that each `make test` runs, chosen for diversity."""


def _sample(name: str, *kills: Tuple[str, Tuple[Any, ...]]) -> None:
    SAMPLE.append((STOPPED[name], tuple(Kill(at, by=by) for by, at in kills)))


_sample("full", ("SIGTERM", ("batch_begin", 1, 3)), ("exception", ("batch_begin", 2, 0)))
_sample("workers", ("SIGTERM", ("batch_end", 1, 3)), ("exception", ("eval_batch_end", 1, 1)))
_sample("workers_persistent", ("SIGINT", ("batch_begin", 1, 4)))
_sample("accumulate", ("SIGHUP", ("batch_end", 1, 4)), ("exception", ("batch_begin", 2, 2)))
_sample("stateful_stream", ("SIGTERM", ("batch_begin", 1, 2)))
_sample("amp", ("SIGINT", ("batch_end", 0, 6)))
_sample("eval_freq", ("SIGTERM", ("eval_batch_end", 2, 1)))
_sample("num_iters", ("SIGHUP", ("eval_batch_end", 0, 1)))
_sample("early_stopping", ("SIGTERM", ("epoch_end", 1)))
_sample("extra", ("exception", ("batch_begin", 1, 1)))
_sample("trained_loss", ("SIGINT", ("batch_end", 1, 2)))
_sample("unfreeze", ("exception", ("batch_begin", 1, 0)), ("SIGTERM", ("epoch_begin", 2)))
_sample("swapped", ("SIGTERM", ("eval_batch_end", 0, 1)))
_sample("all_ours", ("SIGTERM", ("batch_begin", 0, 0)), ("SIGINT", ("batch_end", 1, 3)))
