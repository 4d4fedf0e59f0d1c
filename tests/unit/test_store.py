"""A save_dir: commits, links, what is set aside, and real kills during a save."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

import pytest
from samples import assert_same, make_snapshot, make_state, make_store, save

from paddle_resume.checkpoint import store as store_module
from paddle_resume.checkpoint import writer
from paddle_resume.checkpoint.store import Store
from paddle_resume.errors import CheckpointError, ConfigError, LockedError
from paddle_resume.observe.events import EventLog
from paddle_resume.types import Captured, Position, Snapshot, TrainingState

HERE = Path(__file__).resolve()


def names(folder: Path) -> list:
    return sorted(os.listdir(folder))


def test_a_checkpoint_is_committed_and_read_back(tmp_path: Path) -> None:
    store = make_store(tmp_path / "a" / "b")
    path = save(store)
    assert path == tmp_path / "a" / "b" / "step_00000500"
    assert names(store.save_dir) == ["step_00000500"]
    manifest, state = store.load(path)
    assert_same(state, make_state())
    assert manifest.parent == ("run-a", 1)
    assert manifest.created.startswith("2023-11-14T22:13:20")
    assert store.verify(path) == store.read_manifest(path) == manifest


def test_the_size_is_that_of_its_files(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    path, size = store.save(make_snapshot(), "r", None, None, 1, {})
    files = [entry for entry in path.iterdir() if entry.name != "manifest.json"]
    assert size == sum(entry.stat().st_size for entry in files)


def test_checkpoints_are_ordered_as_integers_and_nothing_else_is_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.checkpoints() == []
    for name in (
        "step_100000000",
        "step_00000009",
        "step_99999999",
        "step_5",
        ".bad-step_00000007-1",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "step_00000003").write_text("a file")
    (tmp_path / "step_00000004").symlink_to("step_00000009")
    found = [path.name for path in store.checkpoints()]
    assert found == ["step_00000009", "step_99999999", "step_100000000"]


def test_ten_thousand_checkpoints_are_listed_fast(tmp_path: Path) -> None:
    for step in range(10_000):
        os.mkdir(tmp_path / f"step_{step:08d}")
    start = time.perf_counter()
    assert len(Store(tmp_path).checkpoints()) == 10_000
    assert time.perf_counter() - start < 1


class Crash(Exception):
    pass


@pytest.mark.parametrize(
    ("module", "function"),
    [
        (writer, "_write_file"),
        (writer, "_write_durably"),
        (writer, "fsync_folder"),
        (store_module, "_commit"),
        (os, "rename"),
        (os, "fsync"),
    ],
)
@pytest.mark.parametrize(
    "error", [Crash, KeyboardInterrupt, OSError(28, "No space left on device")]
)
def test_a_failed_save_leaves_nothing_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, function: str, error: Any
) -> None:
    store = make_store(tmp_path, 400)

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(module, function, fail)
        with pytest.raises(error if isinstance(error, type) else OSError):
            save(store, 500)
    assert names(tmp_path) == ["step_00000400"]
    store.verify(tmp_path / "step_00000400")
    save(store, 500)


def test_a_value_that_cannot_be_written_is_said_before_anything_is_seen(tmp_path: Path) -> None:
    bad = TrainingState(Position(0, 1, 1), {"best": Captured(values={"value": float("nan")})})
    store = make_store(tmp_path)
    with pytest.raises(CheckpointError, match="/parts/best/value is nan"):
        store.save(Snapshot(bad, (), 0.0, 0.0), "r", None, None, 1, {})
    assert names(tmp_path) == []


def test_a_step_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    store = make_store(tmp_path, 500)
    before = {path: path.read_bytes() for path in (tmp_path / "step_00000500").iterdir()}
    with pytest.raises(CheckpointError, match="there already"):
        save(store, 500, run_id="run-b")
    assert before == {path: path.read_bytes() for path in (tmp_path / "step_00000500").iterdir()}
    (tmp_path / "step_00000600").mkdir()  # rename() would replace an empty one
    with pytest.raises(CheckpointError, match="there already"):
        save(store, 600)
    assert names(tmp_path) == ["step_00000500", "step_00000600"]


SAVER = """
import sys
sys.path[:0] = [{here!r}, {root!r}]
from samples import make_snapshot
from paddle_resume.checkpoint.store import Store
store = Store({folder!r})
store.create()
store.lock()
first = max([int(path.name[5:]) for path in store.checkpoints()], default=0) + 1
store.clean_leftovers()
for step in range(first, 10**6):
    path, _ = store.save(make_snapshot(step, 2000), "run-a", None, None, 1, {{}})
    store.link("latest", path)
    store.write_json("best.json", {{"step": step}})
    print(step, flush=True)
    if step > 3:
        store.delete(store.checkpoints()[0])
"""


def test_after_any_sigkill_everything_that_can_be_seen_is_good(tmp_path: Path) -> None:
    code = SAVER.format(here=str(HERE.parent), root=str(HERE.parents[2]), folder=str(tmp_path))
    store, seen, torn = Store(tmp_path), 0, 0
    for attempt in range(10):
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline().strip().isdigit()
        time.sleep(0.007 * attempt)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        torn += any(name.startswith(".tmp-") for name in names(tmp_path))
        for path in store.checkpoints():
            manifest, state = store.load(path)
            assert_same(state, make_state(manifest.position.step, 2000))
            seen += 1
        assert store.read_link("latest") in store.checkpoints()
        assert store.read_json("best.json") is not None
    assert seen >= 8 and torn > 0  # kills did hit in the middle of saves
    store.lock()
    store.clean_leftovers()
    store.unlock()
    assert not any(name.startswith(".tmp-") for name in names(tmp_path))


def prepare(path: Path) -> None:
    store = Store(path)
    store.create()
    store.prove_writable()


def test_the_folder_is_created_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    prepare(tmp_path / "a" / "b")
    assert names(tmp_path / "a" / "b") == []


def test_a_save_dir_that_cannot_be_used_is_a_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(ConfigError, match="cannot be used"):
            prepare(path)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        prepare(tmp_path / "full")
    assert names(tmp_path / "full") == []


def test_links_are_relative_and_replaced(tmp_path: Path) -> None:
    store = make_store(tmp_path, 400, 500)
    assert store.read_link("latest") is None
    for path in store.checkpoints():
        store.link("latest", path)
        assert store.read_link("latest") == path
        assert os.readlink(tmp_path / "latest") == path.name
    store.delete(path)
    assert store.read_link("latest") is None
    assert names(tmp_path) == ["latest", "step_00000400"]


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_what_stands_in_a_links_place_is_moved_aside(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    store = make_store(tmp_path, 500)
    make(tmp_path / "best")
    store.link("best", tmp_path / "step_00000500")
    assert store.read_link("best") == tmp_path / "step_00000500"
    assert [name for name in names(tmp_path) if name.startswith(".before-link-best-")]
    assert [path.name for path in store.checkpoints()] == ["step_00000500"]


def test_without_symlinks_a_text_file_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path, 400, 500)
    old, new = store.checkpoints()
    store.link("latest", old)

    def refused(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "symlink", refused)
        store.link("latest", new)
    assert (tmp_path / "latest.txt").read_text() == "step_00000500\n"
    assert store.read_link("latest") == new
    store.link("latest", old)
    assert store.read_link("latest") == old
    assert not (tmp_path / "latest.txt").exists()


@pytest.mark.parametrize("target", ["/etc", "../elsewhere", ".", "step_00000400"])
def test_a_link_to_elsewhere_is_not_followed(tmp_path: Path, target: str) -> None:
    store = make_store(tmp_path, 500)
    (tmp_path / "latest").symlink_to(target)
    assert store.read_link("latest") is None


def test_a_deletion_that_fails_is_returned_and_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path, 400, 500)
    path = store.checkpoints()[0]

    def fail(*_: object) -> None:
        raise OSError(16, "Device or resource busy")

    with monkeypatch.context() as patch:
        patch.setattr(store_module.shutil, "rmtree", fail)
        assert isinstance(store.delete(path), OSError)
    assert [path.name for path in store.checkpoints()] == ["step_00000500"]
    assert isinstance(store.delete(path), FileNotFoundError)
    store.clean_leftovers()
    assert names(tmp_path) == ["step_00000500"]
    assert store.delete(store.checkpoints()[0]) is None
    assert names(tmp_path) == []


def test_a_bad_one_is_set_aside_with_the_reason(tmp_path: Path) -> None:
    store = make_store(tmp_path, 500)
    first = store.set_aside_bad(store.checkpoints()[0], "model.pdopt is damaged")
    save(store, 500)
    second = store.set_aside_bad(store.checkpoints()[0], "again")
    assert [first.name, second.name] == [".bad-step_00000500-1", ".bad-step_00000500-2"]
    assert (first / ".why.txt").read_text() == "model.pdopt is damaged\n"
    assert store.checkpoints() == []
    store.verify(first)  # the reason does not count as an extra file


def test_what_is_left_behind_takes_its_descriptions_along(tmp_path: Path) -> None:
    store = make_store(tmp_path, 300, 400, 500)
    store.link("latest", tmp_path / "step_00000500")
    store.link("best", tmp_path / "step_00000300")
    store.write_json("finished.json", {"step": 500, "why": "done"})
    store.write_json("best.json", {"best": [{"step": 300, "value": 1.0}]})
    assert store.leave_behind([], "run-b") is None
    behind = store.leave_behind(store.checkpoints()[1:], "run-b")
    assert behind == tmp_path / ".before-run-b"
    assert names(behind) == ["finished.json", "latest", "step_00000400", "step_00000500"]
    assert names(tmp_path) == [".before-run-b", "best", "best.json", "step_00000300"]
    store.verify(behind / "step_00000500")


def test_the_best_that_stay_are_still_named(tmp_path: Path) -> None:
    store = make_store(tmp_path, 200, 300, 400, 500)
    store.link("best", tmp_path / "step_00000500")
    scores = [{"step": step, "value": 1.0} for step in (500, 300, 400, 200)]
    whole = {"monitor": "acc", "mode": "max", "best": scores}
    store.write_json("best.json", whole)
    behind = store.leave_behind(store.checkpoints()[2:], "run-b")
    assert behind is not None
    assert Store(behind).read_json("best.json") == whole
    assert Store(behind).read_link("best") == behind / "step_00000500"
    assert store.read_json("best.json") == {**whole, "best": [scores[1], scores[3]]}
    assert store.read_link("best") == tmp_path / "step_00000300"

    store.leave_behind(store.checkpoints()[:1], "run-c")  # the first stays, and so does the link
    assert store.read_json("best.json") == {**whole, "best": [scores[1]]}
    assert store.read_link("best") == tmp_path / "step_00000300"

    store.leave_behind(store.checkpoints(), "run-d")
    assert names(tmp_path) == [".before-run-b", ".before-run-c", ".before-run-d"]
    assert names(tmp_path / ".before-run-d") == ["best", "best.json", "step_00000300"]


@pytest.mark.parametrize("crash_at", range(1, 7))
def test_a_crash_while_the_best_are_left_behind_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    store = make_store(tmp_path, 300, 400, 500)
    store.link("best", tmp_path / "step_00000500")
    scores = [{"step": step, "value": 1.0} for step in (500, 300)]
    store.write_json("best.json", {"best": scores})
    calls = []

    def crashing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> None:
            calls.append(args)
            if len(calls) == crash_at:
                raise Crash
            real(*args)

        return call

    with monkeypatch.context() as patch:
        for name in ("rename", "replace"):
            patch.setattr(os, name, crashing(getattr(os, name)))
        with pytest.raises(Crash):
            store.leave_behind(store.checkpoints()[1:], "run-b")
    left = store.checkpoints()[1:]
    named = [score["step"] for score in (store.read_json("best.json") or {})["best"]]
    assert named == ([500, 300] if crash_at < 3 else [300])
    if left:
        store.leave_behind(left, "run-b")
        assert store.read_link("best") == tmp_path / "step_00000300"
    assert store.read_json("best.json") == {"best": scores[1:]}
    assert [path.name for path in store.checkpoints()] == ["step_00000300"]


def test_leaving_behind_twice_loses_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path, 500)
    store.leave_behind(store.checkpoints(), "run-b")
    save(store, 500)
    store.write_json("best.json", {"step": 500})
    store.leave_behind(store.checkpoints(), "run-b")
    assert sum(name.startswith("step_00000500") for name in names(tmp_path / ".before-run-b")) == 2
    assert names(tmp_path) == [".before-run-b"]


def test_a_crash_while_leaving_behind_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path, 400, 500)
    store.write_json("finished.json", {"step": 500})
    rename, moved = os.rename, []

    def crash(source: Any, target: Any) -> None:
        if len(moved) == 2:
            raise Crash
        moved.append(source)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", crash)
        with pytest.raises(Crash):
            store.leave_behind(store.checkpoints(), "run-b")
    assert store.read_json("finished.json") is None  # never without its checkpoint
    store.leave_behind(store.checkpoints(), "run-c")
    assert store.checkpoints() == []


def test_json_files_read_back_and_damaged_ones_are_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store(tmp_path)
    assert store.read_json("best.json") is None
    store.write_json("best.json", {"step": 5, "value": 0.1})
    assert store.read_json("best.json") == {"step": 5, "value": 0.1}
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "paddle_resume"):
        for damaged in (b"", b"{", b"[]", b"\xff\xfe", b"[" * 99999):
            (tmp_path / "best.json").write_bytes(damaged)
            assert store.read_json("best.json") is None
    assert len(caplog.records) == 5
    assert "best.json cannot be read and counts as absent" in caplog.text


def test_the_lock_is_of_the_folder(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.lock()
    with pytest.raises(LockedError):
        Store(tmp_path).lock()
    store.unlock()
    other = Store(tmp_path)
    other.lock()
    other.unlock()


@pytest.mark.parametrize(
    "name",
    ["step_00000005", ".bad-step_00000005-1", "latest", "best", "latest.txt", "best.json",
     "finished.json"],
)  # fmt: skip
def test_signs_of_an_earlier_run(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "run")
    assert store.signs_of_earlier_run() is None
    store.create()
    (store.save_dir / name).symlink_to("gone")
    assert name in str(store.signs_of_earlier_run())


def test_no_signs_where_nothing_was_ever_saved(tmp_path: Path) -> None:
    for name in (".before-run-a", ".before-link-best-12", ".tmp-5-1-ab", ".lock", "vdl", "step_5"):
        (tmp_path / name).mkdir()
    EventLog(tmp_path / "events.jsonl").append("start", action="fresh")
    assert Store(tmp_path).signs_of_earlier_run() is None


def test_a_save_after_the_last_fresh_start_is_a_sign(tmp_path: Path) -> None:
    store, events = Store(tmp_path), EventLog(tmp_path / "events.jsonl")
    events.append("start", action="fresh")
    events.append("save", step=500)
    assert "step 500" in str(store.signs_of_earlier_run())
    events.append("start", action="continue")
    assert store.signs_of_earlier_run()
    events.append("start", action="fresh")  # never from nothing but by the user's own word
    assert store.signs_of_earlier_run() is None
