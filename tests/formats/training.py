"""The training whose checkpoints are kept: `python training.py SAVE_DIR OUT [--die-at N]`.

Never changed: what is kept was written by exactly this.
"""

from __future__ import annotations

import argparse
import os
import random
import signal

try:
    import scipy.linalg  # noqa: F401  (before paddle: Paddle 2.6 crashes where SciPy comes later)
except ImportError:
    pass

import numpy as np
import paddle

import paddle_resume as pr

parser = argparse.ArgumentParser()
parser.add_argument("save_dir")
parser.add_argument("out", help="the final weights, as .npz")
parser.add_argument("--die-at", type=int, default=0, help="kill -9 after this training step")
args = parser.parse_args()

paddle.seed(1)
np.random.seed(1)
random.seed(1)


class Numbers(paddle.io.Dataset):
    def __init__(self):
        super().__init__()
        self.x = np.random.RandomState(0).randn(24, 6).astype("float32")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = np.random.randn(6).astype("float32") * random.random()
        return self.x[index] + 0.1 * noise, self.x[index].sum(keepdims=True)


class Dies(paddle.callbacks.Callback):
    trained = 0

    def on_train_batch_end(self, step, logs=None):
        self.trained += 1
        if args.die_at and self.trained == args.die_at:
            os.kill(os.getpid(), signal.SIGKILL)


class Average:
    """An `extra` with every kind of value."""

    def __init__(self):
        self.state = {"mean": np.zeros(3), "seen": 0, "words": ("a", b"b", None, 1.5)}

    def state_dict(self):
        return {**self.state, "seen": self.state["seen"] + 1}

    def set_state_dict(self, state):
        self.state = dict(state)


network = paddle.nn.Sequential(
    paddle.nn.Linear(6, 8),
    paddle.nn.BatchNorm1D(8),
    paddle.nn.ReLU(),
    paddle.nn.Dropout(0.2),
    paddle.nn.Linear(8, 1),
)
schedule = paddle.optimizer.lr.CosineAnnealingDecay(0.05, T_max=30)
model = paddle.Model(network)
model.prepare(
    paddle.optimizer.AdamW(schedule, parameters=network.parameters()), paddle.nn.MSELoss()
)
callbacks = pr.resume_callbacks(
    args.save_dir,
    snapshot_epoch=None,
    snapshot_step=4,
    snapshot_minutes=None,
    keep_checkpoint_max=2,
    async_save=False,
    monitor="loss",
    extra={"average": Average()},
)
model.fit(
    Numbers(), Numbers(), batch_size=4, epochs=3, num_workers=0, verbose=0,
    callbacks=[*callbacks, Dies()],
)  # fmt: skip
weights = {name: value.numpy() for name, value in network.state_dict().items()}
np.savez(args.out, **weights)
