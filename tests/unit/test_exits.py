"""The way out of the process: what it still does, and that it comes to its end in time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Optional

START = """
import atexit, os, signal, sys, threading, time
from paddle_resume.exits import exit_now, system_exit
file = open(sys.argv[1], "w")
file.write("not flushed yet")
atexit.register(lambda: print("atexit", flush=True))
def caught():
    print("caught", flush=True)
print("begins", flush=True)
"""


def run(tmp_path: Path, rest: str, number: Optional[int] = None, times: int = 0) -> str:
    """Runs a program, signals it, and returns its code, what it printed and what its file has."""
    command = [sys.executable, "-c", START + rest, str(tmp_path / "file")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begins\n"
    for _ in range(times):
        time.sleep(0.1)
        if process.poll() is None and number is not None:
            os.kill(process.pid, number)
    patience = threading.Timer(20, process.kill)
    patience.start()
    with process:
        printed = process.stdout.read().split()
    patience.cancel()
    return f"{process.returncode} {'+'.join(printed)} {(tmp_path / 'file').read_text()}"


def test_nobody_catches_it(tmp_path: Path) -> None:
    rest = """
try:
    raise system_exit(143, caught, time.monotonic() + 10)
finally:
    print("finally")
"""
    assert run(tmp_path, rest) == "143 finally+atexit not flushed yet"


def test_a_thread_of_the_scripts_does_not_keep_it(tmp_path: Path) -> None:
    rest = """
threading.Thread(target=time.sleep, args=(60,)).start()
raise system_exit(143, caught, time.monotonic() + 0.5)
"""
    began = time.monotonic()
    assert run(tmp_path, rest) == "143  not flushed yet"
    assert time.monotonic() - began < 15


def test_one_that_is_caught_leaves_nothing(tmp_path: Path) -> None:
    rest = """
try:
    raise system_exit(143, caught, time.monotonic() + 0.1)
except SystemExit as error:
    print(error.code)
print(threading.active_count(), flush=True)
time.sleep(0.3)
"""
    assert run(tmp_path, rest) == "0 143+caught+1+atexit not flushed yet"


def test_at_once(tmp_path: Path) -> None:
    rest = "threading.Thread(target=exit_now, args=(5,)).start(); time.sleep(30)"
    assert run(tmp_path, rest) == "5  not flushed yet"
