"""Plays scenarios in processes of their own, under strace: recorded, or killed at a chosen call."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Dict, Iterator, List, Optional, Sequence, Tuple

from .model import Disk, Mark, Op, Sync, Tree, replay, tree_of
from .scenarios import SAVE_DIR, SCENARIOS
from .trace import CALLS, Call, parse

__all__ = ["STRACE", "Machine", "Recording", "recorded", "why_not_traced"]

TESTS = Path(__file__).resolve().parents[1]
STRACE = (
    "strace",
    "-f",
    "-xx",
    "-s",
    "4000000",
    "-e",
    "signal=none",
    "-e",
    f"trace={','.join(CALLS)}",
)
"""With all bytes of all writes, in a form that needs no guessing."""
_TIMEOUT_S = 120


def why_not_traced() -> str:
    """Tells why nothing can be traced on this machine; empty where it can."""
    if shutil.which("strace") is None:
        return "strace is not installed (Debian's package of this name; .ci/run installs it)"
    done = subprocess.run(
        ["strace", "-f", "-e", "trace=close", "-o", os.devnull, "true"],
        capture_output=True,
        text=True,
    )
    return f"strace may not trace here: {done.stderr.strip()}" if done.returncode else ""


@dataclass(frozen=True)
class Recording:
    """A scenario as it was played once.

    Attributes:
        start: the disk before it.
        ops: what was asked of the disk.
        views: what the folder held before it, and at each mark.
        calls: the system calls behind the operations.
    """

    start: Disk
    ops: List[Op]
    views: List[Tree]
    calls: List[Call]

    def around(self, marks: int) -> Tuple[Tree, Tree]:
        """The folder at the last mark and at the next one."""
        return self.views[marks], self.views[min(marks + 1, len(self.views) - 1)]


def recorded(log: bytes, root: Path, before: Tree, marks: Optional[Path]) -> Recording:
    """Makes a recording of what strace wrote.

    Args:
        log: of strace.
        root: the folder that is looked at.
        before: what the folder held before.
        marks: the file of the process's marks; where None, each fsync of the save_dir is one.

    Raises:
        AssertionError: the model ends with another folder than the real disk.
    """
    calls = parse(log)
    start, ops = replay(calls, str(root), before, str(marks))
    if marks is None:
        ops = list(_marked(start, ops))
    disk, views = start.copy(), [start.tree()]
    for op in ops:
        disk.apply(op)
        if isinstance(op, Mark):
            views.append(disk.tree())
    assert disk.tree() == tree_of(root), "the model does not tell what the disk really did"
    return Recording(start, ops, views, calls)


def _marked(start: Disk, ops: Sequence[Op]) -> Iterator[Op]:
    """What is in a save_dir when its fsync returns is promised."""
    disk = start.copy()
    for op in ops:
        disk.apply(op)
        yield op
        with contextlib.suppress(KeyError):  # there is no save_dir yet
            if isinstance(op, Sync) and op.inode == disk.find(SAVE_DIR):
                yield Mark("fsync")


class Machine:
    """Processes to play scenarios in.

    Args:
        folder: for their files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._recordings: Dict[Tuple[str, Optional[str]], Recording] = {}
        self._log = open(folder / "processes.txt", "ab")
        self._server = subprocess.Popen(
            [sys.executable, "-m", "crash.server"],
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def folder(self) -> Path:
        """Makes a folder that nobody has used."""
        self._number += 1
        made = self._folder / str(self._number)
        made.mkdir()
        return made

    def record(self, name: str, broken: Optional[str] = None) -> Recording:
        """Plays a scenario and records it.

        Args:
            name: of the scenario.
            broken: which part of the package to break in the process that plays it.
        """
        if (name, broken) in self._recordings:
            return self._recordings[name, broken]
        root, where = self.folder(), self.folder()
        SCENARIOS[name].prepare(root)
        before = tree_of(root)
        status = self.play(name, root, where, broken=broken)
        assert status == 0, f"{name} ended with {status}: see {self._log.name}"
        found = recorded((where / "strace").read_bytes(), root, before, where / "marks")
        shutil.rmtree(root)
        self._recordings[name, broken] = found
        return found

    def play(
        self,
        name: str,
        root: Path,
        where: Path,
        kill_at: Optional[Tuple[str, int]] = None,
        kill_after: Optional[float] = None,
        broken: Optional[str] = None,
    ) -> int:
        """Plays a scenario.

        Args:
            name: of the scenario.
            root: its folder, prepared.
            where: for the marks and strace's log.
            kill_at: the system call, and which one of its name, that SIGKILL comes before.
            kill_after: seconds after which it comes.
            broken: see `record`.

        Returns:
            The process's exit status.
        """
        asked = {"play": name, "root": str(root), "marks": str(where / "marks"), "break": broken}
        self._say(asked)
        pid = self._hear()["pid"]
        strace = None
        if kill_after is None:
            try:
                strace = self._attach(pid, where / "strace", kill_at)
            except BaseException:
                os.kill(pid, signal.SIGKILL)  # it would wait for ever, and the server for it
                self._hear()
                raise
        handle = os.pidfd_open(pid)  # it may end at any time, and its number be another's
        os.kill(pid, signal.SIGUSR1)
        if kill_after is not None:
            time.sleep(kill_after)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
        status = int(self._hear()["status"])
        if strace is not None:
            strace.communicate(timeout=_TIMEOUT_S)
        return status

    def close(self) -> None:
        """Ends its processes."""
        self._server.kill()  # its child ends with it
        self._server.communicate()
        self._log.close()

    def _attach(
        self, pid: int, log: Path, kill_at: Optional[Tuple[str, int]]
    ) -> "subprocess.Popen[str]":
        command = [*STRACE, "-o", str(log), "-p", str(pid)]
        if kill_at is not None:
            command += ["-e", f"inject={kill_at[0]}:signal=KILL:when={kill_at[1]}"]
        strace = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert strace.stderr is not None
        said = strace.stderr.readline()
        assert "attached" in said, said
        return strace

    def _say(self, asked: dict) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(asked).encode() + b"\n")
        self._server.stdin.flush()

    def _hear(self) -> dict:
        output: Optional[IO[bytes]] = self._server.stdout
        assert output is not None
        line = output.readline()
        assert line, f"the server of processes ended: see {self._log.name}"
        return dict(json.loads(line))
