"""What every test needs before the first import of Paddle, and the rule for the long checks."""

from __future__ import annotations

import os

# Two test processes on two cores: more threads each would only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

try:  # Paddle 2.6 crashes in zlib where SciPy is loaded after it
    import scipy.linalg  # noqa: F401
except ImportError:
    pass

from typing import List

import pytest


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    """Skips checks marked `long(issue)`, but for those that `make test-long` asks for."""
    wanted = bool(os.environ.get("PADDLE_RESUME_LONG"))
    issue = os.environ.get("PADDLE_RESUME_ISSUE", "")
    for item in items:
        mark = item.get_closest_marker("long")
        if mark is None:
            continue
        of = str(mark.args[0]) if mark.args else ""
        if not wanted:
            item.add_marker(pytest.mark.skip(reason="takes long: make test-long"))
        elif issue and of != issue:
            item.add_marker(pytest.mark.skip(reason=f"belongs to issue {of}, not to {issue}"))
