"""The trainings that the exactness tests kill, by name, and where each one is killed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

__all__ = ["CONFIGS", "SAMPLE", "Config", "Kill", "kill_lists"]


@dataclass(frozen=True)
class Kill:
    """Where an attempt is killed, or stopped.

    Attributes:
        at: in the training: an event of the user's callback that logs all it sees, such as
            ("batch_end", epoch, step) or ("epoch_end", epoch), with "late_" in front for the
            same event in the last callback of the user's; ("forward", epoch, step) and
            ("eval_forward", epoch, step) when the network has computed; from outside: ("save", n)
            when the n-th temporary folder appears, ("commit", n) when the n-th checkpoint does,
            ("after", seconds).
        settled: let the saves that are due finish before the kill.
        by: SIGKILL, another signal's name, or "exception": raised by the user's callback.
        slow: seconds that the training stays there after the signal.
        deaf: whether it stays there in a call that no signal interrupts.
    """

    at: Tuple[Any, ...]
    settled: bool = True
    by: str = "SIGKILL"
    slow: float = 0.0
    deaf: bool = False

    @property
    def outside(self) -> bool:
        """Whether it is done from outside of the training."""
        return self.at[0] in ("save", "commit", "after")

    def __str__(self) -> str:
        parts = [str(part) for part in self.at]
        parts += [] if self.settled else ["at-once"]
        parts += [] if self.by == "SIGKILL" else [self.by]
        return "-".join(parts)


@dataclass(frozen=True)
class Config:
    """One training; the program `training.py` says what each value means."""

    name: str
    optimizer: str = "adam"
    learning_rate: float = 0.05
    schedule: str = "float"
    clip: str = ""
    decay: float = 0.0
    rates: bool = False
    network: str = "plain"
    loss: str = "entropy"
    metrics: Tuple[str, ...] = ("accuracy",)
    amp: str = ""
    first_model: bool = False
    samples: int = 50
    batch_size: int = 8
    epochs: int = 3
    data: str = "fit"
    sampler: str = "fit"
    augment: Tuple[str, ...] = ()
    workers: int = 0
    persistent: bool = False
    shared_memory: bool = True
    drop_last: bool = False
    accumulate: int = 1
    num_iters: Optional[int] = None
    eval: bool = True
    eval_freq: int = 1
    eval_workers: int = 0
    eval_augment: Tuple[str, ...] = ()
    callbacks: Tuple[str, ...] = ()
    verbose: int = 0
    log_freq: int = 10
    fit_save_dir: bool = False
    pause: float = 0.0
    ours: str = "both"
    place: str = "last"
    grace: Optional[float] = None
    save: Mapping[str, Any] = field(default_factory=lambda: {"snapshot_step": 1})
    kills: Optional[Tuple[Tuple[Kill, ...], ...]] = None

    @property
    def steps(self) -> int:
        """Batches of an epoch."""
        if self.data == "stream" and self.workers:
            share = math.ceil(self.samples / self.workers)
            return self.workers * math.ceil(share / self.batch_size)
        return (math.floor if self.drop_last else math.ceil)(self.samples / self.batch_size)

    def as_spec(self) -> Dict[str, Any]:
        """Returns it as JSON values."""
        spec = asdict(self)
        del spec["kills"]
        return spec


def _end(epoch: int, step: int) -> Kill:
    return Kill(("batch_end", epoch, step))


def _save_each(steps: int, **more: Any) -> Dict[str, Any]:
    return {"snapshot_step": steps, **more}


_ALL = [
    # optimizers, schedules, clipping, decay
    Config("sgd", optimizer="sgd", schedule="piecewise", learning_rate=0.1),
    Config(
        "momentum",
        optimizer="momentum",
        schedule="warmup",
        clip="norm",
        decay=0.01,
        place="first",
        save=_save_each(2),
    ),
    Config("adam", schedule="one_cycle", clip="value", place="around", save=_save_each(3)),
    Config("adamw", optimizer="adamw", schedule="cosine", clip="global_norm", decay=0.02),
    Config("lamb", optimizer="lamb", schedule="cyclic", decay=0.01, network="full"),
    Config(
        "rmsprop",
        optimizer="rmsprop",
        learning_rate=0.01,
        schedule="step",
        callbacks=("lr_by_epoch",),
        place="first",
    ),
    Config(
        "rates", optimizer="adamw", rates=True, schedule="cosine", decay=0.1, ours="saver_first"
    ),
    Config(
        "plateau",
        optimizer="momentum",
        schedule="plateau",
        learning_rate=0.2,
        callbacks=("lr_by_hand", "plateau_step"),
        epochs=5,
    ),
    Config("reduce_lr", optimizer="adamw", decay=0.1, callbacks=("reduce_lr",), epochs=6),
    # networks
    Config("full", network="full", schedule="cosine", optimizer="adamw", decay=0.01, epochs=4),
    Config("recurrent", network="recurrent", clip="global_norm", save=_save_each(2)),
    Config("spectral", network="spectral", optimizer="momentum", learning_rate=0.02),
    Config("tied", network="tied", optimizer="adamw", decay=0.01, place="first"),
    Config("lazy_words", network="words", optimizer="lazy_adam", sampler="fit"),
    Config("sgd_words", network="words", optimizer="sgd", learning_rate=0.5, schedule="cosine"),
    Config("unfreeze", network="full", callbacks=("unfreeze",), save=_save_each(2), epochs=4),
    Config("running_buffer", network="running", place="around"),
    Config("trained_loss", loss="trained", optimizer="momentum", learning_rate=0.02),
    Config("first_model", first_model=True, network="full", optimizer="adamw", decay=0.01),
    Config("amp", amp="O1", network="full", optimizer="adamw", decay=0.01),
    Config("half", network="half", clip="global_norm", save=_save_each(3)),
    Config("heavy", network="heavy", optimizer="adamw", decay=0.01, save=_save_each(2)),
    # accumulation, metrics, ends
    Config("accumulate", accumulate=3, network="full", schedule="cosine"),
    Config("accumulate_workers", accumulate=3, workers=2, augment=("numpy",), clip="norm"),
    Config("metrics", metrics=("accuracy", "precision", "recall", "auc"), place="first", verbose=2),
    Config(
        "epoch_saves",
        metrics=(),
        eval=False,
        save={"snapshot_step": None},
        kills=(
            (_end(0, 6),),
            (_end(1, 3),),
            (_end(1, 6), _end(2, 0)),
            (Kill(("save", 1)), Kill(("commit", 2))),
        ),
    ),
    Config("early_stopping", callbacks=("early_stopping",), fit_save_dir=True, epochs=8),
    Config(
        "num_iters",
        num_iters=15,
        schedule="cosine",
        network="full",
        kills=(
            (_end(1, 2),),
            (_end(1, 4),),
            (_end(0, 6),),
            (Kill(("eval_batch_end", 0, 1)),),
            (_end(0, 4), Kill(("eval_batch_end", 1, 1))),
        ),
    ),
    Config(
        "num_iters_in_eval",
        num_iters=9,
        kills=(
            (_end(0, 3),),
            (_end(0, 6),),
            (Kill(("eval_batch_end", 0, 0)),),
            (_end(0, 1), Kill(("eval_batch_end", 0, 1))),
        ),
    ),
    Config("eval_freq", eval_freq=2, epochs=4, network="full", eval_workers=2),
    Config("drop_last", drop_last=True, save=_save_each(2, snapshot_epoch=2), place="first"),
    # where the data comes from
    Config("random_sampler", data="loader", sampler="random", network="full"),
    Config("random_augmented", data="loader", sampler="random", augment=("numpy", "python")),
    Config("paddle_augmented", augment=("paddle",)),
    Config("weighted", data="loader", sampler="weighted", callbacks=("draws",)),
    Config("weighted_list", data="loader", sampler="weighted_list"),
    Config("counting_sampler", data="loader", sampler="counting", network="full"),
    Config("own_random_sampler", data="loader", sampler="own_random", save=_save_each(2)),
    Config("lazy_batches", data="loader", sampler="lazy"),
    Config("lazy_batches_workers", data="loader", sampler="lazy", workers=2),
    Config("lazy_batches_drawn", data="loader", sampler="lazy", workers=2, callbacks=("draws",)),
    Config("unshuffled", sampler="none", callbacks=("draws",), network="full"),
    Config("draws", callbacks=("draws",), network="full", schedule="cosine"),
    Config(
        "workers",
        workers=2,
        augment=("numpy", "python", "paddle"),
        network="full",
        eval_workers=2,
        eval_augment=("numpy",),
    ),
    Config(
        "workers_persistent",
        data="loader",
        sampler="random",
        workers=2,
        persistent=True,
        augment=("numpy", "python", "paddle"),
        epochs=4,
    ),
    Config(
        "three_workers",
        data="loader",
        sampler="random",
        workers=3,
        augment=("numpy", "python"),
        shared_memory=False,
        network="full",
        place="first",
    ),
    Config(
        "three_workers_persistent",
        data="loader",
        sampler="own_random",
        workers=3,
        persistent=True,
        shared_memory=False,
        augment=("numpy", "paddle"),
        callbacks=("draws",),
        save=_save_each(2),
    ),
    Config("stream", data="stream", augment=("numpy",)),
    Config("stream_workers", data="stream", workers=2, augment=("numpy", "python")),
    Config("stateful_stream", data="stateful_stream", network="full"),
    Config("list", data="list", network="full", callbacks=("draws",)),
    # other callbacks, all of ours
    Config(
        "stopped_in_epoch",
        callbacks=("stop",),
        schedule="cosine",
        epochs=4,
        place="first",
        kills=(
            (_end(1, 0),),
            (_end(1, 3),),
            (_end(1, 6),),
            (_end(1, 4), Kill(("eval_batch_end", 1, 1))),
        ),
    ),
    Config("counted", callbacks=("counted",), place="around"),
    Config("extra", callbacks=("average",), save=_save_each(2), ours="saver_first"),
    Config("progress", verbose=1, log_freq=1, callbacks=("visualdl",), fit_save_dir=True),
    Config("verbose", verbose=2, log_freq=3, callbacks=("visualdl", "draws"), place="first"),
    Config("all_ours", ours="all", network="full", schedule="cosine", fit_save_dir=True),
    Config(
        "everything",
        optimizer="adamw",
        schedule="warmup",
        clip="global_norm",
        decay=0.01,
        network="full",
        metrics=("accuracy", "auc"),
        accumulate=2,
        workers=2,
        augment=("numpy", "python", "paddle"),
        eval_workers=2,
        callbacks=("draws", "early_stopping", "visualdl"),
        epochs=4,
        fit_save_dir=True,
        place="around",
        save=_save_each(3),
    ),
]

CONFIGS: Dict[str, Config] = {config.name: config for config in _ALL}


def kill_lists(config: Config) -> List[Tuple[Kill, ...]]:
    """Returns the kill lists of a config: each list is one run, killed at each of its points."""
    if config.kills is not None:
        return list(config.kills)
    last = config.steps - 1
    lists = [
        (_end(0, 0),),
        (_end(1, 3),),
        (_end(0, last),),
        (_end(0, 4), _end(1, 4)),
        (Kill(("save", 2)), Kill(("batch_begin", 1, 1))),
    ]
    if config.eval:
        eval_epoch = 1 if config.eval_freq == 1 else 2
        lists.append((Kill(("eval_batch_end", eval_epoch, 1)),))
        lists.append((_end(1, last - 2), Kill(("eval_batch_end", 1 if eval_epoch == 1 else 2, 0))))
    if config.save.get("snapshot_step"):
        lists.append((Kill(("commit", 2)), Kill(("commit", 3))))
    return lists


SAMPLE: List[Tuple[Config, Tuple[Kill, ...]]] = []
"""The cases that each `make test` runs, chosen for diversity."""


def _sample(name: str, *kills: Kill, **changed: Any) -> None:
    config = CONFIGS[name]
    SAMPLE.append((replace(config, **changed) if changed else config, kills))


_sample("full", _end(1, 3), Kill(("eval_batch_end", 2, 1)))
_sample("heavy", Kill(("save", 2)), Kill(("commit", 2)))
_sample("reduce_lr", _end(3, 6))
_sample("trained_loss", _end(1, 2))
_sample("first_model", _end(0, 6))
_sample("num_iters", Kill(("eval_batch_end", 0, 1)))
_sample("random_augmented", _end(1, 4))
_sample("own_random_sampler", _end(1, 3))
_sample("workers_persistent", _end(1, 4))
_sample("stream_workers", _end(1, 2))
_sample("everything", _end(0, 4), _end(2, 3))
