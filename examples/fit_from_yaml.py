"""Trains on scikit-learn's handwritten digits, with the settings of a YAML file.

    pip install ".[cpu,demo]"                                       # once
    python examples/fit_from_yaml.py                                # configs/resume.yml
    python examples/fit_from_yaml.py                                # it is finished, and says so
    python examples/fit_from_yaml.py -o snapshot_epoch=2 best.monitor=acc
    python examples/fit_from_yaml.py -c configs/training.yml -o Resume.snapshot_step=20

Kill it whenever you like: the same command goes on.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Tuple

import numpy as np
import scipy.linalg  # noqa: F401  (before paddle: Paddle 2.6 crashes where SciPy is loaded later)
from sklearn.datasets import load_digits

import paddle  # isort: skip
from paddle import nn  # isort: skip

import paddle_resume as pr

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "resume.yml"


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
        return self.images[index], self.labels[index : index + 1]


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-c", "--config", default=CONFIG, help="a YAML file")
    parser.add_argument(
        "-o",
        "--override",
        nargs="*",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="wins over the file",
    )
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    paddle.seed(0)
    np.random.seed(0)
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)
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
        callbacks=pr.callbacks_from_config(args.config, overrides=args.override),
    )


if __name__ == "__main__":
    main()
