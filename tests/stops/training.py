"""The training that the tests stop; runs in a process and a session of its own.

    python training.py SPEC.json      one attempt
    python training.py --serve        forks an attempt for each SPEC.json named on stdin, one a line

A spec is a JSON object; `DEFAULTS` has all keys. `fault` is what happens once: `at` a place (see
`Faults.reach`) and `how`; `fsync` makes the disk slow. What a user's callback sees goes to the log,
one JSON list a line, floats as `float.hex`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import random
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

with contextlib.suppress(ImportError):
    import scipy.linalg  # noqa: F401  (Paddle 2.6 crashes when it comes after Paddle)

import numpy as np
import paddle
from disks import slow_disk
from exactness.training import Log, final_state
from paddle import nn

SEED = 11
FEATURES = 6
SAMPLES, BATCH = 52, 8
STEPS = -(-SAMPLES // BATCH)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)

DEFAULTS: Dict[str, Any] = {
    "save_dir": None,  # None trains without the callbacks under test
    "ours": None,  # names of their classes; None for pr.resume_callbacks
    "keys": {},  # arguments of resume_callbacks
    "first": False,  # whether they stand before the user's
    "log": "",
    "begun": "",  # this file appears when the fault begins
    "epochs": 3,
    "workers": 0,
    "accumulate": 1,
    "amp": "",
    "eval": True,
    "eval_samples": 24,
    "average": False,  # a user's moving average takes the weights' place in evaluations
    "pause": {},  # place to seconds, each time it is reached
    "fault": None,
    "thread": 0.0,  # seconds for which a thread of the user's keeps the interpreter from ending
    "fsync": None,  # seconds: how long each fsync takes; of: the step whose save is slow, or null
    "without": "",  # a part of the product to break, to prove that the tests would find that
}


class Boom(Exception):
    """What the training fails with."""


class Faults:
    """Makes one thing go wrong, once, at one place."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        fault = spec["fault"] or {}
        self.at: Optional[List[Any]] = fault.get("at")
        self.how: str = fault.get("how", "")
        self.seconds: float = fault.get("seconds", 60.0)
        self.size: int = fault.get("size", 1000)
        self.begun: str = spec["begun"]
        self.pause: Mapping[str, float] = spec["pause"]
        # Without workers a thread of the loader draws from numpy's and Python's streams, ahead of
        # the training: what this drew from them would not be the same in any two runs.
        self.draws = spec["workers"] > 0
        self.step = 0  # the training's step, from 1 over the whole run

    def reach(self, *place: Any) -> None:
        """Passes a place: a name, and what tells this time from others."""
        if place[0] not in ("data", "eval_data"):  # there each sample takes its time
            time.sleep(self.pause.get(place[0], 0.0))
        if list(place) != self.at:
            return
        Path(self.begun + ".part").write_text(str(os.getpid()))
        os.rename(self.begun + ".part", self.begun)
        if self.how == "sleep":
            time.sleep(self.seconds)
        elif self.how == "lock":
            never_return()
        elif self.how == "operation":
            paddle.linalg.svd(paddle.rand([self.size, self.size]))
        elif self.how == "memory":
            paddle.zeros([10**7, 10**7])
        else:
            raise Boom(f"at {place[0]}")


def never_return() -> None:
    """A call into C that never comes back to Python and leaves the interpreter to others."""
    libc = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


class Data(paddle.io.Dataset):
    """Labelled points with noise from numpy."""

    def __init__(self, count: int, faults: Faults, name: str) -> None:
        super().__init__()
        draw = np.random.RandomState(3)
        self.x = draw.randn(count, FEATURES).astype("float32")
        self.y = (self.x.sum(1) > 0).astype("int64")[:, None]
        self.faults, self.name = faults, name
        self.epoch = 0
        self.stalls = -1

    def begin(self, epoch: int) -> None:
        """Finds the sample that stalls in this epoch, before workers or thread start."""
        self.epoch, self.stalls = epoch, -1
        at = self.faults.at
        if at is not None and at[:2] == [self.name, epoch]:
            order = list(range(len(self)))
            if self.name == "data":
                np.random.RandomState(epoch).shuffle(order)
            self.stalls = order[at[2] * BATCH]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Tuple[np.ndarray, np.ndarray]:
        if index == self.stalls:
            self.faults.reach(*(self.faults.at or ()))
        time.sleep(self.faults.pause.get(self.name, 0.0))
        x = self.x[index]
        if self.name == "data":
            x = x + 0.1 * np.random.randn(FEATURES).astype("float32")
        return x, self.y[index]


class Backward(paddle.autograd.PyLayer):
    """The identity, whose backward may fail."""

    @staticmethod
    def forward(context: Any, x: Any, faults: Faults) -> Any:
        context.faults = faults
        return x * 1.0

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        context.faults.reach("backward", context.faults.step)
        return gradient * 1.0


class Net(nn.Layer):
    """BatchNorm and dropout, then the place where a forward may go wrong."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self.faults = faults
        self.a = nn.Linear(FEATURES, 8)
        self.norm = nn.BatchNorm1D(8)
        self.drop = nn.Dropout(0.3)
        self.b = nn.Linear(8, 2)
        self.evaluated: List[int] = [0, 0]

    def forward(self, x: Any) -> Any:
        x = self.drop(nn.functional.relu(self.norm(self.a(x))))
        if self.training:
            if self.faults.draws:
                np.random.rand()
            self.faults.reach("forward", self.faults.step)
            x = Backward.apply(x, self.faults)
        else:
            self.faults.reach("eval_forward", *self.evaluated)
        return self.b(x)


class Loss(nn.Layer):
    """Cross entropy, which may fail."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.faults = net.faults
        self.training_net: Callable[[], bool] = lambda: net.training

    def forward(self, out: Any, label: Any) -> Any:
        if self.training_net():
            self.faults.reach("loss", self.faults.step)
        return nn.functional.cross_entropy(out, label)


class Watch(paddle.callbacks.Callback):
    """A user's callback: logs what it sees, and is where things go wrong."""

    def __init__(self, log: Log, faults: Faults, net: Net, data: List[Data]) -> None:
        super().__init__()
        self.log, self.faults, self.net, self.data = log, faults, net, data
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch
        for data in self.data:
            data.begin(epoch)
        self.faults.reach("on_epoch_begin", epoch)

    def on_train_batch_begin(self, step: int, logs: Any = None) -> None:
        self.faults.step = self.epoch * STEPS + step + 1
        self.faults.reach("on_train_batch_begin", self.faults.step)

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        rate = float(self.model._optimizer.get_lr())
        drawn = random.random() if self.faults.draws else 0.0
        self.log.write("batch", self.epoch, step, logs or {}, rate, drawn)
        self.faults.reach("on_train_batch_end", self.faults.step)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.faults.reach("on_epoch_end", epoch)

    def on_eval_begin(self, logs: Any = None) -> None:
        self.faults.reach("on_eval_begin", self.epoch)

    def on_eval_batch_begin(self, step: int, logs: Any = None) -> None:
        self.net.evaluated = [self.epoch, step]
        self.log.write("eval_batch", self.epoch, step, time.monotonic())

    def on_eval_batch_end(self, step: int, logs: Any = None) -> None:
        self.faults.reach("on_eval_batch_end", self.epoch, step)

    def on_eval_end(self, logs: Any = None) -> None:
        self.log.write("eval", self.epoch, logs or {})
        self.faults.reach("on_eval_end", self.epoch)


class Average(paddle.callbacks.Callback):
    """A user's moving average of the weights, which evaluations use."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Dict[str, np.ndarray] = {}
        self.own: Dict[str, np.ndarray] = {}

    def state_dict(self) -> Dict[str, Any]:
        return {"mean": self.mean}

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mean = {name: np.array(value) for name, value in state["mean"].items()}

    def weights(self) -> Dict[str, Any]:
        return {n: p for n, p in self.model.network.named_parameters() if not p.stop_gradient}

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        for name, weight in self.weights().items():
            new = weight.numpy()
            self.mean[name] = 0.9 * self.mean.get(name, new) + 0.1 * new

    def on_eval_begin(self, logs: Any = None) -> None:
        self.own = {name: weight.numpy().copy() for name, weight in self.weights().items()}
        for name, weight in self.weights().items():
            weight.set_value(self.mean[name])

    def on_eval_end(self, logs: Any = None) -> None:
        for name, weight in self.weights().items():
            weight.set_value(self.own[name])


def our_callbacks(spec: Mapping[str, Any]) -> List[Any]:
    """Returns the callbacks under test."""
    import paddle_resume as pr

    if spec["save_dir"] is None:
        return []
    made = pr.resume_callbacks(spec["save_dir"], **{"snapshot_minutes": None, **spec["keys"]})
    names = spec["ours"]
    return [item for item in made if names is None or type(item).__name__ in names]


def train(asked: Mapping[str, Any]) -> None:
    """Runs one attempt."""
    unknown = set(asked) - set(DEFAULTS)
    if unknown:
        raise ValueError(f"unknown in the spec: {sorted(unknown)}")
    spec = {**DEFAULTS, **asked}
    if spec["without"]:
        from stops import leave_out

        leave_out.apply(spec["without"])
    if spec["fsync"]:
        slow_disk(**spec["fsync"])
    if spec["thread"]:
        threading.Thread(target=time.sleep, args=(spec["thread"],), daemon=False).start()
    paddle.set_device("cpu")
    paddle.seed(SEED)
    np.random.seed(SEED)
    random.seed(SEED)
    faults = Faults(spec)
    net = Net(faults)
    loss = Loss(net)
    rate = paddle.optimizer.lr.CosineAnnealingDecay(0.05, 15)
    model = paddle.Model(net)
    model.prepare(
        paddle.optimizer.Adam(rate, parameters=net.parameters()),
        loss,
        paddle.metric.Accuracy(),
        amp_configs=spec["amp"] or None,
    )
    data = Data(SAMPLES, faults, "data")
    evaluation = Data(spec["eval_samples"], faults, "eval_data") if spec["eval"] else None
    log = Log(spec["log"])
    sets = [data, *([] if evaluation is None else [evaluation])]
    users = [*([Average()] if spec["average"] else []), Watch(log, faults, net, sets)]
    ours = our_callbacks(spec)
    model.fit(
        data,
        evaluation,
        batch_size=BATCH,
        epochs=spec["epochs"],
        num_workers=spec["workers"],
        verbose=0,
        shuffle=True,
        accumulate_grad_batches=spec["accumulate"],
        callbacks=[*ours, *users] if spec["first"] else [*users, *ours],
    )
    log.write("final", final_state(model, loss))


def serve() -> Optional[str]:
    """Forks a child for each spec named on stdin; returns the spec in the child, else None.

    Says `pid SPEC PID` for each, and `end PID CODE TIME` with the monotonic clock's time.
    """
    children: Set[int] = set()
    os.write(1, b"ready\n")
    rest = b""
    try:
        while True:
            if select.select([0], [], [], 0.005 if children else None)[0]:
                data = os.read(0, 1 << 16)
                if not data:
                    return None
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    spec_path, output = line.decode().split("\t")
                    # A signal that comes at once has to wait until the child has left this session.
                    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
                    child = os.fork()
                    if child == 0:
                        children.clear()
                        begin_child(output)
                        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                        return spec_path
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                    children.add(child)
                    os.write(1, f"pid {spec_path} {child}\n".encode())
            for child in list(children):
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    now = time.monotonic()
                    children.discard(child)
                    code = os.WEXITSTATUS(status)
                    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else code
                    os.write(1, f"end {child} {code} {now}\n".encode())
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)


def begin_child(output: str) -> None:
    """Leaves the server's session and files."""
    os.setsid()
    target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    os.close(nothing)


def main(argument: str) -> None:
    """Runs what the command line asks for."""
    # Where the tests run in the background of a shell, or under nohup, these are ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if argument == "--serve":
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        import paddle_resume as pr

        _ = pr.resume_callbacks  # imports what each attempt needs
        gc.collect()
        gc.freeze()  # halves what the end of each attempt takes: nothing of this to look through
    spec_path = serve() if argument == "--serve" else argument
    if spec_path is not None:
        train(json.loads(Path(spec_path).read_text(encoding="utf-8")))


if __name__ == "__main__":
    main(sys.argv[1])
