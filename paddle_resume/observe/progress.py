"""A progress bar for what takes long, and none for what does not."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, Iterator

__all__ = ["progress_after"]


@contextlib.contextmanager
def progress_after(seconds: float, label: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar on stderr once the work has taken a while.

    Args:
        seconds: how long to wait before showing it.
        label: what is being done.

    Yields:
        A function to call with the bytes done and the bytes in total.

    Example:
        >>> with progress_after(2.0, "reading") as report:
        ...     report(1, 2)
    """
    started = time.monotonic()
    bar: Any = None
    task: Any = None

    def report(done: int, total: int) -> None:
        nonlocal bar, task
        if bar is None:
            if time.monotonic() - started < seconds:
                return
            bar = _bar()
            bar.start()
            task = bar.add_task(label, total=total)
        bar.update(task, completed=done)

    try:
        yield report
    finally:
        if bar is not None:
            bar.stop()


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True))
