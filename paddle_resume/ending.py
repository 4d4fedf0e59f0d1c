"""What changes between the last save of a run and its end.

The last boundary is saved before the last on_epoch_end and the last evaluation, which may still
step a schedule, count for an early stop or draw random numbers. A finished run is not trained
again, so what they changed is kept in finished.json.
"""

from __future__ import annotations

import base64
import dataclasses
from typing import Any, Collection, Dict, Mapping, Optional

import numpy as np

from paddle_resume.observe.log import human_size, log
from paddle_resume.types import Captured, TrainingState

__all__ = ["changed", "with_ending"]

_LARGEST = 16 << 20


def changed(
    before: Mapping[str, Captured], now: Mapping[str, Captured], added: Collection[str] = ()
) -> Dict[str, Any]:
    """Writes the parts that are not as they were, as JSON values.

    Args:
        before: parts at the last boundary.
        now: the same parts at the end.
        added: names of those parts that are only a piece of what was saved; of these, the
            arrays that changed are put to the saved ones.

    Returns:
        Name to values and arrays.

    Example:
        >>> changed({"lr": Captured(values={"n": 1})}, {"lr": Captured(values={"n": 2})})
        {'lr': {'values': {'n': 2}, 'arrays': {}, 'added': False}}
    """
    found = {}
    for name, part in now.items():
        if name in before and _same(before[name], part):
            continue
        kept = {**part.tensors}
        if name in added:
            old = before[name].tensors
            kept = {key: array for key, array in kept.items() if not _equal(old.get(key), array)}
        size = sum(array.nbytes for array in kept.values())
        if size > _LARGEST:
            log.warning(
                "%s of the part %r changed after the last save and are not kept with the finished "
                "run: started again, it has them as they were at its last step",
                human_size(size),
                name,
            )
            continue
        arrays = {
            key: [array.dtype.str, list(array.shape), base64.b64encode(array.tobytes()).decode()]
            for key, array in kept.items()
        }
        found[name] = {"values": part.values, "arrays": arrays, "added": name in added}
    return found


def with_ending(state: TrainingState, ending: Optional[Mapping[str, Any]]) -> TrainingState:
    """Puts what changed after the last save into its state.

    Args:
        state: as saved.
        ending: what `changed` returned; None where nothing is known.

    Returns:
        The state at the end.

    Raises:
        ValueError: the content is not what `changed` writes.
    """
    parts = dict(state.parts)
    for name, content in (ending or {}).items():
        tensors = {
            key: np.frombuffer(base64.b64decode(data), np.dtype(kind)).reshape(shape)
            for key, (kind, shape, data) in content["arrays"].items()
        }
        saved = parts[name] if content["added"] else Captured()
        parts[name] = Captured({**saved.tensors, **tensors}, {**saved.values, **content["values"]})
    return dataclasses.replace(state, parts=parts)


def _same(one: Captured, other: Captured) -> bool:
    if one.values != other.values or list(one.tensors) != list(other.tensors):
        return False
    return all(_equal(array, other.tensors[key]) for key, array in one.tensors.items())


def _equal(one: "np.ndarray | None", other: np.ndarray) -> bool:
    if one is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return one.tobytes() == other.tobytes()
