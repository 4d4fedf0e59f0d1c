"""What the user adds: objects with state_dict() and set_state_dict()."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

import numpy as np

from paddle_resume.codec import Unencodable, decode, encode
from paddle_resume.errors import ConfigError
from paddle_resume.types import Captured

__all__ = ["Extra"]


class Extra:
    """Component: the user's own objects.

    Args:
        objects: name to an object with `state_dict()` and `set_state_dict(state)`.
    """

    name = "extra"
    moves = "anytime"

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = objects

    def capture(self) -> Captured:
        """Returns each object's state_dict.

        Raises:
            ConfigError: a state holds something that has no form on disk.
        """
        tensors: Dict[str, np.ndarray] = {}
        values = {}
        for name, item in self._objects.items():
            try:
                values[name] = encode(item.state_dict(), tensors, name)
            except Unencodable as error:
                raise ConfigError(
                    f"extra[{name!r}].state_dict() cannot be saved: {error}. It may hold plain "
                    "values, lists, dicts, numpy arrays and Paddle tensors."
                ) from error
        return Captured(tensors, {"objects": values})

    def restore(self, captured: Captured) -> List[str]:
        """Calls each object's set_state_dict; see `Component.restore`."""
        saved = captured.values["objects"]
        for name, item in self._objects.items():
            if name in saved:
                item.set_state_dict(decode(saved[name], captured.tensors))
        missing = [
            f"extra {name!r} is in this run, not in the checkpoint"
            for name in self._objects
            if name not in saved
        ]
        unused = [
            f"extra {name!r} is in the checkpoint, not in this run"
            for name in saved
            if name not in self._objects
        ]
        return missing + unused
