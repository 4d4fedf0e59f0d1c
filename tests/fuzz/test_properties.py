"""What holds of retention, discovery, manifests, the layout and the pickles, whatever they hold."""

from __future__ import annotations

import io
import math
import tempfile
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from unit.samples import assert_same

from fuzz.profiles import examples
from paddle_resume.checkpoint import layout, pickles
from paddle_resume.checkpoint import manifest as manifests
from paddle_resume.checkpoint.layout import folder_name, is_plain_name, parse_folder_name
from paddle_resume.checkpoint.manifest import dump_json, parse_json
from paddle_resume.checkpoint.store import Store
from paddle_resume.config.settings import describe
from paddle_resume.retention import KeepEveryEpochs, KeepNewest, Kept, select_for_deletion
from paddle_resume.types import (
    EPOCH_END,
    TRAIN,
    TRAIN_END,
    Captured,
    Manifest,
    Origin,
    Position,
    TrainingState,
)

TEXT = st.text(max_size=12)
WHOLE = st.integers(0, 10**12)
POSITIONS = st.builds(Position, WHOLE, WHOLE, WHOLE, st.sampled_from([TRAIN, EPOCH_END, TRAIN_END]))
FILE_NAMES = st.text(max_size=20).filter(
    lambda name: is_plain_name(name) and name != "manifest.json"
)

KEPT = st.builds(
    lambda step, epoch, run: Kept(Path(folder_name(step)), step, epoch, run),
    st.integers(0, 60),
    st.none() | st.integers(0, 20),
    st.sampled_from(["own", "other"]),
)
POLICIES = st.lists(
    st.builds(KeepNewest, st.none() | st.integers(1, 9))
    | st.builds(KeepEveryEpochs, st.integers(1, 9)),
    max_size=3,
)


@examples(100)
@given(st.lists(KEPT, unique_by=lambda kept: kept.path), POLICIES, st.sets(st.integers(0, 60)))
def test_retention(all_: List[Kept], policies: Any, spared: Any) -> None:
    protected = {Path(folder_name(step)) for step in spared}
    gone = select_for_deletion(all_, policies, protected, "own")
    by_path = {kept.path: kept for kept in all_}
    deleted = [by_path[path] for path in gone]
    left = [kept for kept in all_ if kept.path not in set(gone)]
    assert all(kept.run_id == "own" and kept.path not in protected for kept in deleted)
    assert [kept.step for kept in deleted] == sorted(kept.step for kept in deleted)
    assert not all_ or max(kept.step for kept in all_) in [kept.step for kept in left]
    # Never an older one for the sake of a newer one.
    own = sorted((kept for kept in all_ if kept.run_id == "own"), key=lambda kept: kept.step)
    for policy in policies:
        if isinstance(policy, KeepNewest):
            newest = own if policy.n is None else own[-policy.n :]
            assert not set(gone) & {kept.path for kept in newest}
        else:
            ends = [k for k in own if k.epoch_completed and k.epoch_completed % policy.k == 0]
            assert not set(gone) & {kept.path for kept in ends}
    # What is left is left: a second look deletes nothing.
    assert select_for_deletion(left, policies, protected, "own") == []


NAMES = st.from_regex(r"step_[0-9]{6,12}", fullmatch=True) | st.from_regex(
    r"\.?(step|STEP|step_|bad-step|tmp-)[-_0-9a-z]{0,12}", fullmatch=True
)


@examples(50)
@given(st.sets(NAMES, max_size=12), st.sets(st.integers(0, 10**10).map(folder_name), max_size=5))
def test_discovery(odd: Any, good: Any) -> None:
    with tempfile.TemporaryDirectory() as top:
        for name in odd | good:
            (Path(top) / name).mkdir()
        found = Store(top).checkpoints()
    steps = [int(path.name[5:]) for path in found]
    assert steps == sorted(steps)
    assert good <= {path.name for path in found} <= odd | good
    assert all(path.name[:5] == "step_" and len(path.name) >= 13 for path in found)


@examples(100)
@given(st.integers(0, 10**20), TEXT)
def test_folder_names(step: int, text: str) -> None:
    assert parse_folder_name(folder_name(step)) == step
    found = parse_folder_name(text)
    assert found is None or folder_name(found).lstrip("step_0") == text.lstrip("step_0")


MANIFESTS = st.builds(
    Manifest,
    format=st.just(1),
    run_id=TEXT,
    parent=st.none() | st.tuples(TEXT, WHOLE),
    origin=st.none() | st.builds(Origin, TEXT, st.none() | TEXT, st.none() | WHOLE),
    position=POSITIONS,
    reasons=st.lists(TEXT, max_size=3).map(tuple),
    created=TEXT,
    files=st.dictionaries(FILE_NAMES, st.tuples(WHOLE, TEXT), max_size=5),
    world_size=WHOLE,
    versions=st.dictionaries(TEXT, TEXT, max_size=4),
)


@examples(100)
@given(MANIFESTS, st.binary(min_size=16, max_size=40), st.binary(min_size=16, max_size=40))
def test_a_manifest_reads_back(made: Manifest, key: bytes, other: bytes) -> None:
    assert manifests.loads(manifests.dumps(made)) == made
    signed = Manifest(**{**made.__dict__, "sha256": dict.fromkeys(made.files, "ab")})
    assert manifests.loads(manifests.dumps(signed, key), key) == signed
    if key != other:
        try:
            manifests.loads(manifests.dumps(signed, key), other)
        except manifests.CheckpointError:
            return
        raise AssertionError("another key was taken")


ARRAYS = arrays.arrays(
    st.sampled_from(["f4", "f8", "f2", "u2", "i8", "u1", "b1", "c8", "u4", "S3", "U2", ">i4"]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(
    SCALARS | st.binary(max_size=9) | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(TEXT | st.integers(), inner, max_size=6)
    ),
    max_leaves=30,
)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        same = isinstance(b, np.ndarray) and (a.dtype, a.shape) == (b.dtype, b.shape)
        return same and a.tobytes() == b.tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    return bool(a == b)


@examples(100)
@given(st.dictionaries(TEXT, VALUES, max_size=8))
def test_what_is_pickled_reads_back(value: Dict[str, Any]) -> None:
    file = io.BytesIO()
    pickles.dump(value, file)
    assert equal(pickles.load(file.getvalue()), value)


DENSE = st.sampled_from([{}, [], (), b"", None, {"": {}}, [[]], ([],), "", 0, b"a", {0: 0}, "ü"])


@examples(40)
@given(st.lists(DENSE, min_size=1, max_size=4), st.integers(1, 40_000))
def test_no_size_of_what_is_written_is_refused(pieces: List[Any], times: int) -> None:
    # However much memory it takes for its size: it was ours to write.
    file = io.BytesIO()
    pickles.dump({"a": pieces * (times // len(pieces) + 1)}, file)
    assert len(pickles.load(file.getvalue())["a"]) >= times


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(width=64, allow_nan=False).filter(math.isfinite)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
PARTS = st.builds(
    Captured,
    st.dictionaries(st.text(min_size=1, max_size=6), ARRAYS, max_size=4),
    st.dictionaries(TEXT.filter(lambda t: t not in ("kind", "file")), JSON, max_size=4),
)
STATES = st.builds(
    TrainingState,
    POSITIONS,
    st.dictionaries(st.text(st.characters(exclude_characters="/"), max_size=6), PARTS, max_size=4),
    st.dictionaries(
        st.integers(0, 9), st.dictionaries(TEXT, JSON, max_size=3), max_size=3
    ),
    st.lists(TEXT, max_size=3).map(tuple),
)  # fmt: skip


@examples(100)
@given(STATES)
def test_a_state_goes_to_files_and_back(state: TrainingState) -> None:
    files: Dict[str, Any] = {}
    for name, content in layout.split(state).items():
        if name.endswith(".json"):
            files[name] = parse_json(dump_json(content, name), name)
        else:
            file = io.BytesIO()
            pickles.dump(content, file)
            files[name] = pickles.load(file.getvalue())
    assert_same(layout.join(files), state)


@examples(60)
@given(
    st.integers(1, 99) | st.none(),
    st.integers(1, 99) | st.none(),
    st.integers(1, 99) | st.none(),
    st.booleans(),
)
def test_a_config_says_what_is_effective(epoch: Any, step: Any, kept: Any, now: bool) -> None:
    given_ = {"snapshot_epoch": epoch, "snapshot_step": step, "keep_checkpoint_max": kept}
    config = {"save_dir": "/run", **given_, "async_save": now}
    found = {setting.key: setting.value for setting in describe(config)}
    assert {key: found[key] for key in config} == config
    text = "null" if epoch is None else epoch
    changed = describe(config, [f"snapshot_epoch={text}", "save_dir=/other"])
    assert [s.value for s in changed if s.key in ("snapshot_epoch", "save_dir")] == [
        "/other",
        epoch,
    ]
