"""Metrics in the middle of an epoch: what they have counted so far."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import numpy as np

from paddle_resume.codec import Unencodable, assign, decode, encode
from paddle_resume.types import Captured

__all__ = ["Metrics"]


class Metrics:
    """Component: the attributes of each `paddle.metric.Metric`.

    Args:
        metrics: the metrics in their order.
    """

    name = "metric"
    moves = "anytime"

    def __init__(self, metrics: Sequence[Any]) -> None:
        self._metrics = metrics

    def capture(self) -> Captured:
        """Returns each metric's plain attributes, or its state_dict where it has one."""
        tensors: Dict[str, np.ndarray] = {}
        unsaved: List[str] = []
        held = []
        for index, metric in enumerate(self._metrics):
            attributes = {}
            for key, value in _content(metric).items():
                if callable(value):
                    continue
                try:
                    attributes[key] = encode(value, tensors, f"{index}/{key}")
                except Unencodable as error:
                    unsaved.append(f"the metric {type(metric).__name__} cannot be saved: {error}")
            held.append({"class": type(metric).__name__, "attributes": attributes})
        return Captured(tensors, {"metrics": held, "unsaved": unsaved})

    def restore(self, captured: Captured) -> List[str]:
        """Sets each metric's attributes; see `Component.restore`."""
        saved = captured.values["metrics"]
        found = [item["class"] for item in saved]
        expected = [type(metric).__name__ for metric in self._metrics]
        if found != expected:
            return [f"the metrics were {found} in the checkpoint and are {expected} here"]
        for metric, item in zip(self._metrics, saved):
            state = {k: decode(v, captured.tensors) for k, v in item["attributes"].items()}
            if hasattr(metric, "set_state_dict"):
                metric.set_state_dict(state)
            else:
                for key, value in state.items():
                    assign(metric, key, value)
        return []


def _content(metric: Any) -> Dict[str, Any]:
    if hasattr(metric, "state_dict") and hasattr(metric, "set_state_dict"):
        return dict(metric.state_dict())
    return vars(metric)
