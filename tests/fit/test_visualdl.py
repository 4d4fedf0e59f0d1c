"""VisualDL's curve over restarts, and writers emptied before the process ends."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest

pytest.importorskip("visualdl")

import paddle
from visualdl import LogWriter
from visualdl.proto.record_pb2 import Record
from visualdl.reader.reader import LogReader
from visualdl.reader.record_reader import RecordReader
from visualdl.server import lib

import paddle_resume as pr
from paddle_resume.state.curves import close_writers, flush_writers
from paddle_resume.state.listeners import Listeners
from paddle_resume.types import Captured

from .models import STEPS, Points, StopAt, fit, make

Row = Tuple[str, int, Any]
CURVES = {"train/loss", "train/acc", "eval/loss", "eval/acc"}

TRAINING = """
    import json, os, signal, sys, time

    import paddle
    import paddle_resume as pr
    from fit.models import Points, fit, make
    from visualdl.io.bfile import LocalFileSystem

    log_dir, save_dir, die, slow = json.loads(sys.argv[1])

    class Killer(paddle.callbacks.Callback):
        # Kills the process at the n-th event of a kind.
        def hear(self, event):
            if die is None or event != die[0]:
                return
            die[1] -= 1
            if die[1] > 0:
                return
            if slow:  # what is on the disk is what the checkpoint has waited for
                deadline = time.monotonic() + 60
                while not pr.checkpoints(save_dir) and time.monotonic() < deadline:
                    time.sleep(0.001)
            else:  # as much as can lie behind the checkpoint
                curve.writer.flush()
            os.kill(os.getpid(), signal.SIGKILL)

        def on_epoch_end(self, epoch, logs=None):
            self.hear("epoch_end")

        def on_train_batch_end(self, step, logs=None):
            self.hear("batch")

        def on_eval_batch_end(self, step, logs=None):
            self.hear("eval_batch")

        def on_eval_end(self, logs=None):
            self.hear("eval_end")

    if slow:
        append = LocalFileSystem.append

        def wait_and_append(self, *arguments, **more):
            time.sleep(0.03)
            append(self, *arguments, **more)

        LocalFileSystem.append = wait_and_append

    curve = paddle.callbacks.VisualDL(log_dir)
    callbacks = [curve]
    if save_dir:
        saving = {"snapshot_epoch": None} if slow else {}
        callbacks += pr.resume_callbacks(save_dir, snapshot_step=2, **saving)
    fit(make(), [*callbacks, Killer()], epochs=3, data=Points(40), eval_data=Points(16))
"""


def python(code: str, *arguments: str, cwd: Optional[Path] = None) -> "subprocess.CompletedProcess":
    places = [str(Path(pr.__file__).parents[1]), str(Path(__file__).parents[1])]
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "WANDB_MODE": "offline"},
        capture_output=True,
        text=True,
        cwd=cwd,
    )


def train(
    log_dir: str,
    save_dir: Optional[Path] = None,
    die: Optional[Tuple[str, int]] = None,
    slow: bool = False,
    cwd: Optional[Path] = None,
) -> str:
    """Trains in a process of its own, which is killed where `die` says so."""
    arguments = [log_dir, str(save_dir) if save_dir else None, die, slow]
    done = python(TRAINING, json.dumps(arguments), cwd=cwd)
    assert done.returncode == (-9 if die else 0), done.stderr
    return done.stderr


def rows(path: Path) -> List[Row]:
    """Every record of a file in its order, without its time."""
    found = []
    for data in RecordReader(str(path)).get_all():
        (value,) = Record.FromString(data).values
        kind = value.WhichOneof("one_value")
        content = getattr(value, kind)
        found.append((value.tag, value.id, content if kind == "value" else str(content)))
    return found


def log_file(folder: Path) -> Path:
    (path,) = (path for path in folder.iterdir() if "vdlrecords" in path.name)
    return path


def board(folder: Path, reader: Optional[LogReader] = None) -> Dict[str, List[Tuple[int, float]]]:
    """What VisualDL's server answers for each curve."""
    reader = reader or LogReader(str(folder))
    reader.load_new_data()
    shown = {}
    for path in reader.data_manager.get_reservoir("scalar").keys:
        run, tag = os.path.split(path)
        if run == str(folder):
            points = lib.get_scalar(reader, run, lib.encode_tag(tag))
            shown[lib.encode_tag(tag)] = [(step, value) for _, step, value in points]
    return shown


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> List[Row]:
    """What a run writes that nobody interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    train(str(folder))
    return rows(log_file(folder))


@pytest.mark.parametrize(
    "kills",
    [
        [("batch", 1), ("batch", 4), ("batch", 2), ("eval_end", 1)],
        [("eval_end", 1), ("epoch_end", 1), ("eval_batch", 1), ("eval_end", 3)],
    ],
    ids=["between batches", "around evaluations"],
)
def test_a_killed_run_leaves_the_file_of_one_that_was_not(
    tmp_path: Path, whole: List[Row], kills: List[Tuple[str, int]]
) -> None:
    log_dir, save_dir = tmp_path / "log", tmp_path / "run"
    for die in kills:
        train(str(log_dir), save_dir, die)
        if not pr.checkpoints(save_dir):
            shutil.rmtree(log_dir)  # nothing to go on with: the next start is a first one
    train(str(log_dir), save_dir)
    assert rows(log_file(log_dir)) == whole
    shown = board(log_dir)
    assert set(shown) == CURVES
    for tag, points in shown.items():
        assert points == [(step, value) for name, step, value in whole if name == tag]
        assert [step for step, _ in points] == sorted({step for step, _ in points})


def test_a_torn_end_does_no_harm(tmp_path: Path, whole: List[Row]) -> None:
    log_dir, save_dir = tmp_path / "log", tmp_path / "run"
    for batches, torn in (7, b"\x25\0\0"), (4, b"\x25" + bytes(7) + b"\x0a\x23"), (2, bytes(99)):
        train(str(log_dir), save_dir, ("batch", batches))
        with open(log_file(log_dir), "ab") as file:
            file.write(torn)
    train(str(log_dir), save_dir)
    assert rows(log_file(log_dir)) == whole


def test_points_before_a_checkpoint_are_on_the_disk_before_it(
    tmp_path: Path, whole: List[Row]
) -> None:
    log_dir, save_dir = tmp_path / "log", tmp_path / "run"
    train(str(log_dir), save_dir, ("batch", 3), slow=True)
    train(str(log_dir), save_dir)
    assert rows(log_file(log_dir)) == whole


def test_the_folder_may_be_given_relative_and_be_moved(tmp_path: Path, whole: List[Row]) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    train("log/", Path("run"), ("batch", 7), cwd=tmp_path / "here")
    for name in ("log", "run"):
        shutil.move(str(tmp_path / "here" / name), str(tmp_path / "there"))
    train("./log", Path("run"), cwd=tmp_path / "there")
    assert rows(log_file(tmp_path / "there" / "log")) == whole


# ---------------------------------------------------------------------- in this process


class Mine(paddle.callbacks.VisualDL):  # type: ignore[misc]
    """A user's own: other things by the same writer."""

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        super().on_train_batch_end(step, logs)
        if self.train_step == 1:
            self.writer.add_text("train/loss of what", "the model", 10**6)
        self.writer.add_scalar("train/clock", 1.0, 1000 + self.train_step)
        self.writer.add_histogram("train/norm", [1.0, 2.0], self.train_step)


class Ending(paddle.callbacks.VisualDL):  # type: ignore[misc]
    """A user's own that has a last word."""

    def on_train_end(self, logs: Any = None) -> None:
        self.writer.add_text("summary", "done", 0)
        super().on_train_end(logs)


def curve(
    log_dir: Path, save_dir: Path, batches: Optional[int] = None, epochs: int = 2, **keys: Any
) -> Any:
    """Trains with a VisualDL callback, up to a crash after some batches where they are given."""
    callback = keys.pop("kind", paddle.callbacks.VisualDL)(str(log_dir))
    keys = {"snapshot_step": 2, "on_exception": False, **keys}  # a crash as a kill leaves it
    callbacks = [callback, *pr.resume_callbacks(save_dir, **keys)]
    if batches is None:
        fit(make(), callbacks, epochs=epochs, eval_data=Points(16))
        return callback
    with pytest.raises(StopAt.Crash):
        fit(make(), [StopAt(batches), *callbacks], epochs=epochs, eval_data=Points(16))
    close_writers([callback])
    return callback


def own(path: Path) -> List[Row]:
    return [row for row in rows(path) if row[0] in CURVES]


def test_a_finished_run_that_is_started_again_touches_nothing(tmp_path: Path) -> None:
    log_dir, save_dir = tmp_path / "log", tmp_path / "run"
    curve(log_dir, save_dir)
    before = log_file(log_dir).read_bytes(), log_file(log_dir).stat()
    callback = curve(log_dir, save_dir)
    assert (log_file(log_dir).read_bytes(), log_file(log_dir).stat()) == before
    assert not hasattr(callback, "writer")


def test_a_finished_run_that_trains_longer_goes_on_in_its_file(tmp_path: Path) -> None:
    curve(tmp_path / "log", tmp_path / "run", epochs=1)
    curve(tmp_path / "log", tmp_path / "run", epochs=3)
    curve(tmp_path / "whole", tmp_path / "another", epochs=3)
    assert rows(log_file(tmp_path / "log")) == rows(log_file(tmp_path / "whole"))


def test_what_lies_beyond_a_step_that_a_run_goes_back_to_is_kept(tmp_path: Path) -> None:
    log_dir, save_dir = tmp_path / "log", tmp_path / "run"
    curve(log_dir, save_dir, keep_checkpoint_max=None)
    before = rows(log_file(log_dir))
    curve(log_dir, save_dir, keep_checkpoint_max=None, resume_from="step:2")
    assert rows(log_file(log_dir)) == before
    (aside,) = (path for path in log_dir.iterdir() if path != log_file(log_dir))
    assert aside.name == log_file(log_dir).name.replace("vdlrecords", "replaced") + ".after-2"
    gone = [row for row in before if row[0].startswith("eval/") or row[1] > 2]
    assert rows(aside) == gone


def test_nothing_is_lost_of_what_the_users_own_code_writes(tmp_path: Path) -> None:
    curve(tmp_path / "log", tmp_path / "run", batches=3, kind=Mine)
    before = [row for row in rows(log_file(tmp_path / "log")) if row[0] not in CURVES]
    curve(tmp_path / "log", tmp_path / "run", kind=Mine)
    curve(tmp_path / "whole", tmp_path / "another", kind=Mine)
    found = rows(log_file(tmp_path / "log"))
    assert [row for row in found if row[0] not in CURVES][: len(before)] == before
    assert own(log_file(tmp_path / "log")) == own(log_file(tmp_path / "whole"))
    assert {("train/clock", 1000 + step, 1.0) for step in range(1, 2 * STEPS + 1)} < set(found)


def test_a_board_that_is_open_shows_one_curve(tmp_path: Path) -> None:
    log_dir = tmp_path / "log"
    curve(log_dir, tmp_path / "run", batches=5)  # of which the fifth comes again
    reader = LogReader(str(log_dir))
    assert [step for step, _ in board(log_dir, reader)["train/loss"]] == [1, 2, 3, 4, 5]
    curve(log_dir, tmp_path / "run")
    shown = board(log_dir, reader)
    assert [step for step, _ in shown["train/loss"]] == list(range(1, 2 * STEPS + 1))
    assert [step for step, _ in shown["eval/acc"]] == [0, 1]


def test_a_file_that_is_gone_or_broken_gives_way_to_a_new_one(tmp_path: Path, caplog: Any) -> None:
    log_dir, save_dir = tmp_path / "log", tmp_path / "run"
    curve(log_dir, save_dir, batches=2)
    old = log_file(log_dir)
    text = b"no records at all" * 10
    old.rename(log_dir / "vdlrecords.0000000001.log")
    curve(log_dir, save_dir, batches=2)
    assert f"{old} is gone" in caplog.text
    new = max(log_dir.glob("*vdlrecords*"))
    assert own(new)[0][:2] == ("train/loss", 3)
    new.write_bytes((8).to_bytes(8, "little") + text)
    curve(log_dir, save_dir)
    assert new.read_bytes().startswith((8).to_bytes(8, "little") + text)
    assert "cannot be used: no record of VisualDL at byte 0" in caplog.text


def test_a_writer_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    curve(tmp_path / "log", tmp_path / "run", batches=2)

    def given(log_dir: str) -> Any:
        callback = paddle.callbacks.VisualDL(log_dir)
        callback.writer = LogWriter(str(tmp_path / "other"))
        return callback

    before = log_file(tmp_path / "log").read_bytes()
    curve(tmp_path / "log", tmp_path / "run", kind=given)
    assert log_file(tmp_path / "log").read_bytes() == before
    assert own(log_file(tmp_path / "other"))[0][:2] == ("train/loss", 3)


def test_a_last_word_takes_no_point_of_a_finished_run(tmp_path: Path) -> None:
    curve(tmp_path / "log", tmp_path / "run", kind=Ending)
    before = rows(log_file(tmp_path / "log"))
    curve(tmp_path / "log", tmp_path / "run", kind=Ending)
    assert rows(log_file(tmp_path / "log")) == [*before, before[-1]]
    assert before[-1][0] == "summary"


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"curve": "../outside.vdlrecords.log"},
        {"curve": "no log of VisualDL"},
    ],
)
def test_a_checkpoint_that_names_no_file_of_the_folder_starts_a_new_one(
    tmp_path: Path, item: Dict[str, Any]
) -> None:
    callback = paddle.callbacks.VisualDL(str(tmp_path))
    held = {"VisualDL.0": {"attributes": {"train_step": 3, "epoch": 0}, **item}}
    assert Listeners([callback]).restore(Captured({}, {"listeners": held})) == []
    assert callback.train_step == 3 and not hasattr(callback, "writer")


# ---------------------------------------------------------------------- before the exit

WRITES = """
    import os, sys, threading
    import paddle
    from paddle_resume.state.curves import close_writers, flush_writers

    curve = paddle.callbacks.VisualDL(sys.argv[1])
    curve._is_fit, curve.train_step = True, 0
    curve.train_metrics, curve.steps = ["loss"], 50
    for step in range(50):
        curve.on_train_batch_end(step, {"loss": [0.5 * step]})
"""


@pytest.mark.parametrize(
    "leave",
    [
        """
        close_writers([curve], 143)
        assert not hasattr(curve, "writer")
        raise SystemExit(143)
        """,
        """
        def watch():
            flush_writers([curve])
            os._exit(143)

        threading.Thread(target=watch).start()
        threading.Event().wait()
        """,
        """
        def watch():
            close_writers([curve], 143, in_use=True)
            files = os.listdir(sys.argv[1])
            curve.on_train_batch_end(50, {"loss": [0.0]})
            os._exit(143 if os.listdir(sys.argv[1]) == files else 1)

        threading.Thread(target=watch).start()
        threading.Event().wait()
        """,
    ],
    ids=["SystemExit", "flushed by another thread", "closed by another thread"],
)
def test_every_point_is_in_the_file_before_the_process_ends(tmp_path: Path, leave: str) -> None:
    done = python(textwrap.dedent(WRITES) + textwrap.dedent(leave), str(tmp_path))
    assert done.returncode == 143, done.stderr
    expected = [("train/loss", step + 1, 0.5 * step) for step in range(50)]
    assert own(log_file(tmp_path))[:50] == expected


def test_flushed_writers_stay_open(tmp_path: Path) -> None:
    callback = paddle.callbacks.VisualDL(str(tmp_path))
    callback.writer = LogWriter(str(tmp_path))
    for step in (1, 2):
        callback.writer.add_scalar("train/loss", 0.0, step)
        flush_writers([callback, StopAt(0)])
        assert own(log_file(tmp_path))[-1] == ("train/loss", step, 0.0)
    close_writers([callback, StopAt(0)])
    assert not hasattr(callback, "writer")
    flush_writers([callback])
    close_writers([callback])


class Run:
    """Stands for a run of Weights and Biases, which needs an account."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self.codes: List[Optional[int]] = []
        self._finish = finish

    def finish(self, exit_code: Optional[int] = None) -> None:
        self.codes.append(exit_code)
        self._finish()


def wandb_callback(run: Any) -> Any:
    kind = paddle.callbacks.WandbCallback
    callback = kind.__new__(kind)  # its __init__ needs wandb
    callback._run = run
    return callback


def test_one_that_fails_or_hangs_does_not_hold_up_the_others(tmp_path: Path, caplog: Any) -> None:
    held = threading.Event()
    runs = [Run(lambda: None), Run(lambda: 1 / 0), Run(held.wait)]  # type: ignore[arg-type]
    visualdl = paddle.callbacks.VisualDL(str(tmp_path))
    visualdl.writer = LogWriter(str(tmp_path))
    visualdl.writer.add_scalar("train/loss", 0.0, 1)
    callbacks = [*map(wandb_callback, runs), wandb_callback(None), visualdl]
    started = time.monotonic()
    close_writers(callbacks, exit_code=143, seconds=0.3)
    assert time.monotonic() - started < 2
    held.set()
    assert [run.codes for run in runs] == [[143]] * 3
    assert all(callback._run is None for callback in callbacks[:4])
    assert own(log_file(tmp_path)) == [("train/loss", 1, 0.0)]
    assert "closing WandbCallback failed: ZeroDivisionError" in caplog.text
    assert "closing WandbCallback takes over 0.3 s" in caplog.text


def test_callbacks_of_others_are_left_alone() -> None:
    class Other(paddle.callbacks.Callback):  # type: ignore[misc]
        writer = _run = None

    class VisualDL:  # another one of that name
        log_dir, train_step = "", 0

    callbacks = [Other(), VisualDL(), object()]
    callbacks[0].writer = callbacks[1].writer = "mine"  # type: ignore[attr-defined]
    flush_writers(callbacks)
    close_writers(callbacks)
    assert callbacks[0].writer == callbacks[1].writer == "mine"  # type: ignore[attr-defined]
    held = Listeners(callbacks).capture().values["listeners"]
    assert not any(held.values())


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_has_every_point_before_the_process_ends(tmp_path: Path) -> None:
    done = python(
        """
        import os, sys, threading
        import paddle
        from paddle_resume.state.curves import close_writers

        callback = paddle.callbacks.WandbCallback(project="p", dir=sys.argv[1])
        callback.params = {"epochs": 1, "metrics": ["loss"], "steps": 50}
        callback.on_train_begin()
        for step in range(50):
            callback.on_train_batch_end(step, {"loss": [0.5 * step]})

        def watch():
            close_writers([callback], 143, seconds=60, in_use=True)
            os._exit(143)

        threading.Thread(target=watch).start()
        threading.Event().wait()
        """,
        str(tmp_path),
    )
    assert done.returncode == 143, done.stderr
    (path,) = tmp_path.rglob("*.wandb")
    records = wandb_records(path.read_bytes())
    assert sum(record.HasField("history") for record in records) == 50
    assert [one.exit.exit_code for one in records if one.HasField("exit")] == [143]


def wandb_records(data: bytes) -> List[Any]:
    """Reads a file of Weights and Biases: LevelDB's log format after 7 bytes of head."""
    from wandb.proto.wandb_internal_pb2 import Record as WandbRecord

    records, parts, start = [], b"", 7
    while start + 7 <= len(data):
        left = 32768 - start % 32768
        if left < 7:  # no room for a head: the rest of the block is padding
            start += left
            continue
        length, kind = struct.unpack_from("<HB", data, start + 4)
        parts += data[start + 7 : start + 7 + length]
        if kind in (1, 4):  # whole, or the last piece
            records.append(WandbRecord.FromString(parts))
            parts = b""
        start += 7 + length
    return records
