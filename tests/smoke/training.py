"""A very small training: `python training.py OUT [--save-dir DIR] [--die-at N]`."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal

try:
    import scipy.linalg  # noqa: F401  (before paddle: Paddle 2.6 crashes where SciPy comes later)
except ImportError:
    pass

import numpy as np
import paddle

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--save-dir")
parser.add_argument("--die-at", type=int, default=0, help="kill -9 after this training step")
args = parser.parse_args()

paddle.seed(1)
np.random.seed(1)


class Numbers(paddle.io.Dataset):
    def __init__(self):
        super().__init__()
        self.x = np.random.RandomState(0).randn(40, 6).astype("float32")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = np.random.randn(6).astype("float32")
        return self.x[index] + 0.1 * noise, self.x[index].sum(keepdims=True)


class Losses(paddle.callbacks.Callback):
    epoch = 0
    trained = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, step, logs=None):
        loss = float(np.asarray(logs["loss"]).reshape(-1)[0]).hex()
        with open(args.out, "a") as stream:
            stream.write(json.dumps([self.epoch, step, loss]) + "\n")
        self.trained += 1
        if args.die_at and self.trained == args.die_at:
            os.kill(os.getpid(), signal.SIGKILL)


network = paddle.nn.Sequential(
    paddle.nn.Linear(6, 16),
    paddle.nn.BatchNorm1D(16),
    paddle.nn.ReLU(),
    paddle.nn.Dropout(0.2),
    paddle.nn.Linear(16, 1),
)
schedule = paddle.optimizer.lr.CosineAnnealingDecay(0.05, T_max=30)
model = paddle.Model(network)
model.prepare(
    paddle.optimizer.AdamW(schedule, parameters=network.parameters()), paddle.nn.MSELoss()
)
callbacks = [Losses()]
if args.save_dir:
    import paddle_resume as pr

    callbacks += pr.resume_callbacks(args.save_dir, snapshot_step=3)
model.fit(
    Numbers(), Numbers(), batch_size=4, epochs=3, num_workers=0, verbose=0, callbacks=callbacks
)

total = hashlib.sha256()
for name, value in sorted(network.state_dict().items()):
    total.update(name.encode() + value.numpy().tobytes())
with open(args.out, "a") as stream:
    stream.write(json.dumps(["weights", total.hexdigest()]) + "\n")
