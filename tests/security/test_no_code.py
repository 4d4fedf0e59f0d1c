"""No file makes paddle_resume run code, fill the memory, or look outside its save_dir."""

from __future__ import annotations

import ast
import copyreg
import os
import pickle
import time
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Iterator, List

import pytest
from damage.damages import forge
from unit.samples import make_store

import paddle_resume as pr
from paddle_resume.checkpoint import pickles, reader
from paddle_resume.checkpoint.lineage import parse_resume_from
from paddle_resume.checkpoint.store import Store
from paddle_resume.errors import CheckpointError
from paddle_resume.resumer import ResumePolicy, start
from security import corpus

PACKAGE = Path(pr.__file__).parent
NAMES = sorted(corpus.runs_code("x"))
BOMBS = sorted(corpus.fill_the_memory(4096))


@pytest.fixture(autouse=True)
def _extension() -> Iterator[None]:
    copyreg.add_extension("posix", "mkdir", corpus.EXTENSION)
    yield
    copyreg.remove_extension("posix", "mkdir", corpus.EXTENSION)


@pytest.mark.parametrize("name", NAMES)
def test_no_pickle_runs(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    data = corpus.runs_code(str(mark))[name]
    with pytest.raises(CheckpointError):
        pickles.load(data)
    checkpoint = make_store(tmp_path / "run", 400, 500).checkpoints()[-1]
    forge(checkpoint, "model.pdparams", data)
    reader.verify(checkpoint)  # an enemy's manifest fits
    for action in (reader.load, pr.load):
        with pytest.raises(CheckpointError, match=r"model\.pdparams"):
            action(checkpoint)
    store = Store(tmp_path / "run")
    policy = ResumePolicy(parse_resume_from("auto"))
    plan, _ = start(store, policy, lambda _: nullcontext(lambda *_: None))
    assert plan.source == store.path_of(400)
    assert not mark.exists()


@pytest.mark.parametrize("name", NAMES)
def test_each_of_them_would_run_in_python_s_own_reader(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    data = corpus.runs_code(str(mark))[name]
    if name == "twice, the second is bad":  # Python's reader stops after the first
        data = data[data.index(b".") + 1 :]
    try:
        pickle.loads(data)
    except Exception:
        pass
    assert mark.exists()


def assert_bounded(name: str, size: int) -> None:
    data = corpus.fill_the_memory(size)[name]
    assert len(data) < 2 * size
    tracemalloc.start()
    try:
        began = time.process_time()
        try:
            pickles.load(data)
        except CheckpointError:
            pass
        seconds = time.process_time() - began
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 * size, f"{peak >> 10} kB"
    assert seconds < 20


@pytest.mark.parametrize("name", BOMBS)
def test_a_short_file_does_not_fill_the_memory_nor_take_for_ever(name: str) -> None:
    assert_bounded(name, 1 << 17)


@pytest.mark.long(3)
@pytest.mark.parametrize("name", BOMBS)
def test_a_file_of_a_few_megabytes_does_not_either(name: str) -> None:
    assert_bounded(name, 3 << 20)


def test_the_package_never_calls_what_runs_a_file() -> None:
    dangerous = {"loads", "Unpickler", "eval", "exec", "compile", "unsafe_load", "full_load"}
    found: List[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                call = ast.unparse(node.func)
                name = call.rpartition(".")[2]
                if name in dangerous or name == "load" and call.split(".")[0] in (
                    "pickle", "paddle", "np", "numpy", "yaml", "marshal", "torch", "joblib",
                ):  # fmt: skip
                    found.append(f"{path.relative_to(PACKAGE)}: {call}")
    harmless = ("json.loads", "re.compile", "manifests.loads")
    found = [line for line in found if not line.endswith(harmless) and not line.endswith(": loads")]
    # The demo shows that plain Paddle opens the files which it has just written itself.
    assert found == ["cli/demo.py: paddle.load"]


LINKED = ("finished.json", "best.json", "events.jsonl", "latest.txt", "best.txt", ".lock")


@pytest.mark.parametrize("name", LINKED)
def test_a_link_in_the_place_of_a_file_is_neither_read_nor_written_through(
    name: str, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    content = '{"event": "save", "step": 500, "best": [{"step": 500, "value": 1}]}\n'
    outside.write_text("step_00000500\n" if name.endswith(".txt") else content)
    before = outside.read_bytes()
    store = make_store(tmp_path / "run", 500)
    (store.save_dir / name).symlink_to(outside)
    assert store.read_json(name) is None
    assert store.read_link(name.partition(".")[0]) is None
    from paddle_resume.observe import events

    assert list(events.read(store.save_dir / name)) == []
    events.EventLog(store.save_dir / name).append("start")
    if name == ".lock":
        with pytest.raises(pr.ConfigError, match="cannot be opened"):
            store.lock()
    elif name.endswith(".json"):
        store.write_json(name, {"step": 1})
        assert store.read_json(name) == {"step": 1}
    else:
        store.link("latest", store.path_of(500))
    assert outside.read_bytes() == before


@pytest.mark.parametrize(
    "target", ["../outside/step_00000500", "/etc", "..", "step_00000500/..", ""]
)
def test_links_lead_to_checkpoints_of_their_folder_and_nowhere_else(
    tmp_path: Path, target: str
) -> None:
    make_store(tmp_path / "outside", 500)
    store = make_store(tmp_path / "run", 500)
    if target:
        (store.save_dir / "best").symlink_to(target)
    else:
        (store.save_dir / "best.txt").write_text("../outside/step_00000500")
    assert store.read_link("best") is None
    for path in ("best", "latest", "best/model", "best/model.pdparams"):
        with pytest.raises(CheckpointError):
            pr.load(store.save_dir / path)


def test_links_and_their_text_files_lead_to_their_checkpoint(tmp_path: Path) -> None:
    store = make_store(tmp_path, 400, 500)
    store.link("latest", store.path_of(500))
    (tmp_path / "best.txt").write_text("step_00000400\n")
    for path, step in (("latest", 500), ("latest/model", 500), ("best", 400)):
        assert pr.load(tmp_path / path)["state"]["position"]["step"] == step


def test_a_checkpoint_that_is_a_link_is_not_one(tmp_path: Path) -> None:
    outside = make_store(tmp_path / "outside", 500)
    store = make_store(tmp_path / "run", 400)
    (store.save_dir / "step_00000500").symlink_to(outside.path_of(500))
    assert [path.name for path in store.checkpoints()] == ["step_00000400"]
    assert [found.step for found in pr.checkpoints(store.save_dir)] == [400]


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077, 0o027])
def test_new_files_have_the_permissions_that_the_umask_gives(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        store = Store(tmp_path / "a" / "run")
        store.create()
        store.lock()
        _fill(store)
        store.unlock()
    finally:
        os.umask(before)
    seen: set = set()
    for folder, _, names in os.walk(store.save_dir.parent):
        for path in (Path(folder), *(Path(folder, name) for name in names)):
            full = 0o777 if path.is_dir() else 0o666
            if not path.is_symlink():
                assert path.stat().st_mode & 0o777 == full & ~mask, path
            seen.add(path.name)
    wanted = {".lock", "finished.json", "events.jsonl", "best.txt", "manifest.json", ".why.txt"}
    assert wanted <= seen


def _fill(store: Store) -> None:
    from unit.samples import save

    from paddle_resume.observe.events import EventLog

    for step in (300, 400, 500):
        save(store, step)
    store.write_json("finished.json", {"step": 500})
    EventLog(store.save_dir / "events.jsonl").append("start")
    store.link("latest", store.path_of(500))
    real = os.symlink

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(1, "Operation not permitted")

    os.symlink = refuse  # as on FAT
    try:
        store.link("best", store.path_of(500))
    finally:
        os.symlink = real
    store.set_aside_bad(store.path_of(400), "why")
    store.leave_behind([store.path_of(300)], "run-b")
