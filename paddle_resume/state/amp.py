"""The gradient scaler of mixed precision."""

from __future__ import annotations

from typing import Any, Callable, List

from paddle_resume.codec import decode, encode
from paddle_resume.observe.log import log
from paddle_resume.types import Captured

__all__ = ["Scaler"]


class Scaler:
    """Component: a `paddle.amp.GradScaler`, which hapi creates only in its first batch.

    Args:
        get: returns the scaler, or None while there is none.
        create: creates it as the training loop would, and returns it.
    """

    name = "amp"
    moves = "update"

    def __init__(self, get: Callable[[], Any], create: Callable[[], Any]) -> None:
        self._get = get
        self._create = create

    def capture(self) -> Captured:
        """Returns the scaler's state_dict."""
        scaler = self._get()
        if scaler is None:
            return Captured()
        tensors: dict = {}
        return Captured(tensors, {"scaler": encode(scaler.state_dict(), tensors, "scaler")})

    def restore(self, captured: Captured) -> List[str]:
        """Sets the scaler's state, creating it first; see `Component.restore`."""
        if "scaler" not in captured.values:
            return []
        scaler = self._get() or self._create()
        if scaler is None:
            return ["the checkpoint has the state of a GradScaler and this run has AMP off"]
        state = decode(captured.values["scaler"], captured.tensors)
        if state and not scaler.is_enable():
            log.warning(
                "the resume is not exact: the checkpoint has the state of a GradScaler, which is "
                "off on this device"
            )
        elif state:
            scaler.load_state_dict(state)
        return []
