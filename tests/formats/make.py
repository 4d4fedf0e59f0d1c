"""Writes what is kept here: `python make.py NAME`, once for each format and each Paddle.

`NAME/killed` is a run that was killed in its third epoch, `NAME/finished` one that was not,
`NAME/weights.npz` what it ended with, `NAME/digests.json` what each checkpoint must load as.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def train(save_dir: Path, out: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs the training in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "training.py"), str(save_dir), str(out), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)


def digest(state: Any) -> str:
    """SHA-256 of all that a checkpoint holds: values, and each bit of each tensor."""
    total = hashlib.sha256()

    def add(value: Any) -> None:
        total.update(json.dumps(value, sort_keys=True).encode() + b"\n")

    position = state.position
    add([position.epoch, position.batch, position.step, position.phase, list(state.inexact)])
    for name, part in sorted(state.parts.items()):
        add([name, dict(part.values), list(part.tensors)])
        for key, tensor in part.tensors.items():
            add([key, tensor.dtype.str, list(tensor.shape)])
            total.update(tensor.tobytes())
    return total.hexdigest()


def digests(folder: Path) -> Dict[str, str]:
    """The digest of each checkpoint below a folder."""
    from paddle_resume.checkpoint.store import Store

    return {
        f"{run.name}/{path.name}": digest(Store(run).load(path)[1])
        for run in sorted(folder.iterdir())
        if run.is_dir()
        for path in Store(run).checkpoints()
    }


def main(name: str) -> None:
    folder = HERE / name
    folder.mkdir()
    assert train(folder / "finished", folder / "weights.npz").returncode == 0
    assert train(folder / "killed", folder / "none.npz", "--die-at", "15").returncode == -9
    (folder / "digests.json").write_text(json.dumps(digests(folder), indent=1) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(sys.argv[1])
