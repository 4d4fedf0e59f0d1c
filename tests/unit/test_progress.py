"""A bar appears only for what takes long."""

from __future__ import annotations

from typing import Any

from paddle_resume.observe.progress import progress_after


def test_nothing_is_shown_before_the_time(capfd: Any) -> None:
    with progress_after(60.0, "reading step_1") as report:
        report(1, 10)
    assert capfd.readouterr().err == ""


def test_a_bar_is_shown_after_it(capfd: Any) -> None:
    with progress_after(0.0, "reading step_1") as report:
        report(1, 10)
        report(10, 10)
    assert "reading step_1" in capfd.readouterr().err
