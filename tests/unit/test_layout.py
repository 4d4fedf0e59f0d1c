"""Format 1: splitting a state in files and joining it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from samples import assert_same, make_state

from paddle_resume.checkpoint import layout
from paddle_resume.errors import CheckpointError
from paddle_resume.types import EPOCH_END, Captured, Position, TrainingState


def test_each_part_is_in_the_file_that_paddle_expects() -> None:
    files = layout.split(make_state())
    assert set(files) == {"model.pdparams", "model.pdopt", "extra.pdparams", "state.json"}
    assert set(files["model.pdparams"]) == {"fc.weight", "fc.bias", layout.NAME_TABLE}
    assert files["model.pdparams"][layout.NAME_TABLE]["fc.bias"] == "linear_0.b_0"
    assert files["model.pdopt"]["LR_Scheduler"] == {"last_epoch": 500, "last_lr": 0.1}
    assert set(files["model.pdopt"]["master_weights"]) == {"linear_0.w_0"}
    assert set(files["extra.pdparams"]) == {"rng/numpy/keys"}


def test_join_is_the_inverse_of_split() -> None:
    state = make_state(
        by_rank={0: {"rng": 1}, 1: {"rng": 2}, 12: {"rng": 3}}, inexact=("no state", "moved")
    )
    files = layout.split(state)
    assert {"rank_00001.json", "rank_00012.json"} < set(files)
    assert "rank_00000.json" not in files
    # As a disk returns it: JSON has lists and text keys only.
    read = {
        name: json.loads(json.dumps(content)) if name.endswith(".json") else content
        for name, content in files.items()
    }
    assert_same(layout.join(read), state)


def test_an_empty_state_has_all_its_files() -> None:
    state = TrainingState(Position(1, 0, 7, EPOCH_END), {})
    files = layout.split(state)
    assert files["extra.pdparams"] == {}
    assert_same(layout.join(files), state)


def test_a_dtype_that_paddle_has_not_is_stored_as_bytes_and_comes_back() -> None:
    arrays = [
        np.arange(6, dtype="uint32").reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype="uint64").reshape(2, 3)),
        np.array(7, "uint64"),
        np.zeros((0, 2), "uint32"),
        np.array(["ab", "ü"]),
        np.ones(2, "longdouble"),
        np.arange(3, dtype="uint16"),
    ]
    part = Captured({str(index): array for index, array in enumerate(arrays)})
    state = TrainingState(Position(0, 1, 1), {"extra": part})
    files = layout.split(state)
    kinds = {array.dtype.str[1:] for array in files["extra.pdparams"].values()}
    assert kinds == {"u1", "u2"}
    assert_same(layout.join(files), state)


@pytest.mark.parametrize(
    "stored", [None, [], ["<u4", [7]], ["no", [6]], ["O", [3]], ["<u4", ["x"]]]
)
def test_a_dtype_that_does_not_fit_is_named(stored: object) -> None:
    files = layout.split(make_state())
    files["state.json"] = {**files["state.json"], "as_bytes": {"rng": {"numpy/keys": stored}}}
    with pytest.raises(CheckpointError, match="numpy/keys of rng does not fit"):
        layout.join(files)


def test_several_networks_have_files_of_their_own() -> None:
    network = Captured({"w": np.ones(1)}, {"kind": "network", "parameter_names": {"w": "p"}})
    optimizer = Captured({"m": np.ones(1)}, {"kind": "optimizer", "file": "student"})
    parts = {"teacher": network, "student": network, "optimizer": optimizer}
    files = layout.split(TrainingState(Position(0, 1, 1), parts))
    assert {"teacher.pdparams", "student.pdparams", "student.pdopt"} < set(files)


@pytest.mark.parametrize(
    "parts",
    [
        {"a": Captured({"b/c": np.ones(1)}), "a/b": Captured({"c": np.ones(1)})},
        {"../model": Captured({}, {"kind": "network", "parameter_names": {}})},
        {
            name: Captured({"m": np.ones(1)}, {"kind": "optimizer", "file": "model"})
            for name in ("one", "two")
        },
        {"o": Captured({"x": np.ones(1)}, {"kind": "optimizer", "file": "o", "pdopt": {"x": 1}})},
    ],
    ids=["extra", "outside", "pdopt", "key"],
)
def test_what_would_overwrite_something_is_refused(parts: dict) -> None:
    with pytest.raises(CheckpointError):
        layout.split(TrainingState(Position(0, 1, 1), parts))


@pytest.mark.parametrize(
    "missing", ["model.pdparams", "model.pdopt", "extra.pdparams", "state.json"]
)
def test_a_missing_file_is_named(missing: str) -> None:
    files = {
        name: content for name, content in layout.split(make_state()).items() if name != missing
    }
    with pytest.raises(CheckpointError, match=missing):
        layout.join(files)


def test_a_missing_tensor_is_named() -> None:
    files = layout.split(make_state())
    del files["model.pdopt"]["master_weights"]["linear_0.w_0"]  # type: ignore[index]
    with pytest.raises(CheckpointError, match="master_weights/linear_0.w_0"):
        layout.join(files)


@pytest.mark.parametrize("key", ["format", "position", "parts", "tensors", "as_bytes", "ranks"])
@pytest.mark.parametrize("value", [None, 7, "x", [["y"]], {"z": {}}, [-1], {"model": 3}])
def test_garbage_in_state_json_is_a_checkpoint_error(key: str, value: object) -> None:
    files = layout.split(make_state())
    files["state.json"] = {**files["state.json"], key: value}
    with pytest.raises(CheckpointError):
        layout.join(files)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_00000500", 500),
        ("step_123456789012", 123456789012),
        ("step_500", None),
        ("step_00000500.tmp", None),
        (".tmp-step_00000500", None),
        ("step_00000500\n", None),
        ("step_٠٠٠٠٠٥٠٠", None),
        ("step_" + "9" * 5000, None),
        ("latest", None),
    ],
)
def test_folder_names(name: str, step: object) -> None:
    assert layout.parse_folder_name(name) == step


def test_a_folder_name_reads_back() -> None:
    for step in (0, 99999999, 100000000):
        assert layout.parse_folder_name(layout.folder_name(step)) == step
