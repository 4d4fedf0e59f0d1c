"""Killed anywhere and started again, a training does bit for bit what it does uninterrupted.

The uninterrupted run has none of our callbacks, so each check also shows that they change nothing.
`make test` runs the sample of `configs.py`; PADDLE_RESUME_LONG=1 every config at every kill point.
"""

from __future__ import annotations

from typing import Tuple

import pytest

from .configs import CONFIGS, SAMPLE, Config, Kill, kill_lists
from .harness import Harness


def name_of(kills: Tuple[Kill, ...]) -> str:
    return "+".join(str(kill) for kill in kills)


EVERY = [(config, kills) for config in CONFIGS.values() for kills in kill_lists(config)]


@pytest.mark.sample
@pytest.mark.parametrize(
    ("config", "kills"),
    SAMPLE,
    ids=[f"{config.name}:{name_of(kills)}" for config, kills in SAMPLE],
)
def test_a_killed_training_goes_on_exactly(
    harness: Harness, config: Config, kills: Tuple[Kill, ...]
) -> None:
    print(f"one of the {len(SAMPLE)} cases of the fixed sample; {len(EVERY)} are there in all")
    harness.check(config, kills)


@pytest.mark.long(1)
@pytest.mark.parametrize(
    ("config", "kills"),
    EVERY,
    ids=[f"{config.name}:{name_of(kills)}" for config, kills in EVERY],
)
def test_every_training_goes_on_exactly_from_every_kill(
    harness: Harness, config: Config, kills: Tuple[Kill, ...]
) -> None:
    harness.check(config, kills)


@pytest.mark.long(1)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_every_training_repeats_itself(harness: Harness, config: Config) -> None:
    assert harness.reference(config) == harness.reference(config, again=True)


@pytest.mark.long(1)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_the_callbacks_change_nothing(harness: Harness, config: Config) -> None:
    harness.check(config, ())


def test_there_are_enough_configs() -> None:
    assert len(CONFIGS) >= 32
    assert all(len(kill_lists(config)) >= 3 for config in CONFIGS.values())
