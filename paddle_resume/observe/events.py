"""events.jsonl: a line for each thing that happened, for programs to read."""

from __future__ import annotations

import io
import json
import math
import os
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Optional

from paddle_resume.observe.log import log
from paddle_resume.regular import open_regular

__all__ = ["EventLog", "plain", "plain_metrics", "read"]

_NOT_METRICS = ("step", "batch_size")


class EventLog:
    """Appends events; a failure to do so never harms the training.

    Args:
        path: the file; it is created by the first event.

    Attributes:
        path: the same.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     EventLog(Path(folder) / "events.jsonl").append("save", step=500)
        ...     [event["step"] for event in read(Path(folder) / "events.jsonl")]
        [500]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._warned = False
        self._lock = threading.Lock()  # half of another thread's line would look torn

    def append(self, event: str, **fields: Any) -> None:
        """Appends one line.

        Args:
            event: what happened, a word.
            **fields: what goes with it; what is not JSON is written as text.
        """
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        found = {"time": now, "event": event, **fields}
        line = json.dumps(plain(found), allow_nan=False).encode() + b"\n"
        try:
            with self._lock:
                self._write(line)
        except OSError as error:
            if not self._warned:
                log.warning("%s cannot be written: %s. Training goes on.", self.path, error)
            self._warned = True

    def last_number(self, event: str, field: str) -> Optional[float]:
        """Returns a field of the newest event of a kind; None where it is no number."""
        found: Any = None
        for item in read(self.path):
            if item["event"] == event:
                found = item.get(field)
        is_number = isinstance(found, (int, float)) and abs(found) <= sys.float_info.max
        return float(found) if is_number else None

    def _write(self, line: bytes) -> None:
        # Opened each time: the folder may be moved or replaced during a long run.
        # A link could lead anywhere, and a pipe would wait for a reader.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(self.path, flags, 0o666)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                # A power cut tore the last line; this one must not be lost with it.
                line = b"\n" + line
            os.write(handle, line)
        finally:
            os.close(handle)


def read(path: Path) -> Iterator[Dict[str, Any]]:
    """Reads events, oldest first.

    Args:
        path: the file; where there is none, there are no events.

    Yields:
        Each event; torn and malformed lines are passed over.
    """
    try:
        with open_regular(path) as file:
            for line in io.BufferedReader(file):
                try:
                    found = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(found, dict) and isinstance(found.get("event"), str):
                    yield found
    except OSError:
        return


def plain(value: Any) -> Any:
    """Makes a value JSON: which has no NaN, and a metric may be a numpy number or a tensor.

    Args:
        value: anything; what has no form in JSON becomes its text.

    Example:
        >>> plain({"loss": [float("nan"), 0.5]})
        {'loss': ['nan', 0.5]}
    """
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or type(value) in (bool, int, str):
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def plain_metrics(logs: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns the metrics among hapi's logs as plain values; the training goes on changing logs.

    Example:
        >>> plain_metrics({"loss": [0.5], "step": 3})
        {'loss': [0.5]}
    """
    return {name: plain(value) for name, value in logs.items() if name not in _NOT_METRICS}
