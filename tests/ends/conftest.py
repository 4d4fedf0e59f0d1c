"""The trainings' starter: one for all tests of a process."""

from __future__ import annotations

from typing import Iterator

import pytest

from .runs import Starter


@pytest.fixture(scope="session")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    """Returns the starter; its processes end with the session."""
    made = Starter(tmp_path_factory.mktemp("ends"))
    yield made
    made.close()


@pytest.fixture()
def start(starter: Starter) -> Iterator[Starter]:
    """Returns the starter; what a test has started ends with the test."""
    yield starter
    starter.stop()
