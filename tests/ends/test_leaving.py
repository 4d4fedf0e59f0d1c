"""Whatever way fit ends, nothing of ours is left; and fit may be called again."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter as Counts
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Type

import numpy as np
import paddle
import pytest
from fit.models import (
    BATCH,
    STEPS,
    Counter,
    Net,
    Points,
    StopAt,
    fit,
    listing,
    make,
    seed,
    weights,
)

import paddle_resume as pr

from .runs import Starter

EPOCHS = 3
CATCHABLE = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


class Problem(Exception):
    """What goes wrong on purpose."""


# ---------------------------------------------------------------------------- what is left


def children() -> List[int]:
    """The processes that this one has started and that have not ended."""
    with contextlib.suppress(OSError):
        path = Path(f"/proc/self/task/{threading.main_thread().native_id}/children")
        return sorted(int(pid) for pid in path.read_text().split())
    return []


def descriptors() -> Dict[str, int]:
    """How many descriptors are open, by what they are."""
    found: Dict[str, int] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}").partition(":[")[0]
            found[target] = found.get(target, 0) + 1
    return found


def wakeup_fd() -> int:
    found = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(found)
    return found


def process_state() -> Dict[str, Any]:
    """What of this process a fit must leave as it was."""
    gc.collect()
    logger = logging.getLogger("paddle_resume")
    return {
        "threads": [re.sub(r"\d+", "", thread.name) for thread in threading.enumerate()],
        "handlers": {number: signal.getsignal(number) for number in CATCHABLE},
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "wakeup": wakeup_fd(),
        "log": (list(logger.handlers), logger.level, logger.propagate),
        "descriptors": descriptors(),
        "children": children(),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
    }


OF_PADDLE = ("Thread- (_thread_loop)", "pipe")
"""What Paddle's iterator over workers leaves until it is collected, without us too."""


def more_than(before: Dict[str, Any], workers: bool) -> Dict[str, Any]:
    """What the process has more than before, or otherwise; what Paddle gives back is no fault."""
    after = process_state()
    found = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
    for key in ("threads", "descriptors", "children"):
        more = Counts(after[key]) - Counts(before[key])
        for paddles in OF_PADDLE if workers else ():
            more.pop(paddles, None)
        if key in found and not more:
            del found[key]
    return found


def is_ours(value: Any) -> bool:
    """Whether a value, or what a method or partial of it is made of, comes from paddle_resume."""
    parts = [value, type(value), getattr(value, "__func__", None), getattr(value, "__self__", None)]
    closure = getattr(value, "__closure__", None) or ()
    parts += [cell.cell_contents for cell in closure if cell != type(cell)()]
    names = [getattr(part, "__module__", None) or "" for part in parts]
    names += [getattr(getattr(part, "__code__", None), "co_filename", "") for part in parts]
    return any("paddle_resume" in str(name) for name in names)


def patches(model: Any, loaders: List[Any]) -> List[str]:
    """The attributes of fit's objects that are ours."""
    owners: Dict[str, Any] = {
        "model": model,
        "network": model.network,
        "adapter": model._adapter,
        "optimizer": model._optimizer,
        "scaler": getattr(model, "_scaler", None),
        "loss": model._loss,
    }
    for number, loader in enumerate(loaders):
        owners[f"loader {number}"] = loader
        owners[f"batches {number}"] = loader.batch_sampler
        owners[f"sampler {number}"] = getattr(loader.batch_sampler, "sampler", None)
        owners[f"data {number}"] = loader.dataset
    found = [
        f"{name}.{key}"
        for name, owner in owners.items()
        for key, value in getattr(owner, "__dict__", {}).items()
        if is_ours(value)
    ]
    for name in ("model", "optimizer", "scaler"):
        keys = set(getattr(owners[name], "__dict__", {}))
        found += [f"{name}.{key}" for key in keys & {"_run_one_epoch", "minimize", "step"}]
    return found


def loader_state(loader: Any) -> Dict[str, Any]:
    names = ("dataset", "batch_sampler", "collate_fn", "worker_init_fn", "num_workers", "timeout")
    return {name: getattr(loader, name) for name in names}


def can_be_taken(folder: Path) -> bool:
    """Whether another process could lock the folder."""
    lock = folder / ".lock"
    if not lock.exists():
        return True
    # In a child: a lock of this very process would not show in it.
    code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), int(sys.argv[2]))"
    how = str(fcntl.LOCK_EX | fcntl.LOCK_NB)
    done = subprocess.run([sys.executable, "-S", "-c", code, str(lock), how], capture_output=True)
    return done.returncode == 0


@contextlib.contextmanager
def nothing_left(model: Any, folder: Path, loaders: List[Any]) -> Iterator[None]:
    """Compares the process before and after a fit."""
    before, loading = process_state(), [loader_state(loader) for loader in loaders]
    workers = any(loader.num_workers for loader in loaders)
    yield
    deadline = time.monotonic() + 3
    while more_than(before, workers) and time.monotonic() < deadline:
        time.sleep(0.02)  # a worker or a loading thread that has been told to end
    assert more_than(before, workers) == {}
    assert [loader_state(loader) for loader in loaders] == loading
    assert patches(model, loaders) == []
    assert can_be_taken(folder)


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """What Paddle itself opens at a first fit is none of ours."""
    fit(make(), [], epochs=1, eval_data=Points(8))
    loader = paddle.io.DataLoader(Points(8), batch_size=8, num_workers=1)
    fit(make(), [], epochs=1, data=loader)
    del loader
    gc.collect()


# ---------------------------------------------------------------------------- ways out


class Raise(paddle.callbacks.Callback):  # type: ignore[misc]
    """Raises, or does something else, in one event of the second epoch."""

    def __init__(self, event: str, action: Any) -> None:
        super().__init__()
        self.event = event
        self.action = action
        self.epoch = 0
        for name in dir(paddle.callbacks.Callback):
            if name.startswith("on_"):
                setattr(self, name, self._listener(name))

    def _listener(self, name: str) -> Callable[..., None]:
        def heard(*arguments: Any) -> None:
            if name == "on_epoch_begin":
                self.epoch = arguments[0]
            late = self.epoch == 1 or name in ("on_train_begin", "on_train_end")
            if name == self.event and late:
                self.action() if callable(self.action) else self._raise()

        return heard

    def _raise(self) -> None:
        raise Problem(self.event)


def interrupt() -> None:
    raise KeyboardInterrupt


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class Failing(Points):
    """Data that fail after so many samples of one process."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def __getitem__(self, index: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise Problem("data")
        return super().__getitem__(index)


class FailingStream(paddle.io.IterableDataset):  # type: ignore[misc]
    """A generator that fails."""

    def __iter__(self) -> Iterator[Any]:
        for index, sample in enumerate([*Points(), *Points()]):
            if index == 12:
                raise Problem("stream")
            yield sample


def fail_in_forward(model: Any) -> None:
    calls = [0]

    def hook(layer: Any, inputs: Any) -> None:
        calls[0] += layer.training
        if layer.training and calls[0] == STEPS + 2:
            raise Problem("forward")

    model.network.register_forward_pre_hook(hook)


def fail_in_update(model: Any) -> None:
    optimizer = model._optimizer
    apply, calls = optimizer._apply_optimize, [0]

    def failing(*arguments: Any, **keywords: Any) -> Any:
        calls[0] += 1
        found = apply(*arguments, **keywords)
        if calls[0] == 4:
            del optimizer._apply_optimize
            raise Problem("update")
        return found

    optimizer._apply_optimize = failing


EVENTS = [
    "on_train_begin",
    "on_epoch_begin",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_epoch_end",
    "on_eval_begin",
    "on_eval_batch_begin",
    "on_eval_batch_end",
    "on_eval_end",
    "on_train_end",
]


class Way:
    """One way out of fit.

    Args:
        error: what fit raises; None where it returns.
        callback: that leads there.
        prepare: does so to the model.
        data: does so while it is loaded.
        keys: of `resume_callbacks`.
        code: of SystemExit.
        fit: more arguments of fit.
    """

    def __init__(
        self,
        error: Optional[Type[BaseException]] = None,
        callback: Optional[Callable[[], Any]] = None,
        prepare: Optional[Callable[[Any], None]] = None,
        data: Optional[Callable[[], Any]] = None,
        keys: Optional[Dict[str, Any]] = None,
        code: Optional[int] = None,
    ) -> None:
        self.error = error
        self.callback = callback
        self.prepare = prepare
        self.data = data
        self.keys = keys or {}
        self.code = code


def stop_early() -> Any:
    return paddle.callbacks.EarlyStopping("loss", patience=0, min_delta=9.0, verbose=0)


WAYS: Dict[str, Way] = {
    "normal": Way(),
    "early": Way(callback=stop_early),
    "forward": Way(Problem, prepare=fail_in_forward),
    "update": Way(Problem, prepare=fail_in_update),
    **{event: Way(Problem, lambda event=event: Raise(event, None)) for event in EVENTS},
    "interrupt": Way(KeyboardInterrupt, lambda: Raise("on_train_batch_begin", interrupt)),
    "interrupt-in-eval": Way(KeyboardInterrupt, lambda: Raise("on_eval_batch_end", interrupt)),
    "signal": Way(SystemExit, lambda: Raise("on_train_batch_begin", terminate), code=143),
    "signal-in-eval": Way(SystemExit, lambda: Raise("on_eval_batch_end", terminate), code=143),
    "signal-at-the-end": Way(SystemExit, lambda: Raise("on_train_end", terminate), code=143),
    "exit": Way(SystemExit, lambda: Raise("on_train_batch_end", lambda: sys.exit(7)), code=7),
    # In a worker; what fails in the loading thread of num_workers=0 hangs Paddle itself.
    "data": Way(Exception, data=lambda: Failing(STEPS * BATCH // 2 - 1)),
    "stream": Way(Exception, data=FailingStream),
    "monitor": Way(pr.ConfigError, keys={"monitor": "nothing", "mode": "max"}),
}


def leave(way: Way, model: Any, folder: Path, loader: Any, evaluation: Any) -> None:
    """Leaves fit this way."""
    other = [] if way.callback is None else [way.callback()]
    ours = pr.resume_callbacks(folder, snapshot_step=1, **way.keys)
    run = contextlib.nullcontext() if way.error is None else pytest.raises(way.error)
    with run as found:
        fit(model, [*ours, *other], epochs=EPOCHS, data=loader, eval_data=evaluation)
    if way.code is not None:
        assert found is not None and found.value.code == way.code
        del found  # its traceback holds fit's frame


def loader_of(data: Any, workers: int = 0, persistent: bool = False) -> Any:
    if isinstance(data, paddle.io.IterableDataset):
        return paddle.io.DataLoader(data, batch_size=BATCH, num_workers=workers)
    return paddle.io.DataLoader(
        data, batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=persistent
    )


@pytest.mark.parametrize("name", WAYS)
def test_nothing_is_left(tmp_path: Path, name: str) -> None:
    way, model = WAYS[name], make()
    if way.prepare is not None:
        way.prepare(model)
    data = Points() if way.data is None else way.data()
    loader = loader_of(data, 0 if way.data is None else 2)
    evaluation = loader_of(Points(16))
    with nothing_left(model, tmp_path, [loader, evaluation]):
        leave(way, model, tmp_path, loader, evaluation)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("name", ["normal", "forward", "on_epoch_begin", "signal", "interrupt"])
def test_no_worker_is_left(tmp_path: Path, name: str, persistent: bool) -> None:
    way, model = WAYS[name], make()
    if way.prepare is not None:
        way.prepare(model)
    loader = loader_of(Points(), 2, persistent)
    evaluation = loader_of(Points(16))
    with nothing_left(model, tmp_path, [loader, evaluation]):
        leave(way, model, tmp_path, loader, evaluation)


def test_nothing_is_left_of_a_second_start(tmp_path: Path) -> None:
    fit(make(), pr.resume_callbacks(tmp_path))
    for epochs in (2, 3):
        model, loader = make(), loader_of(Points())
        with nothing_left(model, tmp_path, [loader]):
            fit(model, pr.resume_callbacks(tmp_path), data=loader, epochs=epochs)


def test_nothing_is_left_of_a_start_that_fails(tmp_path: Path) -> None:
    fit(make(), pr.resume_callbacks(tmp_path))
    model, loader = make(hidden=7), loader_of(Points())
    with nothing_left(model, tmp_path, [loader]), pytest.raises(pr.MismatchError):
        fit(model, pr.resume_callbacks(tmp_path), data=loader, epochs=3)
    (tmp_path / "file").touch()
    with nothing_left(model, tmp_path, [loader]), pytest.raises(pr.ConfigError):
        fit(model, pr.resume_callbacks(tmp_path / "file"), data=loader)


def test_nothing_is_left_of_a_scaler(tmp_path: Path) -> None:
    seed()
    net = Net()
    model = paddle.Model(net)
    optimizer = paddle.optimizer.Adam(0.05, parameters=net.parameters())
    configs = {"level": "O1", "init_loss_scaling": 8.0, "dtype": "bfloat16"}
    try:
        model.prepare(optimizer, paddle.nn.CrossEntropyLoss(), amp_configs=configs)
    except (ValueError, TypeError):
        del configs["dtype"]  # Paddle 2.6
        model.prepare(optimizer, paddle.nn.CrossEntropyLoss(), amp_configs=configs)
    loader = loader_of(Points())
    with nothing_left(model, tmp_path, [loader]):
        fit(model, pr.resume_callbacks(tmp_path, snapshot_step=1), data=loader)
    assert model._scaler is not None
    crashing = [StopAt(2), *pr.resume_callbacks(tmp_path / "other")]
    with nothing_left(model, tmp_path, [loader]), pytest.raises(StopAt.Crash):
        fit(model, crashing, data=loader)


def settled_state() -> Dict[str, Any]:
    """Without what Paddle's own evaluation and prediction leave for a while: a loading thread with
    its pipes, of no fit."""
    state = dict(process_state())
    state["threads"] = [name for name in state["threads"] if "_thread_loop" not in name]
    del state["descriptors"]
    return state


def test_outside_fit_nothing_happens(tmp_path: Path) -> None:
    model = make()
    ours = pr.resume_callbacks(tmp_path / "run", snapshot_step=1, monitor="acc")
    model.evaluate(Points(16), batch_size=BATCH, verbose=0, callbacks=ours)
    model.predict(Points(16), batch_size=BATCH, verbose=0, callbacks=ours)
    assert not (tmp_path / "run").exists()
    fit(model, ours, eval_data=Points(16))
    before, state, weight = listing(tmp_path), settled_state(), weights(model)
    events = (tmp_path / "run" / "events.jsonl").read_bytes()
    for callbacks in (ours, pr.resume_callbacks(tmp_path / "run")):
        model.evaluate(Points(16), batch_size=BATCH, verbose=0, callbacks=callbacks)
        model.predict(Points(16), batch_size=BATCH, verbose=0, callbacks=callbacks)
    assert listing(tmp_path) == before and settled_state() == state
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == events
    assert weights(model) == weight


# ---------------------------------------------------------------------------- finished


def whole(epochs: int) -> Dict[str, bytes]:
    model = make()
    fit(model, [], epochs=epochs)
    return weights(model)


def test_a_finished_run_returns_and_says_how_to_train_longer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = make()
    fit(first, pr.resume_callbacks(tmp_path))
    caplog.clear()
    counter, model = Counter(), make()
    fit(model, [counter, *pr.resume_callbacks(tmp_path)])
    assert counter.heard == ["end"]
    assert weights(model) == weights(first)
    said = [line for line in caplog.messages if "finished" in line]
    assert len(said) == 1
    assert "raise epochs" in said[0] and "another save_dir" in said[0]


def test_more_epochs_go_on_and_fewer_are_an_error(tmp_path: Path) -> None:
    fit(make(), pr.resume_callbacks(tmp_path), epochs=2)
    before = listing(tmp_path)
    with pytest.raises(pr.MismatchError, match=r"epochs=1, but 2 epoch\(s\)"):
        fit(make(), pr.resume_callbacks(tmp_path), epochs=1)
    assert listing(tmp_path) == before
    counter, model = Counter(), make()
    fit(model, [counter, *pr.resume_callbacks(tmp_path)], epochs=3)
    batches = [f"batch {step}" for step in range(STEPS)]
    assert [word for word in counter.heard if "batch" in word] == batches
    assert weights(model) == whole(3)


def test_early_stopped_is_finished(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = make()
    fit(first, [stop_early(), *pr.resume_callbacks(tmp_path)], epochs=5, eval_data=Points(16))
    finished = json.loads((tmp_path / "finished.json").read_text())
    assert finished["why"] == "stopped" and finished["step"] < 5 * STEPS
    counter, model = Counter(), make()
    callbacks = [counter, stop_early(), *pr.resume_callbacks(tmp_path)]
    fit(model, callbacks, epochs=5, eval_data=Points(16))
    assert counter.heard == ["end"]
    assert weights(model) == weights(first)
    assert "stopped early" in caplog.text


# ---------------------------------------------------------------------------- a second fit


def test_a_second_fit_of_the_same_model_is_a_restart(tmp_path: Path) -> None:
    model, counter = make(), Counter()
    callbacks = pr.resume_callbacks(tmp_path)
    fit(model, callbacks)
    trained = weights(model)
    fit(model, [counter, *callbacks])  # the very same callbacks
    assert counter.heard == ["end"] and weights(model) == trained
    fit(model, pr.resume_callbacks(tmp_path), epochs=3)
    assert weights(model) == whole(3)


def other_network(model: Any) -> Any:
    return make(hidden=7)


def frozen(model: Any) -> Any:
    for parameter in model.network.first.parameters():
        parameter.stop_gradient = True
    return model


def other_optimizer(model: Any) -> Any:
    return make(optimizer="Momentum")


def other_parameters(model: Any) -> Any:
    optimizer = paddle.optimizer.Adam(0.05, parameters=model.network.last.parameters())
    model.prepare(optimizer, paddle.nn.CrossEntropyLoss(), paddle.metric.Accuracy())
    return model


@pytest.mark.parametrize("epochs", [2, 3])
@pytest.mark.parametrize("change", [other_network, frozen, other_optimizer, other_parameters])
def test_a_second_fit_of_something_else_is_an_error(
    tmp_path: Path, change: Callable[[Any], Any], epochs: int
) -> None:
    model = make()
    fit(model, pr.resume_callbacks(tmp_path))
    before = listing(tmp_path)
    model = change(model)
    weight, counter = weights(model), Counter()
    with pytest.raises(pr.MismatchError, match="folder of its own"):
        fit(model, [counter, *pr.resume_callbacks(tmp_path)], epochs=epochs)
    assert not [word for word in counter.heard if "batch" in word]
    assert listing(tmp_path) == before, "nothing was touched"
    assert weights(model) == weight, "nothing was loaded"


def test_what_is_unfrozen_on_the_way_is_no_other_fit(tmp_path: Path) -> None:
    """A callback that unfreezes layers: the script of a restart starts with them frozen."""

    class Unfreeze(paddle.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                frozen_layers(self.model, False)

    def frozen_layers(model: Any, value: bool) -> None:
        for parameter in model.network.first.parameters():
            parameter.stop_gradient = value

    def started(callbacks: List[Any], epochs: int) -> Dict[str, bytes]:
        model = make()
        frozen_layers(model, True)
        fit(model, [Unfreeze(), *callbacks], epochs=epochs)
        return weights(model)

    expected = started([], 3)
    with pytest.raises(StopAt.Crash):
        started([StopAt(5), *pr.resume_callbacks(tmp_path)], 3)
    assert started(pr.resume_callbacks(tmp_path), 3) == expected
    assert started(pr.resume_callbacks(tmp_path), 3) == expected  # finished


@pytest.mark.parametrize(
    "kill",
    [[0, 4], [1, 0], [1, 1], [1, 4], [2, 0], [2, 5]],
    ids=lambda kill: "-".join(map(str, kill)),
)
def test_folds_go_on_where_they_were_killed(tmp_path: Path, start: Starter, kill: Any) -> None:
    expected = start("folds")
    keys = {"snapshot_step": 2}
    killed = start("folds", folder=str(tmp_path), kill=kill, keys=keys)
    assert expected.end() == 0 and killed.end() == -signal.SIGKILL
    again = start("folds", folder=str(tmp_path), keys=keys)
    assert again.end() == 0, again.log
    for word in ("digest", "score"):
        found = [line for line in again.words if line.startswith(word)]
        assert found == [line for line in expected.words if line.startswith(word)]
    third = start("folds", folder=str(tmp_path), keys=keys)
    assert third.end() == 0
    assert not [line for line in third.words if line.startswith("step")]
    digests = [line for line in third.words if line.startswith("digest")]
    assert digests == [line for line in expected.words if line.startswith("digest")]


@pytest.mark.parametrize("kill", [[0, 0], [0, 4], [1, 0], [1, 1], [1, 4]], ids=str)
def test_freeze_then_unfreeze_goes_on(tmp_path: Path, start: Starter, kill: Any) -> None:
    expected = start("unfreeze")
    keys = {"snapshot_step": 2}
    killed = start("unfreeze", folder=str(tmp_path), kill=kill, keys=keys)
    assert expected.end() == 0 and killed.end() == -signal.SIGKILL
    again = start("unfreeze", folder=str(tmp_path), keys=keys)
    assert again.end() == 0, again.log
    found = [line for line in again.words if line.startswith("digest")]
    assert found == [line for line in expected.words if line.startswith("digest")]


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("way", ["forward", "on_train_batch_begin", "on_eval_begin"])
def test_an_exception_is_caught_and_fit_called_again(
    tmp_path: Path, way: str, fresh: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = {"eval_data": Points(16)}
    reference = make()
    fit(reference, [], epochs=EPOCHS, **data)
    model = make()
    if way == "forward":
        fail_in_forward(model)
    other = [] if way == "forward" else [Raise(way, None)]
    with pytest.raises(Problem):
        fit(model, [*other, *pr.resume_callbacks(tmp_path)], epochs=EPOCHS, **data)
    said = "Problem: step {} is saved"
    at = {"forward": STEPS + 1, "on_train_batch_begin": STEPS, "on_eval_begin": 2 * STEPS}[way]
    assert said.format(at) in caplog.text
    assert pr.checkpoints(tmp_path)[-1].step == at
    if fresh:
        model = make()
    counter = Counter()
    fit(model, [counter, *pr.resume_callbacks(tmp_path)], epochs=EPOCHS, **data)
    assert len([word for word in counter.heard if "batch" in word]) == EPOCHS * STEPS - at
    assert weights(model) == weights(reference)


def test_an_exception_within_the_update_names_the_newest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make()
    fail_in_update(model)
    with pytest.raises(Problem):
        fit(model, pr.resume_callbacks(tmp_path, snapshot_step=2))
    assert [checkpoint.step for checkpoint in pr.checkpoints(tmp_path)] == [2, 3]
    said = [line for line in caplog.messages if "within the optimizer's update" in line]
    assert len(said) == 1 and "step_00000003" in said[0]
    fit(model, pr.resume_callbacks(tmp_path))
    assert weights(model) == whole(2)


# ---------------------------------------------------------------------------- off the main thread


def in_thread(work: Callable[[], None]) -> Optional[BaseException]:
    """Runs it in a thread; returns what it raised."""
    raised: List[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="trains")
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return raised[0] if raised else None


def test_off_the_main_thread(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = whole(EPOCHS)
    model, loader = make(), loader_of(Points())
    with nothing_left(model, tmp_path, [loader]):
        callbacks = [StopAt(4), *pr.resume_callbacks(tmp_path, snapshot_epoch=None)]
        error = in_thread(lambda: fit(model, callbacks, epochs=EPOCHS))
        assert isinstance(error, StopAt.Crash)
        del error
    said = caplog.text
    assert said.count("off the main thread") == 1
    assert [checkpoint.step for checkpoint in pr.checkpoints(tmp_path)] == [4]
    model = make()
    ours = pr.resume_callbacks(tmp_path)
    with nothing_left(model, tmp_path, []):
        assert in_thread(lambda: fit(model, ours, epochs=EPOCHS)) is None
    assert weights(model) == expected
    assert np.isfinite(model.network.last.weight.numpy()).all()
