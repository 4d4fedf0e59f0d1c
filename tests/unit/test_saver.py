"""The one save in flight, where several threads ask for it at once."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Callable, Iterator, List

import pytest
from samples import make_snapshot, make_store

from paddle_resume.best import Best, BestPolicy, Score
from paddle_resume.observe.events import EventLog
from paddle_resume.retention import KeepNewest
from paddle_resume.saver import SavePolicy, Saver
from paddle_resume.types import ResumePlan


def nothing() -> None:
    """A commit that needs nothing before it."""


def saver_in(folder: Path, in_background: bool, before: Callable[[], None] = nothing) -> Saver:
    policy = SavePolicy((), (KeepNewest(2),), in_background)
    plan = ResumePlan("fresh", None, "run-a")
    return Saver(make_store(folder), plan, policy, EventLog(folder / "events.jsonl"), before)


@pytest.fixture
def turns() -> Iterator[None]:
    """Threads that give way at every chance."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("in_background", [True, False])
def test_two_threads_save_the_same_step_once(
    tmp_path: Path, in_background: bool, turns: None
) -> None:
    """The training saves the best after an evaluation while the watcher saves the same step."""
    saver = saver_in(tmp_path, in_background)
    lost: List[int] = []
    together = threading.Barrier(2)

    def watch() -> None:
        for step in range(1, 81):
            together.wait(60)
            saver.wait()
            if not saver.save_now(make_snapshot(step)):
                lost.append(step)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for step in range(1, 81):
        together.wait(60)
        saver.save(make_snapshot(step))
        if step % 3 == 0:
            saver.wait()
    watcher.join(60)
    assert (saver.wait(60), lost, saver.failures, saver.last_step) == (True, [], 0, 80)


@pytest.mark.parametrize("in_background", [True, False])
def test_waiting_ends_with_the_save_of_another_thread(tmp_path: Path, in_background: bool) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def before() -> None:
        begun.set()
        assert go_on.wait(60)

    saver = saver_in(tmp_path, in_background, before)
    training = threading.Thread(target=saver.save, args=(make_snapshot(1),))
    training.start()
    assert begun.wait(60)
    assert saver.has(1) and saver.in_flight is not None and saver.last_step is None
    assert not saver.wait(0.05)
    go_on.set()
    assert saver.wait(60) and saver.in_flight is None and saver.last_step == 1
    training.join(60)


def test_an_interrupted_save_holds_nobody_up(tmp_path: Path) -> None:
    def before() -> None:
        raise KeyboardInterrupt

    saver = saver_in(tmp_path, in_background=False, before=before)
    with pytest.raises(KeyboardInterrupt):
        saver.save(make_snapshot(1))
    assert saver.wait(60) and saver.in_flight is None and not saver.has(1)


def test_where_no_thread_can_be_started_the_save_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    saver = saver_in(tmp_path, in_background=True)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limit)
        saver.save(make_snapshot(1))
    assert saver.wait(60) and saver.failures == 1 and not saver.has(1)
    saver.save(make_snapshot(2))
    assert saver.wait(60) and saver.last_step == 2


def test_a_slow_deletion_holds_no_other_save_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion of old checkpoints on a slow share, and a SIGTERM meanwhile."""
    deleting, go_on = threading.Event(), threading.Event()

    def slow(path: Path) -> None:
        deleting.set()
        assert go_on.wait(60)

    policy = SavePolicy((), (KeepNewest(1),), True, BestPolicy("acc"))
    plan, events = ResumePlan("fresh", None, "run-a"), EventLog(tmp_path / "events.jsonl")
    store = make_store(tmp_path)
    monkeypatch.setattr(store, "delete", slow)
    saver = Saver(store, plan, policy, events, nothing)
    for step in (1, 2):
        saver.save(make_snapshot(step))
    assert deleting.wait(60) and saver.last_step == 2
    saver.crown(Best((Score(2, 0.5),)))
    began = time.monotonic()
    saver.drop(0.1)
    monkeypatch.setattr(store, "delete", lambda path: None)
    assert saver.save_now(make_snapshot(3))
    assert time.monotonic() - began < 30 and not go_on.is_set()
    go_on.set()
