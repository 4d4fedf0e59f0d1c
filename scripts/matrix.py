"""Runs the tests on other versions of Paddle and of Python, each in an environment of its own.

    python3 scripts/matrix.py                  all of it
    python3 scripts/matrix.py A E py3.9        some

Environments stay in `.matrix/` and are used again while what they are made from is the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from environment import ROOT, SetupError, make, version_of

# Paddle 2.6 was built for these.
OLD = ("numpy<2", "scipy<1.13", "setuptools<70")
TOOLS = (
    "hypothesis",
    "ipykernel",
    "jupyter_client",
    "pytest",
    "pytest-xdist",
    "scikit-learn",
    "visualdl",
)
SMOKE = ("tests/smoke",)
SAMPLE = ("tests/smoke", "tests/exactness", "tests/fit", "tests/formats", "tests/state")
# `make test` has run these with Paddle 3.
STOPS = (*SAMPLE, "tests/ends", "tests/stops")
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")


@dataclass(frozen=True)
class Stack:
    """What to install together, and what to run there.

    Attributes:
        name: also the environment's folder.
        requirements: for pip.
        pythons: versions that it is available for, the preferred one first.
        tests: for pytest.
    """

    name: str
    requirements: Tuple[str, ...]
    pythons: Tuple[str, ...]
    tests: Tuple[str, ...] = SAMPLE


STACKS = (
    Stack("A", ("paddlepaddle==3.3.1", *TOOLS), ("3.11", "3.12", "3.10", "3.13", "3.9")),
    Stack("2.6", ("paddlepaddle==2.6.2", *OLD, *TOOLS), ("3.11", "3.10", "3.12", "3.9"), STOPS),
    Stack("E", ("paddlepaddle-gpu==2.6.2", *OLD, *TOOLS), ("3.11", "3.10", "3.12", "3.9")),
    *(
        Stack(f"py{version}", ("paddlepaddle==3.3.1", "pytest"), (version,), SMOKE)
        for version in PYTHONS
    ),
)


def find_python(versions: Sequence[str]) -> Optional[str]:
    """Returns an interpreter of one of these versions, as `3.11`; None where there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))) / "versions"
    for version in versions:
        candidates = [sys.executable]
        candidates += [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"))]
        on_path = shutil.which(f"python{version}")
        candidates += [on_path] if on_path else []
        for candidate in candidates:
            if version_of(candidate) == version:
                return candidate
    return None


def run(stack: Stack, python: str) -> Tuple[str, bool]:
    """Runs one stack's tests.

    Returns:
        How it went in words, and whether that is no failure.
    """
    try:
        interpreter = make(
            ROOT / ".matrix" / stack.name, python=python, requirements=stack.requirements
        )
    except SetupError as error:
        if "No matching distribution found for paddlepaddle" in str(error):
            return f"skipped: there is no wheel {stack.requirements[0]} for this Python", True
        print(error, flush=True)
        return "FAILED: the environment could not be made", False
    command = [str(interpreter), "-m", "pytest", "-q"]
    command += ["-n", "2"] if "pytest-xdist" in stack.requirements else []
    done = subprocess.run([*command, "-m", "not long", *stack.tests], cwd=ROOT)
    return ("passed", True) if done.returncode == 0 else ("FAILED", False)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=" ".join(stack.name for stack in STACKS))
    names = parser.parse_args().names
    unknown = sorted(set(names) - {stack.name for stack in STACKS})
    if unknown:
        parser.error(f"no such stack: {', '.join(unknown)}")
    results: List[Tuple[str, str, bool]] = []
    done_with: List[Tuple[str, str]] = []  # (the Paddle, the Python) of the stacks before
    for stack in STACKS:
        if names and stack.name not in names:
            continue
        python = find_python(stack.pythons)
        version = version_of(python) if python else ""
        title = f"{stack.name}: {stack.requirements[0]}, Python {version or stack.pythons[0]}"
        if python is None:
            results.append((title, "skipped: this Python is not on this machine", True))
            continue
        if stack.tests == SMOKE and (stack.requirements[0], version) in done_with:
            results.append((title, "covered by a stack above", True))
            continue
        print(f"\n=== {title} ===", flush=True)
        began = time.monotonic()
        text, good = run(stack, python)
        results.append((title, f"{text} ({time.monotonic() - began:.0f} s)", good))
        done_with += [(stack.requirements[0], version)] if text == "passed" else []
    print("\n=== the matrix ===")
    for title, text, _ in results:
        print(f"{title}: {text}")
    return 0 if all(good for _, _, good in results) else 1


if __name__ == "__main__":
    sys.exit(main())
