"""When a run is to save and stop: the policy's arguments, and the pure decisions."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from paddle_resume.boundaries import make_room
from paddle_resume.errors import ConfigError
from paddle_resume.stops import EmergencyPolicy, Stop, reserve


def policy(**changed: Any) -> EmergencyPolicy:
    arguments = {
        "signals": ("SIGTERM", "SIGINT", "SIGHUP"),
        "on_exception": True,
        "grace_seconds": 25.0,
        "save_signal": None,
        "stop_after_minutes": None,
    }
    return EmergencyPolicy.of(**{**arguments, **changed})  # type: ignore[arg-type]


def test_defaults() -> None:
    assert policy() == EmergencyPolicy((15, 2, 1), True, 25.0, None, None)


def test_one_name_is_a_list_of_one() -> None:
    assert policy(signals="SIGTERM").signals == (signal.SIGTERM,)


def test_minutes_are_seconds_inside() -> None:
    assert policy(stop_after_minutes=0.5).stop_after_s == 30.0


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"signals": ("SIGFOO",)}, "'SIGFOO' is no signal"),
        ({"signals": ("sigterm",)}, "'sigterm' is no signal"),
        ({"signals": (15,)}, "15 is no signal"),
        ({"signals": ("SIGKILL",)}, "SIGKILL cannot be caught"),
        ({"signals": ("SIGTERM", "SIGSTOP")}, "SIGSTOP cannot be caught"),
        ({"signals": 15}, "signals=15"),
        ({"save_signal": "SIGKILL"}, "save_signal: SIGKILL cannot be caught"),
        ({"signals": ("SIGSEGV",)}, "SIGSEGV means that the process is broken"),
        ({"save_signal": "SIGCHLD"}, "comes at the end of each DataLoader worker"),
        ({"save_signal": "USR1"}, "save_signal: 'USR1' is no signal"),
        ({"save_signal": "SIGTERM"}, "is among signals"),
        ({"on_exception": 1}, "on_exception=1"),
        ({"grace_seconds": 0}, "grace_seconds=0"),
        ({"grace_seconds": -1}, "grace_seconds=-1"),
        ({"grace_seconds": "25"}, "grace_seconds='25'"),
        ({"grace_seconds": True}, "grace_seconds=True"),
        ({"grace_seconds": float("nan")}, "grace_seconds=nan"),
        ({"grace_seconds": float("inf")}, "grace_seconds=inf"),
        ({"grace_seconds": 10**400}, "grace_seconds=1000"),
        ({"stop_after_minutes": 999999999}, "stop_after_minutes=999999999"),
        ({"stop_after_minutes": 0}, "stop_after_minutes=0"),
        ({"stop_after_minutes": "1h"}, "stop_after_minutes='1h'"),
    ],
)
def test_bad_input_is_named(changed: Any, named: str) -> None:
    with pytest.raises(ConfigError) as error:
        policy(**changed)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("takes_s", "grace_s", "kept"),
    [(2.0, 8.0, 5.6), (0.0, 10.0, 2.0), (None, 10.0, 6.0), (9.0, 10.0, 10.0)],
)
def test_what_is_kept_for_the_save(takes_s: Any, grace_s: float, kept: float) -> None:
    assert reserve(takes_s, grace_s) == pytest.approx(kept)


@pytest.mark.parametrize(
    ("left", "takes", "has_run", "waits"),
    [
        (10.0, 2.0, 0.0, 7.7),  # both fit
        (4.0, 2.0, 1.0, 1.7),  # the rest of it and another just fit
        (3.0, 2.0, 0.0, 0),  # only one fits: the new one
        (1.0, 2.0, 1.5, 0.7),  # not even one: at least the one in flight
    ],
)
def test_a_save_in_flight_is_finished_where_time_allows(
    left: float, takes: float, has_run: float, waits: float
) -> None:
    assert make_room(left, takes, has_run) == pytest.approx(waits)


def test_when_a_stop_ends_and_with_what() -> None:
    stop = Stop.at(100.0, "SIGTERM", 143, 10.0, interrupts=False)
    assert (stop.deadline, stop.last_moment) == (110.0, 109.0)
    assert (stop.exit_code(True), stop.exit_code(False)) == (143, 1)
