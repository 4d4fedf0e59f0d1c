"""By how much two sets of tensors differ."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

import numpy as np

__all__ = ["differences"]


def differences(
    one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]
) -> List[Dict[str, Any]]:
    """Compares tensors, bit for bit.

    Args:
        one: name to array, of any shapes and dtypes; uint16 is bfloat16, as Paddle's files hold it.
        other: the same of the other side.

    Returns:
        For each that differs: `tensor`, `what` in words, `size`, how many values `differ`, the
        largest absolute difference `max_abs`, and that relative to the largest value of the first,
        `max_rel`. None where there is no such number: other shapes, NaN or infinity throughout.

    Example:
        >>> found = differences({"w": np.array([1.0, 2.0])}, {"w": np.array([1.0, 2.5])})
        >>> found[0]["differ"], found[0]["max_abs"], found[0]["max_rel"]
        (1, 0.5, 0.25)
    """
    found = []
    for name in [*one, *(name for name in other if name not in one)]:
        what = _difference(one.get(name), other.get(name))
        if what is not None:
            found.append({"tensor": name, **what})
    return found


def _difference(one: Optional[np.ndarray], other: Optional[np.ndarray]) -> Optional[Dict[str, Any]]:
    if one is None or other is None:
        there = other if one is None else one
        assert there is not None
        side = "B" if one is None else "A"
        return _entry(f"only in {side}: {there.dtype} {list(there.shape)}", int(there.size))
    if one.shape != other.shape or one.dtype != other.dtype:
        words = f"{one.dtype} {list(one.shape)}, then {other.dtype} {list(other.shape)}"
        return _entry(words, int(one.size))
    if one.tobytes() == other.tobytes():
        return None
    return _by_how_much(one.reshape(-1), other.reshape(-1))


def _by_how_much(one: np.ndarray, other: np.ndarray) -> Dict[str, Any]:
    bits = np.dtype(("V", one.dtype.itemsize))
    differ = int(np.count_nonzero(one.view(bits) != other.view(bits)))
    if one.dtype.kind not in "biufc":
        return {**_entry("", int(one.size)), "differ": differ}
    left, right = _as_numbers(one), _as_numbers(other)
    finite = np.isfinite(left) & np.isfinite(right)
    words = ""
    if not finite.all():
        sides = (np.count_nonzero(~np.isfinite(side)) for side in (left, right))
        words = "NaN or infinity: {} in A, {} in B".format(*sides)
    if not finite.any():
        return {**_entry(words, int(one.size)), "differ": differ}
    with np.errstate(over="ignore"):
        most = float(np.max(np.abs(left[finite] - right[finite])))
    largest = float(np.max(np.abs(left[finite])))
    return {
        **_entry(words, int(one.size)),
        "differ": differ,
        "max_abs": most if np.isfinite(most) else None,
        "max_rel": most / largest if largest and np.isfinite(most / largest) else None,
    }


def _as_numbers(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array if array.dtype.kind == "c" else array.astype(np.float64)


def _entry(what: str, size: int) -> Dict[str, Any]:
    return {"what": what, "size": size, "differ": None, "max_abs": None, "max_rel": None}
