"""A signal while the disk is slow, hangs or is full."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path
from typing import Any, Dict, Tuple

import pytest

from .harness import Bench, Round, several
from .places import Times, fsync_of, settle

FAST = Times(grace=5.0, save=0.5, slow=30.0)
FULL = Times(grace=8.0, save=2.0, slow=60.0)


def in_flight(made: Round, step: int) -> None:
    """Waits until the fault has begun and a step is being written."""
    made.wait_for(made.begun.exists)
    made.wait_for(lambda: bool(list(made.save_dir.glob(f".tmp-{step}-*"))))


def keys(times: Times, **more: Any) -> Dict[str, Any]:
    """Returns keys with which each other step is saved, and kept."""
    return {
        "snapshot_epoch": None,
        "snapshot_step": 2,
        "keep_checkpoint_max": None,
        "grace_seconds": times.grace,
        **more,
    }


def finished_first(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    """There is time for the save in flight and for the last one."""
    with bench.round("finished_first", keys=keys(times), workers=2) as made:
        made.start(
            fault={"at": ["forward", 6], "how": "sleep", "seconds": times.slow},
            fsync=fsync_of(times.save),
        )
        in_flight(made, 4)
        time.sleep(draw.uniform(0.0, times.save / 4))
        stopped = made.stop(group=True, within=times.grace)
        made.check_saved(stopped, 143, 5, "SIGTERM")
        made.check(stopped.steps == [2, 4, 5], f"steps {stopped.steps}")
        made.resume()
        return "both", stopped.elapsed


def dropped(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    """The save in flight would take too long; the last one is made or not, and that is told."""
    with bench.round("dropped", keys=keys(times)) as made:
        made.start(
            fault={"at": ["forward", 6], "how": "sleep", "seconds": times.slow},
            fsync=fsync_of(7 * times.grace / 4, step=4),
        )
        in_flight(made, 4)
        time.sleep(draw.uniform(0.0, times.grace / 20))
        stopped = made.stop(within=times.grace)
        if stopped.code == 143:
            made.check_saved(stopped, 143, 5, "SIGTERM")
            made.check(stopped.steps == [2, 5], f"steps {stopped.steps}")
        else:
            made.check_named(stopped, 2)
        made.resume()
        return f"step {stopped.newest} after exit {stopped.code}", stopped.elapsed


def hangs(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    """No save is possible any more."""
    with bench.round("hangs", keys=keys(times)) as made:
        made.start(
            fault={"at": ["forward", 6], "how": "sleep", "seconds": times.slow},
            fsync=fsync_of(7 * times.slow, step=4),
        )
        in_flight(made, 4)
        time.sleep(draw.uniform(0.0, 0.5))
        stopped = made.stop(within=times.grace)
        made.check_named(stopped, 2)
        made.resume()
        return "step 2 named", stopped.elapsed


def too_slow(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    """The last save takes longer than the grace period; nobody could know."""
    with bench.round("too_slow", keys=keys(times)) as made:
        made.start(
            fault={"at": ["forward", 6], "how": "sleep", "seconds": times.slow},
            fsync=fsync_of(3 * times.grace, step=5),
        )
        made.wait_for(made.begun.exists)
        settle(made)
        time.sleep(draw.uniform(0.0, 0.5))
        stopped = made.stop(within=times.grace)
        made.check_named(stopped, 4)
        made.resume()
        return "step 4 named", stopped.elapsed


def too_slow_between_steps(bench: Bench, times: Times, draw: random.Random) -> Tuple[str, float]:
    """The same, where the training's own thread saves."""
    with bench.round("too_slow_between", keys=keys(times)) as made:
        made.start(
            fault={"at": ["forward", 9], "how": "sleep", "seconds": 1.0},
            fsync=fsync_of(3 * times.grace, step=9),
        )
        made.wait_for(made.begun.exists)
        stopped = made.stop(within=times.grace)
        made.check_named(stopped, 8)
        made.resume()
        return "step 8 named", stopped.elapsed


CASES = [finished_first, dropped, hangs, too_slow, too_slow_between_steps]


def test_slow_disk(bench: Bench) -> None:
    several(
        lambda number, draw: CASES[number](bench, FAST, draw),
        rounds=len(CASES),
        at_once=len(CASES),
        name="slow disk",
    )


@pytest.mark.long(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_slow_disk_twenty_times(bench: Bench, case: Any) -> None:
    several(lambda _, draw: case(bench, FULL, draw), rounds=20, at_once=5, name=case.__name__)


def full(bench: Bench, path: Path, signalled: bool) -> Tuple[str, float]:
    """A real disk without room: nothing is saved, and nothing older is touched."""
    from fit.models import disk, fill, listing

    name = "full_signal" if signalled else "full_exception"
    with disk(path, "size=2m") as folder, bench.round(name, keys=keys(FAST)) as made:
        made.save_dir = folder / "run"
        fault = {"at": ["on_train_batch_begin", 10], "how": "sleep", "seconds": FAST.slow}
        if not signalled:
            fault = {"at": ["forward", 10], "how": "raise"}
        made.start(fault=fault, pause={} if signalled else {"forward": 0.3})
        made.wait_for(lambda: "saved step 8" in made.runs[-1].text())
        time.sleep(0.1)  # its link
        before = listing(made.save_dir)
        fill(folder / "filler")
        if signalled:
            made.wait_for(made.begun.exists)
            stopped = made.stop(within=FAST.grace)
        else:
            stopped = made.end()
            made.check(stopped.text.rstrip().endswith("Boom: at forward"), "another error")
        made.check_named(stopped, 8)
        made.check(listing(made.save_dir) == before, "older checkpoints were touched")
        (folder / "filler").unlink()
        made.resume(pause={})
        return "step 8 named", stopped.elapsed


@pytest.mark.parametrize("how", ["signal", "exception"])
def test_full_disk(bench: Bench, tmp_path: Path, how: str) -> None:
    paths = (tmp_path / f"disk{number}" for number in itertools.count())
    several(lambda _, draw: full(bench, next(paths), how == "signal"), 1, 1, f"full disk, {how}")
