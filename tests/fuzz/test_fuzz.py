"""Whatever stands in a file: it is read, or a ResumeError says what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Iterator

import pytest
from damage.damages import forge, with_checksum
from hypothesis import given
from hypothesis import strategies as st
from unit.samples import assert_same, make_snapshot, make_state

import paddle_resume as pr
from fuzz.inputs import JSON, OBJECTS, changed_bytes, changed_json
from fuzz.profiles import examples
from paddle_resume.best import BestPolicy, from_json, steps_named
from paddle_resume.checkpoint import manifest as manifests
from paddle_resume.checkpoint import pickles, reader
from paddle_resume.checkpoint.lineage import parse_resume_from
from paddle_resume.checkpoint.store import Store
from paddle_resume.config.settings import describe
from paddle_resume.errors import ConfigError, LockedError, ResumeError
from paddle_resume.observe import events
from paddle_resume.resumer import ResumePolicy, start
from paddle_resume.state.vdl_file import take_out
from paddle_resume.types import Manifest

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "tests" / "formats" / "format1-paddle3.3"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = Store(tmp_path_factory.mktemp("fuzz") / "run")
    made.create()
    for step in (400, 500):
        made.save(make_snapshot(step), "run-a", None, None, 1, {"numpy": "2"})
    return made


@contextmanager
def copied(store: Store) -> Iterator[Store]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as top:
        shutil.copytree(store.save_dir, Path(top) / "run", symlinks=True)
        yield Store(Path(top) / "run")


def begin(store: Store) -> Any:
    auto = ResumePolicy(parse_resume_from("auto"))
    return start(store, auto, lambda _: nullcontext(lambda *_: None))


def read_all(store: Store) -> None:
    """All that reads what is not a checkpoint."""
    pr.checkpoints(store.save_dir)
    store.signs_of_earlier_run()
    store.has_saved_since("auto")
    events.EventLog(store.save_dir / "events.jsonl").last_number("save", "durable_s")
    for name in ("finished.json", "best.json"):
        found = store.read_json(name)
        steps_named(found)
        from_json(found, BestPolicy("loss"))
    for name in ("latest", "best"):
        store.read_link(name)
    begin(store)
    store.leave_behind([store.path_of(500)], "run-b")


MANIFEST = (KEPT / "killed" / "step_00000012" / "manifest.json").read_bytes()
MANIFEST_JSON = {k: v for k, v in json.loads(MANIFEST).items() if k != "checksum"}


@examples(60)
@given(st.binary(max_size=80) | changed_bytes(MANIFEST, b'{}[]",:0123456789eE+-.\\u'))
def test_the_bytes_of_a_manifest(data: bytes) -> None:
    for key in (None, b"0123456789abcdef"):
        try:
            found = manifests.loads(data, key)
        except ResumeError:
            continue
        assert isinstance(found, Manifest) and manifests.dumps(found) == MANIFEST


@examples(60)
@given(changed_json(MANIFEST_JSON) | OBJECTS)
def test_a_manifest_that_says_anything(content: Any) -> None:
    data = with_checksum(content)
    for key in (None, b"0123456789abcdef"):
        try:
            found = manifests.loads(data, key)
        except ResumeError:
            continue
        assert manifests.loads(manifests.dumps(found)) == found


STATE = json.loads((KEPT / "killed" / "step_00000012" / "state.json").read_bytes())
SMALL = json.loads(json.dumps(STATE))
SMALL["parts"] = {name: SMALL["parts"][name] for name in ("model", "optimizer", "extra", "best")}
SMALL["tensors"] = {name: SMALL["tensors"][name] for name in SMALL["parts"]}
SMALL["as_bytes"] = {}


@examples(40)
@given(changed_json(SMALL))
def test_a_state_that_says_anything_and_fits_its_manifest(state: Any) -> None:
    with copied(Store(KEPT / "killed")) as store:
        checkpoint = store.path_of(12)
        forge(checkpoint, "state.json", json.dumps(state).encode())
        for action in (reader.load, pr.load, reader.read_values, reader.verify):
            try:
                action(checkpoint)
            except ResumeError:
                pass
        plan, _ = begin(store)
        assert plan.source is not None


PARAMS = (KEPT / "killed" / "step_00000012" / "model.pdparams").read_bytes()
OPCODES = b"()]}tdlseauRbNKMJGXBCVhjrq0.\x80\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x93\x94\x95"


@examples(150)
@given(changed_bytes(PARAMS, OPCODES) | st.binary(max_size=60))
def test_the_bytes_of_a_pickle(data: bytes) -> None:
    try:
        assert isinstance(pickles.load(data), dict)
    except ResumeError:
        pass


@examples(150)
@given(st.lists(st.sampled_from([bytes([c]) for c in OPCODES[:-7]]) | st.binary(max_size=4)))
def test_any_row_of_opcodes(rows: Any) -> None:
    words = b"cnumpy\ndtype\ncnumpy\nndarray\nccollections\nOrderedDict\n"
    for data in (b"\x80\x04" + b"".join(rows) + b".", words + b"".join(rows) + b"."):
        try:
            assert isinstance(pickles.load(data), dict)
        except ResumeError:
            pass


EVENTS = (KEPT / "finished" / "events.jsonl").read_bytes()


@examples(25)
@given(
    st.lists(OBJECTS | JSON, max_size=8).map(lambda a: "\n".join(map(json.dumps, a)).encode())
    | changed_bytes(EVENTS, b'{}[]",:0123456789')
    | st.binary(max_size=100)
)
def test_events(store: Store, data: bytes) -> None:
    with copied(store) as copy:
        (copy.save_dir / "events.jsonl").write_bytes(data)
        read_all(copy)


MARKS = [json.loads((KEPT / "finished" / f"{name}.json").read_bytes()) for name in ("best",)]
FINISHED = {"step": 500, "why": "epochs", "run_id": "run-a", "epochs": 3, "ending": None}


@examples(25)
@given(
    (OBJECTS | JSON | changed_json(MARKS[0])).map(lambda a: json.dumps(a).encode())
    | st.binary(max_size=100)
    | st.integers(290, 2000).map(lambda n: b'{"best": ' + b"[" * n + b"]" * n + b"}"),
    (OBJECTS | JSON | changed_json(FINISHED)).map(lambda a: json.dumps(a).encode())
    | st.binary(max_size=100),
)
def test_best_and_finished(store: Store, best: bytes, finished: bytes) -> None:
    with copied(store) as copy:
        (copy.save_dir / "best.json").write_bytes(best)
        (copy.save_dir / "finished.json").write_bytes(finished)
        read_all(copy)


NAMES = st.sampled_from(["step_00000500", "step_00000400", "step_1", "../run/step_00000500", "."])


@examples(25)
@given(
    (NAMES | st.text(max_size=20)).map(lambda text: text.encode("utf-8", "replace"))
    | st.binary(max_size=30),
    NAMES | st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=9),
)
def test_links_and_their_text_files(store: Store, text: bytes, target: str) -> None:
    with copied(store) as copy:
        (copy.save_dir / "latest.txt").write_bytes(text)
        (copy.save_dir / "best").symlink_to(target)
        for name in ("latest", "best"):
            found = copy.read_link(name)
            assert found is None or found in copy.checkpoints()
        read_all(copy)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lock that another process holds."""
    path = tmp_path_factory.mktemp("locked") / ".lock"
    program = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
        "print('held', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield path
        process.kill()


@examples(40)
@given((OBJECTS | JSON).map(lambda a: json.dumps(a).encode()) | st.binary(max_size=99))
def test_the_record_in_a_lock(locked: Path, data: bytes) -> None:
    locked.write_bytes(data)
    with pytest.raises(LockedError):
        Store(locked.parent).lock()
    locked.write_bytes(b"[" * 60_000)
    with pytest.raises(LockedError):
        Store(locked.parent).lock()


YAML = (ROOT / "configs" / "resume.yml").read_bytes()


@examples(60)
@given(
    changed_bytes(YAML, b"{}[]:,-!&*|>%@`\"'#\n\t ?<~")
    | st.binary(max_size=60)
    | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace"))
)
def test_yaml(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yml"
    path.write_bytes(data)
    try:
        describe(path)
    except ConfigError:
        pass


@examples(60)
@given(OBJECTS | st.dictionaries(st.sampled_from(["save_dir", "best", "sign_key"]), JSON))
def test_a_config_that_says_anything(content: Any) -> None:
    try:
        describe(content)
    except ConfigError:
        pass


@examples(60)
@given(st.text(max_size=30) | st.sampled_from(["a" * 5000, "\0", "step:" + "9" * 99, "epoch:-1"]))
def test_resume_from(text: str) -> None:
    try:
        wanted = parse_resume_from(text)
        if wanted.kind == "path":
            pr.load(text)
    except ResumeError:
        pass


@pytest.fixture(scope="module")
def curve(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    visualdl = pytest.importorskip("visualdl")
    folder = tmp_path_factory.mktemp("curve")
    with visualdl.LogWriter(str(folder)) as writer:
        for step in range(4):
            writer.add_scalar("train/loss", 0.5, step)
    (path,) = folder.glob("*vdlrecords*")
    return path.read_bytes()


@examples(40)
@given(data=st.data())
def test_a_curve_of_visualdl(
    curve: bytes, tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "vdlrecords.log"
    content = data.draw(changed_bytes(curve, b"\0\x01\x7f\xff") | st.binary(max_size=40))
    path.write_bytes(content)
    try:
        take_out(str(path), lambda tag, step: step > 1, "replaced.log")
    except (OSError, ValueError):  # what its caller says in a warning, and begins a new file
        assert path.read_bytes() == content


@examples(40)
@given(data=st.data())
def test_everything_at_once(store: Store, data: Any) -> None:
    with copied(store) as copy:
        files = sorted(path for path in copy.path_of(500).iterdir())
        before = {path: path.read_bytes() for path in files}
        for path in data.draw(st.lists(st.sampled_from(files), min_size=1, unique=True)):
            path.write_bytes(data.draw(changed_bytes(before[path])))
        same = all(path.read_bytes() == before[path] for path in files)
        plan, state = begin(copy)
        if plan.source == copy.path_of(500):
            manifest = json.loads((copy.path_of(500) / "manifest.json").read_bytes())
            assert same or manifest == json.loads(before[copy.path_of(500) / "manifest.json"])
            assert_same(state, make_state(500))
        else:
            assert_same(state, make_state(400))
