"""One harness for all exactness tests of a process: it keeps the uninterrupted runs."""

from __future__ import annotations

from typing import Iterator

import pytest

from .harness import Harness


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """Returns the harness; its processes end with the session."""
    made = Harness(tmp_path_factory.mktemp("exactness"))
    try:
        yield made
    finally:
        made.close()
