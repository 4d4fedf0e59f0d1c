"""manifest.json: written, read, and refused where anything in it is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict

import pytest

from paddle_resume.checkpoint import manifest as manifests
from paddle_resume.checkpoint.faults import NewerFormat
from paddle_resume.errors import CheckpointError
from paddle_resume.types import EPOCH_END, Manifest, Origin, Position

FULL = Manifest(
    format=1,
    run_id="run-b",
    parent=("run-a", 400),
    origin=Origin("step:400", "run-a", 400),
    position=Position(5, 0, 500, EPOCH_END),
    reasons=("epoch", "step"),
    created="2025-01-01T00:00:00+00:00",
    files={"model.pdparams": (10, "ab"), "state.json": (3, "cd")},
    world_size=1,
    versions={"numpy": "2.0"},
)


def changed(**changes: Any) -> bytes:
    """A manifest with a valid checksum over a wrong content."""
    found: Dict[str, Any] = json.loads(manifests.dumps(FULL))
    del found["checksum"]
    found.update(changes)
    found["checksum"] = manifests._checksum(found)
    return json.dumps(found).encode()


@pytest.mark.parametrize("bare", [False, True])
def test_it_reads_back(bare: bool) -> None:
    made = Manifest(**{**FULL.__dict__, "parent": None, "origin": None}) if bare else FULL
    assert manifests.loads(manifests.dumps(made)) == made


def test_every_flipped_bit_is_found() -> None:
    data = manifests.dumps(FULL)
    for at in range(len(data)):
        for bit in (1, 32, 128):
            broken = bytearray(data)
            broken[at] ^= bit
            try:
                found = manifests.loads(bytes(broken))
            except CheckpointError:
                continue
            # White space, or the case of an exponent, says the same.
            assert found == FULL


def test_every_truncation_is_found() -> None:
    data = manifests.dumps(FULL)
    for size in range(len(data) - 2):
        with pytest.raises(CheckpointError):
            manifests.loads(data[:size])


def test_a_newer_format_says_to_upgrade() -> None:
    with pytest.raises(CheckpointError, match="upgrade paddle_resume"):
        manifests.loads(b'{"format": 2, "something": "new"}')


GARBAGE = [None, True, -1, 1.5, "x", [], [1], ["a", -1], {}, {"a": None}, [[]]]


@pytest.mark.parametrize("key", list(Manifest.__dataclass_fields__))
def test_garbage_of_any_type_is_a_checkpoint_error(key: str) -> None:
    right = {"parent": [None], "origin": [None], "run_id": ["x"], "created": ["x"]}
    right.update({"reasons": [[]], "files": [{}], "versions": [{}]})
    for value in GARBAGE:
        if value in right.get(key, []):
            continue
        with pytest.raises(CheckpointError):
            manifests.loads(changed(**{key: value}))


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/b", "..", ".", "", ".x", "a\\b", "a\0b"]
)
def test_a_name_that_reaches_outside_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="not the name of a file"):
        manifests.loads(changed(files={name: {"size": 1, "xxh3": "ab"}}))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b"\xff", b"{", b'{"format": NaN}', b"[" * 99999]
)
def test_what_is_not_a_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        manifests.loads(data)


def test_the_folder_name_must_fit(tmp_path: Path) -> None:
    folder = tmp_path / "step_00000500"
    folder.mkdir()
    with pytest.raises(CheckpointError, match="missing"):
        manifests.read(folder)
    (folder / "manifest.json").write_bytes(manifests.dumps(FULL))
    assert manifests.read(folder) == FULL
    copy = folder.rename(tmp_path / "my-best")
    assert manifests.read(copy) == FULL
    wrong = copy.rename(tmp_path / "step_00000501")
    with pytest.raises(CheckpointError, match="of step 500, its folder of step 501"):
        manifests.read(wrong)


@pytest.mark.parametrize(
    ("value", "where"),
    [({"a": {"b": [1, float("nan")]}}, "/a/b/1 is nan"), ({"a": {1, 2}}, "/a is")],
)
def test_a_value_that_is_not_json_is_named(value: dict, where: str) -> None:
    with pytest.raises(CheckpointError, match=f"state.json.*{where}"):
        manifests.dump_json(value, "state.json")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"a": 1, "b": 2, "a": 1}', "the key 'a' stands there twice"),
        (b'{"a": {"c": 1, "c": 2}}', "the key 'c' stands there twice"),
        (b'{"a": 1e999}', "1e999 is no number"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}", "nested more than 300 deep"),
    ],
)
def test_json_that_means_several_things_or_has_no_end_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(CheckpointError, match=f"best.json is damaged.*{why}"):
        manifests.parse_json(data, "best.json")


def test_what_is_too_deep_to_be_read_is_not_written() -> None:
    value: Any = 1
    for _ in range(400):
        value = [value]
    with pytest.raises(CheckpointError, match="nested"):
        manifests.dump_json({"a": value}, "state.json")


@pytest.mark.parametrize("flipped", [0, 3, 5, 9])
def test_a_flipped_bit_in_the_format_is_damage_and_not_a_newer_format(flipped: int) -> None:
    data = manifests.dumps(FULL).replace(b'"format": 1', b'"format": %d' % flipped)
    with pytest.raises(CheckpointError, match="its format is") as caught:
        manifests.loads(data)
    assert not isinstance(caught.value, NewerFormat)


@pytest.mark.parametrize("number", [2, 4, 10, 99, 10**30])
def test_a_newer_format_is_not_damage(number: int) -> None:
    with pytest.raises(NewerFormat, match="upgrade paddle_resume"):
        manifests.loads(changed(format=number))
