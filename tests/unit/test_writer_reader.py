"""What is written reads back, and every damage to it is found and named."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Callable, List, Tuple

import pytest
import xxhash
from samples import assert_same, make_state, make_store

from paddle_resume.checkpoint import manifest as manifests
from paddle_resume.checkpoint import reader, writer
from paddle_resume.errors import CheckpointError, ConfigError

FILES = ["extra.pdparams", "manifest.json", "model.pdopt", "model.pdparams", "state.json"]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return make_store(tmp_path / "run", 500).checkpoints()[0]


@pytest.mark.parametrize("level", reader.LEVELS)
def test_it_reads_back(good: Path, level: str) -> None:
    manifest, state = reader.load(good, level)
    assert_same(state, make_state(500))
    assert manifest == reader.verify(good, level)
    assert sorted(os.listdir(good)) == FILES


def test_the_manifest_has_the_size_and_hash_of_each_file(good: Path) -> None:
    for name, (size, digest) in reader.verify(good).files.items():
        data = (good / name).read_bytes()
        assert (len(data), xxhash.xxh3_128_hexdigest(data)) == (size, digest)


def test_everything_is_synced_before_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: List[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    make_store(tmp_path / "run", 500)
    at = synced.index("manifest.json")
    assert sorted(synced[at - 4 : at]) == sorted(set(FILES) - {"manifest.json"})
    assert synced[at + 1].startswith(".tmp-500-")  # the names in it, then its own name
    assert synced[at + 2 :] == ["run"]


def test_progress_counts_every_byte(good: Path) -> None:
    total = sum(size for size, _ in reader.verify(good).files.values())
    calls: List[Tuple[int, int]] = []
    for action in (reader.verify, reader.load):
        calls.clear()
        action(good, "full", lambda done, of: calls.append((done, of)))
        assert calls[-1] == (total, total)
        assert calls == sorted(calls)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def grow(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"\0")


def empty(path: Path) -> None:
    os.truncate(path, 0)


def link(path: Path) -> None:
    other = path.rename(path.parent.parent / path.name)
    path.symlink_to(other)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", [flip, truncate, grow, empty, Path.unlink, link, folder, fifo])
@pytest.mark.parametrize("name", FILES)
def test_damage_to_any_file_is_named(good: Path, name: str, damage: Callable[[Path], None]) -> None:
    damage(good / name)
    for action in (reader.verify, reader.load):
        with pytest.raises(CheckpointError, match=name):
            action(good, "full")
    if damage is not flip:
        with pytest.raises(CheckpointError, match=name):
            reader.verify(good, "size")


@pytest.mark.parametrize("damage", [truncate, empty, Path.unlink, link, folder, fifo])
@pytest.mark.parametrize("name", FILES)
def test_without_verification_damage_still_ends_in_a_clear_error(
    good: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(good / name)
    with pytest.raises(CheckpointError, match=name):
        reader.load(good, "none")


def test_every_flipped_byte_of_a_file_is_found(good: Path) -> None:
    path = good / "model.pdparams"
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CheckpointError, match="checksum"):
            reader.verify(good)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_checkpoint_is_found(tmp_path: Path, name: str) -> None:
    one, other = make_store(tmp_path / "run", 400, 500).checkpoints()
    shutil.copy(other / name, one / name)
    if name == "extra.pdparams":
        assert (one / name).read_bytes() == (other / name).read_bytes()
        return
    with pytest.raises(CheckpointError, match=name):
        reader.load(one)


def test_a_whole_state_of_another_step_is_found(tmp_path: Path) -> None:
    one, other = make_store(tmp_path / "run", 400, 500).checkpoints()
    for name in ("state.json", "model.pdparams", "model.pdopt", "extra.pdparams"):
        shutil.copy(other / name, one / name)
    with pytest.raises(CheckpointError, match="step 500, its manifest of step 400"):
        reader.load(one, "none")


def test_an_extra_file_is_named_and_a_hidden_one_passed_over(good: Path) -> None:
    (good / ".DS_Store").write_text("x")
    reader.verify(good)
    (good / "notes.txt").write_text("x")
    for level in ("full", "size"):
        with pytest.raises(CheckpointError, match="notes.txt"):
            reader.verify(good, level)
    reader.load(good, "none")


def test_code_in_a_file_does_not_run_even_with_a_right_checksum(good: Path, tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> object:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    data = pickle.dumps({"w": Attack()}, 4)
    (good / "model.pdparams").write_bytes(data)
    manifest = manifests.read(good)
    files = {**manifest.files, "model.pdparams": (len(data), xxhash.xxh3_128_hexdigest(data))}
    forged = manifests.Manifest(**{**manifest.__dict__, "files": files})
    (good / "manifest.json").write_bytes(manifests.dumps(forged))
    reader.verify(good)
    with pytest.raises(CheckpointError, match=r"model.pdparams: it names \w+.system"):
        reader.load(good)
    assert not (tmp_path / "ran").exists()


def test_a_missing_folder_and_a_wrong_level_are_said(tmp_path: Path, good: Path) -> None:
    with pytest.raises(CheckpointError, match="not a folder"):
        reader.verify(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="'ful'.*'full', 'size', 'none'"):
        reader.verify(good, "ful")


def test_an_error_of_the_disk_names_the_file(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(reader, "_read", broken)
    with pytest.raises(CheckpointError, match="extra.pdparams cannot be read: Input/output error"):
        reader.load(good)


def test_replacing_a_file_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "best.json"
    writer.replace_file(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
        with pytest.raises(OSError, match="No space"):
            writer.replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["best.json"]
    writer.replace_file(path, b"new")
    assert path.read_bytes() == b"new"
