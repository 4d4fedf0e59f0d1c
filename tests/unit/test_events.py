"""events.jsonl and the log lines."""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest

from paddle_resume.observe.events import EventLog, read
from paddle_resume.observe.log import console, human_duration, human_size, log


def test_events_read_back_in_order(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events.jsonl")
    assert list(read(tmp_path / "events.jsonl")) == []
    events.append("start", action="fresh")
    events.append("save", step=500, path=tmp_path, metrics={"acc": np.float32(0.5)}, why=("a", 1))
    start, save = read(tmp_path / "events.jsonl")
    assert (start["event"], start["action"]) == ("start", "fresh")
    assert datetime.fromisoformat(start["time"]).utcoffset() is not None
    assert (save["path"], save["metrics"], save["why"]) == (str(tmp_path), {"acc": 0.5}, ["a", 1])


def test_every_line_is_strict_json(tmp_path: Path) -> None:
    values = [float("nan"), np.float64("-inf"), np.arange(2), {1: object}, "ü\n", {2}]
    EventLog(tmp_path / "e").append("save", values=values)
    lines = (tmp_path / "e").read_bytes().splitlines()
    assert len(lines) == 1
    found = json.loads(lines[0], parse_constant=pytest.fail)["values"]
    assert found[:3] == ["nan", "-inf", [0, 1]]


@pytest.mark.parametrize("torn", [b'{"event": "sa', b'{"event": "save"', b"\0\0\0", b"\xff"])
def test_a_torn_line_does_not_swallow_the_next(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path).append("start")
    with open(path, "ab") as file:
        file.write(torn)
    EventLog(path).append("resume")
    EventLog(path).append("save")
    assert [event["event"] for event in read(path)] == ["start", "resume", "save"]


def test_malformed_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'\n[]\n3\n{"event": 3}\n{}\n' + b"[" * 99999 + b'\n{"event": "save"}\n')
    assert list(read(path)) == [{"event": "save"}]


def test_a_replaced_folder_gets_the_next_line(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    events = EventLog(folder / "events.jsonl")
    events.append("start")
    shutil.rmtree(folder)
    folder.mkdir()
    events.append("save")
    assert [event["event"] for event in read(folder / "events.jsonl")] == ["save"]


def test_a_disk_that_fails_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    events = EventLog(tmp_path / "gone" / "events.jsonl")
    for _ in range(3):
        events.append("save")
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("[paddle_resume] ")
    assert list(read(tmp_path)) == []


@contextmanager
def bare() -> Iterator[logging.Logger]:
    """The logger as a script without any logging set up sees it."""
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        yield logging.getLogger("paddle_resume")
    finally:
        root.handlers = handlers


def test_lines_go_to_stderr_with_the_prefix(capsys: Any) -> None:
    with bare() as logger:
        with console():
            log.info("saved %s", "100%")
            with console():
                log.info("once")
            log.debug("hidden")
        assert (logger.handlers, logger.level) == ([], logging.NOTSET)
    assert capsys.readouterr() == ("", "[paddle_resume] saved 100%\n[paddle_resume] once\n")


def test_a_scripts_own_logging_is_left_alone(capsys: Any) -> None:
    own = logging.NullHandler()
    with bare() as logger:
        logger.addHandler(own)
        logger.setLevel(logging.ERROR)
        try:
            with console():
                log.info("hidden")
                assert logger.handlers == [own]
            assert logger.level == logging.ERROR
        finally:
            logger.removeHandler(own)
            logger.setLevel(logging.NOTSET)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_990, "1.0 MB"), (5e9, "5.0 GB"),
     (2e15, "2000.0 TB")],
)  # fmt: skip
def test_sizes(size: float, text: str) -> None:
    assert human_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.9999, "1.0 s"),
        (59.99, "1 min 0 s"),
        (3599.7, "1 h 0 min"),
        (3661, "1 h 1 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text
