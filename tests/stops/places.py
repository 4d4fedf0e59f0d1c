"""Where a training is slow or fails, and one round of stopping it there."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Tuple

from .harness import STEPS, Bench, Round

__all__ = ["FSYNCS", "PLACES", "Place", "Times", "fsync_of", "keys_of", "play"]

FSYNCS = 7
"""How many fsyncs make a checkpoint durable; `test_a_save_takes_what_it_should` counts."""


@dataclass(frozen=True)
class Place:
    """A place, in the second epoch and in the first.

    Attributes:
        late: the fault, after a save that was measured.
        early: the fault, before any save.
        spec: what else of the training is different.
        busy: whether it needs a core for itself.
        often: how many times at least the signal comes.
        goes_on: whether the training comes to its next boundary while the watching thread saves
            the last one: that step is trained once more.
    """

    late: Mapping[str, Any]
    early: Mapping[str, Any]
    spec: Mapping[str, Any] = field(default_factory=dict)
    busy: bool = False
    often: int = 1
    goes_on: bool = False


_WAITS_FOR_DATA = ("data", "data_in_c")


def _both(how: str, late: Any, early: Any, **more: Any) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    return {"at": late, "how": how, **more}, {"at": early, "how": how, **more}


PLACES: Dict[str, Place] = {
    # after BatchNorm and dropout, within Python
    "forward": Place(*_both("sleep", ["forward", 10], ["forward", 5])),
    # the same within C, from where the main thread never comes back to Python
    "forward_in_c": Place(*_both("lock", ["forward", 10], ["forward", 5])),
    # one operation of Paddle, which keeps a core busy for longer than the grace period
    "forward_operation": Place(
        *_both("operation", ["forward", 10], ["forward", 5], size=1500), busy=True
    ),
    # backward, before the update: gradients of an earlier batch wait to be added to
    "backward": Place(
        *_both("sleep", ["backward", 10], ["backward", 5]), {"accumulate": 3, "amp": "O1"}
    ),
    "eval": Place(*_both("sleep", ["eval_forward", 1, 1], ["eval_forward", 0, 1])),
    "eval_in_c": Place(*_both("lock", ["eval_forward", 1, 1], ["eval_forward", 0, 1])),
    # many short batches: it is answered after one of them
    "eval_short": Place(
        *_both("sleep", ["eval_forward", 1, 3], ["eval_forward", 0, 3], seconds=0),
        {"eval_samples": 960, "pause": {"eval_forward": 0.05}},
    ),
    "data": Place(*_both("sleep", ["data", 1, 2], ["data", 0, 5])),
    "data_in_c": Place(*_both("lock", ["data", 1, 2], ["data", 0, 5])),
    "eval_data": Place(*_both("sleep", ["eval_data", 1, 1], ["eval_data", 0, 1])),
    # no step is slow: further signals find the process on its way out
    "quick": Place(
        *_both("sleep", ["on_train_batch_end", 10], ["on_train_batch_end", 5], seconds=0),
        {"epochs": 5, "pause": {"forward": 0.02}},
        often=4,
        goes_on=True,
    ),
    # the same, where it waits meanwhile for a worker that does not end
    "closing": Place(
        *_both("sleep", ["data", 1, 4], ["data", 0, 4]),
        {"workers": 2, "pause": {"forward": 0.3}},
        often=8,
        goes_on=True,
    ),
    "callback": Place(*_both("sleep", ["on_train_batch_begin", 10], ["on_train_batch_begin", 5])),
    "epoch_end": Place(*_both("sleep", ["on_epoch_end", 1], ["on_epoch_end", 0])),
    "epoch_begin": Place(*_both("sleep", ["on_epoch_begin", 2], ["on_epoch_begin", 1])),
}


@dataclass(frozen=True)
class Times:
    """How long things take, in seconds.

    Attributes:
        grace: from the signal to the platform's SIGKILL.
        save: a save on this disk.
        slow: what is slow.
    """

    grace: float
    save: float
    slow: float


def fsync_of(seconds: float, step: Any = None) -> Dict[str, Any]:
    """Returns a disk on which a save takes that long: each, or that of one step."""
    return {"seconds": seconds / FSYNCS, "of": step}


def keys_of(times: Times, **more: Any) -> Dict[str, Any]:
    """Returns keys with which only the step 6 and the best are saved besides."""
    return {"snapshot_epoch": None, "snapshot_step": 6, "grace_seconds": times.grace, **more}


def play(
    bench: Bench,
    name: str,
    times: Times,
    draw: random.Random,
    group: bool = False,
    workers: int = 0,
    early: bool = False,
    often: int = 1,
    plain: bool = False,
    number: int = signal.SIGTERM,
    code: int = 143,
    **spec: Any,
) -> Tuple[str, float]:
    """Stops a training at a place, looks at what it has left, and lets it go on.

    Args:
        bench: starts it.
        name: of the place.
        times: how long things take.
        draw: source of the random moment.
        group: whether the signal goes to the workers too.
        workers: of the loaders.
        early: before any save was measured.
        often: how many times the signal comes.
        plain: see `Server`.
        number: of the signal.
        code: the exit code that belongs to it.
        spec: what else of the training is different.

    Returns:
        What was saved, and how long the stop took.
    """
    place = PLACES[name]
    fault = {"seconds": times.slow, **(place.early if early else place.late)}
    options = {"workers": workers, **place.spec, "keys": keys_of(times), **spec}
    options.setdefault("first", draw.random() < 0.5)
    with bench.round(f"{name}_{'group' if group else 'process'}", plain, **options) as made:
        made.start(fault=fault, fsync=fsync_of(times.save))
        made.wait_for(made.begun.exists)
        if name in _WAITS_FOR_DATA:  # workers are ahead: the training may not wait yet
            _, epoch, batch = fault["at"]
            made.wait_for(lambda: made.boundary() >= epoch * STEPS + batch)
        if draw.random() < 0.7:
            settle(made)
        time.sleep(draw.uniform(0.0, 0.5))
        stopped = made.stop(number, group, max(often, place.often), within=times.grace)
        step = stopped.last_boundary
        if place.goes_on and stopped.newest == step - 1:
            step -= 1
        made.check_saved(stopped, code, step, signal.Signals(number).name)
        if name == "eval_short":
            batches = [event for event in stopped.events if event[0] == "eval_batch"]
            late = [e for e in batches if float.fromhex(e[3]) > stopped.signalled_at + 1.0]
            made.check(not late, f"{len(late)} batches of the evaluation after the signal")
        made.resume(pause={})
        return f"step {stopped.newest}", stopped.elapsed


def settle(made: Round) -> None:
    """Waits until no save is in flight."""
    made.wait_for(lambda: not list(made.save_dir.glob(".tmp-*")))
