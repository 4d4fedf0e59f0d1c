"""The one training program of the exactness tests; runs in a process of its own.

    python training.py SPEC.json      one attempt
    python training.py --serve        forks an attempt for each SPEC.json named on stdin, one a line

A spec is a JSON object: `config` (a `configs.Config` as a dict), `work_dir` (for all that the
training itself writes), `save_dir` (of the callbacks under test; null trains without them), `log`,
and per attempt `attempt` (its number) and `kill` (where it kills or stops itself, or null).
`resume` holds further arguments of `AutoResume`; `without` names a mutation of `leave_out.py`.

All that a user callback can see goes to the log, one JSON list a line, floats as `float.hex`.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

warnings.filterwarnings("ignore")

with contextlib.suppress(ImportError):
    import scipy.linalg  # noqa: F401  (Paddle 2.6 crashes when it comes after Paddle)

import numpy as np
import paddle
from paddle import nn
from paddle.io import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler

SEED = 7
FEATURES = 6
WORDS = 12


# ---------------------------------------------------------------------------- data


class Samples(Dataset):
    """Points and whether their sum is positive; augmented from the generators asked for."""

    def __init__(self, count: int, augment: Sequence[str] = (), words: bool = False) -> None:
        super().__init__()
        draw = np.random.RandomState(3)
        self.x = draw.randn(count, FEATURES).astype("float32")
        self.y = (self.x.sum(1) > 0).astype("int64")[:, None]
        if words:
            self.x = draw.randint(0, WORDS, (count, FEATURES)).astype("int64")
            self.y = (self.x.sum(1) > 33).astype("int64")[:, None]
        self.augment = tuple(augment)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Tuple[np.ndarray, np.ndarray]:
        x = self.x[index]
        if "numpy" in self.augment:
            x = x + 0.1 * np.random.randn(FEATURES).astype("float32")
        if "python" in self.augment:
            x = (x * (1 + 0.1 * random.random())).astype("float32")
        if "paddle" in self.augment:
            x = x + 0.1 * paddle.randn([FEATURES]).numpy()
        return x, self.y[index]


class Stream(IterableDataset):
    """The samples in order, shared out among the workers."""

    def __init__(self, samples: Samples) -> None:
        super().__init__()
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        info = paddle.io.get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, len(self.samples), stride):
            yield self.samples[index]


class StatefulStream(IterableDataset):
    """Another order in each pass, kept in the dataset, with state_dict and set_state_dict."""

    def __init__(self, samples: Samples) -> None:
        super().__init__()
        self.samples = samples
        self.passes = 0
        self.done = 0

    def state_dict(self) -> Dict[str, int]:
        return {"passes": self.passes, "done": self.done}

    def set_state_dict(self, state: Mapping[str, int]) -> None:
        self.passes, self.done = state["passes"], state["done"]

    def __iter__(self) -> Iterator[Any]:
        order = np.random.RandomState(100 + self.passes).permutation(len(self.samples))
        while self.done < len(order):
            index = int(order[self.done])
            self.done += 1
            yield self.samples[index]
        self.passes, self.done = self.passes + 1, 0


class CountingSampler(Sampler):
    """A user's sampler: seeded by its own count of the epochs."""

    def __init__(self, data_source: Samples) -> None:
        super().__init__(data_source)
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        order = np.random.RandomState(11 + self.epoch).permutation(len(self.data_source))
        self.epoch += 1
        return iter(order.tolist())


class OwnRandomSampler(Sampler):
    """A user's sampler: one RandomState for the whole run."""

    def __init__(self, data_source: Samples) -> None:
        super().__init__(data_source)
        self.random = np.random.RandomState(5)

    def __iter__(self) -> Iterator[int]:
        return iter(self.random.permutation(len(self.data_source)).tolist())


class LazyBatches(BatchSampler):
    """A user's batch sampler: draws each batch from numpy when it is asked for."""

    def __init__(self, dataset: Samples, batch_size: int) -> None:
        super().__init__(dataset=dataset, batch_size=batch_size)
        self.count = len(dataset)

    def __iter__(self) -> Iterator[List[int]]:
        for _ in range(len(self)):
            yield np.random.randint(0, self.count, (self.batch_size,)).tolist()


def train_data(config: Mapping[str, Any]) -> Any:
    """Returns what fit gets as train_data."""
    samples = Samples(config["samples"], config["augment"], config["network"] == "words")
    size = config["batch_size"]
    if config["data"] == "fit":
        return samples
    if config["data"] == "list":
        order = np.random.RandomState(1).permutation(len(samples))
        rows = [order[i : i + size] for i in range(0, len(order), size)]
        return [[samples.x[row], samples.y[row]] for row in rows]
    options: Dict[str, Any] = {
        "num_workers": config["workers"],
        "use_shared_memory": config["shared_memory"],
        "persistent_workers": config["persistent"],
    }
    if config["data"] == "stream":
        return DataLoader(Stream(samples), batch_size=size, **options)
    if config["data"] == "stateful_stream":
        return DataLoader(StatefulStream(samples), batch_size=size, **options)
    sampler = config["sampler"]
    if sampler == "random":
        return DataLoader(
            samples, batch_size=size, shuffle=True, drop_last=config["drop_last"], **options
        )
    if sampler == "lazy":
        return DataLoader(samples, batch_sampler=LazyBatches(samples, size), **options)
    weights = np.linspace(1, 3, len(samples))
    chosen: Dict[str, Callable[[], Any]] = {
        "weighted": lambda: paddle.io.WeightedRandomSampler(weights, len(samples)),
        # Paddle 3.3 cannot tell the length of this one, nor can the loader then
        "weighted_list": lambda: paddle.io.WeightedRandomSampler(weights.tolist(), len(samples)),
        "counting": lambda: CountingSampler(samples),
        "own_random": lambda: OwnRandomSampler(samples),
    }
    batches = BatchSampler(
        sampler=chosen[sampler](), batch_size=size, drop_last=config["drop_last"]
    )
    return DataLoader(samples, batch_sampler=batches, **options)


# ---------------------------------------------------------------------------- networks


class Plain(nn.Layer):
    """Two linear layers, and a third that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(FEATURES, 8)
        self.b = nn.Linear(8, 2)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.b(nn.functional.relu(self.a(x)))


class Full(nn.Layer):
    """BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(FEATURES, 8)
        self.norm = nn.BatchNorm1D(8)
        self.drop = nn.Dropout(0.3)
        self.b = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        return self.b(self.drop(nn.functional.relu(self.norm(self.a(x)))))


class Recurrent(nn.Layer):
    """A GRU: it has a buffer of shape (0,) that is never initialised."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(2, 6)
        self.b = nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        out, _ = self.gru(x.reshape([-1, FEATURES // 2, 2]))
        return self.b(out[:, -1])


class Spectral(nn.Layer):
    """Spectral norm in both of its forms: vectors moved on by each forward in training."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.utils.spectral_norm(nn.Linear(FEATURES, 8), dim=1)
        self.c = nn.Linear(8, 8)
        self.norm = nn.SpectralNorm([8, 8], dim=0, power_iters=1)
        self.b = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        x = nn.functional.relu(self.a(x))
        x = nn.functional.relu(paddle.matmul(x, self.norm(self.c.weight)) + self.c.bias)
        return self.b(x)


class Tied(nn.Layer):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(FEATURES, 8)
        self.c = nn.Linear(8, 8)
        self.d = nn.Linear(8, 8)
        self.d.weight = self.c.weight
        self.b = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        x = nn.functional.relu(self.c(nn.functional.relu(self.a(x))))
        return self.b(nn.functional.relu(self.d(x)))


class Words(nn.Layer):
    """An embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 5, sparse=True)
        self.b = nn.Linear(5, 2)

    def forward(self, x: Any) -> Any:
        return self.b(self.words(x).mean(1))


class Running(nn.Layer):
    """A buffer that no state_dict holds, replaced by a new tensor in each forward."""

    mean: Any

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(FEATURES, 8)
        self.b = nn.Linear(8, 2)
        self.register_buffer("mean", paddle.zeros([8]), persistable=False)

    def forward(self, x: Any) -> Any:
        x = nn.functional.relu(self.a(x))
        if self.training:
            self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        return self.b(x - self.mean)


class HalfPrecision(Full):
    """The forward under auto_cast to bfloat16."""

    def forward(self, x: Any) -> Any:
        with paddle.amp.auto_cast(level="O1", dtype="bfloat16"):
            out = super().forward(x)
        return out.astype("float32")


class Heavy(Plain):
    """With megabytes that make a save take its time."""

    def __init__(self) -> None:
        super().__init__()
        self.ballast = nn.Embedding(1000, 1000)


NETWORKS: Dict[str, Callable[[], nn.Layer]] = {
    "plain": Plain,
    "full": Full,
    "recurrent": Recurrent,
    "spectral": Spectral,
    "tied": Tied,
    "words": Words,
    "running": Running,
    "half": HalfPrecision,
    "heavy": Heavy,
}


class TrainedLoss(nn.Layer):
    """A loss with a parameter of its own, which fit never clears the gradient of."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = self.create_parameter([1], default_initializer=nn.initializer.Constant(1.0))

    def forward(self, out: Any, label: Any) -> Any:
        entropy = nn.functional.cross_entropy(out * self.scale, label)
        return entropy + 0.01 * (self.scale**2).sum()


# ---------------------------------------------------------------------------- optimizers


def schedule_of(config: Mapping[str, Any]) -> Any:
    """Returns the optimizer's learning_rate."""
    lr, rate = paddle.optimizer.lr, config["learning_rate"]
    schedules: Dict[str, Callable[[], Any]] = {
        "float": lambda: rate,
        "cosine": lambda: lr.CosineAnnealingDecay(rate, 20),
        "warmup": lambda: lr.LinearWarmup(lr.CosineAnnealingDecay(rate, 15), 5, 0.001, rate),
        "piecewise": lambda: lr.PiecewiseDecay([4, 9, 16], [rate, rate / 2, rate / 3, rate / 9]),
        "one_cycle": lambda: lr.OneCycleLR(rate, total_steps=30),
        "cyclic": lambda: lr.CyclicLR(rate / 5, rate, step_size_up=3, step_size_down=5),
        "step": lambda: lr.StepDecay(rate, 1, 0.5),
        "plateau": lambda: lr.ReduceOnPlateau(
            rate, patience=0, factor=0.5, threshold=0.3, threshold_mode="abs"
        ),
    }
    return schedules[config["schedule"]]()


def optimizer_of(config: Mapping[str, Any], network: nn.Layer, loss: Any) -> Any:
    """Returns the optimizer."""
    kind, decay = config["optimizer"], config["decay"]
    clips: Dict[str, Callable[[], Any]] = {
        "": lambda: None,
        "global_norm": lambda: nn.ClipGradByGlobalNorm(0.5),
        "norm": lambda: nn.ClipGradByNorm(0.3),
        "value": lambda: nn.ClipGradByValue(0.05),
    }
    parameters: List[Any] = network.parameters()
    if isinstance(loss, nn.Layer):
        parameters = parameters + loss.parameters()
    if config["rates"]:  # fit cannot train an optimizer with groups of parameters
        for parameter in parameters[:2]:
            parameter.optimize_attr["learning_rate"] = 0.3
        parameters[2].regularizer = paddle.regularizer.L2Decay(0.1)
    options: Dict[str, Any] = {
        "learning_rate": schedule_of(config),
        "parameters": parameters,
        "grad_clip": clips[config["clip"]](),
    }
    optim = paddle.optimizer
    if kind == "lamb":
        return optim.Lamb(lamb_weight_decay=decay, **options)
    if decay:
        options["weight_decay"] = decay
    kinds: Dict[str, Callable[[], Any]] = {
        "sgd": lambda: optim.SGD(**options),
        "momentum": lambda: optim.Momentum(momentum=0.9, use_nesterov=True, **options),
        "adam": lambda: optim.Adam(**options),
        "lazy_adam": lambda: optim.Adam(lazy_mode=True, **options),
        "adamw": lambda: optim.AdamW(**options),
        "rmsprop": lambda: optim.RMSProp(rho=0.9, momentum=0.5, centered=True, **options),
    }
    return kinds[kind]()


# ---------------------------------------------------------------------------- metrics


class Precision(paddle.metric.Precision):
    """Of the second class."""

    def compute(self, out: Any, label: Any) -> Any:
        return nn.functional.softmax(out)[:, 1:], label


class Recall(paddle.metric.Recall):
    """Of the second class."""

    def compute(self, out: Any, label: Any) -> Any:
        return nn.functional.softmax(out)[:, 1:], label


class Auc(paddle.metric.Auc):
    """Of the softmax."""

    def compute(self, out: Any, label: Any) -> Any:
        return nn.functional.softmax(out), label


METRICS: Dict[str, Callable[[], paddle.metric.Metric]] = {
    "accuracy": paddle.metric.Accuracy,
    "precision": Precision,
    "recall": Recall,
    "auc": Auc,
}


# ---------------------------------------------------------------------------- callbacks


def plain(value: Any) -> Any:
    """Returns the value for JSON, with every float exact."""
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value).hex()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "numpy"):
        value = value.numpy()
    return [plain(item) for item in np.asarray(value).ravel().tolist()]


class Log:
    """The log of one attempt."""

    def __init__(self, path: str) -> None:
        self.file = open(path, "a", encoding="utf-8")

    def write(self, *event: Any) -> None:
        self.file.write(json.dumps(plain(event)) + "\n")
        self.file.flush()


class Watch(paddle.callbacks.Callback):
    """A user's callback: logs all it sees, and kills the process where it is told to."""

    def __init__(self, log: Log, spec: Mapping[str, Any]) -> None:
        super().__init__()
        self.log, self.spec, self.epoch, self.step = log, spec, -1, -1
        self.draws = "draws" in spec["config"]["callbacks"]
        self.pause = spec["config"]["pause"]

    def kill(self, *point: Any) -> None:
        """Dies here when the attempt is to be killed at this point; or is told to stop."""
        kill = self.spec.get("kill")
        if not kill or tuple(kill["at"]) != point:
            return
        settle = kill.get("settle") or 0
        folder, until = Path(self.spec["save_dir"] or "."), time.monotonic() + 5.0
        while settle and not any(
            int(path.name[5:]) >= settle
            for path in folder.glob("step_*")
            if path.name[5:].isdigit()
        ):
            if time.monotonic() > until:
                self.log.write("unsettled", settle)
                break
            time.sleep(0.002)
        if kill["by"] != "SIGKILL":
            self.log.write("stopped")
        if kill["by"] == "exception":
            raise RuntimeError("the user's callback fails, as this test asks for")
        if kill["by"] != "SIGKILL":
            self.signal(kill["by"], kill["slow"], kill["deaf"])
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def signal(self, name: str, slow: float, deaf: bool) -> None:
        """Signals this process, all of its group where it has workers, until that is noticed."""
        config = self.spec["config"]
        if config["workers"] or config["eval_workers"]:
            os.killpg(0, signal.Signals[name])
        else:
            os.kill(os.getpid(), signal.Signals[name])
        until = time.monotonic() + slow
        while time.monotonic() < until:
            if deaf:
                hashlib.pbkdf2_hmac("sha256", b"as a long operation", b"", int(3e6 * slow))
            else:
                time.sleep(slow)
        # The thread that watches for signals is another one: nothing else tells when it has seen.
        emergency, until = self.model._run_one_epoch.listener._emergency, time.monotonic() + 5.0
        while emergency._stop is None:
            if time.monotonic() > until:
                self.log.write("unnoticed", name)
                break
            time.sleep(0.001)

    def in_forward(self, layer: Any, *of: Any) -> None:
        """Called when the network has computed."""
        self.kill("forward" if layer.training else "eval_forward", self.epoch, self.step)

    def rate(self) -> float:
        return float(self.model._optimizer.get_lr())

    def on_train_begin(self, logs: Any = None) -> None:
        self.log.write("train_begin", os.getpid())
        kill = self.spec.get("kill")
        if kill and kill["at"][0].endswith("forward"):
            self.model.network.register_forward_post_hook(self.in_forward)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch
        self.log.write("epoch_begin", epoch)
        self.kill("epoch_begin", epoch)

    def on_train_batch_begin(self, step: int, logs: Any = None) -> None:
        self.step = step
        self.log.write("batch_begin", self.epoch, step, logs or {})
        self.kill("batch_begin", self.epoch, step)

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        drawn = [float(np.random.rand()), random.random()] if self.draws else []
        self.log.write("batch_end", self.epoch, step, logs or {}, self.rate(), drawn)
        if self.pause:
            time.sleep(self.pause)
        self.kill("batch_end", self.epoch, step)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.log.write("epoch_end", epoch, logs or {}, self.rate())
        self.kill("epoch_end", epoch)

    def on_eval_begin(self, logs: Any = None) -> None:
        self.log.write("eval_begin", self.epoch, logs or {})
        self.kill("eval_begin", self.epoch)

    def on_eval_batch_begin(self, step: int, logs: Any = None) -> None:
        self.step = step
        self.log.write("eval_batch_begin", self.epoch, step, logs or {})

    def on_eval_batch_end(self, step: int, logs: Any = None) -> None:
        self.log.write("eval_batch_end", self.epoch, step, logs or {})
        self.kill("eval_batch_end", self.epoch, step)

    def on_eval_end(self, logs: Any = None) -> None:
        self.log.write("eval_end", self.epoch, logs or {}, self.rate())
        self.kill("eval_end", self.epoch)

    def on_train_end(self, logs: Any = None) -> None:
        self.log.write("train_end", logs or {})
        self.kill("train_end")


class Last(paddle.callbacks.Callback):
    """The last one of the user's callbacks: all others have had their turn."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        self.watch.kill("late_batch_end", self.watch.epoch, step)

    def on_eval_end(self, logs: Any = None) -> None:
        self.watch.kill("late_eval_end", self.watch.epoch)


class Unfreeze(paddle.callbacks.Callback):
    """A user's callback: lets a layer learn from the second epoch on."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            for parameter in self.model.network.a.parameters():
                parameter.stop_gradient = False


class Swap(paddle.callbacks.Callback):
    """A user's callback: evaluates other weights than those that are trained."""

    def on_eval_begin(self, logs: Any = None) -> None:
        parameters = [p for p in self.model.network.parameters() if not p.stop_gradient]
        self.kept = [(parameter, parameter.numpy()) for parameter in parameters]
        for parameter, value in self.kept:
            parameter.set_value(0.5 * value)

    def on_eval_end(self, logs: Any = None) -> None:
        for parameter, value in self.kept:
            parameter.set_value(value)


class PlateauStep(paddle.callbacks.Callback):
    """A user's callback: steps the optimizer's ReduceOnPlateau with the evaluation's loss."""

    def on_eval_end(self, logs: Any = None) -> None:
        self.model._optimizer._learning_rate.step(float(np.ravel(logs["loss"])[0]))


class Stop(paddle.callbacks.Callback):
    """A user's callback: asks in the middle of the second epoch for the training's end."""

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        if step == 1 and self.model._optimizer._learning_rate.last_epoch > 6:
            self.model.stop_training = True


class Counted(paddle.callbacks.Callback):
    """A user's callback with a state_dict: counts the batches of the whole run."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log, self.count, self.epoch = log, 0, -1

    def state_dict(self) -> Dict[str, int]:
        return {"count": self.count}

    def set_state_dict(self, state: Mapping[str, int]) -> None:
        self.count = state["count"]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        self.count += 1
        self.log.write("counted", self.epoch, step, f"{self.count} batches")


class Average:
    """A user's object for `extra`: a moving average of a weight."""

    def __init__(self) -> None:
        self.value = paddle.zeros([FEATURES, 8])
        self.history: List[float] = []

    def state_dict(self) -> Dict[str, Any]:
        return {"value": self.value, "history": self.history}

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value = paddle.to_tensor(state["value"])
        self.history = list(state["history"])

    def update(self, weight: Any) -> None:
        self.value = self.value * 0.9 + weight.detach() * 0.1
        self.history.append(float(self.value.mean()))


class AverageStep(paddle.callbacks.Callback):
    """A user's callback: moves the average after each batch."""

    def __init__(self, average: Average) -> None:
        super().__init__()
        self.average = average

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        self.average.update(self.model.network.a.weight)


def user_callbacks(
    config: Mapping[str, Any], work_dir: str, log: Log, average: Average
) -> List[paddle.callbacks.Callback]:
    """Returns the callbacks of the config, without the watch and without ours."""
    kinds: Dict[str, Callable[[], paddle.callbacks.Callback]] = {
        "unfreeze": Unfreeze,
        "swap": Swap,
        "stop": Stop,
        "counted": lambda: Counted(log),
        "average": lambda: AverageStep(average),
        "plateau_step": PlateauStep,
        "lr_by_step": paddle.callbacks.LRScheduler,
        "lr_by_epoch": lambda: paddle.callbacks.LRScheduler(by_step=False, by_epoch=True),
        "lr_by_hand": lambda: paddle.callbacks.LRScheduler(by_step=False, by_epoch=False),
        "early_stopping": lambda: paddle.callbacks.EarlyStopping(
            "loss", patience=2, min_delta=0.05, save_best_model=config["fit_save_dir"], verbose=0
        ),
        "reduce_lr": lambda: paddle.callbacks.ReduceLROnPlateau(
            "loss", patience=1, factor=0.5, min_delta=0.2, cooldown=1, verbose=0
        ),
        "visualdl": lambda: paddle.callbacks.VisualDL(os.path.join(work_dir, "visualdl")),
    }
    return [kinds[name]() for name in config["callbacks"] if name in kinds]


def our_callbacks(spec: Mapping[str, Any], average: Average) -> List[paddle.callbacks.Callback]:
    """Returns the callbacks under test."""
    import paddle_resume as pr

    config, save_dir = spec["config"], spec["save_dir"]
    save = {"snapshot_minutes": None, **config["save"]}
    resume = dict(spec.get("resume") or {})
    stop = {} if config["grace"] is None else {"grace_seconds": config["grace"]}
    if "average" in config["callbacks"]:
        save["extra"] = {"average": average}
    if config["ours"] == "all":
        return list(pr.resume_callbacks(save_dir, **save, **resume, **stop))
    ours = [pr.AutoResume(save_dir, **resume), pr.PeriodicSaver(save_dir, **save)]
    if config["ours"].isdigit():  # all four, in this order
        ours += [pr.BestSaver(save_dir), pr.EmergencySaver(save_dir, **stop)]
        return [ours[int(place)] for place in config["ours"]]
    return ours[::-1] if config["ours"] == "saver_first" else ours


def all_callbacks(
    spec: Mapping[str, Any], log: Log, average: Average
) -> List[paddle.callbacks.Callback]:
    """Returns the callbacks for fit, in the order that the config asks for."""
    config = spec["config"]
    watch = Watch(log, spec)
    users = [watch, *user_callbacks(config, spec["work_dir"], log, average), Last(watch)]
    if not spec["save_dir"]:
        return users
    ours = our_callbacks(spec, average)
    place = config["place"]
    if place == "around":
        return [ours[0], *users, *ours[1:]]
    return [*users, *ours] if place == "last" else [*ours, *users]


# ---------------------------------------------------------------------------- the end


def digest(value: Any) -> str:
    """Returns a tensor's hash, over its type, shape and bytes."""
    if value is None:
        return "none"
    if hasattr(value, "_is_initialized") and not value._is_initialized():
        return "uninitialised"
    array = np.ascontiguousarray(value.numpy() if hasattr(value, "numpy") else value)
    head = f"{array.dtype} {array.shape} ".encode()
    return hashlib.sha256(head + array.tobytes()).hexdigest()


def slots_of(optimizer: Any, parameters: Sequence[Any]) -> Dict[str, str]:
    """Returns the hash of every optimizer slot, named by its parameter's place and its kind."""
    hashes = {}
    for kind, slots in sorted(optimizer._accumulators.items()):
        for place, parameter in enumerate(parameters):
            if parameter.name in slots:
                hashes[f"{place}/{kind}"] = digest(slots[parameter.name])
    return hashes


def final_state(model: paddle.Model, loss: Any) -> Dict[str, Any]:
    """Returns hashes of all that the training leaves behind."""
    network, optimizer = model.network, model._optimizer
    parameters = list(network.parameters())
    state: Dict[str, Any] = {
        "model": {key: digest(value) for key, value in network.state_dict().items()},
        "buffers": {key: digest(value) for key, value in network.named_buffers()},
        "frozen": [key for key, value in network.named_parameters() if value.stop_gradient],
    }
    if isinstance(loss, nn.Layer):
        parameters += loss.parameters()
        state["loss"] = {key: digest(value) for key, value in loss.state_dict().items()}
        state["loss_gradients"] = [digest(value.grad) for value in loss.parameters()]
    rate = optimizer._learning_rate
    state["slots"] = slots_of(optimizer, parameters)
    state["learning_rate"] = float(optimizer.get_lr())
    state["scheduler"] = rate.state_dict() if hasattr(rate, "state_dict") else float(rate)
    state["python"] = hashlib.sha256(repr(random.getstate()).encode()).hexdigest()
    state["numpy"] = digest(np.random.randint(0, 2**31 - 1, 700))
    state["paddle"] = digest(paddle.rand([700]))
    state["stopped"] = bool(model.stop_training)
    return state


def train(spec: Mapping[str, Any]) -> None:
    """Runs one attempt."""
    config = spec["config"]
    paddle.set_device("cpu")
    if spec.get("without"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        import leave_out

        leave_out.apply(spec["without"])
    if config["first_model"] and spec["attempt"] > 0:
        Plain()  # names of parameters are generated: from here on they differ from attempt 0's
        Full()
    paddle.seed(SEED)
    np.random.seed(SEED)
    random.seed(SEED)
    network = NETWORKS[config["network"]]()
    if "unfreeze" in config["callbacks"]:
        for parameter in network.a.parameters():
            parameter.stop_gradient = True
    loss = TrainedLoss() if config["loss"] == "trained" else nn.CrossEntropyLoss()
    model = paddle.Model(network)
    model.prepare(
        optimizer_of(config, network, loss),
        loss,
        [METRICS[name]() for name in config["metrics"]],
        amp_configs=config["amp"] or None,
    )
    evaluation: Any = None
    if config["eval"]:
        evaluation = DataLoader(
            Samples(40, config["eval_augment"], config["network"] == "words"),
            batch_size=16,
            num_workers=config["eval_workers"],
        )
    log, average = Log(spec["log"]), Average()
    data = train_data(config)
    options: Dict[str, Any] = {}
    if config["data"] == "fit":
        options = {
            "batch_size": config["batch_size"],
            "num_workers": config["workers"],
            "drop_last": config["drop_last"],
            "shuffle": config["sampler"] != "none",
        }
    model.fit(
        data,
        evaluation,
        epochs=config["epochs"],
        eval_freq=config["eval_freq"],
        log_freq=config["log_freq"],
        save_dir=os.path.join(spec["work_dir"], "fit") if config["fit_save_dir"] else None,
        verbose=config["verbose"],
        callbacks=all_callbacks(spec, log, average),
        accumulate_grad_batches=config["accumulate"],
        num_iters=config["num_iters"],
        **options,
    )
    log.write("final", {**final_state(model, loss), "average": average.state_dict()})


def serve() -> Optional[str]:
    """Forks a child for each spec named on stdin; returns the spec in the child, else None."""
    with contextlib.suppress(Exception):  # an attempt that needs it will say what is wrong
        import paddle_resume as pr

        for name in pr.__all__:
            getattr(pr, name)
    gc.collect()
    gc.freeze()  # what is there already is not looked through at the end of each child
    os.write(1, b"ready\n")
    with open(0, "rb", buffering=0, closefd=False) as asked:
        while True:
            line = asked.readline()
            if not line:
                return None
            spec_path, output = line.decode().rstrip("\n").split("\t")
            child = os.fork()
            if child == 0:
                os.setsid()
                target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                nothing = os.open(os.devnull, os.O_RDONLY)
                os.dup2(nothing, 0)
                os.dup2(target, 1)
                os.dup2(target, 2)
                return spec_path
            os.write(1, f"pid {child}\n".encode())
            status = os.waitpid(child, 0)[1]
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            os.write(1, f"code {code}\n".encode())


def main(argument: str) -> None:
    """Runs what the command line asks for."""
    # A shell's background jobs ignore SIGINT, nohup's SIGHUP: what is ignored, stays ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    spec_path = serve() if argument == "--serve" else argument
    if spec_path is not None:
        train(json.loads(Path(spec_path).read_text(encoding="utf-8")))


if __name__ == "__main__":
    main(sys.argv[1])
