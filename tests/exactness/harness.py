"""Runs trainings, kills them, starts them again, and compares what they did."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from .configs import Config, Kill

__all__ = ["Attempt", "Difference", "Harness", "Trail", "checkpoint_steps", "reasons_of"]

Event = List[Any]

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
MARKER = "PADDLE_RESUME_EXACTNESS_RUN"
NOT_COMPARED = ("train_begin", "unsettled", "unnoticed", "stopped")
# Long runs train hundreds of epochs at the end, beside other tests.
TIMEOUT = 900.0 if os.environ.get("PADDLE_RESUME_LONG") else 240.0
LEAVE = 5.0
"""Seconds that the children of a killed training get to be gone."""


class Difference(AssertionError):
    """A killed training did not do what the uninterrupted one did."""


@dataclass(frozen=True)
class Attempt:
    """One start of the training.

    Attributes:
        number: from 0.
        code: the exit code, negative for a signal.
        events: what the user's callback saw, the final line included.
        output: stdout and stderr.
        kill: the kill that was asked for.
        newest: the step of the newest checkpoint when it had ended; None without one.
        unsettled: the step that was waited for in vain before the kill.
        unnoticed: whether nothing told that a signal had been noticed.
        went_on: batches that ended after it was told to stop.
    """

    number: int
    code: int
    events: List[Event]
    output: Path
    kill: Optional[Kill] = None
    newest: Optional[int] = None
    unsettled: Optional[int] = None
    unnoticed: bool = False
    went_on: int = 0

    @property
    def batches(self) -> int:
        """How many batches it has trained to their end."""
        return sum(event[0] == "batch_end" for event in self.events)

    def tail(self, lines: int = 25) -> str:
        """Returns the end of the output."""
        text = self.output.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.replace("\r", "\n").splitlines()[-lines:])


@dataclass
class Trail:
    """All attempts of one run."""

    config: Config
    kills: Tuple[Kill, ...]
    folder: Path
    attempts: List[Attempt] = field(default_factory=list)

    @property
    def save_dir(self) -> Path:
        """Where the checkpoints are."""
        return self.folder / "checkpoints"

    def fail(self, problem: str) -> None:
        """Raises with all that helps to see why."""
        lines = [problem, f"config {self.config.name}: {self.config}"]
        lines.append("killed at " + ", ".join(str(kill) for kill in self.kills))
        for attempt in self.attempts:
            seen = [brief(event) for event in attempt.events]
            shown = ", ".join(seen if len(seen) < 7 else [*seen[:4], "...", *seen[-2:]])
            lines.append(
                f"--- attempt {attempt.number}: exit {attempt.code}, newest checkpoint after it: "
                f"{attempt.newest}; saw {shown or 'nothing'}; output:"
            )
            lines.append(attempt.tail())
        raise Difference("\n".join(lines))


def brief(event: Event) -> str:
    """Returns the event's name and place."""
    return " ".join(str(part) for part in place_of(event))


def place_of(event: Event) -> Tuple[Any, ...]:
    """Returns the event's name and its epoch and step, which no two events of a run share."""
    return (event[0], *itertools.takewhile(lambda part: isinstance(part, int), event[1:]))


def ends_of_batches(reference: Sequence[Event]) -> List[int]:
    """Returns for each batch of a run where the events after it begin."""
    ends = []
    for at, event in enumerate(reference):
        if event[0] == "batch_end":
            # other callbacks of the user may log the same batch after it
            rest = itertools.takewhile(lambda other: other[0] == "counted", reference[at + 1 :])
            ends.append(at + 1 + len(list(rest)))
    return ends


def first_difference(expected: Any, got: Any, where: str = "") -> str:
    """Returns where two JSON values first differ, and both values there."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in sorted({*expected, *got}):
            if key not in expected or key not in got:
                side = "only in the resumed run" if key in got else "missing in the resumed run"
                return f"{where}/{key}: {side}: {got.get(key, expected.get(key))}"
            if expected[key] != got[key]:
                return first_difference(expected[key], got[key], f"{where}/{key}")
    if isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for place, (left, right) in enumerate(zip(expected, got)):
            if left != right:
                return first_difference(left, right, f"{where}/{place}")
    return f"{where}: uninterrupted {readable(expected)}, resumed {readable(got)}"


def readable(value: Any) -> str:
    """Returns the value, a float as hex and as decimal."""
    if isinstance(value, str) and value.lstrip("-").startswith("0x"):
        return f"{value} ({float.fromhex(value)!r})"
    return repr(value)


def all_differences(expected: Mapping[str, Any], got: Mapping[str, Any]) -> str:
    """Returns the first difference under each key of a final line."""
    return "; ".join(
        first_difference(expected.get(key), got.get(key), key)
        for key in sorted({*expected, *got})
        if expected.get(key) != got.get(key)
    )


def checkpoint_steps(save_dir: Path) -> List[int]:
    """Returns the steps that have a checkpoint, in order."""
    if not save_dir.is_dir():
        return []
    names = [path.name for path in save_dir.iterdir() if path.is_dir() and not path.is_symlink()]
    return sorted(
        int(name[5:]) for name in names if name.startswith("step_") and name[5:].isdigit()
    )


def reasons_of(save_dir: Path, step: int) -> List[str]:
    """Returns all reasons that a step was saved for."""
    path = save_dir / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    events = [json.loads(line) for line in lines]
    kinds = ("save", "reason")
    found = [event for event in events if event["event"] in kinds and event["step"] == step]
    return [reason for event in found for reason in event["reasons"]]


def read_events(path: Path) -> List[Event]:
    """Returns the whole lines of a log."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


# ---------------------------------------------------------------------------- killing from outside


class FolderWatch:
    """Tells of folders that appear in a folder, the moment that they do (inotify)."""

    CREATED, MOVED_IN, FOLDER = 0x100, 0x80, 0x40000000

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = libc.inotify_init1(os.O_NONBLOCK)
        mask = self.CREATED | self.MOVED_IN
        watch = libc.inotify_add_watch(self.descriptor, os.fsencode(str(folder)), mask)
        if self.descriptor < 0 or watch < 0:
            raise OSError(ctypes.get_errno(), "inotify")

    def appeared(self, timeout: float) -> Iterator[str]:
        """Yields the names that have appeared, after waiting for at most `timeout` seconds."""
        if not select.select([self.descriptor], [], [], timeout)[0]:
            return
        data, at = os.read(self.descriptor, 1 << 16), 0
        while at < len(data):
            _, what, _, length = struct.unpack_from("iIII", data, at)
            if what & self.FOLDER:
                yield data[at + 16 : at + 16 + length].rstrip(b"\0").decode()
            at += 16 + length

    def close(self) -> None:
        """Ends the watch."""
        os.close(self.descriptor)


class OutsideKill(threading.Thread):
    """Kills a process, or signals its group, when a folder appears or a time has passed."""

    def __init__(self, kill: Kill, save_dir: Path, group: bool) -> None:
        super().__init__(daemon=True)
        self.kind, self.count = kill.at[0], kill.at[1]
        self.signal = signal.Signals[kill.by]
        self.send = os.killpg if group else os.kill
        self.pid: Optional[int] = None
        self.known = threading.Event()
        self.ended = threading.Event()
        save_dir.mkdir(parents=True, exist_ok=True)
        self.watch = None if self.kind == "after" else FolderWatch(save_dir)

    def run(self) -> None:
        """Waits for the moment, then kills."""
        if self.watch is None:
            if self.known.wait(TIMEOUT) and not self.ended.wait(self.count):
                self.shoot()
            return
        prefix = {"save": ".tmp-", "commit": "step_"}[self.kind]
        names: Set[str] = set()
        until = time.monotonic() + TIMEOUT
        while not self.ended.is_set() and time.monotonic() < until:
            names.update(n for n in self.watch.appeared(0.1) if n.startswith(prefix))
            if len(names) >= self.count and self.known.wait(1.0):
                self.shoot()
                return

    def shoot(self) -> None:
        """Kills the training, and nothing else."""
        until = time.monotonic() + 1.0
        while self.pid and time.monotonic() < until and not self.ended.is_set():
            try:
                self.send(self.pid, self.signal)
                return
            except ProcessLookupError:  # gone, or not yet the leader of a group
                time.sleep(0.005)

    def finish(self) -> None:
        """Ends the thread."""
        self.ended.set()
        self.join(5.0)
        if self.watch is not None:
            self.watch.close()


# ---------------------------------------------------------------------------- starting


class Starter:
    """Starts attempts: each in a process of its own, forked from one that has imported Paddle.

    With PADDLE_RESUME_PLAIN=1, or `plain`, each is a new interpreter instead.
    """

    def __init__(self) -> None:
        self.marker = uuid.uuid4().hex
        self.server: Optional["subprocess.Popen[bytes]"] = None
        self.log: Optional[Path] = None

    def environment(self) -> Dict[str, str]:
        """Returns the environment of every process that belongs to these tests."""
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PADDLE_RESUME_")}
        return {
            **kept,
            MARKER: self.marker,
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }

    def run(
        self, spec_path: Path, output: Path, outside: Optional[OutsideKill], plain: bool
    ) -> int:
        """Runs one attempt to its end; returns its exit code."""
        if plain or os.environ.get("PADDLE_RESUME_PLAIN"):
            return self._run_new(spec_path, output, outside)
        return self._run_forked(spec_path, output, outside)

    def _run_new(self, spec_path: Path, output: Path, outside: Optional[OutsideKill]) -> int:
        with output.open("ab") as target:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "training.py"), str(spec_path)],
                stdin=subprocess.DEVNULL,
                stdout=target,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                start_new_session=True,
            )
            self._tell(outside, process.pid)
            try:
                return process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10.0)
                raise

    def _run_forked(self, spec_path: Path, output: Path, outside: Optional[OutsideKill]) -> int:
        server = self._server()
        assert server.stdin is not None
        server.stdin.write(f"{spec_path}\t{output}\n".encode())
        server.stdin.flush()
        pid = int(self._answer("pid", 20.0))
        self._tell(outside, pid)
        try:
            return int(self._answer("code", TIMEOUT))
        except TimeoutError:
            os.killpg(pid, signal.SIGKILL)
            self._answer("code", 10.0)
            raise

    @staticmethod
    def _tell(outside: Optional[OutsideKill], pid: int) -> None:
        if outside is not None:
            outside.pid = pid
            outside.known.set()

    def _server(self) -> "subprocess.Popen[bytes]":
        if self.server is None or self.server.poll() is not None:
            self.server = subprocess.Popen(
                [sys.executable, str(HERE / "training.py"), "--serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self.environment(),
                start_new_session=True,
                bufsize=0,
            )
            self._answer("ready", 60.0)
        return self.server

    def _answer(self, word: str, timeout: float) -> str:
        assert self.server is not None and self.server.stdout is not None
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            if select.select([self.server.stdout], [], [], 0.2)[0]:
                line = self.server.stdout.readline().decode()
                if not line:
                    raise RuntimeError("the process that forks the trainings is gone")
                if line.startswith(word):
                    return line[len(word) :].strip()
        raise TimeoutError(f"no {word!r} in {timeout} s")

    def left_over(self) -> List[int]:
        """Returns the processes of these tests that still live."""
        found = []
        mark = f"{MARKER}={self.marker}".encode()
        for path in Path("/proc").iterdir():
            if not path.name.isdigit():
                continue
            if self.server is not None and int(path.name) == self.server.pid:
                continue
            try:
                state = (path / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if state != "Z" and mark in (path / "environ").read_bytes():
                    found.append(int(path.name))
            except (OSError, IndexError):
                continue
        return found

    def close(self) -> None:
        """Ends the forking process."""
        if self.server is not None:
            assert self.server.stdin is not None and self.server.stdout is not None
            self.server.stdin.close()
            self.server.kill()  # not asked to end: Paddle 2.6 may hang in its own teardown
            self.server.wait(10.0)
            self.server.stdout.close()
            self.server = None


# ---------------------------------------------------------------------------- comparing


class Harness:
    """Runs and compares; keeps the uninterrupted runs.

    Args:
        folder: where all of it is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.starter = Starter()
        self.references: Dict[str, List[Event]] = {}
        self.count = itertools.count()

    def close(self) -> None:
        """Ends the processes of the tests."""
        self.starter.close()

    # ------------------------------------------------------------------ running

    def attempt(
        self,
        trail: Trail,
        kill: Optional[Kill] = None,
        *,
        settle: int = 0,
        callbacks: bool = True,
        resume: Optional[Mapping[str, Any]] = None,
        without: str = "",
        plain: bool = False,
    ) -> Attempt:
        """Starts the training of the trail once more, and waits for its end.

        Args:
            trail: what it belongs to.
            kill: where to kill it.
            settle: the step to wait for before the kill.
            callbacks: whether with the callbacks under test.
            resume: further arguments of AutoResume.
            without: a mutation of `leave_out.py`.
            plain: start a new interpreter.
        """
        number = len(trail.attempts)
        trail.folder.mkdir(parents=True, exist_ok=True)
        log = trail.folder / f"events_{number}.jsonl"
        output = trail.folder / f"output_{number}.txt"
        spec_path = trail.folder / f"spec_{number}.json"
        inside = kill is not None and not kill.outside
        spec = {
            "config": trail.config.as_spec(),
            "work_dir": str(trail.folder),
            "save_dir": str(trail.save_dir) if callbacks else None,
            "log": str(log),
            "attempt": number,
            "kill": {**asdict(kill), "settle": settle} if kill is not None and inside else None,
            "resume": dict(resume or {}),
            "without": without,
        }
        spec_path.write_text(json.dumps(spec), encoding="utf-8")
        output.touch()
        outside = None
        if kill is not None and kill.outside:
            group = bool(trail.config.workers) and kill.by != "SIGKILL"
            outside = OutsideKill(kill, trail.save_dir, group)
            outside.start()
        try:
            code = self.starter.run(spec_path, output, outside, plain)
        except (TimeoutError, subprocess.TimeoutExpired):
            trail.attempts.append(Attempt(number, 0, read_events(log), output, kill))
            trail.fail(f"attempt {number} was not over after {TIMEOUT} s")
            raise
        finally:
            if outside is not None:
                outside.finish()
        events = read_events(log)
        unsettled = [event[1] for event in events if event[0] == "unsettled"]
        unnoticed = any(event[0] == "unnoticed" for event in events)
        after = list(itertools.dropwhile(lambda event: event[0] != "stopped", events))
        steps = checkpoint_steps(trail.save_dir)
        result = Attempt(
            number,
            code,
            [event for event in events if event[0] not in NOT_COMPARED],
            output,
            kill,
            steps[-1] if steps else None,
            unsettled[0] if unsettled else None,
            unnoticed,
            sum(event[0] == "batch_end" for event in after),
        )
        trail.attempts.append(result)
        return result

    def trail(self, config: Config, kills: Sequence[Kill], name: str = "") -> Trail:
        """Returns a new trail with a folder of its own."""
        folder = self.folder / f"{next(self.count):04d}_{config.name}{name}"
        return Trail(config, tuple(kills), folder)

    def reference(self, config: Config, again: bool = False) -> List[Event]:
        """Returns the events of a run that has none of our callbacks and is never killed."""
        alike = replace(config, save={}, kills=None, ours="", place="last", grace=None)
        key = json.dumps(alike.as_spec(), sort_keys=True)
        if again or key not in self.references:
            trail = self.trail(config, (), "_reference")
            attempt = self.attempt(trail, callbacks=False)
            if attempt.code != 0 or not attempt.events or attempt.events[-1][0] != "final":
                trail.fail("the uninterrupted run failed")
            if again:
                return attempt.events
            self.references[key] = attempt.events
        return self.references[key]

    # ------------------------------------------------------------------ the check

    def check(self, config: Config, kills: Sequence[Kill], **options: Any) -> Trail:
        """Kills a run at each of the points in turn, and compares all of it.

        Args:
            config: the training.
            kills: one for each attempt but the last.
            options: for `attempt`.

        Raises:
            Difference: with the first event that differs.
        """
        reference = self.reference(config)
        trail = self.trail(config, kills)
        for kill in kills:
            settle = self.due(config, reference, kill) if kill.settled and not kill.outside else 0
            attempt = self.attempt(trail, kill, settle=settle, **options)
            if attempt.code != -signal.SIGKILL:
                trail.fail(f"attempt {attempt.number} was not killed at {kill}")
            if settle and not attempt.newest:
                trail.fail(f"step {settle} was to be saved before {kill}, and no step was")
            self.nothing_left(trail)
        attempt = self.attempt(trail, **options)
        if attempt.code != 0:
            trail.fail(f"the last attempt ended with exit code {attempt.code}")
        self.nothing_left(trail)
        self.compare(trail, reference)
        return trail

    def check_stopped(self, config: Config, kills: Sequence[Kill]) -> Trail:
        """Stops a run at each of the points in turn, and compares all of it.

        Each attempt must have saved all that it had trained, and the next one goes on from there.

        Args:
            config: the training, with an EmergencySaver.
            kills: one for each attempt but the last; their `by` is no SIGKILL.

        Raises:
            Difference: with what was not as it should be.
        """
        reference = self.reference(config)
        trail = self.trail(config, kills)
        for kill in kills:
            self.attempt(trail, kill)
            self.all_saved(trail)
            self.nothing_left(trail)
        attempt = self.attempt(trail)
        if attempt.code != 0:
            trail.fail(f"the last attempt ended with exit code {attempt.code}")
        self.nothing_left(trail)
        self.compare(trail, reference)
        return trail

    def all_saved(self, trail: Trail, unsaved: int = 0) -> None:
        """Fails where the last attempt did not save all that it has trained as it was stopped.

        Args:
            trail: with the attempt as its last.
            unsaved: batches of it that are after its last point.
        """
        attempt = trail.attempts[-1]
        kill = attempt.kill
        assert kill is not None
        signalled = kill.by != "exception"
        due = 128 + signal.Signals[kill.by] if signalled else 1
        if attempt.code != due:
            trail.fail(f"attempt {attempt.number} was to end with {due} at {kill}")
        if attempt.unnoticed:
            trail.fail(f"attempt {attempt.number}: {kill} was not noticed")
        if attempt.went_on:
            trail.fail(f"attempt {attempt.number} trained on after {kill}: {attempt.went_on}")
        before = trail.attempts[-2].newest if attempt.number else None
        trained = (before or 0) + attempt.batches - unsaved
        if (attempt.newest or 0) != trained:
            trail.fail(
                f"attempt {attempt.number} was to save step {trained}, the last one trained before "
                f"{kill}; the newest is {attempt.newest}"
            )
        reason = kill.by if signalled else "exception"
        found = reasons_of(trail.save_dir, trained)
        if trained != (before or 0) and reason not in found:
            trail.fail(f"step {trained} was to be saved because of {reason}, not of {found}")

    def nothing_left(self, trail: Trail) -> None:
        """Fails when a process of the training outlives it."""
        until = time.monotonic() + LEAVE
        left = self.starter.left_over()
        while left and time.monotonic() < until:
            time.sleep(0.02)
            left = self.starter.left_over()
        if left:
            shown = [f"{pid} ({command_of(pid)})" for pid in left]
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            trail.fail(f"processes that outlive attempt {len(trail.attempts) - 1}: {shown}")

    @staticmethod
    def due(config: Config, reference: Sequence[Event], kill: Kill) -> int:
        """Returns the newest step whose save was asked for before the kill; 0 for none."""
        done = 0
        for event in reference:
            if tuple(event[: len(kill.at)]) == kill.at:
                break
            done += event[0] == "batch_end"
        else:
            raise ValueError(f"{config.name}: the uninterrupted run never comes to {kill}")
        by_step, by_epoch = config.save.get("snapshot_step"), config.save.get("snapshot_epoch", 1)
        for step in range(done, 0, -1):
            if by_step and step % by_step == 0:
                return step
            if by_epoch and step % (by_epoch * config.steps) == 0:
                return step
        return 0

    def compare(
        self,
        trail: Trail,
        reference: Sequence[Event],
        starts: Optional[Mapping[int, int]] = None,
    ) -> None:
        """Compares every attempt with the uninterrupted run.

        Args:
            trail: the attempts.
            reference: the uninterrupted run's events.
            starts: number of an attempt to the step that it starts after, where that is not the
                newest checkpoint that the attempt before it left.
        """
        places = {place_of(event): at for at, event in enumerate(reference)}
        ends = ends_of_batches(reference)
        reached = 0
        for attempt in trail.attempts:
            events = list(attempt.events)
            left = trail.attempts[attempt.number - 1].newest if attempt.number else None
            before = (starts or {}).get(attempt.number, left or 0)
            start = ends[before - 1] if before else 0
            if not events:
                continue  # killed before its first event
            if events[0][0] == "train_end" and reached > places[("train_end",)]:
                # Over, and stopped once more in its on_train_end: which is heard again, with the
                # metrics of the last boundary, from before the last evaluation.
                events = events[1:]
            if [event[0] for event in events] == ["final"] and before == len(ends):
                start = len(reference) - 1  # the run was over
            elif start:
                epoch = next(event[1] for event in reference[start - 1 :: -1] if len(event) > 1)
                following = reference[start]
                if following[0] != "epoch_begin" and events[0][0] == "epoch_begin":
                    if events[0] != ["epoch_begin", epoch]:
                        trail.fail(
                            f"attempt {attempt.number} should go on after step {before}, in epoch "
                            f"{epoch}, and began with {brief(events[0])}"
                        )
                    events = events[1:]
                    if not events:
                        continue
                if before == len(ends) and events[0][0] == "train_end":
                    start = places[("train_end",)]
            got = places.get(place_of(events[0]))
            if got is None:
                trail.fail(
                    f"attempt {attempt.number} began with {brief(events[0])}, which the "
                    "uninterrupted run never saw"
                )
            elif got != start:
                trail.fail(
                    f"attempt {attempt.number} should go on after step {before} with "
                    f"{brief(reference[start])}, and began with {brief(events[0])}"
                )
            if start > reached:
                trail.fail(
                    f"attempt {attempt.number} skipped {brief(reference[reached])} up to "
                    f"{brief(reference[start - 1])}"
                )
            for at, event in enumerate(events, start):
                if at >= len(reference):
                    trail.fail(f"attempt {attempt.number} saw too much: {brief(event)}")
                if event == reference[at]:
                    continue
                if event[0] == reference[at][0] == "final":
                    trail.fail(
                        "the final state differs: " + all_differences(reference[at][1], event[1])
                    )
                trail.fail(
                    f"attempt {attempt.number}: the first event that differs is "
                    f"{brief(reference[at])} (event {at - start} after its start at step "
                    f"{before}): {first_difference(reference[at], event)}"
                )
            reached = max(reached, start + len(events))
        if reached != len(reference):
            trail.fail(f"no attempt came to {brief(reference[reached])}")


def command_of(pid: int) -> str:
    """Returns the command line of a process."""
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "gone"
    return data.replace(b"\0", b" ").decode(errors="replace")[:120]
