"""What `paddle-resume demo` trains: an ordinary Paddle program, as anyone would write it.

    python -m paddle_resume.cli.demo_training --events events.jsonl --weights final

With `--save-dir DIR` as well it hands one more argument to `fit`, and then outlives any kill. A
convolutional network with BatchNorm and dropout learns scikit-learn's handwritten digits: real
scans, which come with the package. Two worker processes shift and blur them at random, Adam follows
a cosine schedule.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import scipy.linalg  # noqa: F401  (before paddle: Paddle 2.6 crashes where SciPy is loaded later)
from sklearn.datasets import load_digits

import paddle  # isort: skip
from paddle import nn  # isort: skip

import paddle_resume as pr

EPOCHS = 12
BATCH_SIZE = 32
TRAINED_ON = 1440
SAVE_EVERY_STEPS = 20


class Digits(paddle.io.Dataset):
    """scikit-learn's digits, 8 by 8 pixels, the training half of them augmented."""

    def __init__(self, train: bool) -> None:
        super().__init__()
        digits = load_digits()
        order = np.random.RandomState(0).permutation(len(digits.target))
        chosen = order[:TRAINED_ON] if train else order[TRAINED_ON:]
        self.images = (digits.images[chosen] / 16.0).astype("float32")
        self.labels = digits.target[chosen].astype("int64")
        self.train = train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Tuple[Any, Any]:
        image = self.images[index]
        if self.train:
            shift = (random.randint(-1, 1), random.randint(-1, 1))
            image = np.roll(image, shift, axis=(0, 1))
            image = image + np.random.normal(0.0, 0.1, image.shape).astype("float32")
        return image[np.newaxis], self.labels[index : index + 1]


def build_network() -> nn.Layer:
    """Two convolutions with BatchNorm, then dropout and a classifier."""
    return nn.Sequential(
        nn.Conv2D(1, 32, 3, padding=1),
        nn.BatchNorm2D(32),
        nn.ReLU(),
        nn.Conv2D(32, 64, 3, padding=1),
        nn.BatchNorm2D(64),
        nn.ReLU(),
        nn.MaxPool2D(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64 * 4 * 4, 10),
    )


class Recorder(paddle.callbacks.Callback):
    """Writes a JSON line for whatever happens, losses to the last bit."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.epoch = 0
        self.write("start", pid=os.getpid())

    def write(self, event: str, **values: Any) -> None:
        """Writes one line, whole or not at all."""
        line = {"event": event, "time": time.time(), "epoch": self.epoch, **values}
        os.write(self.file, (json.dumps(line) + "\n").encode())

    def on_epoch_begin(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, step: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self.write("train", batch=step, loss=first(logs, "loss").hex())

    def on_eval_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        self.write("eval_begin")

    def on_eval_batch_end(self, step: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self.write("eval", batch=step, loss=first(logs, "loss").hex())

    def on_eval_end(self, logs: Optional[Dict[str, Any]] = None) -> None:
        self.write("eval_end", accuracy=first(logs, "acc"))

    def on_train_end(self, logs: Optional[Dict[str, Any]] = None) -> None:
        self.write("end")


def first(logs: Optional[Dict[str, Any]], name: str) -> float:
    """Returns a metric as a plain number; hapi gives losses as lists of arrays."""
    return float(np.asarray((logs or {})[name]).reshape(-1)[0])


def main() -> None:
    """Trains, and writes the final weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", required=True, help="where the recorder writes")
    parser.add_argument("--weights", required=True, help="where the result goes")
    parser.add_argument("--save-dir", help="for checkpoints; without it paddle_resume is not used")
    args = parser.parse_args()

    paddle.set_device("cpu")
    paddle.seed(2024)
    np.random.seed(2024)
    random.seed(2024)

    train = paddle.io.DataLoader(
        Digits(train=True), batch_size=BATCH_SIZE, shuffle=True, num_workers=2
    )
    test = paddle.io.DataLoader(Digits(train=False), batch_size=8)
    network = build_network()
    schedule = paddle.optimizer.lr.CosineAnnealingDecay(0.003, T_max=EPOCHS * len(train))
    model = paddle.Model(network)
    model.prepare(
        paddle.optimizer.Adam(schedule, parameters=network.parameters()),
        nn.CrossEntropyLoss(),
        paddle.metric.Accuracy(),
    )
    callbacks: List[Any] = [Recorder(args.events)]
    if args.save_dir:
        callbacks += pr.resume_callbacks(args.save_dir, snapshot_step=SAVE_EVERY_STEPS)
    model.fit(train, test, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    model.save(args.weights)


if __name__ == "__main__":
    main()
