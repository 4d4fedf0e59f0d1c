"""Whatever Python stands in the READMEs, and in examples/, runs."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

import paddle_resume

ROOT = Path(__file__).resolve().parents[2]
FIRST = "try:\n    import scipy.linalg\nexcept ImportError:\n    pass\n"  # Paddle 2.6 needs it so


def blocks(name: str) -> List[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("name", ["README.md", "README_cn.md"])
@pytest.mark.parametrize("kind", ["AutoResume", "PeriodicSaver"])
def test_the_tables_list_what_there_is(name: str, kind: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    section = re.split(r"^#", text.split(f"### `pr.{kind}(save_dir)`")[1], flags=re.MULTILINE)[0]
    listed = re.findall(r"^\| `(\w+)=(.*?)` \|", section, re.MULTILINE)
    parameters = inspect.signature(getattr(paddle_resume, kind)).parameters
    built = [(key, value.default) for key, value in parameters.items() if key != "save_dir"]
    assert [(key, ast.literal_eval(default)) for key, default in listed] == built


def run(program: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    path = folder / "program.py"
    path.write_text(program, "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(path), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", ["README.md", "README_cn.md"])
def test_the_blocks_run_one_after_the_other(name: str, tmp_path: Path) -> None:
    program = "\n".join([FIRST, *blocks(name)])
    done = run(program, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list((tmp_path / "output").glob("*/step_*")), "no checkpoint was written"


def test_both_readmes_show_the_same_programs() -> None:
    def code(name: str) -> List[str]:
        return [re.sub(r" *#.*", "", block) for block in blocks(name)]

    assert code("README.md") == code("README_cn.md")


def test_the_example_trains_and_goes_on(tmp_path: Path) -> None:
    program = (ROOT / "examples" / "fit_mnist_like.py").read_text("utf-8")
    first = run(program, tmp_path, "--epochs", "1")
    assert first.returncode == 0, first.stderr[-3000:]
    second = run(program, tmp_path, "--epochs", "2")
    assert second.returncode == 0, second.stderr[-3000:]
    assert "[paddle_resume] resumed after epoch 1 (step 45)" in second.stderr
    assert "Epoch 2/2" in second.stdout
