"""What a batch sampler remembers from one epoch to the next."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Mapping, MutableMapping, Tuple

import numpy as np
import xxhash

from paddle_resume.codec import Unencodable, assign, decode, encode
from paddle_resume.runtime import require_paddle

__all__ = ["SamplerMemory"]

# Arguments of Paddle's own samplers, which their own code never changes.
_ARGUMENTS = frozenset(
    "batch_size shuffle drop_last nranks local_rank num_samples _num_samples total_size "
    "replacement _acc_steps num_replicas rank dataset data_source".split()
)
_DEEPEST = 4


class SamplerMemory:
    """The attributes of a batch sampler, and of the samplers inside it, that its epochs move.

    What is as the script made it is not kept, so that the script may change it; an epoch counter
    is kept always. A sampler with state_dict() and set_state_dict() speaks for itself.

    Args:
        sampler: the batch sampler, before its first epoch.
    """

    def __init__(self, sampler: Any) -> None:
        self._parts = list(_samplers("batch_sampler", sampler, 0))
        self._first = {part: _digests(owner) for part, owner in self._parts}

    def capture(
        self, tensors: MutableMapping[str, np.ndarray], unsaved: List[str]
    ) -> Dict[str, Any]:
        """Returns JSON; arrays go into `tensors`, what cannot be kept into `unsaved`."""
        held: Dict[str, Any] = {}
        for part, owner in self._parts:
            if _speaks(owner):
                held[part] = {"state": encode(owner.state_dict(), tensors, f"{part}/state")}
                continue
            attributes = {}
            for key, value in _attributes(owner).items():
                digest = _digest(value)
                if digest is None:
                    if isinstance(value, Iterator):
                        unsaved.append(
                            f"the {part}'s {key} is a {type(value).__name__}, whose place cannot "
                            "be saved: give the sampler state_dict() and set_state_dict()"
                        )
                elif digest != self._first[part].get(key) or "epoch" in key.lower():
                    attributes[key] = encode(value, tensors, f"{part}/{key}")
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


def _samplers(name: str, sampler: Any, depth: int) -> Iterator[Tuple[str, Any]]:
    """Yields a sampler and those that it holds."""
    if depth > _DEEPEST or not hasattr(sampler, "__dict__"):
        return
    yield name, sampler
    io = require_paddle().io
    for key, value in vars(sampler).items():
        if isinstance(value, (io.Sampler, io.BatchSampler)):
            yield from _samplers(f"{name}.{key}", value, depth + 1)


def _speaks(owner: Any) -> bool:
    return hasattr(owner, "state_dict") and hasattr(owner, "set_state_dict")


def _attributes(owner: Any) -> Dict[str, Any]:
    return {key: value for key, value in vars(owner).items() if key not in _ARGUMENTS}


def _digests(owner: Any) -> "Dict[str, str | None]":
    return {key: _digest(value) for key, value in _attributes(owner).items()}


def _digest(value: Any) -> "str | None":
    """Returns a hash of a value; None where it has no form on disk."""
    tensors: Dict[str, np.ndarray] = {}
    plain_list = isinstance(value, list) and all(type(item) is int for item in value)
    try:
        text = json.dumps(encode(np.array(value) if plain_list else value, tensors))
    except (Unencodable, OverflowError):
        return None
    hashed = xxhash.xxh3_64(text.encode())
    for array in tensors.values():
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()
