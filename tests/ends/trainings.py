"""The trainings that these tests signal, kill and start again; each in a process of its own.

python trainings.py NAME JSON     one training, a function of this file
python trainings.py --serve       forks one for each line [NAME, ASK, FOLDER] on stdin
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import json
import multiprocessing
import os
import random
import resource
import select
import signal
import sys
import threading
import time
import traceback
from typing import Any, Dict, Iterator, List, NoReturn, Optional

with contextlib.suppress(ImportError):
    import scipy.linalg  # noqa: F401  (Paddle 2.6 crashes when it comes after Paddle)

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

import numpy as np
import paddle
from disks import slow_disk
from fit.models import BATCH, STEPS, Net, Points, fit, make, seed

import paddle_resume as pr

Ask = Dict[str, Any]


def say(word: str) -> None:
    """Tells the test, at once."""
    os.write(int(os.environ.get("ENDS_SAY_TO", "1")), f"{word}\n".encode())


def digest(model: Any) -> str:
    """Returns a hash of weights, optimizer slots, learning rate and random streams.

    Draws from the streams.
    """
    whole = hashlib.sha256()
    for name, tensor in sorted(model.network.state_dict().items()):
        whole.update(name.encode() + tensor.numpy().tobytes())
    optimizer = model._optimizer
    for kind, slots in sorted(optimizer._accumulators.items()):
        for parameter in model.network.parameters():
            if parameter.name in slots:
                whole.update(kind.encode() + slots[parameter.name].numpy().tobytes())
    whole.update(repr((optimizer.get_lr(), random.random(), np.random.rand())).encode())
    whole.update(paddle.rand([4]).numpy().tobytes())
    return whole.hexdigest()


class Noisy(Points):
    """Points with noise from NumPy's stream; slow ones, if asked for."""

    def __init__(self, samples: int = 24, slow: Optional[Dict[str, float]] = None) -> None:
        super().__init__(samples)
        self.slow = {int(index): seconds for index, seconds in (slow or {}).items()}

    def __getitem__(self, index: int) -> Any:
        if index in self.slow:
            say(f"load {index}")
            time.sleep(self.slow.pop(index))
        x, y = super().__getitem__(index)
        return x + np.random.randn(*x.shape).astype("float32") / 100, y


class Pace(paddle.callbacks.Callback):  # type: ignore[misc]
    """Tells of each event, and makes steps last.

    Args:
        ask: `pace`, seconds before each step; `slow`, step to seconds in its forward; `fails`,
            a step whose forward then fails; `sleep`, event to seconds that it takes.
    """

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self.pace = ask.get("pace", 0.05)
        self.slow = {int(step): seconds for step, seconds in ask.get("slow", {}).items()}
        self.fails = ask.get("fails")
        self.sleep = dict(ask.get("sleep", {}))
        self.epoch = 0
        self.step = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.network.register_forward_pre_hook(self.forward)
        self.tell("train begin")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch
        self.tell(f"epoch {epoch}")

    def on_train_batch_begin(self, step: int, logs: Any = None) -> None:
        self.step = self.epoch * STEPS + step + 1
        self.tell(f"begin {self.step}")
        time.sleep(self.pace)

    def forward(self, layer: Any, inputs: Any) -> None:
        if layer.training and self.step in self.slow:
            say(f"forward {self.step}")
            time.sleep(self.slow.pop(self.step))
            if self.step == self.fails:
                raise ValueError("the step has failed")

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        self.tell(f"done {self.step}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.tell(f"epoch end {epoch}")

    def on_eval_begin(self, logs: Any = None) -> None:
        self.tell("eval begin")

    def on_eval_end(self, logs: Any = None) -> None:
        self.tell("eval end")

    def on_train_end(self, logs: Any = None) -> None:
        self.tell("train end")

    def tell(self, word: str) -> None:
        say(word)
        time.sleep(self.sleep.pop(word, 0.0))


class SlowState:
    """An `extra` that takes its time to be saved or restored, and tells so.

    Args:
        ask: `save`, call of state_dict() to seconds; `restore`, seconds.
    """

    def __init__(self, ask: Ask) -> None:
        self.save = {int(call): seconds for call, seconds in ask.get("save", {}).items()}
        self.restore = ask.get("restore", 0.0)
        self.calls = 0

    def state_dict(self) -> Dict[str, Any]:
        self.calls += 1
        if self.calls in self.save:
            say("saving")
            time.sleep(self.save[self.calls])
        return {}

    def set_state_dict(self, state: Any) -> None:
        say("restoring")
        time.sleep(self.restore)


def ours(ask: Ask, **more: Any) -> List[Any]:
    """Returns the callbacks under test; none without a folder."""
    if not ask.get("folder"):
        return []
    keys = {"snapshot_minutes": None, **ask.get("keys", {}), **more}
    return list(pr.resume_callbacks(ask["folder"], **keys))


# ---------------------------------------------------------------------------- signals


def train(ask: Ask) -> None:
    """Trains; tells how it was left."""
    model = make()
    more = {"extra": {"slow": SlowState(ask["extra"])}} if "extra" in ask else {}
    if ask.get("atexit"):
        atexit.register(_at_exit, ask)
    if ask.get("slow_save"):
        slow_disk(*ask["slow_save"])
    if ask.get("descriptors"):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(ask["descriptors"])]
        say(f"descriptors {files[-1]}")
    say("start")
    try:
        fit(
            model,
            [Pace(ask), *ours(ask, **more)],
            epochs=ask.get("epochs", 3),
            data=Noisy(slow=ask.get("slow_data")),
            shuffle=not ask.get("slow_data"),
            eval_data=Points(16) if ask.get("evaluates") else None,
            num_workers=ask.get("workers", 0),
        )
    except SystemExit as error:
        say(f"left {error.code}")
        raise
    finally:
        time.sleep(ask.get("slow_exit", 0.0))
        say("finally")
    say(f"digest {digest(model)}")


def _at_exit(ask: Ask) -> None:
    time.sleep(ask.get("slow_exit", 0.0))
    say("atexit")


def keeps_the_stop(ask: Ask) -> None:
    """A script that catches each stop, and keeps the first; one retry is in the handler."""
    kept = []
    try:
        train({**ask, "epochs": 5})
    except SystemExit as error:
        kept.append(error)
        say("again")
        try:
            train({**ask, "epochs": 5})
        except SystemExit as again:
            kept.append(again)
    say(f"caught {kept[-1].code}")
    time.sleep(20)


def handlers(ask: Ask) -> None:
    """A script with handlers and a wakeup descriptor of its own."""
    heard: List[int] = []

    def own(number: int, frame: Any) -> None:
        heard.append(number)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in numbers:
        signal.signal(number, own)
    read, write = os.pipe()
    for end in (read, write):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(write)
    with contextlib.suppress(SystemExit):
        train(ask)
    assert [signal.getsignal(number) for number in numbers] == [own] * 3
    assert not heard, heard
    assert select.select([read], [], [], 5.0)[0], "the wakeup descriptor heard nothing"
    say("woken " + " ".join(str(number) for number in os.read(read, 64)))
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM], heard
    assert signal.set_wakeup_fd(-1) == write
    assert os.read(read, 64) == bytes([signal.SIGTERM])
    say("all back")


def _square(number: int) -> int:
    return number * number


def _child_ends_by(number: int) -> None:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    time.sleep(0.02)
    os.kill(child, number)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            say(f"child {os.WTERMSIG(status) if os.WIFSIGNALED(status) else 'ended'}")
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    say("child unkillable")


def _use_pool() -> None:
    pool = multiprocessing.get_context("fork").Pool(2)
    squares = pool.map(_square, range(8))
    pool.terminate()
    pool.join()
    say(f"pool {squares[-1]}")


class Forks(Noisy):
    """Forks in what loads the data."""

    def __getitem__(self, index: int) -> Any:
        if index == 12:
            _use_pool()
            _child_ends_by(signal.SIGTERM)
        return super().__getitem__(index)


class ForksInStep(paddle.callbacks.Callback):  # type: ignore[misc]
    """Forks in the training's thread."""

    def on_train_batch_begin(self, step: int, logs: Any = None) -> None:
        if step == 1:
            _use_pool()
            for number in (signal.SIGTERM, signal.SIGHUP):
                _child_ends_by(number)


def children(ask: Ask) -> None:
    """A script whose children are signalled."""
    model = make()
    in_data = ask["where"] == "data"
    data = Forks() if in_data else Noisy()
    fit(model, [*([] if in_data else [ForksInStep()]), *ours(ask)], data=data)
    say("trained")


# ---------------------------------------------------------------------------- several fits


class KillAt(paddle.callbacks.Callback):  # type: ignore[misc]
    """Kills its process before a step of one fit."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.kill_at = step
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, step: int, logs: Any = None) -> None:
        say(f"step {self.epoch * STEPS + step}")
        if self.epoch * STEPS + step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def _kill(ask: Ask, number: int) -> KillAt:
    return KillAt(ask["kill"][1] if ask.get("kill", [-1])[0] == number else -1)


def folds(ask: Ask) -> None:
    """Cross-validation: a model and a folder for each fold, one random stream for all."""
    seed()
    for fold in range(3):
        say(f"fold {fold}")
        net = Net()
        model = paddle.Model(net)
        model.prepare(
            paddle.optimizer.Adam(0.05, parameters=net.parameters()),
            paddle.nn.CrossEntropyLoss(),
            paddle.metric.Accuracy(),
        )
        folder = ask.get("folder") and f"{ask['folder']}/fold{fold}"
        callbacks = [_kill(ask, fold), *ours({**ask, "folder": folder})]
        fit(model, callbacks, data=Noisy(), eval_data=Noisy(16))
        found = model.evaluate(Noisy(16), batch_size=BATCH, verbose=0)
        say(f"score {fold} {json.dumps(found)}")
        say(f"digest {fold} {digest(model)}")


def unfreeze(ask: Ask) -> None:
    """The head first, then everything with a new optimizer: two fits of one network."""
    seed()
    net = Net()
    body = [*net.first.parameters(), *net.norm.parameters()]
    for parameter in body:
        parameter.stop_gradient = True
    model = paddle.Model(net)
    head = paddle.optimizer.Adam(0.05, parameters=net.last.parameters())
    whole = paddle.optimizer.Momentum(0.01, parameters=net.parameters())
    for number, optimizer in enumerate((head, whole)):
        say(f"fit {number}")
        if number == 1:
            for parameter in (*net.first.parameters(), net.norm.weight, net.norm.bias):
                parameter.stop_gradient = False
        model.prepare(optimizer, paddle.nn.CrossEntropyLoss(), paddle.metric.Accuracy())
        folder = ask.get("folder") and f"{ask['folder']}/fit{number}"
        fit(model, [_kill(ask, number), *ours({**ask, "folder": folder})], data=Noisy())
        say(f"digest {number} {digest(model)}")


# ---------------------------------------------------------------------------- the best


class Scripted(paddle.metric.Metric):  # type: ignore[misc]
    """A metric that returns given values, one an evaluation.

    It counts the network's steps by a buffer, so a restart goes on where it should.
    """

    def __init__(self, values: List[float], epoch: List[int]) -> None:
        super().__init__()
        self.values = values
        self.epoch = epoch

    def name(self) -> str:
        return "score"

    def reset(self) -> None:
        pass

    def update(self, *arguments: Any) -> float:
        return self.accumulate()

    def accumulate(self) -> float:
        return float(self.values[min(self.epoch[0], len(self.values) - 1)])


class Epochs(paddle.callbacks.Callback):  # type: ignore[misc]
    """Tells the metric which epoch it is; kills its process at the end of one's evaluation."""

    def __init__(self, epoch: List[int], kill: int = -1) -> None:
        super().__init__()
        self.epoch = epoch
        self.kill = kill

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch[0] = epoch
        if epoch == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)


def scripted(ask: Ask) -> None:
    """Trains with given values of a metric; killed at the begin of an epoch, if asked."""
    seed()
    epoch = [0]
    net = Net()
    model = paddle.Model(net)
    metric = Scripted([float(value) for value in ask["values"]], epoch)
    model.prepare(
        paddle.optimizer.Adam(0.05, parameters=net.parameters()),
        paddle.nn.CrossEntropyLoss(),
        metric,
    )
    callbacks = [Epochs(epoch, ask.get("kill", -1)), *ours(ask)]
    fit(model, callbacks, epochs=len(ask["values"]), data=Noisy(), eval_data=Noisy(16))
    say(f"digest {digest(model)}")


# ---------------------------------------------------------------------------- the process


def _served() -> Iterator[Any]:
    """Yields, in a new child of this process, what was asked for on stdin."""
    os.write(1, b"ready\n")
    asked, running = b"", set()
    while True:
        if select.select([0], [], [], 0.003 if running else None)[0]:
            read = os.read(0, 65536)
            if not read:
                return
            asked += read
        while b"\n" in asked:
            line, _, asked = asked.partition(b"\n")
            name, ask, folder = json.loads(line)
            parent = os.getpid()
            child = os.fork()
            if child == 0:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it does not outlive the tests
                if os.getppid() != parent:
                    os._exit(1)
                os.setsid()
                for target, path, flags in (
                    (0, os.devnull, os.O_RDONLY),
                    (1, f"{folder}/out", os.O_WRONLY | os.O_APPEND),
                    (2, f"{folder}/err", os.O_WRONLY | os.O_APPEND),
                ):
                    opened = os.open(path, flags)
                    os.dup2(opened, target)
                    os.close(opened)
                yield name, ask
                return
            running.add(child)
            os.write(1, f"pid {child}\n".encode())
        for child in list(running):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                running.discard(child)
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                os.write(1, f"code {child} {code}\n".encode())


def _exit_soon(name: str, ask: Ask) -> NoReturn:
    """Ends as the interpreter does, but for its last 0.4 s: those of Paddle's own memory."""
    code: Any = 0
    try:
        globals()[name](ask)
    except SystemExit as error:
        code = error.code
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    os._exit(code or 0)


def main(arguments: List[str]) -> None:
    """Runs what the command line asks for."""
    if arguments[0] == "--serve":
        import paddle_resume.callbacks.fit_run  # noqa: F401  (not in each child anew)

        for name, ask in _served():
            _exit_soon(name, ask)
    else:
        globals()[arguments[0]](json.loads(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
