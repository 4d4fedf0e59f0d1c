"""Log lines for people, on the logger `paddle_resume`."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import Any, Iterator, MutableMapping, Tuple

__all__ = ["console", "human_duration", "human_size", "log"]

_logger = logging.getLogger("paddle_resume")


class _Prefixed(logging.LoggerAdapter):  # type: ignore[type-arg]
    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> Tuple[Any, MutableMapping[str, Any]]:
        return f"[paddle_resume] {msg}", kwargs

    def warning(self, msg: object, *args: Any, **kwargs: Any) -> None:
        """Says so: on a console, lines of all levels look the same."""
        super().warning(f"warning: {msg}", *args, **kwargs)


log = _Prefixed(_logger, {})
"""Puts the prefix before each line."""


@contextmanager
def console() -> Iterator[None]:
    """Shows the lines on stderr while a run lasts, unless the script has set up logging itself.

    Example:
        >>> with console():
        ...     log.debug("not shown: the level is INFO")
    """
    level, propagate = _logger.level, _logger.propagate
    handler = None
    # Paddle gives the root logger a console handler with a format of its own: lines go to one
    # console only. A handler of another kind (a file) is the script's, and gets them too.
    others = logging.getLogger().handlers
    if not _logger.handlers and all(type(other) is logging.StreamHandler for other in others):
        handler = logging.StreamHandler()
        handler.setLevel(logging.INFO)
        _logger.addHandler(handler)
        _logger.propagate = False
    if level == logging.NOTSET:
        _logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        if handler is not None:
            _logger.removeHandler(handler)
        _logger.propagate = propagate
        _logger.setLevel(level)


def human_size(size: float) -> str:
    """Writes a number of bytes for people.

    Args:
        size: bytes.

    Returns:
        It with a decimal unit.

    Example:
        >>> human_size(999), human_size(1234567), human_size(2.5e12)
        ('999 B', '1.2 MB', '2.5 TB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.95:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def human_duration(seconds: float) -> str:
    """Writes a duration for people.

    Args:
        seconds: how long.

    Returns:
        It in the units that matter.

    Example:
        >>> human_duration(0.0123), human_duration(2.5), human_duration(75), human_duration(7380)
        ('12 ms', '2.5 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"
