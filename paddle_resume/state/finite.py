"""Whether the weights are all finite numbers."""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping

import numpy as np

from paddle_resume.types import Captured, TrainingState

__all__ = ["Health", "not_finite"]

_BFLOAT16_EXPONENT = 0x7F80
_PIECE = 1 << 18


class Health:
    """The part of a state that says whether its weights are finite."""

    name = "health"

    @staticmethod
    def of(state: TrainingState) -> Captured:
        """Looks at the weights of a state."""
        return Captured(values={"not_finite": not_finite(state.parts)})

    @staticmethod
    def read(values: Mapping[str, Mapping[str, Any]]) -> List[str]:
        """Returns the weights that a saved state names as not finite.

        Args:
            values: each part's values.
        """
        return list(values.get(Health.name, {}).get("not_finite", []))


def not_finite(parts: Mapping[str, Captured]) -> List[str]:
    """Finds weights that hold NaN or infinity.

    Args:
        parts: a training state's parts.

    Returns:
        The names of the tensors, network by network.

    Example:
        >>> weights = {"a": np.array([1.0, np.nan]), "b": np.ones(3)}
        >>> not_finite({"model": Captured(weights, {"kind": "network"})})
        ['a']
    """
    found = []
    for part in parts.values():
        if part.values.get("kind") == "network":
            found += [name for name, array in part.tensors.items() if not _finite(array)]
    return found


def _finite(array: "np.ndarray[Any, Any]") -> bool:
    pieces: Iterable[Any] = (
        array.reshape(-1)[start : start + _PIECE] for start in range(0, array.size, _PIECE)
    )
    if array.dtype.kind in "fc":
        return all(np.isfinite(piece).all() for piece in pieces)
    if array.dtype == np.uint16:  # bfloat16, as Paddle's files hold it
        return all(
            not ((piece & _BFLOAT16_EXPONENT) == _BFLOAT16_EXPONENT).any() for piece in pieces
        )
    return True
