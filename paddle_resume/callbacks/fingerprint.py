"""What a script can change between two starts, and what each change means for the resume."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

import xxhash

from paddle_resume.callbacks.fit_session import FitHooks
from paddle_resume.data.source import batch_size_of, length_of
from paddle_resume.runtime import require_paddle
from paddle_resume.types import Captured

__all__ = ["Fingerprint", "changes", "trainable"]

_PLAIN = (bool, int, float, str)
_SCHEDULE = "the checkpoint's learning rate is used; lr_policy=\"override\" takes the script's"
_OTHER_RUN = "the training goes on with the new value: not the run it was"
_MEANING = {
    "batch_size": "the rest of the epoch is cut into other batches: not exact",
    "dataset_length": "the rest of the epoch is drawn from other data: not exact",
    "num_workers": "workers start with other random streams: exact only where the dataset draws "
    "nothing",
    "sampler": "the rest of the epoch comes in another order: not exact",
    "paddle": "its kernels may round differently: not exact to the last bit",
    "numpy": "its random functions may draw differently: not exact to the last bit",
    "device": "it rounds differently: not exact to the last bit",
    "learning_rate": _SCHEDULE,
    "schedule": _SCHEDULE,
    "trainable": "what the checkpoint trained is trained on",
}
_MOVING = frozenset(
    "last_epoch last_lr verbose _var_name best cooldown_counter num_bad_epochs T_cur T_i".split()
)
_GPU_FLAG = "FLAGS_cudnn_deterministic"


class Fingerprint:
    """The settings of this run; never restored, only compared.

    Args:
        hooks: into the fit.
        loader: the training data.
    """

    name = "fingerprint"
    moves = "anytime"

    def __init__(self, hooks: FitHooks, loader: Any) -> None:
        # At the start: later, ReduceLROnPlateau and others have changed the optimizer.
        self.settings = _settings(hooks, loader)
        self.unsaved = _indeterminism()

    def capture(self) -> Captured:
        """Returns the settings."""
        return Captured(values={"settings": self.settings, "unsaved": self.unsaved})


def changes(
    before: Mapping[str, Any], now: Mapping[str, Any], lr_overridden: bool = False
) -> List[str]:
    """Compares two runs' settings.

    Args:
        before: of the checkpoint.
        now: of this run.
        lr_overridden: whether the script's learning rate is used.

    Returns:
        A sentence for each that differs: what it was, what it is, what that means.

    Example:
        >>> changes({"num_workers": 2}, {"num_workers": 2})
        []
    """
    meaning = dict(_MEANING)
    if lr_overridden:
        meaning.update(learning_rate=_OTHER_RUN, schedule=_OTHER_RUN)
    return [
        f"{name} was {before[name]!r} and is {now[name]!r}: {meaning.get(name, _OTHER_RUN)}"
        for name in sorted(set(before) & set(now))
        if before[name] != now[name]
    ]


def trainable(frozen: Mapping[str, bool]) -> str:
    """Describes which parameters are trained.

    Args:
        frozen: each parameter's name to its stop_gradient.

    Example:
        >>> trainable({"weight": False, "bias": True})
        '1 of 2 parameters (8e64a4a2)'
    """
    names = sorted(name for name, is_frozen in frozen.items() if not is_frozen)
    return f"{len(names)} of {len(frozen)} parameters ({_hash(names)})"


def _trained_by(optimizer: Any, named: Mapping[str, Any]) -> str:
    groups = optimizer._param_groups
    if groups and isinstance(groups[0], dict):
        groups = [parameter for group in groups for parameter in group["params"]]
    given = {id(parameter) for parameter in groups}
    return trainable({name: id(parameter) not in given for name, parameter in named.items()})


def _hash(value: Any) -> str:
    return xxhash.xxh32(repr(value).encode()).hexdigest()


def _settings(hooks: FitHooks, loader: Any) -> Dict[str, Any]:
    import numpy as np

    paddle = require_paddle()
    optimizer = hooks.optimizer
    rate = optimizer._learning_rate
    scheduled = isinstance(rate, paddle.optimizer.lr.LRScheduler)
    sampler = getattr(loader, "batch_sampler", None)
    inner = getattr(sampler, "sampler", None)
    named = dict(hooks.model.network.named_parameters())
    shapes = sorted((name, list(parameter.shape)) for name, parameter in named.items())
    kinds = [type(item).__name__ for item in (sampler, inner) if item is not None]
    settings: Dict[str, Any] = {
        "accumulate_grad_batches": hooks.accumulate,
        "amp_level": hooks.amp_level,
        "batch_size": batch_size_of(loader),
        "dataset_length": length_of(getattr(loader, "dataset", loader)),
        "device": paddle.device.get_device().split(":")[0],
        "learning_rate": float(rate.base_lr if scheduled else rate),
        "loss": type(hooks.loss).__name__,
        "network": f"{len(named)} parameters ({_hash(shapes)})",
        "num_workers": getattr(loader, "num_workers", 0),
        "numpy": np.__version__.split(".")[0],
        "paddle": paddle.__version__,
        "sampler": "+".join(kinds) + f"(shuffle={getattr(sampler, 'shuffle', None)}, "
        f"drop_last={getattr(sampler, 'drop_last', None)})",
        "optimizer": type(optimizer).__name__,
        "optimizer.parameters": _trained_by(optimizer, named),
        "schedule": _schedule(rate) if scheduled else None,
        "trainable": trainable({name: bool(p.stop_gradient) for name, p in named.items()}),
    }
    settings.update(_optimizer_settings(optimizer))
    return settings


def _schedule(scheduler: Any) -> str:
    """The class and its arguments; what moves in a schedule is not a setting."""
    paddle = require_paddle()
    found = {}
    for key, value in sorted(vars(scheduler).items()):
        if isinstance(value, paddle.optimizer.lr.LRScheduler):
            found[key] = _schedule(value)
        elif key not in _MOVING and type(value) in (*_PLAIN, list, tuple):
            found[key] = str(value)
    return f"{type(scheduler).__name__}({', '.join(f'{k}={v}' for k, v in found.items())})"


def _optimizer_settings(optimizer: Any) -> Dict[str, Any]:
    found = {
        f"optimizer.{key.strip('_')}": value
        for key, value in vars(optimizer).items()
        if type(value) in _PLAIN and key not in ("_learning_rate", "_need_refuse", "_name")
    }
    for name, attribute in (("grad_clip", "_grad_clip"), ("regularization", "regularization")):
        found[f"optimizer.{name}"] = _described(getattr(optimizer, attribute, None))
    return found


def _described(item: Any) -> Any:
    """The class and its plain attributes: the default text of an object has its address."""
    if item is None:
        return None
    plain = {key: value for key, value in sorted(vars(item).items()) if type(value) in _PLAIN}
    return f"{type(item).__name__}{plain}"


def _indeterminism() -> List[str]:
    paddle = require_paddle()
    if not paddle.device.get_device().startswith("gpu"):
        return []
    if paddle.get_flags(_GPU_FLAG)[_GPU_FLAG]:
        return []
    return [
        f"{_GPU_FLAG} is off, so on a GPU even an uninterrupted run does not repeat itself to the "
        f"last bit; set it with paddle.set_flags({{'{_GPU_FLAG}': True}})"
    ]
