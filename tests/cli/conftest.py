"""A real run's folder for each test, and the command as users call it."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

import pytest
from fit.models import fit, make

import paddle_resume as pr
from paddle_resume.cli.main import main

REPO = Path(__file__).parents[2]
NO_PADDLE = (
    "import sys; sys.modules['paddle'] = None; from paddle_resume.cli.main import main; main()"
)


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run(
    *arguments: Any,
    code: Optional[int] = 0,
    cwd: Path = REPO,
    env: Optional[Mapping[str, str]] = None,
    process: bool = False,
) -> Result:
    """Calls the command here, or in a process of its own, where Paddle cannot be imported."""
    call = _in_a_process if process else _here
    result = call(list(map(str, arguments)), cwd, {**os.environ, **(env or {})})
    assert "Traceback" not in result.err, result.err
    assert code is None or result.code == code, result.out + result.err
    return result


def _in_a_process(arguments: List[str], cwd: Path, env: Dict[str, str]) -> Result:
    done = subprocess.run(
        [sys.executable, "-c", NO_PADDLE, *arguments],
        cwd=cwd,
        env={**env, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def _here(arguments: List[str], cwd: Path, env: Dict[str, str]) -> Result:
    out, err, before = io.StringIO(), io.StringIO(), os.getcwd()
    os.chdir(cwd)
    try:
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", ["paddle-resume", *arguments])
            for name, value in env.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main()
    finally:
        os.chdir(before)
    return Result(int(ended.value.code or 0), out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 2, 3, 4, 6, 8, 9 of three epochs of three steps; the last one is finished."""
    folder = tmp_path_factory.mktemp("cli") / "run1"
    keys = {"snapshot_step": 2, "keep_checkpoint_max": None}
    fit(make(), pr.resume_callbacks(folder, **keys), epochs=3)
    return folder


@pytest.fixture
def save_dir(trained: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(trained, tmp_path / "run1", symlinks=True))


def damage(path: Path) -> None:
    """Turns one bit over, in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
