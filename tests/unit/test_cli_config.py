"""`paddle-resume config`: the settings of a file, without Paddle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Dict, List

import pytest

import paddle_resume
from paddle_resume.cli.config import spread_overrides
from paddle_resume.cli.main import main
from paddle_resume.save_dir import VARIABLE

ROOT = Path(paddle_resume.__file__).parents[1]
TEXT = "save_dir: run\nsnapshot_step: 500\nbest: {monitor: acc}\n"


@pytest.fixture(autouse=True)
def _file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("a.yml").write_text(TEXT)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["paddle-resume", "config", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> Dict[str, Any]:
    assert run(monkeypatch, *arguments, "--json") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    found: Dict[str, Any] = json.loads(captured.out)["settings"]
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ["a.yml", "-o", "snapshot_epoch=2", "best.monitor=f1", "best.mode=max"],
        ["a.yml", "-o", "snapshot_epoch=2", "-o", "best.monitor=f1", "-o", "best.mode=max"],
        ["a.yml", "-o", "snapshot_epoch=2", "-o", "best.monitor=f1", "best.mode=max"],
        ["-o", "snapshot_epoch=2", "best.monitor=f1", "best.mode=max", "a.yml"],
        ["a.yml", "--override", "snapshot_epoch=2", "best.monitor=f1", "best.mode=max"],
        [
            "a.yml",
            "-o",
            "best.monitor=acc",
            "snapshot_epoch=2",
            "-o",
            "best={monitor: f1, mode: max}",
        ],
    ],
)
def test_one_o_takes_several_values_and_a_later_one_wins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: List[str]
) -> None:
    found = settings(monkeypatch, capsys, *arguments)
    assert found["save_dir"] == {"value": "run", "source": "a.yml:1"}
    assert found["snapshot_epoch"] == {"value": 2, "source": "override 'snapshot_epoch=2'"}
    assert found["best.monitor"]["value"] == "f1"
    assert found["best.mode"]["value"] == "max"
    assert found["emergency.signals"]["source"] == "default"


@pytest.mark.parametrize(
    ("arguments", "spread"),
    [
        (["a", "-o", "b=1"], ["a", "-o", "b=1"]),
        (["a", "-o", "b=1", "c=2", "-o", "d=3"], ["a", "-o", "b=1", "-o", "c=2", "-o", "d=3"]),
        (["-o", "b", "c=2", "a"], ["-o", "b", "-o", "c=2", "a"]),
        (["-o", "b=1", "a", "c=2"], ["-o", "b=1", "a", "c=2"]),
        (["a", "-o", "b=1", "--json", "c=2"], ["a", "-o", "b=1", "--json", "c=2"]),
        (["a", "-o"], ["a", "-o"]),
    ],
)
def test_spreading(arguments: List[str], spread: List[str]) -> None:
    assert spread_overrides(arguments) == spread


def test_a_section_that_is_off_is_one_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = settings(monkeypatch, capsys, "a.yml", "-o", "best=false")
    assert found["best"] == {"value": False, "source": "override 'best=false'"}
    assert not [key for key in found if key.startswith("best.")]


def test_the_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "/mnt/x")
    assert settings(monkeypatch, capsys, "a.yml")["save_dir"] == {
        "value": "/mnt/x",
        "source": VARIABLE,
    }


def test_the_table_is_for_people(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.yml").write_text(TEXT.replace("save_dir: run", "save_dir: 'run[bold]'"))
    assert run(monkeypatch, "a.yml", "-o", "snapshot_epoch=2") == 0
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines()]
    assert ["save_dir", "run[bold]", "a.yml:1"] in rows
    assert ["snapshot_epoch", "2", "override 'snapshot_epoch=2'"] in rows
    assert ["snapshot_minutes", "30", "default"] in rows
    assert ["keep_every_epoch", "null", "default"] in rows
    assert ["async_save", "true", "default"] in rows


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.yml"], ["missing.yml", "no such file"]),
        (["a.yml", "-o", "snapshot_epochs=2"], ["a.yml", "Did you mean snapshot_epoch?"]),
        (["a.yml", "-o", "snapshot_epoch"], ["override 'snapshot_epoch'", "no `=`"]),
        (["a.yml", "-o", "emergency.signals=[SIGKILL]"], ["emergency.signals", "cannot be caught"]),
        (["a.yml", "-o", "best.mode=most"], ["best.mode='most'", "auto, min or max"]),
        (["a.yml", "-o", "best.keep_best_max=-1"], ["best.keep_best_max=-1", "from 1"]),
        (["a.yml", "-o"], ["-o"]),
        ([], ["FILE"]),
        (["a.yml", "b.yml"], ["b.yml"]),
    ],
)
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_errors_end_with_2_and_a_message(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: List[str],
    words: List[str],
    more: List[str],
) -> None:
    assert run(monkeypatch, *more, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    for word in words:
        assert word in captured.err


def test_it_needs_no_paddle() -> None:
    code = """
        import sys

        sys.modules["paddle"] = None
        sys.argv = ["paddle-resume", "config", "a.yml", "-o", "emergency.signals=[SIGTERM]"]
        from paddle_resume.cli.main import main

        main()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert '["SIGTERM"]' in done.stdout
