"""Trains a small network on scikit-learn's handwritten digits; kill it whenever you like.

    pip install ".[cpu,demo]"                    # once: Paddle and scikit-learn
    python examples/fit_mnist_like.py            # Ctrl-C or kill -9, as often as you like
    python examples/fit_mnist_like.py            # the same command goes on

Everything that paddle_resume adds is the one argument `callbacks` of `fit`.
"""

from __future__ import annotations

import argparse
from typing import Any, Tuple

import numpy as np
import scipy.linalg  # noqa: F401  (before paddle: Paddle 2.6 crashes where SciPy is loaded later)
from sklearn.datasets import load_digits

import paddle  # isort: skip
from paddle import nn  # isort: skip

import paddle_resume as pr


class Digits(paddle.io.Dataset):
    """8 by 8 pixels in 16 shades of grey, and which digit it is."""

    def __init__(self, train: bool) -> None:
        super().__init__()
        digits = load_digits()
        part = slice(None, 1440) if train else slice(1440, None)
        self.images = (digits.images[part] / 16.0).astype("float32")
        self.labels = digits.target[part].astype("int64")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Tuple[Any, Any]:
        return self.images[index][np.newaxis], self.labels[index : index + 1]


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--save-dir", default="output/digits")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    paddle.seed(0)
    np.random.seed(0)
    network = nn.Sequential(
        nn.Conv2D(1, 16, 3, padding=1),
        nn.BatchNorm2D(16),
        nn.ReLU(),
        nn.MaxPool2D(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(16 * 4 * 4, 10),
    )
    model = paddle.Model(network)
    model.prepare(
        paddle.optimizer.Adam(0.003, parameters=network.parameters()),
        nn.CrossEntropyLoss(),
        paddle.metric.Accuracy(),
    )
    model.fit(
        Digits(train=True),
        Digits(train=False),
        batch_size=32,
        epochs=args.epochs,
        verbose=2,
        callbacks=pr.resume_callbacks(args.save_dir),
    )


if __name__ == "__main__":
    main()
