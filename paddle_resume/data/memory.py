"""What a batch sampler remembers from one epoch to the next."""

from __future__ import annotations

import random
from typing import Any, Dict, List, Mapping, MutableMapping, Tuple

import numpy as np
import xxhash

from paddle_resume.codec import Unencodable, assign, decode, encode

__all__ = ["SamplerMemory"]

# Arguments of Paddle's own samplers: the script's, never restored.
_ARGUMENTS = frozenset(
    "batch_size shuffle drop_last nranks local_rank num_samples _num_samples total_size "
    "replacement _acc_steps num_replicas rank".split()
)
_GENERATORS = (np.random.RandomState, np.random.Generator, random.Random)
_SCALARS = (bool, int, float, str)


class SamplerMemory:
    """The moving attributes of a batch sampler and of the sampler inside it.

    Numbers (an epoch counter, a seed) and random generators are kept always; lists and arrays (a
    permutation shuffled in place) only once they have changed. A sampler with state_dict() and
    set_state_dict() speaks for itself.

    Args:
        sampler: the batch sampler, before its first epoch.
    """

    def __init__(self, sampler: Any) -> None:
        self._parts: List[Tuple[str, Any]] = [("batch_sampler", sampler)]
        inner = getattr(sampler, "sampler", None)
        if inner is not None and hasattr(inner, "__dict__"):
            self._parts.append(("sampler", inner))
        self._first = {
            (part, key): _digest(value)
            for part, owner in self._parts
            for key, value in _attributes(owner).items()
            if isinstance(value, (list, np.ndarray))
        }

    def capture(self, tensors: MutableMapping[str, np.ndarray]) -> Dict[str, Any]:
        """Returns JSON; arrays go into `tensors`."""
        held: Dict[str, Any] = {}
        for part, owner in self._parts:
            if _speaks(owner):
                held[part] = {"state": encode(owner.state_dict(), tensors, f"{part}/state")}
                continue
            attributes = {
                key: encode(value, tensors, f"{part}/{key}")
                for key, value in _attributes(owner).items()
                if isinstance(value, _SCALARS + _GENERATORS) or self._changed(part, key, value)
            }
            held[part] = {"attributes": attributes}
        return held

    def restore(self, held: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
        """Sets what `capture` returned."""
        for part, owner in self._parts:
            saved = held.get(part, {})
            if "state" in saved and _speaks(owner):
                owner.set_state_dict(decode(saved["state"], tensors))
            for key, value in saved.get("attributes", {}).items():
                if hasattr(owner, key):
                    assign(owner, key, decode(value, tensors))

    def _changed(self, part: str, key: str, value: Any) -> bool:
        if not isinstance(value, (list, np.ndarray)):
            return False
        digest = _digest(value)
        return digest != "" and digest != self._first.get((part, key))


def _speaks(owner: Any) -> bool:
    return hasattr(owner, "state_dict") and hasattr(owner, "set_state_dict")


def _attributes(owner: Any) -> Dict[str, Any]:
    return {key: value for key, value in vars(owner).items() if key not in _ARGUMENTS}


def _digest(value: Any) -> str:
    """Returns a hash of a list or array of plain values, "" where it holds something else."""
    array = np.asarray(value) if isinstance(value, np.ndarray) or _flat(value) else None
    if array is None or array.dtype.hasobject:
        return ""
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array).tobytes())


def _flat(values: List[Any]) -> bool:
    try:
        encode(values[:1], {})
    except Unencodable:
        return False
    return all(isinstance(value, _SCALARS) for value in values)
