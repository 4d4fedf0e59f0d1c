"""Does it work at all here? Run on every version of Python and Paddle, so it needs pytest alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, List

import pytest

import paddle_resume

TRAINING = Path(__file__).parent / "training.py"
PACKAGE = Path(paddle_resume.__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
NO_PADDLE = """
    import sys

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "paddle":
                raise ModuleNotFoundError("No module named 'paddle'", name="paddle")

    sys.meta_path.insert(0, Blocker())
"""


def train(*arguments: str) -> int:
    done = subprocess.run(
        [sys.executable, str(TRAINING), *arguments],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode in (0, -9), done.stdout
    return done.returncode


def python(code: str, before: str = "") -> str:
    script = textwrap.dedent(before) + textwrap.dedent(code)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines(path: Path) -> List[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_killed_fit_goes_on_to_equal_losses_and_weights(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    assert train(str(whole)) == 0
    save_dir = str(tmp_path / "run")
    assert train(str(killed), "--save-dir", save_dir, "--die-at", "14") == -9
    assert train(str(killed), "--save-dir", save_dir) == 0

    truth = {tuple(line[:-1]): line[-1] for line in lines(whole)}
    found = [(tuple(line[:-1]), line[-1]) for line in lines(killed)]
    assert dict(found) == truth
    assert [(key, loss) for key, loss in found if truth[key] != loss] == []
    assert len(truth) < len(found) < len(truth) + 14, "the second start began from nothing"


def test_it_imports_without_paddle_and_names_both_wheels_when_asked_for_more() -> None:
    out = python(
        """
        import paddle_resume as pr

        assert issubclass(pr.LockedError, pr.ResumeError)
        try:
            pr.AutoResume
        except Exception as error:
            print(error)
        else:
            raise SystemExit("no error")
        """,
        before=NO_PADDLE,
    )
    assert "pip install paddlepaddle" in out
    assert "paddlepaddle-gpu" in out


def test_the_import_is_light() -> None:
    loaded = python("import paddle_resume, sys; print(*sorted(sys.modules))").split()
    heavy = {"numpy", "paddle", "psutil", "pydantic", "rich", "sklearn", "typer", "xxhash", "yaml"}
    assert sorted(heavy.intersection(loaded)) == []


def test_the_command_starts_without_paddle() -> None:
    out = python(
        """
        sys.argv = ["paddle-resume", "--version"]
        from paddle_resume.cli.main import main

        main()
        """,
        before=NO_PADDLE,
    )
    assert out.startswith("paddle-resume 0.")


@pytest.mark.parametrize("folder", sorted({path.parent for path in PACKAGE.rglob("*.py")}))
def test_every_folder_is_packaged(folder: Path) -> None:
    assert (folder / "__init__.py").exists(), f"{folder} would be missing from the wheel"


def test_types_are_packaged() -> None:
    assert (PACKAGE / "py.typed").exists()
