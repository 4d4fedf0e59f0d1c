"""Forks processes that are ready to be traced: a line of JSON asks for one.

    {"play": "best", "root": "...", "marks": "...", "break": null}

answers with a line that has its pid and, when it has ended, one that has its exit status. A process
waits for SIGUSR1 before it begins, so that strace can be attached.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Dict

from paddle_resume import saver
from paddle_resume.checkpoint import lineage

from . import breaks, run, scenarios

_PR_SET_PTRACER, _PR_SET_PDEATHSIG, _ANYBODY = 0x59616D61, 1, ctypes.c_ulong(-1)


def _child(asked: Dict[str, Any]) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PTRACER, _ANYBODY, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.sigwait({signal.SIGUSR1})
    # Two plays of a scenario are to write the same bytes.
    time.time = lambda: 1.75e9
    lineage.new_run_id = lambda: "20251201-000000-abcdefab"
    for where, name, broken in breaks.BREAKS.get(asked["break"], ()):
        setattr(where, name, broken)
    scenarios.act(asked["play"], Path(asked["root"]), Path(asked["marks"]))


def main() -> None:
    """Answers until its input ends."""
    saver.versions = run.versions
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                _child(json.loads(line))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()
