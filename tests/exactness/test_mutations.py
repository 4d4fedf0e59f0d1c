"""A part of the state left out at the resume makes the comparison fail: each part is needed.

So is each part of what is copied at a boundary: copied later, when the watching thread saves that
boundary in the middle of a step or of an evaluation, it makes the comparison fail too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Tuple

import pytest

from .configs import CONFIGS, Config, Kill
from .harness import Difference, Harness
from .leave_out import LATE, MUTATIONS
from .stopping import STOPPED

MIDDLE = Kill(("batch_end", 1, 3))


@dataclass(frozen=True)
class Mutation:
    """A part, and a training that cannot do without it.

    Attributes:
        part: a name in `leave_out.MUTATIONS`, or in `leave_out.LATE`.
        config: the training.
        kill: where it is killed before it is resumed without the part, or stopped while the part
            is copied late.
        sample: whether `make test` runs it.
    """

    part: str
    config: Config
    kill: Kill = MIDDLE
    sample: bool = False


def _of(
    part: str, name: str, kill: Kill = MIDDLE, sample: bool = False, **changed: Any
) -> Mutation:
    config = CONFIGS[name]
    return Mutation(part, replace(config, **changed) if changed else config, kill, sample)


CASES: List[Mutation] = [
    _of("parameters", "adam"),
    _of("batch_norm", "full"),
    _of("kept_buffers", "spectral"),
    # The epoch in which the user's callback let the layer learn is over.
    _of("stop_gradient", "unfreeze", Kill(("batch_end", 2, 3))),
    _of("unsaved_buffers", "running_buffer", sample=True),
    _of("slots", "adamw"),
    _of("schedule", "plateau"),
    _of("schedule", "sgd"),
    _of("rate_tensor", "reduce_lr", Kill(("batch_end", 4, 3))),
    _of("rate_number", "reduce_lr", Kill(("batch_end", 4, 3))),
    _of("metrics", "metrics"),
    _of("gradients", "accumulate", Kill(("batch_end", 1, 4))),
    _of("gradients", "trained_loss"),
    _of("listeners", "early_stopping", Kill(("batch_end", 4, 3))),
    _of("listeners", "reduce_lr", Kill(("batch_end", 1, 3))),
    _of("listeners", "counted"),
    _of("logs", "adam"),
    _of("num_iters", "num_iters", Kill(("batch_end", 1, 2))),
    _of("stop_training", "stopped_in_epoch"),
    _of("extra", "extra"),
    _of("python_stream", "draws"),
    _of("numpy_stream", "draws"),
    _of("paddle_stream", "full"),
    _of("data_streams", "random_sampler", sample=True),
    # One of the two workers has loaded no batch that the training has seen.
    _of("data_streams", "workers", Kill(("batch_end", 1, 1))),
    _of("sampler_memory", "adam"),
    _of("sampler_memory", "counting_sampler"),
    _of("sampler_memory", "own_random_sampler"),
    _of("batches_done", "adam"),
    _of("batches_done", "workers"),
    _of("thread_streams", "random_augmented"),
    _of("drawn_indices", "lazy_batches_drawn"),
    _of("worker_streams", "workers", sample=True),
    _of("first_worker", "workers_persistent"),
    # The second epoch starts with the second of three workers.
    _of(
        "was_reset",
        "three_workers_persistent",
        Kill(("batch_end", 1, 1)),
        save={"snapshot_step": 1},
    ),
    _of("dataset_state", "stateful_stream"),
]


GRACE = 1.5
"""Seconds from the signal to the end: the watching thread saves about a second after it."""

# Where three batches make an update, a step without one moves all but the weights.
LATE_IN_STEP = replace(
    STOPPED["accumulate"],
    name="late_in_step",
    callbacks=("draws", "counted", "average", "lr_by_step"),
)


def _late(
    part: str, config: Config, at: Tuple[Any, ...], sample: bool = False, deaf: bool = False
) -> Mutation:
    slow = Kill(at, by="SIGTERM", slow=4.0, deaf=deaf)
    return Mutation(part, replace(config, grace=GRACE), slow, sample)


FORWARD = ("forward", 1, 3)
STEP_END = ("late_batch_end", 1, 4)
LATE_CASES: List[Mutation] = [
    _late("late_batch_norm", STOPPED["full"], FORWARD, sample=True),
    _late("late_batch_norm", STOPPED["workers"], FORWARD, deaf=True),
    _late("late_paddle_stream", STOPPED["full"], FORWARD, sample=True),
    _late("late_data", STOPPED["full"], FORWARD),
    _late("late_data", STOPPED["workers"], FORWARD, deaf=True),
    _late("late_data", STOPPED["stateful_stream"], FORWARD),
    _late("late_kept_buffers", STOPPED["spectral"], FORWARD),
    _late("late_unsaved_buffers", STOPPED["running_buffer"], FORWARD),
    _late("late_gradients", LATE_IN_STEP, STEP_END, sample=True),
    _late("late_metrics", LATE_IN_STEP, STEP_END),
    _late("late_schedule", LATE_IN_STEP, STEP_END),
    _late("late_logs", LATE_IN_STEP, STEP_END),
    _late("late_listeners", LATE_IN_STEP, STEP_END),
    _late("late_extra", LATE_IN_STEP, STEP_END),
    _late("late_python_stream", LATE_IN_STEP, STEP_END),
    _late("late_numpy_stream", LATE_IN_STEP, STEP_END),
    _late("late_paddle_stream", LATE_IN_STEP, STEP_END),
    _late("late_data", LATE_IN_STEP, STEP_END),
    # In an evaluation: the epoch's end is saved, and the evaluation comes once more.
    _late("late_logs", STOPPED["full"], ("eval_forward", 1, 1)),
    _late("late_numpy_stream", STOPPED["workers"], ("eval_forward", 1, 1)),
    _late("late_listeners", STOPPED["reduce_lr"], ("late_eval_end", 0)),
    _late("late_schedule", STOPPED["reduce_lr"], ("late_eval_end", 3)),
    _late("late_schedule", STOPPED["plateau"], ("late_eval_end", 3)),
]


def _parameters(cases: List[Mutation], issue: int) -> List[Any]:
    return [
        pytest.param(
            case,
            id=f"{case.part}:{case.config.name}" + ("" if issue == 1 else f":{case.kill.at[0]}"),
            marks=() if case.sample else pytest.mark.long(issue),
        )
        for case in cases
    ]


def _outcome(harness: Harness, case: Mutation, without: str) -> Tuple[Optional[str], str]:
    """Returns how the comparison failed (None when it did not), and what the resume printed."""
    config = case.config
    trail = harness.trail(config, (case.kill,), f"_without_{without or 'nothing'}")
    reference = harness.reference(config)
    settle = harness.due(config, reference, case.kill)
    killed = harness.attempt(trail, case.kill, settle=settle)
    assert killed.code == -9
    resumed = harness.attempt(trail, without=without)
    printed = resumed.output.read_text(encoding="utf-8", errors="replace")
    harness.nothing_left(trail)
    if resumed.code != 0:
        return f"exit code {resumed.code}", printed
    try:
        harness.compare(trail, reference)
    except Difference as difference:
        return str(difference), printed
    return None, printed


@pytest.mark.parametrize("case", _parameters(CASES, 1))
def test_a_part_left_out_is_noticed(harness: Harness, case: Mutation) -> None:
    failed, _ = _outcome(harness, case, "")
    assert failed is None, failed
    failed, printed = _outcome(harness, case, case.part)
    assert "LEFT OUT" in printed, f"the resume never restored {case.part}:\n{printed[-3000:]}"
    assert failed is not None, f"without {case.part} nothing differs"
    assert "differs" in failed or "should go on" in failed, failed


def test_every_part_has_a_training_that_needs_it() -> None:
    tested: Dict[str, List[Mutation]] = {}
    for case in CASES:
        tested.setdefault(case.part, []).append(case)
    assert set(tested) == set(MUTATIONS)
    assert {case.part for case in LATE_CASES} == set(LATE)


_right: Dict[str, Optional[str]] = {}


def _stopped(harness: Harness, case: Mutation, late: str) -> Tuple[Optional[str], str]:
    """Returns how the comparison failed (None when it did not), and what the save printed."""
    config, kill = case.config, case.kill
    trail = harness.trail(config, (kill,), f"_{late or 'in_time'}")
    reference = harness.reference(config)
    stopped = harness.attempt(trail, kill, without=late)
    printed = stopped.output.read_text(encoding="utf-8", errors="replace")
    # The batch in which it was stopped is after the point, although it may have been logged.
    harness.all_saved(trail, unsaved=kill.at[0] == "late_batch_end")
    harness.nothing_left(trail)
    try:
        resumed = harness.attempt(trail)
        harness.nothing_left(trail)
        if resumed.code != 0:
            return f"exit code {resumed.code}", printed
        harness.compare(trail, reference)
    except Difference as difference:
        return str(difference), printed
    return None, printed


@pytest.mark.parametrize("case", _parameters(LATE_CASES, 2))
def test_a_part_copied_late_is_noticed(harness: Harness, case: Mutation) -> None:
    key = str((case.config, case.kill))
    if key not in _right:
        _right[key], _ = _stopped(harness, case, "")
    assert _right[key] is None, _right[key]
    failed, printed = _stopped(harness, case, case.part)
    assert "LEFT OUT" in printed, f"nothing was saved after its boundary:\n{printed[-3000:]}"
    assert failed is not None, f"with {case.part} nothing differs"
    assert "differs" in failed or "should go on" in failed, failed
