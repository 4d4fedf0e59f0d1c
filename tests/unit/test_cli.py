"""The command line: errors of ours end with a message, never with a traceback."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, List

import pytest

from paddle_resume.cli import demo as demo_module
from paddle_resume.cli.main import main


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["paddle-resume", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("paddle-resume 0.")


def test_a_folder_in_use_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert run(monkeypatch, "demo", "--dir", str(tmp_path)) == 1
    error = capsys.readouterr().err
    assert "is not an empty folder" in error and str(tmp_path) in error
    assert "Traceback" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_missing_packages_are_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_module.importlib.util, "find_spec", lambda name: None)
    assert run(monkeypatch, "demo") == 1
    error = capsys.readouterr().err
    assert "pip install scikit-learn" in error
    assert "pip install paddlepaddle " in error and "paddlepaddle-gpu" in error


def test_a_program_that_fails_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(demo_module, "require_packages", lambda: None)
    monkeypatch.setattr(demo_module, "PROGRAM", "paddle_resume.no_such_module")
    assert run(monkeypatch, "demo", "--dir", str(tmp_path / "new")) == 1
    captured = capsys.readouterr()
    assert "ended with exit code 1" in captured.err
    assert "no_such_module" in captured.err
    assert "are left in" in captured.out


@pytest.mark.parametrize("arguments", [["no-such-command"], ["demo", "--no-such-option"]])
def test_a_wrong_call_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: List[Any]
) -> None:
    assert run(monkeypatch, *arguments) == 2
    assert "No such" in capsys.readouterr().err
