"""Other callbacks: Paddle's own by a table, the user's by their state_dict, others left alone."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from paddle_resume.codec import Unencodable, assign, decode, encode
from paddle_resume.observe.log import log
from paddle_resume.state import curves
from paddle_resume.types import Captured

__all__ = ["Listeners"]

# What each of Paddle's own callbacks counts on from one epoch to the next (hapi/callbacks.py).
_TABLE: Mapping[str, Tuple[str, ...]] = {
    "ProgBarLogger": ("train_step", "epoch"),
    "ModelCheckpoint": ("epoch",),
    "EarlyStopping": ("wait_epoch", "best_value", "stopped_epoch"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter", "epoch"),
    "VisualDL": ("train_step", "epoch"),
    "WandbCallback": ("train_step", "epoch"),
}


class Listeners:
    """Component: the state of the other callbacks in the list.

    Args:
        callbacks: all of them in their order, paddle_resume's own left out.
        is_over: asked by `restore`, whether the run is finished: none of its steps comes again.
    """

    name = "listener"
    moves = "anytime"

    def __init__(
        self, callbacks: Sequence[Any], is_over: Callable[[], bool] = lambda: False
    ) -> None:
        self._callbacks = callbacks
        self._is_over = is_over

    def capture(self) -> Captured:
        """Returns the state of each callback that has one."""
        tensors: Dict[str, np.ndarray] = {}
        unsaved: List[str] = []
        held: Dict[str, Any] = {}
        for key, callback in self._keyed():
            content: Dict[str, Any] = {
                "attributes": _attributes(callback),
                "curve": curves.remember(callback),
            }
            if _has_state(callback):
                content["state"] = callback.state_dict()
            try:
                held[key] = {k: encode(v, tensors, f"{key}/{k}") for k, v in content.items() if v}
            except Unencodable as error:
                unsaved.append(f"the callback {key} cannot be saved: {error}")
        return Captured(tensors, {"listeners": held, "unsaved": unsaved})

    def restore(self, captured: Captured) -> List[str]:
        """Sets each callback's state; see `Component.restore`."""
        rest = dict(captured.values["listeners"])
        for key, callback in self._keyed():
            item = rest.pop(key, {})
            for name, value in decode(item.get("attributes", {}), captured.tensors).items():
                assign(callback, name, value)
            if "state" in item and _has_state(callback):
                callback.set_state_dict(decode(item["state"], captured.tensors))
            if "curve" in item:
                curves.go_on(callback, item["curve"], self._is_over())
        for key, item in rest.items():
            if item:
                log.warning("the callback %s of the checkpoint is not in this run's list", key)
        return []

    def _keyed(self) -> List[Tuple[str, Any]]:
        """Names each callback by its class and its place among those of the same class."""
        counts: Dict[str, int] = {}
        keyed = []
        for callback in self._callbacks:
            name = type(callback).__name__
            keyed.append((f"{name}.{counts.get(name, 0)}", callback))
            counts[name] = counts.get(name, 0) + 1
        return keyed


def _attributes(callback: Any) -> Dict[str, Any]:
    names = [name for kind in curves.paddle_kinds(callback) for name in _TABLE.get(kind, ())]
    return {name: getattr(callback, name) for name in names if hasattr(callback, name)}


def _has_state(callback: Any) -> bool:
    return hasattr(callback, "state_dict") and hasattr(callback, "set_state_dict")
