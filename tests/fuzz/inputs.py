"""What the fuzz runs feed: JSON of any form, and real files with any change."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

KEYS = st.sampled_from(
    ["step", "event", "metrics", "best", "value", "monitor", "mode", "run_id", "why", "epochs",
     "ending", "action", "origin", "resume_from", "durable_s", "$", "v", "key", "kind", "file"]
)  # fmt: skip
WORDS = st.sampled_from(
    ["save", "start", "eval", "prune", "fresh", "loss", "min", "max", "nan", "network", "optimizer",
     "array", "tensor", "tuple", "dict", "RandomState", "model", "../x", "step_00000500", "\ud800"]
)  # fmt: skip
NUMBERS = st.sampled_from([0, 1, -1, 500, 400, 2**63, 10**30, -(10**400), 0.5, 1e308, True])
LEAVES = st.none() | st.booleans() | NUMBERS | WORDS | st.text(max_size=6) | st.integers()
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS | st.text(max_size=4), JSON, max_size=6)


@st.composite
def changed_json(draw: Any, value: Any) -> Any:
    """A JSON value with one to three places replaced, removed or added."""
    found = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        at = found
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            deeper = isinstance(at[key], (dict, list)) and len(at[key])
            if deeper and draw(st.integers(0, 3)):
                at = at[key]
                continue
            what = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
            if what == "replace":
                at[key] = draw(JSON)
            elif what == "remove":
                del at[key]
            elif isinstance(at, dict):
                at[draw(KEYS | st.text(max_size=4))] = draw(JSON)
            else:
                at.insert(key, draw(JSON))
            break
    return found


@st.composite
def changed_bytes(draw: Any, data: bytes, alphabet: bytes = b"") -> bytes:
    """Bytes with one to four changes; `alphabet` are bytes that mean something in them."""
    pieces = st.binary(max_size=8)
    if alphabet:
        pieces |= st.lists(st.sampled_from(list(alphabet)), max_size=8).map(bytes)
    found = data
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(found)))
        what = draw(st.sampled_from(["flip", "put", "insert", "remove", "cut", "repeat"]))
        if what == "flip" and start < len(found):
            bit = 1 << draw(st.integers(0, 7))
            found = found[:start] + bytes([found[start] ^ bit]) + found[start + 1 :]
        elif what == "put":
            piece = draw(pieces)
            found = found[:start] + piece + found[start + len(piece) :]
        elif what == "insert":
            found = found[:start] + draw(pieces) + found[start:]
        elif what == "remove":
            found = found[:start] + found[start + draw(st.integers(0, 20)) :]
        elif what == "cut":
            found = found[:start]
        elif what == "repeat":
            end = start + draw(st.integers(0, 20))
            found = found[:end] + found[start:]
    return found
