"""Starts the trainings of `trainings.py` in processes of their own, watches and signals them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

__all__ = ["Run", "Starter", "until"]

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
PROGRAM = HERE / "trainings.py"
PATIENCE = 60.0
"""Seconds for whatever is waited for: a busy machine must not look like a fault."""


def until(told: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Waits for something to be true; returns it."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found = told()
        if found:
            return found
        time.sleep(0.004)
    raise AssertionError(f"{what}: not within {patience} s")


class Run:
    """One training in a session of its own.

    Attributes:
        pid: of its main process, which leads the session.
    """

    def __init__(self, folder: Path, pid: int, ended: Callable[[float], Optional[int]]) -> None:
        self.folder = folder
        self.pid = pid
        self._ended = ended
        self._seen = 0

    @property
    def out(self) -> str:
        """All that it has said."""
        return (self.folder / "out").read_text(errors="replace")

    @property
    def log(self) -> str:
        """Its stderr."""
        return (self.folder / "err").read_text(errors="replace")

    @property
    def words(self) -> List[str]:
        """The lines that it has said."""
        return self.out.splitlines()

    def wait_for(self, word: str) -> None:
        """Reads on to a line that starts with a word."""

        def said() -> bool:
            text = self.out
            at = self._seen
            while True:
                end = text.find("\n", at)
                if end < 0:
                    break
                line, at = text[at:end], end + 1
                if line.startswith(word):
                    self._seen = at
                    return True
            self._seen = at
            return self._ended(0.0) is not None

        until(said, f"{word!r} is said")
        assert f"\n{word}" in f"\n{self.out}", f"ended without {word!r}\n{self.out}{self.log}"

    def told(self, word: str) -> str:
        """Returns the rest of the last line that starts with a word."""
        found = [line[len(word) :].strip() for line in self.words if line.startswith(word)]
        assert found, f"no {word!r}\n{self.out}{self.log}"
        return found[-1]

    def steps(self) -> List[int]:
        """Returns the steps whose boundary it has said."""
        return [int(line[5:]) for line in self.words if line.startswith("done ")]

    def signal(self, number: int) -> None:
        """Signals its main process."""
        os.kill(self.pid, number)

    def signal_all(self, number: int) -> None:
        """Signals every process of its session, as a terminal does."""
        os.killpg(self.pid, number)

    def is_alive(self) -> bool:
        """Whether it runs still."""
        return self._ended(0.0) is None

    def end(self, within: float = PATIENCE) -> int:
        """Waits for its end; returns the exit code, negative for a signal."""
        code = self._ended(within)
        assert code is not None, f"not ended within {within} s\n{self.out}{self.log}"
        return code


class Starter:
    """Forks trainings from one process that has imported Paddle, or starts new interpreters.

    Args:
        folder: for what they say.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: Optional["subprocess.Popen[bytes]"] = None
        self._codes: Dict[int, int] = {}
        self._made: List[Tuple[Run, Optional["subprocess.Popen[bytes]"]]] = []

    def __call__(self, name: str, **ask: Any) -> Run:
        """Forks one.

        Args:
            name: a function of `trainings.py`.
            **ask: what it is to do.
        """
        folder = self._next()
        server = self._serving()
        assert server.stdin is not None
        server.stdin.write(json.dumps([name, ask, str(folder)]).encode() + b"\n")
        server.stdin.flush()
        pid = int(self._answer("pid"))
        run = Run(folder, pid, lambda timeout: self._forked(pid, timeout))
        self._made.append((run, None))
        return run

    def new(self, name: str, before: List[str], ignored: List[int], **ask: Any) -> Run:
        """Starts one as a user does, in a new interpreter.

        Args:
            name: a function of `trainings.py`.
            before: a command that is to run it, such as nohup.
            ignored: signals that are ignored from its start.
            **ask: what it is to do.
        """
        folder = self._next()

        def prepare() -> None:
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)

        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            process = subprocess.Popen(
                [*before, sys.executable, str(PROGRAM), name, json.dumps(ask)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment(),
                start_new_session=True,
                preexec_fn=prepare,
            )

        def ended(timeout: float) -> Optional[int]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(timeout)
            return process.poll()

        run = Run(folder, process.pid, ended)
        self._made.append((run, process))
        return run

    def stop(self) -> None:
        """Ends the trainings that still run."""
        made, self._made = self._made, []
        for run, _ in made:
            if run.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    run.signal_all(signal.SIGKILL)
                run.end(10.0)

    def close(self) -> None:
        """Ends the forking process too."""
        self.stop()
        if self._server is not None:
            assert self._server.stdin is not None and self._server.stdout is not None
            self._server.stdin.close()
            self._server.kill()  # not asked to end: Paddle 2.6 may hang in its own teardown
            self._server.wait(10.0)
            self._server.stdout.close()
            self._server = None

    def _next(self) -> Path:
        folder = self._folder / f"{len(list(self._folder.iterdir())):03d}"
        folder.mkdir()
        for name in ("out", "err"):
            (folder / name).touch()
        return folder

    def _serving(self) -> "subprocess.Popen[bytes]":
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, str(PROGRAM), "--serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment(),
                start_new_session=True,
                bufsize=0,
            )
            self._answer("ready")
        return self._server

    def _forked(self, pid: int, timeout: float) -> Optional[int]:
        deadline = time.monotonic() + timeout
        while pid not in self._codes:
            left = deadline - time.monotonic()
            if not self._read(max(0.0, left)) and left <= 0:
                return None
        return self._codes[pid]

    def _answer(self, word: str) -> str:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            line = self._read(0.2)
            if line.startswith(word):
                return line[len(word) :].strip()
        raise AssertionError(f"no {word!r} within {PATIENCE} s")

    def _read(self, timeout: float) -> str:
        """Returns the server's next line; notes it where it is the end of a training."""
        assert self._server is not None and self._server.stdout is not None
        if not select.select([self._server.stdout], [], [], timeout)[0]:
            return ""
        line = self._server.stdout.readline().decode()
        assert line, "the process that forks the trainings is gone"
        if line.startswith("code "):
            _, pid, code = line.split()
            self._codes[int(pid)] = int(code)
        return line


def environment() -> Dict[str, str]:
    """Returns the environment of the trainings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PADDLE_RESUME_")}
    path = [str(REPO), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
