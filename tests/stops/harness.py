"""Starts trainings, stops them, starts them again, and compares with one that nobody stopped."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
    Type,
)

from exactness.harness import first_difference

__all__ = [
    "Bench",
    "Failure",
    "Late",
    "Round",
    "Run",
    "Server",
    "Stopped",
    "left",
    "seed",
    "several",
]

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
LEAVE_S = 2.0
"""For how long a process of the session may outlive the training."""
TIMEOUT_S = 150.0
TOO_BUSY = 2.0 * (os.cpu_count() or 1)
"""Load average above which what came too late tells nothing, and is tried again."""
_SEED = 20240229


class Failure(AssertionError):
    """A stopped training did not do what it has to."""


class Late(Failure):
    """All that is wrong is that it took too long."""


def seed() -> int:
    """What the random moments come from."""
    return int(os.environ.get("PADDLE_RESUME_SEED", _SEED))


def left(session: int) -> List[int]:
    """Returns the processes of a session that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] not in "ZX":
                    found.append(int(entry.name))
    return found


# ---------------------------------------------------------------------------- processes


class Run:
    """One process of a training, in a session of its own."""

    def __init__(self, pid: int, output: Path) -> None:
        self.pid = pid
        self.output = output
        self._ended = threading.Event()
        self.code = 0
        self.ended_at = 0.0

    def end(self, code: int, at: float) -> None:
        """Called when it is over."""
        self.code, self.ended_at = code, at
        self._ended.set()

    def wait(self, timeout: float) -> bool:
        """Returns whether it is over."""
        return self._ended.wait(timeout)

    def signal(self, number: int, group: bool = False) -> None:
        """Signals it, or it and its workers."""
        if not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(self.pid, number)

    def kill(self) -> None:
        """Ends all of its session."""
        over = self.wait(0)
        if not over or left(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        if not over:  # it may not have a session of its own yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait(10.0)

    def text(self) -> str:
        """Returns stdout and stderr."""
        return self.output.read_text(encoding="utf-8", errors="replace")


class Server:
    """Forks trainings from a process that has imported Paddle; may be used by several threads.

    With PADDLE_RESUME_PLAIN=1, or `plain`, each is an interpreter of its own instead.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._reader: Optional[threading.Thread] = None
        self._told = threading.Condition()
        self._started: Dict[str, Run] = {}
        self._runs: Dict[int, Run] = {}

    def start(self, spec_path: Path, output: Path, plain: bool = False) -> Run:
        """Starts one attempt."""
        if plain or os.environ.get("PADDLE_RESUME_PLAIN"):
            return self._start_plain(spec_path, output)
        with self._lock:
            if self._process is None:
                self._serve()
            assert self._process is not None and self._process.stdin is not None
            self._process.stdin.write(f"{spec_path}\t{output}\n".encode())
            self._process.stdin.flush()
        with self._told:
            if not self._told.wait_for(lambda: str(spec_path) in self._started, 30.0):
                raise TimeoutError(f"no process for {spec_path}")
            return self._started.pop(str(spec_path))

    def close(self) -> None:
        """Ends the server, and with it every training that still runs."""
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.close()
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10.0)
            if self._reader is not None:
                self._reader.join(10.0)
            self._process.stdout.close()
            self._process = None

    def _serve(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "training.py"), "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], 90.0)[0]:
            raise TimeoutError("the process that forks the trainings does not start")
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError("the process that forks the trainings is gone")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in iter(self._process.stdout.readline, b""):
            words = line.decode(errors="replace").split()
            with self._told:
                if words[:1] == ["pid"]:
                    run = Run(int(words[2]), Path(words[1]).with_suffix(".txt"))
                    self._runs[run.pid] = self._started[words[1]] = run
                    self._told.notify_all()
                elif words[:1] == ["end"]:
                    self._runs.pop(int(words[1])).end(int(words[2]), float(words[3]))

    def _start_plain(self, spec_path: Path, output: Path) -> Run:
        with output.open("ab") as target:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "training.py"), str(spec_path)],
                stdin=subprocess.DEVNULL,
                stdout=target,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )
        run = Run(process.pid, output)
        wait = threading.Thread(
            target=lambda: run.end(process.wait(), time.monotonic()), daemon=True
        )
        wait.start()
        return run


def _environment() -> Dict[str, str]:
    paths = [str(REPOSITORY), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PADDLE_RESUME_")}
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


# ---------------------------------------------------------------------------- one round


@dataclass(frozen=True)
class Stopped:
    """An attempt that is over.

    Attributes:
        code: its exit code, negative for a signal.
        elapsed: seconds from the first signal to its end; from its start where there was none.
        signalled_at: the monotonic clock at the first signal.
        events: its log.
        text: stdout and stderr.
        newest: step of the newest checkpoint, which is verified; None where there is none.
        steps: of all checkpoints.
        reasons: step to all reasons for which it was saved.
    """

    code: int
    elapsed: float
    signalled_at: float
    events: List[List[Any]]
    text: str
    newest: Optional[int]
    steps: List[int]
    reasons: Dict[int, List[str]]

    @property
    def batches(self) -> List[List[Any]]:
        """The batches whose end the user's callback has seen."""
        return [event for event in self.events if event[0] == "batch"]

    @property
    def last_boundary(self) -> int:
        """The step of the last batch that the user's callback saw end in this attempt; 0."""
        return step_of(self.batches[-1]) if self.batches else 0


STEPS = 7
"""Batches of an epoch; see `training.py`."""


def step_of(event: Sequence[Any]) -> int:
    """Returns the global step of a batch's event."""
    return int(event[1]) * STEPS + int(event[2]) + 1


@dataclass
class Round:
    """All attempts of one run, in a folder of its own."""

    bench: "Bench"
    folder: Path
    spec: Mapping[str, Any]
    plain: bool = False
    save_dir: Path = field(init=False)
    stopped: List[Stopped] = field(default_factory=list)
    runs: List[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.save_dir = self.folder / "checkpoints"

    def start(self, **changed: Any) -> Run:
        """Starts the training once more."""
        number = len(self.runs)
        spec = {
            **self.spec,
            "save_dir": str(self.save_dir),
            "log": str(self.folder / f"log_{number}.jsonl"),
            "begun": str(self.folder / f"begun_{number}"),
            **changed,
        }
        path = self.folder / f"attempt_{number}.json"
        path.write_text(json.dumps(spec), encoding="utf-8")
        output = path.with_suffix(".txt")
        output.touch()
        self.runs.append(self.bench.server.start(path, output, self.plain))
        return self.runs[-1]

    @property
    def begun(self) -> Path:
        """Appears when the fault of the current attempt begins."""
        return self.folder / f"begun_{len(self.runs) - 1}"

    def has_logged(self) -> bool:
        """Whether the current attempt has come to the end of a batch."""
        log = self.folder / f"log_{len(self.runs) - 1}.jsonl"
        return log.exists() and log.stat().st_size > 0

    def boundary(self) -> int:
        """The step of the last batch that the current attempt has come to the end of; 0."""
        log = self.folder / f"log_{len(self.runs) - 1}.jsonl"
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return max((step_of(event) for event in events if event[0] == "batch"), default=0)

    def wait_for(self, what: Callable[[], bool], timeout: float = 60.0) -> None:
        """Waits until something is so, while the training runs."""
        until = time.monotonic() + timeout
        while not what():
            if self.runs[-1].wait(0.01) and not what():
                self.fail("it ended before the test had come to its point")
            if time.monotonic() > until:
                self.fail(f"not come to the test's point within {timeout} s")

    def stop(
        self,
        number: int = signal.SIGTERM,
        group: bool = False,
        often: int = 1,
        within: float = 8.0,
    ) -> Stopped:
        """Signals the training and waits for its end.

        Args:
            number: of the signal.
            group: whether its workers hear it too.
            often: how many times, 0.2 s apart.
            within: seconds after which the platform would kill it.
        """
        run, started = self.runs[-1], time.monotonic()
        for count in range(often):
            if count:
                run.wait(0.2)
            run.signal(number, group)
        return self.end(within + 20.0, started, within)

    def end(
        self, timeout: float = 60.0, since: Optional[float] = None, within: Optional[float] = None
    ) -> Stopped:
        """Waits for the end of the training, and reads what it has left."""
        run, started = self.runs[-1], time.monotonic() if since is None else since
        if not run.wait(timeout):
            self.fail(f"not over within {timeout:.0f} s")
        until = time.monotonic() + LEAVE_S
        while left(run.pid) and time.monotonic() < until:
            time.sleep(0.02)
        if left(run.pid):
            self.fail(f"processes outlive the training: {left(run.pid)}")
        found = self._look(run, run.ended_at - started, started)
        self.stopped.append(found)
        if within is not None and found.elapsed >= within:
            self.fail(f"took {found.elapsed:.2f} s to end, of {within} s", Late)
        return found

    def _look(self, run: Run, elapsed: float, started: float) -> Stopped:
        import paddle_resume as pr

        log = self.folder / f"log_{len(self.runs) - 1}.jsonl"
        events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        saved = pr.checkpoints(self.save_dir) if self.save_dir.is_dir() else []
        for checkpoint in saved[-1:]:
            pr.load(checkpoint)  # verifies every byte
        reasons: Dict[int, List[str]] = {}
        path = self.save_dir / "events.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            event = json.loads(line)
            if event["event"] in ("save", "reason"):
                reasons.setdefault(event["step"], []).extend(event["reasons"])
        steps = [checkpoint.step for checkpoint in saved]
        newest = steps[-1] if steps else None
        return Stopped(run.code, elapsed, started, events, run.text(), newest, steps, reasons)

    def check(self, is_so: bool, what: str) -> None:
        """Fails where something is not so."""
        if not is_so:
            self.fail(what)

    def check_saved(self, stopped: Stopped, code: int, step: int, reason: str) -> None:
        """The newest checkpoint is that of a step, saved for a reason, with this exit code."""
        self.check(stopped.code == code, f"exit code {stopped.code}, expected {code}")
        self.check(stopped.newest == step, f"newest is {stopped.newest}, expected step {step}")
        found = stopped.reasons.get(step, [])
        self.check(reason in found, f"step {step} was saved for {found}, not for {reason}")
        if reason in signal.Signals.__members__:
            self.check("has failed" not in stopped.text, "a step has failed after the signal")

    def check_named(self, stopped: Stopped, step: int) -> None:
        """Nothing could be saved: exit 1, and the newest checkpoint, of that step, is named."""
        found = (stopped.code, stopped.newest)
        self.check(found == (1, step), f"exit code and newest are {found}, not {(1, step)}")
        named = f"the newest checkpoint is {self.save_dir / f'step_{step:08d}'}"
        self.check(named in stopped.text, "the newest checkpoint is not named")

    def resume(self, **changed: Any) -> Stopped:
        """Lets the training go on to its end; all attempts together must equal the reference."""
        before = self.stopped[-1].newest or 0
        self.start(**{"fault": None, "fsync": None, "without": "", **changed})
        found = self.end(TIMEOUT_S)
        self.check(found.code == 0, f"the resumed training ended with {found.code}")
        self.check_equal(found, before)
        return found

    def check_equal(self, found: Stopped, before: int) -> None:
        """Compares an attempt that came to the end with the uninterrupted run.

        Args:
            found: the attempt.
            before: the step after which it has to go on.
        """
        reference = self.bench.reference(self.spec)
        for attempt in self.stopped:  # what came before the stop was right as well
            for event in attempt.batches:
                expected = reference.batches[step_of(event) - 1]
                self.check(event == expected, first_difference(expected, event, "batch"))
        got = [step_of(event) for event in found.batches]
        expected_steps = list(range(before + 1, len(reference.batches) + 1))
        self.check(got == expected_steps, f"it trained the steps {got}, not {expected_steps}")
        # An epoch whose last batch is the checkpoint's is evaluated again.
        first = (before - 1) // STEPS if before % STEPS == 0 and before else before // STEPS
        for kind in ("eval", "final"):
            wanted = [
                e for e in reference.events if e[0] == kind and (kind == "final" or e[1] >= first)
            ]
            seen = [event for event in found.events if event[0] == kind]
            self.check(seen == wanted, first_difference(wanted, seen, kind))

    def fail(self, problem: str, kind: Type[Failure] = Failure) -> NoReturn:
        """Raises with all that helps to see why; ends what still runs."""
        lines = [f"{self.folder.name}: {problem}", f"spec: {dict(self.spec)}"]
        lines.append(f"load average: {os.getloadavg()[0]:.1f}; folder: {self.folder}")
        for number, run in enumerate(self.runs):
            run.kill()
            code = run.code if run.wait(0) else "none"
            lines.append(f"--- attempt {number}, exit {code}, output:")
            lines.extend(run.text().splitlines()[-30:])
        raise kind("\n".join(lines))


class Bench:
    """Starts rounds; keeps the uninterrupted runs.

    Args:
        folder: where all of it is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = Server()
        self._without = ""
        self._count = itertools.count()
        self._references: Dict[str, Stopped] = {}
        self._making = threading.Lock()

    def without(self, part: str) -> "Bench":
        """Returns one whose trainings lack a part of the product, but for resumed ones."""
        made = copy.copy(self)
        made._without = part
        return made

    @contextlib.contextmanager
    def round(self, name: str, plain: bool = False, **spec: Any) -> Iterator[Round]:
        """Makes a round; ends what is left of it."""
        if self._without:
            spec["without"] = self._without
        made = Round(self, self.folder / f"{next(self._count):04d}_{name}", spec, plain)
        try:
            yield made
        finally:
            for run in made.runs:
                run.kill()

    def reference(self, spec: Mapping[str, Any]) -> Stopped:
        """Returns what a run without the callbacks under test does, which nobody stops."""
        relevant = ("epochs", "workers", "accumulate", "amp", "eval", "eval_samples", "average")
        alike = {key: spec[key] for key in relevant if key in spec}
        key = json.dumps(alike, sort_keys=True)
        with self._making:
            if key not in self._references:
                with self.round("reference", **alike) as made:
                    made.start(save_dir=None)
                    found = made.end(TIMEOUT_S)
                    made.check(found.code == 0, "the uninterrupted run failed")
                    made.check(found.events[-1][0] == "final", "the reference is not whole")
                self._references[key] = found
            return self._references[key]

    def close(self) -> None:
        """Ends all processes."""
        self.server.close()


def several(
    play: Callable[[int, random.Random], Tuple[str, float]],
    rounds: int,
    at_once: int,
    name: str,
) -> None:
    """Plays rounds, several at once, and fails where any does.

    A round that is only late, on a machine that others keep busy, is played again.

    Args:
        play: given the round's number and its own source of random moments; returns a word for
            what it saw, and how many seconds the stop took.
        rounds: how many.
        at_once: how many of them run beside each other.
        name: for the report.
    """
    began, first = time.monotonic(), seed()
    late: List[float] = []

    def one(number: int) -> Tuple[str, float]:
        for _ in range(2):
            try:
                return play(number, random.Random(f"{first}/{name}/{number}"))
            except Late:
                load = os.getloadavg()[0]
                if load <= TOO_BUSY:
                    raise
                late.append(round(load, 1))
        return play(number, random.Random(f"{first}/{name}/{number}"))

    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(one, number) for number in range(rounds)]
        errors = [future.exception() for future in futures]
    seen = [future.result() for future, error in zip(futures, errors) if error is None]
    longest = max((seconds for _, seconds in seen), default=0.0)
    print(
        f"{name}: {len(seen)} of {rounds} rounds good, stops took up to {longest:.2f} s, "
        f"{time.monotonic() - began:.1f} s in all, PADDLE_RESUME_SEED={first}, load average "
        f"{os.getloadavg()[0]:.1f}, late and played again at the loads {late}: "
        + ", ".join(sorted({word for word, _ in seen}))
    )
    bad = [error for error in errors if error is not None]
    for error in bad:
        if not isinstance(error, Failure):
            raise error
    if bad:
        text = "\n\n".join(str(error) for error in bad[:5])
        raise Failure(f"{len(bad)} of {rounds} rounds failed\n{text}")
