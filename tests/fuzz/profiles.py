"""How much is tried: the same examples each time in the short run, more in `make test-long`."""

from __future__ import annotations

import os
from typing import Any, Callable

from hypothesis import HealthCheck, settings

LONG = bool(os.environ.get("PADDLE_RESUME_LONG"))
TIMES = 10


def examples(count: int) -> Callable[[Any], Any]:
    """Tries so many examples, always the same; `TIMES` as many where `make test-long` asks."""
    return settings(
        max_examples=count * TIMES if LONG else count,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
