"""Each part of the product that the tests are about, left out: they have to fail."""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, Tuple

import pytest

from .harness import Bench, Failure, several
from .leave_out import PARTS
from .places import Times, play
from .test_exceptions import fail
from .test_update import stuck_in_update, swapped

TIMES = Times(grace=5.0, save=0.4, slow=30.0)
Round = Callable[[Bench, random.Random], Any]


def _slow(place: str, **how: Any) -> Round:
    return lambda bench, draw: play(bench, place, TIMES, draw, **how)


FOUND_BY: Dict[str, Tuple[Round, str]] = {
    "watching thread": (_slow("forward_in_c"), "not over within"),
    "statistics": (_slow("forward"), "batch"),
    "gate": (lambda bench, draw: stuck_in_update(bench, TIMES, draw), "(143, 9), not (1, 7)"),
    "swapped": (lambda bench, draw: swapped(bench, TIMES, draw), "(143, 7), not (1, 6)"),
    "grace": (_slow("callback"), "s to end, of"),
    "exceptions": (lambda bench, draw: fail(bench, "loss", draw), "newest is 7, expected step 9"),
    "deaf workers": (_slow("forward", group=True, workers=2), "a step has failed after"),
    "exit code": (_slow("eval_short"), "exit code 0, expected 143"),
}


def test_all_parts_are_looked_for() -> None:
    assert set(FOUND_BY) == set(PARTS)


@pytest.mark.long(2)
def test_each_part_left_out_is_found(bench: Bench) -> None:
    names = list(FOUND_BY)

    def one(number: int, draw: random.Random) -> Tuple[str, float]:
        part = names[number]
        play_it, problem = FOUND_BY[part]
        try:
            play_it(bench.without(part), draw)
        except Failure as error:
            first = str(error).splitlines()[0]
            if problem not in first:
                raise Failure(
                    f"{part} left out: another failure than {problem!r}: {error}"
                ) from None
            return f"{part}: {first.partition(': ')[2]}", 0.0
        raise Failure(f"{part} left out, and nothing failed")

    several(one, rounds=len(names), at_once=4, name="left out")
