"""A small model and its data, for trainings in the test's own process."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import numpy as np
import paddle
import pytest

SAMPLES, FEATURES, BATCH = 24, 4, 8
STEPS = SAMPLES // BATCH


class Points(paddle.io.Dataset):  # type: ignore[misc]
    """Labelled points, always the same."""

    def __init__(self, samples: int = SAMPLES) -> None:
        draw = np.random.RandomState(0)
        self.x = draw.randn(samples, FEATURES).astype("float32")
        self.y = (self.x.sum(1) > 0).astype("int64")[:, None]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


class Net(paddle.nn.Layer):  # type: ignore[misc]
    """BatchNorm and dropout between two layers."""

    def __init__(self, hidden: int = 6) -> None:
        super().__init__()
        self.first = paddle.nn.Linear(FEATURES, hidden)
        self.norm = paddle.nn.BatchNorm1D(hidden)
        self.drop = paddle.nn.Dropout(0.2)
        self.last = paddle.nn.Linear(hidden, 2)

    def forward(self, x: Any) -> Any:
        return self.last(self.drop(self.norm(self.first(x))))


def seed() -> None:
    """Sets every stream, as a script does at its start."""
    paddle.seed(5)
    np.random.seed(5)
    random.seed(5)


def make(hidden: int = 6, optimizer: str = "Adam", rate: Any = 0.05, **more: Any) -> "paddle.Model":
    """Builds a prepared model with fresh parameter names."""
    seed()
    with paddle.utils.unique_name.guard():
        net = Net(hidden)
    made = getattr(paddle.optimizer, optimizer)(rate, parameters=net.parameters(), **more)
    model = paddle.Model(net)
    model.prepare(made, paddle.nn.CrossEntropyLoss(), paddle.metric.Accuracy())
    return model


def fit(model: Any, callbacks: List[Any], epochs: int = 2, **more: Any) -> None:
    """Trains it."""
    data = more.pop("data", None)
    data = Points() if data is None else data
    arguments: Dict[str, Any] = {"batch_size": BATCH, "epochs": epochs, "verbose": 0, **more}
    model.fit(data, callbacks=callbacks, **arguments)


def weights(model: Any) -> Dict[str, bytes]:
    """Returns every tensor of the network, as bytes."""
    return {name: t.numpy().tobytes() for name, t in model.network.state_dict().items()}


def listing(folder: Path) -> Dict[str, Optional[int]]:
    """Returns every file below a folder and its size: to show that nothing was touched."""
    return {
        str(path.relative_to(folder)): path.stat().st_size if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if path.name not in (".lock", "events.jsonl")
    }


@contextlib.contextmanager
def disk(folder: Path, options: str) -> Iterator[Path]:
    """Mounts a real tmpfs, for a test; skips the test where that is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    """Takes all the room of a disk."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(handle, b"x" * 4096)
    except OSError:
        os.close(handle)


class Counter(paddle.callbacks.Callback):  # type: ignore[misc]
    """Counts what it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: List[str] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.heard.append(f"epoch {epoch}")

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        self.heard.append(f"batch {step}")

    def on_train_end(self, logs: Any = None) -> None:
        self.heard.append("end")


class StopAt(paddle.callbacks.Callback):  # type: ignore[misc]
    """Ends the training with an exception after some batches, as a crash would."""

    class Crash(Exception):
        """The crash."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.left = batches

    def on_train_batch_begin(self, step: int, logs: Any = None) -> None:
        if self.left == 0:
            raise StopAt.Crash
        self.left -= 1
