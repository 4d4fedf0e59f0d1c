"""Values survive JSON exactly, with their types."""

from __future__ import annotations

import collections
import json
import math
import random
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from paddle_resume.codec import Unencodable, assign, decode, encode


def through_json(value: Any) -> Any:
    arrays: dict = {}
    text = json.dumps(encode(value, arrays), allow_nan=False)
    return decode(json.loads(text), arrays)


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (list, tuple, collections.deque)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) and same(a[x], b[y]) for x, y in zip(a, b))
    return bool(a == b)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st_numpy.arrays(
        st_numpy.floating_dtypes() | st_numpy.integer_dtypes(), st_numpy.array_shapes()
    )
    | st.floats(width=32).map(np.float32)
    | st.integers(-5, 5).map(np.int64)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.dictionaries(st.text(), inner).map(collections.OrderedDict)
        | st.lists(inner).map(lambda items: collections.deque(items, maxlen=9))
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(values)
def test_any_value_survives(value: Any) -> None:
    assert same(through_json(value), value)


@pytest.mark.parametrize("value", [{1, "a"}, frozenset({2}), {"$": "tuple"}, {("a", 1): 2}])
def test_sets_and_odd_keys(value: Any) -> None:
    assert through_json(value) == value


@pytest.mark.parametrize(
    "make",
    [
        lambda: random.Random(3),
        lambda: np.random.RandomState(3),
        lambda: np.random.default_rng(3),
        lambda: np.random.Generator(np.random.Philox(3)),
    ],
)
def test_random_generators(make: Any) -> None:
    def draw(generator: Any) -> Any:
        normal = generator.gauss if isinstance(generator, random.Random) else generator.normal
        return normal(0, 1), normal(0, 1)

    generator = make()
    draw(generator)
    copy = through_json(generator)
    assert draw(copy) == draw(generator)


@pytest.mark.parametrize("value", [sys.stdout, object(), len, np.array([object()]), {"a": print}])
def test_what_cannot_be_saved_is_named(value: Any) -> None:
    with pytest.raises(Unencodable, match="value"):
        encode(value, {})


def test_a_value_that_contains_itself() -> None:
    value: list = []
    value.append(value)
    with pytest.raises(Unencodable):
        encode(value, {})


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError):
        decode({"$": "os.system", "v": "true"}, {})
    with pytest.raises(ValueError):
        state = encode({"bit_generator": "exec"}, {})
        decode({"$": "Generator", "v": state}, {})


def test_assign_keeps_the_object_where_others_hold_it() -> None:
    class Owner:
        pass

    owner = Owner()
    owner.rng, owner.items = random.Random(1), [1]  # type: ignore[attr-defined]
    rng, items = owner.rng, owner.items  # type: ignore[attr-defined]
    assign(owner, "rng", random.Random(2))
    assign(owner, "items", [2, 3])
    assert owner.rng is rng and rng.random() == random.Random(2).random()  # type: ignore
    assert owner.items is items and items == [2, 3]  # type: ignore[attr-defined]


def test_two_arrays_of_one_path_are_kept_apart() -> None:
    value = {"a/b": np.ones(2), "a": {"b": np.zeros(2)}}
    assert same(through_json(value), value)
