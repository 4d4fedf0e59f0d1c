"""A signal at any moment: a checkpoint of the last boundary, exit 143 in time, an exact resume."""

from __future__ import annotations

import random
from typing import Tuple

import pytest

from .harness import Bench, several
from .places import PLACES, Times, play

FAST = Times(grace=5.0, save=0.4, slow=30.0)
FULL = Times(grace=8.0, save=2.0, slow=60.0)
QUIET = [name for name in PLACES if not PLACES[name].busy]


SOME = ["forward", "eval_in_c", "eval_short", "data", "closing", "callback"]


@pytest.mark.parametrize("group", [False, True], ids=["process", "group"])
def test_stopped_at_each_place(bench: Bench, group: bool) -> None:
    names = SOME if group else QUIET

    def one(number: int, draw: random.Random) -> Tuple[str, float]:
        return play(
            bench,
            names[number],
            FAST,
            draw,
            group=group,
            workers=2 if group else 0,
            early=number % 2 == group,
            often=3 if number % 3 == group else 1,
        )

    name = "to the group" if group else "to the process"
    several(one, rounds=len(names), at_once=6, name=name)


def test_stopped_in_one_operation_of_paddle(bench: Bench) -> None:
    several(
        lambda number, draw: play(bench, "forward_operation", FAST, draw),
        rounds=1,
        at_once=1,
        name="forward_operation",
    )


@pytest.mark.long(2)
@pytest.mark.parametrize("group", [False, True], ids=["process", "group"])
@pytest.mark.parametrize("name", PLACES)
def test_twenty_times(bench: Bench, name: str, group: bool) -> None:
    def one(number: int, draw: random.Random) -> Tuple[str, float]:
        return play(
            bench,
            name,
            FULL,
            draw,
            group=group,
            workers=2 if group else number % 2 * 2,
            early=number % 4 > 1,
            often=3 if number % 5 == 0 else 1,
            plain=number == 19,
        )

    at_once = 2 if PLACES[name].busy else 5
    several(
        one, rounds=20, at_once=at_once, name=f"{name}, to the {'group' if group else 'process'}"
    )
