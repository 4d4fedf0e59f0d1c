"""One bench for all tests of a process: it keeps the uninterrupted runs."""

from __future__ import annotations

from typing import Iterator

import pytest

from .harness import Bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Returns the bench; its processes end with the session."""
    made = Bench(tmp_path_factory.mktemp("stops"))
    try:
        yield made
    finally:
        made.close()
