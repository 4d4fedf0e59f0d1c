"""`paddle-resume demo`: a real training is killed twice, goes on, and is compared bit by bit."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from paddle_resume.cli.demo_report import ORDER, Event, Report, Run, compare, escaped
from paddle_resume.errors import ConfigError, ResumeError

if TYPE_CHECKING:
    import psutil
    from rich.console import Console

__all__ = ["DemoError", "require_packages", "run_demo"]

PROGRAM = "paddle_resume.cli.demo_training"
POLL_SECONDS = 0.002
SILENCE_SECONDS = 180.0


class DemoError(ResumeError):
    """The demo could not be carried out."""


class _Tail:
    """Reads what has been added to a growing text file, whole lines only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> List[str]:
        try:
            with open(self._path, "rb") as stream:
                stream.seek(self._offset)
                added = stream.read()
        except FileNotFoundError:
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode(errors="replace").splitlines()


@dataclass(frozen=True)
class _Target:
    """Where to kill: the first moment at which `hits` is true of the newest event."""

    place: str
    hits: Callable[[Event], bool]


class _Training:
    """The training program in a folder of its own, started once or several times."""

    def __init__(self, folder: Path, console: Console, *, save_dir: Optional[Path]) -> None:
        self.folder = folder
        self.run = Run()
        self._console = console
        self._events = folder / "events.jsonl"
        self._log = folder / "log.txt"
        self._event_tail = _Tail(self._events)
        self._log_tail = _Tail(self._log)
        self._newest: Optional[Event] = None
        self.command = [sys.executable, "-m", PROGRAM]
        self.command += ["--events", str(self._events), "--weights", str(folder / "final")]
        if save_dir is not None:
            self.command += ["--save-dir", str(save_dir)]
        folder.mkdir(parents=True)

    def start(self, target: Optional[_Target] = None) -> None:
        """Runs the program to its end, or kills it where the target says.

        Raises:
            DemoError: the program failed, hangs, or ended before the target was hit.
        """
        began = time.time()
        self.run.starts.append([])
        with open(self._log, "ab") as log:
            process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            killed = self._follow(process, target)
        finally:
            if process.poll() is None:
                _kill(process)
            self._read()
        self.run.seconds += time.time() - began
        if target is not None and not killed:
            raise DemoError(f"the training ended before it could be killed: {target.place}")
        if target is None and process.returncode != 0:
            raise DemoError(
                f"the training program ended with exit code {process.returncode}\n"
                f"the end of {self._log}:\n{self._closing_lines()}"
            )

    def load_result(self) -> None:
        """Reads the weights and the optimizer's state that the program saved at its end."""
        load = _paddle_load()
        self.run.weights = load(str(self.folder / "final.pdparams"))
        self.run.optimizer = load(str(self.folder / "final.pdopt"))

    def _follow(self, process: subprocess.Popen[bytes], target: Optional[_Target]) -> bool:
        heard = time.monotonic()
        with self._console.status("") as status:
            while process.poll() is None:
                if self._read():
                    heard = time.monotonic()
                    newest = self._newest
                    if newest is not None and newest.name in ORDER:
                        status.update(f"   epoch {newest.epoch + 1}, batch {newest.batch + 1}")
                    else:
                        status.update("   the program starts")
                    if target is not None and self._hits(target) and self._strike(process, target):
                        return True
                elif time.monotonic() - heard > SILENCE_SECONDS:
                    raise DemoError(
                        f"the training program has done nothing for {SILENCE_SECONDS:.0f} seconds\n"
                        f"the end of {self._log}:\n{self._closing_lines()}"
                    )
                time.sleep(POLL_SECONDS)
        return False

    def _hits(self, target: _Target) -> bool:
        return self._newest is not None and target.hits(self._newest)

    def _strike(self, process: subprocess.Popen[bytes], target: _Target) -> bool:
        """Kills the process, unless it has left the place meanwhile."""
        os.kill(process.pid, signal.SIGSTOP)  # it holds still, so that the place is certain
        _wait_until_stopped(process)
        self._read()
        if not self._hits(target):
            os.kill(process.pid, signal.SIGCONT)
            return False
        newest = self._newest
        assert newest is not None
        text = f"{target.place}: epoch {newest.epoch + 1}, batch {newest.batch + 1}"
        self.run.killed_at.append((text, time.time()))
        _kill(process)
        self._console.print(f"   [bold red]kill -9 {process.pid}[/], {text}")
        return True

    def _read(self) -> bool:
        for line in self._log_tail.lines():
            if line.startswith("[paddle_resume]") and "] saved step" not in line:
                self._console.print(f"   [dim]{escaped(line)}[/]", soft_wrap=True)
        lines = self._event_tail.lines()
        for line in lines:
            event = Event.parse(line)
            self.run.starts[-1].append(event)
            self._newest = event
            if event.name == "eval_end":
                accuracy = f"{100 * (event.accuracy or 0.0):.2f}"
                self._console.print(f"   epoch {event.epoch + 1}: accuracy {accuracy} %")
        return bool(lines)

    def _closing_lines(self) -> str:
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n".join(text.splitlines()[-15:])


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGKILL, and waits for the process and those it had started."""
    import psutil

    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 5.0
    while any(_lives(child) for child in children) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    for child in children:
        if _lives(child):
            child.kill()


def _lives(process: psutil.Process) -> bool:
    """Whether it still runs; one that nobody has waited for yet does not."""
    import psutil

    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _wait_until_stopped(process: subprocess.Popen[bytes], seconds: float = 5.0) -> None:
    import psutil

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
            return
        time.sleep(POLL_SECONDS)


def _paddle_load() -> Callable[[str], Any]:
    import warnings

    import scipy.linalg  # noqa: F401  (before paddle: Paddle 2.6 crashes where SciPy is loaded later)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import paddle

    def load(path: str) -> Any:
        return paddle.load(path, return_numpy=True)

    return load


def require_packages() -> None:
    """Raises ConfigError with the pip command where Paddle or scikit-learn is missing."""
    missing = [
        f"{name}: pip install {command}"
        for name, module, command in (
            ("PaddlePaddle", "paddle", "paddlepaddle   (or, with a GPU, paddlepaddle-gpu)"),
            ("scikit-learn", "sklearn", "scikit-learn"),
        )
        if importlib.util.find_spec(module) is None
    ]
    if missing:
        raise ConfigError("the demo trains for real, and needs:\n  " + "\n  ".join(missing))


def run_demo(folder: Optional[Path], *, keep: bool, console: Console) -> Report:
    """Trains twice, once uninterrupted and once killed twice, and compares.

    Args:
        folder: where the runs go; None for a temporary folder.
        keep: leaves a temporary folder there.
        console: where progress is shown.

    Returns:
        The report.

    Raises:
        ConfigError: a package is missing, or the folder is in use.
        DemoError: one of the trainings failed.
    """
    if folder is not None and folder.exists() and not _is_empty_folder(folder):
        raise ConfigError(f"{folder} is not an empty folder: the demo needs one of its own")
    require_packages()
    base = folder or Path(tempfile.mkdtemp(prefix="paddle-resume-demo-"))
    try:
        report = _run_both(base, console)
    except BaseException:
        console.print(f"The files of the demo are left in {base}", soft_wrap=True)
        raise
    if folder is None and not keep and report.identical:
        shutil.rmtree(base, ignore_errors=True)
    else:
        console.print(f"The files of the demo are in {base}", soft_wrap=True)
    return report


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _run_both(base: Path, console: Console) -> Report:
    console.print(f"DIR is {escaped(str(base))}", soft_wrap=True)
    console.print()
    console.print("[bold]1. A training without paddle_resume, never interrupted[/]")
    reference = _Training(base / "uninterrupted", console, save_dir=None)
    _print_command(console, reference.command, base)
    reference.start()

    console.print()
    console.print(
        "[bold]2. The same program with callbacks=pr.resume_callbacks(...), killed twice[/]"
    )
    save_dir = base / "killed" / "checkpoints"
    killed = _Training(base / "killed", console, save_dir=save_dir)
    _print_command(console, killed.command, base)
    killed.start(_Target("in mid-epoch", lambda event: _in_mid_epoch(event, from_epoch=2)))
    console.print("   the same command again")
    killed.start(_Target("during an evaluation", lambda event: _in_evaluation(event, from_epoch=5)))
    console.print("   the same command again")
    killed.start()

    with console.status("   comparing"):
        reference.load_result()
        killed.load_result()
        return compare(reference.run, killed.run)


def _in_mid_epoch(event: Event, *, from_epoch: int) -> bool:
    return event.name == "train" and event.epoch >= from_epoch and 26 <= event.batch < 38


def _in_evaluation(event: Event, *, from_epoch: int) -> bool:
    return event.name == "eval" and event.epoch >= from_epoch and 20 <= event.batch < 40


def _print_command(console: Console, command: List[str], base: Path) -> None:
    text = " ".join(["python", *command[1:]]).replace(str(base), "DIR")
    console.print(f"   [cyan]{escaped(text)}[/]", soft_wrap=True)
