"""An exception anywhere: what was trained is saved, and the exception goes on its way unchanged."""

from __future__ import annotations

import random
import re
from typing import Any, Dict, List, Mapping, Tuple

import pytest

from .harness import Bench, several
from .places import fsync_of

KEYS = {"snapshot_epoch": None, "snapshot_step": 6}

FAULTS: Dict[str, Mapping[str, Any]] = {
    "forward": {"at": ["forward", 10]},
    "backward": {"at": ["backward", 10]},
    "backward_accumulated": {"at": ["backward", 9], "accumulate": 3},
    "backward_amp": {"at": ["backward", 10], "amp": "O1"},
    "loss": {"at": ["loss", 10]},
    "first_steps": {"at": ["forward", 3]},
    "memory": {"at": ["forward", 10], "how": "memory"},
    "batch_begin": {"at": ["on_train_batch_begin", 10]},
    "epoch_begin": {"at": ["on_epoch_begin", 1]},
    "epoch_end": {"at": ["on_epoch_end", 1]},
    "eval_begin": {"at": ["on_eval_begin", 1]},
    "eval_forward": {"at": ["eval_forward", 1, 1]},
    "eval_batch_end": {"at": ["on_eval_batch_end", 1, 1]},
    "eval_end": {"at": ["on_eval_end", 1]},
    # Paddle itself hangs where a dataset fails with num_workers=0
    "data": {"at": ["data", 1, 2], "workers": 2},
}


def said(text: str) -> Tuple[List[str], List[str]]:
    """Returns a traceback's frames but for paddle_resume's, and the exception's own lines."""
    trace = text[text.index("Traceback (most recent call last)") :]
    frames = re.findall(r'^  File "(\S+)", line (\d+), in (\S+)', trace, re.MULTILINE)
    shown = [f"{file}:{line} {name}" for file, line, name in frames]
    error = re.findall(r"^(?:\w+\.)*(?:Boom|\w*Error)\b.*$", trace, re.MULTILINE)
    return [item for item in shown if "/paddle_resume/" not in item], error


def fail(
    bench: Bench, name: str, draw: random.Random, workers: int = 0, compare: bool = False
) -> Tuple[str, float]:
    """Lets a training fail, looks at what it has left, and lets it go on.

    Args:
        bench: starts it.
        name: of the fault.
        draw: source of what is left to chance.
        workers: of the loaders.
        compare: the traceback with that of a training without the callbacks under test.
    """
    spec: Dict[str, Any] = {"workers": workers, **FAULTS[name]}
    fault = {"how": spec.pop("how", "raise"), "at": spec.pop("at")}
    original = None
    if compare and fault["at"][0] != "data":  # a dataset's comes through other frames
        with bench.round(f"{name}_alone", **spec) as alone:
            alone.start(save_dir=None, fault=fault)
            original = alone.end()
    with bench.round(name, keys=KEYS, first=draw.random() < 0.5, **spec) as made:
        made.start(fault=fault)
        stopped = made.end()
        made.check_saved(stopped, 1, stopped.last_boundary, "exception")
        made.check("another exception" not in stopped.text, "another exception beside it")
        what = "MemoryError" if fault["how"] == "memory" else f"Boom: at {fault['at'][0]}"
        made.check(what in stopped.text, "what it failed with is not told")
        if original is not None:
            made.check(stopped.text.count("Traceback (most") == 1, "several tracebacks")
            one, other = said(original.text), said(stopped.text)
            made.check(one == other, f"the traceback has changed:\n{one}\n{other}")
        made.resume()
        return f"step {stopped.newest}", stopped.elapsed


def test_saved_at_each_place(bench: Bench) -> None:
    names = list(FAULTS)
    several(
        lambda number, draw: fail(bench, names[number], draw, compare=number % 2 == 0),
        rounds=len(names),
        at_once=3,
        name="exceptions",
    )


@pytest.mark.long(2)
@pytest.mark.parametrize("name", FAULTS)
def test_twenty_times(bench: Bench, name: str) -> None:
    several(
        lambda number, draw: fail(bench, name, draw, number % 2 * 2, number < 2),
        rounds=20,
        at_once=4,
        name=f"exception, {name}",
    )


def test_none_within_the_update(bench: Bench) -> None:
    with bench.round("batch_end", keys=KEYS) as made:
        made.start(fault={"at": ["on_train_batch_end", 10], "how": "raise"}, pause={"forward": 0.1})
        stopped = made.end()
        made.check_named(stopped, 7)
        assert stopped.text.rstrip().endswith("Boom: at on_train_batch_end")
        made.resume(pause={})


def test_the_newest_is_named_once_it_is_there(bench: Bench) -> None:
    """A save in flight is waited for before the newest checkpoint is named."""
    with bench.round("in_flight", keys={**KEYS, "snapshot_step": 10}) as made:
        fault = {"at": ["on_train_batch_end", 11], "how": "raise"}
        made.start(fault=fault, fsync=fsync_of(1.0))
        stopped = made.end()
        made.check_named(stopped, 10)
        made.resume()


def test_not_where_it_is_turned_off(bench: Bench) -> None:
    with bench.round("off", keys={**KEYS, "on_exception": False}) as made:
        made.start(fault={"at": ["forward", 10], "how": "raise"})
        stopped = made.end()
        assert (stopped.code, stopped.newest) == (1, 7)
        assert stopped.text.rstrip().endswith("Boom: at forward")
        made.resume()
