"""Makes a virtual environment with this package in it, or re-uses the one that is there.

    python3 scripts/environment.py .venv --extras cpu,demo
    python3 scripts/environment.py .matrix/A --python python3.11 paddlepaddle==3.3.1 pytest

Needs nothing but Python and pip, not even ensurepip. An environment is used as it is when its stamp
says that it was made by the same Python from the same requirements.
"""

from __future__ import annotations

import argparse
import configparser
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List, Sequence

ROOT = Path(__file__).resolve().parent.parent


class SetupError(Exception):
    """The environment could not be made; the message is pip's or venv's own closing lines."""


def make(
    folder: Path,
    *,
    python: str = sys.executable,
    extras: Sequence[str] = (),
    requirements: Sequence[str] = (),
) -> Path:
    """Makes the environment where it is not ready yet.

    Args:
        folder: where.
        python: the interpreter to make it with.
        extras: of this package, which is installed editable.
        requirements: what else pip is to install, in the same resolution.

    Returns:
        The environment's interpreter.

    Raises:
        SetupError: venv or pip failed.
    """
    interpreter = folder / "bin" / "python"
    stamp = folder / ".stamps" / ("-".join(["package", *sorted(extras)]) + ".txt")
    wanted = _fingerprint(python, extras, requirements)
    if interpreter.exists() and stamp.exists() and stamp.read_text() == wanted:
        return interpreter
    if not _is_from(interpreter, python):
        _create(folder, python)
    target = str(ROOT) + (f"[{','.join(extras)}]" if extras else "")
    _run([str(interpreter), "-m", "pip", "install", "--quiet", "-e", target, *requirements])
    stamp.parent.mkdir(exist_ok=True)
    stamp.write_text(wanted)
    return interpreter


def version_of(python: str) -> str:
    """Returns `3.11`, or an empty string where that interpreter does not run."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _fingerprint(python: str, extras: Sequence[str], requirements: Sequence[str]) -> str:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    options = {name: dict(setup[name]) for name in setup.sections() if name.startswith("options")}
    parts = [
        str(ROOT),
        version_of(python),
        sorted(extras),
        sorted(requirements),
        setup["metadata"]["version"],
        options,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _is_from(interpreter: Path, python: str) -> bool:
    """Whether the environment is there, has pip, and is of the same Python version."""
    if not interpreter.exists() or version_of(str(interpreter)) != version_of(python):
        return False
    command = [str(interpreter), "-m", "pip", "--version"]
    return subprocess.run(command, capture_output=True).returncode == 0


def _create(folder: Path, python: str) -> None:
    if folder.exists():
        if not (folder / "pyvenv.cfg").exists():
            raise SetupError(f"{folder} is in the way: it is no virtual environment")
        shutil.rmtree(folder)
    try:
        _run([python, "-m", "venv", str(folder)])
    except SetupError:  # Debian's python3 without python3-venv has no ensurepip
        shutil.rmtree(folder, ignore_errors=True)
        _run([python, "-m", "venv", "--without-pip", str(folder)])
        inside = str(folder / "bin" / "python")
        _run([python, "-m", "pip", "--python", inside, "install", "--quiet", "pip"])


def _run(command: List[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        closing = "\n".join(done.stdout.strip().splitlines()[-15:])
        raise SetupError(f"{' '.join(command)}\n{closing}")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--extras", default="", help="comma-separated")
    parser.add_argument("requirements", nargs="*")
    given = parser.parse_intermixed_args()
    try:
        make(
            given.folder,
            python=given.python,
            extras=[extra for extra in given.extras.split(",") if extra],
            requirements=given.requirements,
        )
    except SetupError as error:
        print(f"could not make the environment {given.folder}:\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
