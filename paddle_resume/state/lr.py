"""The learning rate: the scheduler, the plain number, and the tensor that the update reads."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, MutableMapping

import numpy as np

from paddle_resume.codec import Unencodable, assign, decode, encode
from paddle_resume.observe.log import log
from paddle_resume.runtime import require_paddle
from paddle_resume.types import Captured

__all__ = ["LearningRate", "pdopt_entry"]

_HINT = 'lr_policy="override" uses the script\'s'
RESTORE, OVERRIDE = "restore", "override"
_GENERATED = ("_var_name",)  # the tensor's generated name, of this process only


class LearningRate:
    """Component: learning rate and schedule of one optimizer.

    A scheduler is kept with all its plain attributes, not only those of its own state_dict:
    several of Paddle's schedules compute the next rate from the last one.

    Args:
        optimizer: a `paddle.optimizer.Optimizer`.
        policy: `"restore"`, or `"override"` for the script's schedule, fast-forwarded.
    """

    name = "lr"
    moves = "anytime"

    def __init__(self, optimizer: Any, policy: str = RESTORE) -> None:
        self._optimizer = optimizer
        self._policy = policy

    def capture(self) -> Captured:
        """Returns the scheduler's attributes or the number, and the tensor's value."""
        tensors: Dict[str, np.ndarray] = {}
        unsaved: List[str] = []
        rate = self._optimizer._learning_rate
        values: Dict[str, Any] = {}
        if _is_scheduler(rate):
            values["scheduler"] = _dump(rate, tensors, "scheduler", unsaved)
        else:
            values["number"] = encode(rate, tensors, "number")
        tensor = self._optimizer._global_learning_rate()
        # hapi's ReduceLROnPlateau changes the number while the tensor stays as it was.
        values["tensor"] = None if tensor is None else float(np.asarray(tensor.numpy()).item())
        if unsaved:
            values["unsaved"] = unsaved
        return Captured(tensors, values)

    def restore(self, captured: Captured) -> List[str]:
        """Sets rate and schedule by the policy; see `Component.restore`."""
        rate = self._optimizer._learning_rate
        saved = captured.values.get("scheduler")
        if self._policy == OVERRIDE:
            return _fast_forward(rate, saved)
        if _is_scheduler(rate) != (saved is not None):
            found = saved["class"] if saved else "a plain number"
            expected = type(rate).__name__ if _is_scheduler(rate) else "a plain number"
            return [
                f"the learning rate was {found} in the checkpoint and is {expected} here; {_HINT}"
            ]
        if saved is not None:
            return _load(rate, saved, captured.tensors, "scheduler")
        if captured.values["tensor"] is not None:
            self._optimizer._create_global_learning_rate()
            self._optimizer.set_lr(captured.values["tensor"])
        self._optimizer._learning_rate = decode(captured.values["number"], captured.tensors)
        return []


def pdopt_entry(optimizer: Any) -> Dict[str, Any]:
    """Returns what `Optimizer.set_state_dict` expects of the schedule in a `.pdopt` file."""
    rate = optimizer._learning_rate
    return {"LR_Scheduler": _plain(rate.state_dict())} if _is_scheduler(rate) else {}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item) for item in value)
    return value.item() if hasattr(value, "item") else value


def _is_scheduler(rate: Any) -> bool:
    return isinstance(rate, require_paddle().optimizer.lr.LRScheduler)


def _dump(
    scheduler: Any,
    tensors: MutableMapping[str, np.ndarray],
    path: str,
    unsaved: List[str],
) -> Dict[str, Any]:
    attributes: Dict[str, Any] = {}
    inner: Dict[str, Any] = {}
    for key, value in vars(scheduler).items():
        if key in _GENERATED:
            continue
        if _is_scheduler(value):
            inner[key] = _dump(value, tensors, f"{path}/{key}", unsaved)
        elif not callable(value):
            try:
                attributes[key] = encode(value, tensors, f"{path}/{key}")
            except Unencodable as error:
                unsaved.append(f"the schedule's {key} cannot be saved: {error}")
    return {"class": type(scheduler).__name__, "attributes": attributes, "inner": inner}


def _load(
    scheduler: Any, saved: Mapping[str, Any], tensors: Mapping[str, np.ndarray], path: str
) -> List[str]:
    if type(scheduler).__name__ != saved["class"]:
        return [
            f"the {path} was {saved['class']} in the checkpoint and is "
            f"{type(scheduler).__name__} here; {_HINT}"
        ]
    problems = []
    for key, value in saved["attributes"].items():
        assign(scheduler, key, decode(value, tensors))
    for key, value in saved["inner"].items():
        inner = getattr(scheduler, key, None)
        if inner is None or not _is_scheduler(inner):
            problems.append(f"the {path}'s inner schedule {key} is missing here")
        else:
            problems += _load(inner, value, tensors, f"{path}/{key}")
    return problems


def _fast_forward(rate: Any, saved: "Mapping[str, Any] | None") -> List[str]:
    if not _is_scheduler(rate):
        return []
    if saved is None or isinstance(rate, require_paddle().optimizer.lr.ReduceOnPlateau):
        why = "is driven by a metric" if saved is not None else "replaces a plain number"
        log.warning("the script's %s %s: it starts at its beginning", type(rate).__name__, why)
        return []
    try:
        while rate.last_epoch < saved["attributes"]["last_epoch"]:
            rate.step()
    except ValueError as error:
        return [f"the script's schedule {type(rate).__name__} cannot be brought here: {error}"]
    return []
