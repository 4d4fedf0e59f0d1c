"""The machine that all tests here share, and the tally of what they have tried."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Iterator

import pytest

from paddle_resume import saver

from .machine import Machine, why_not_traced
from .run import versions
from .tally import lines


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of starts in this process: without Paddle, and without a word."""
    monkeypatch.setattr(saver, "versions", versions)
    caplog.set_level(logging.CRITICAL, "paddle_resume")


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Returns the machine; its processes end with the session."""
    why = why_not_traced()
    if why:
        pytest.skip(why)
    made = Machine(tmp_path_factory.mktemp("crash"))
    yield made
    made.close()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """Returns a folder in memory, where there is one: states laid out there are judged faster."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        yield tmp_path / "memory"
        return
    made = Path(tempfile.mkdtemp(prefix="paddle-resume-crash-", dir=shm))
    yield made / "root"
    shutil.rmtree(made)


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """Prints what has been tried."""
    for line in lines():
        terminalreporter.write_line(line)
