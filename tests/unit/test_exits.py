"""The way out of the process: what it still does, and that it comes to its end in time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Optional

import pytest

START = """
import atexit, os, signal, sys, threading, time
from paddle_resume.exits import Stopped, exit_now
file = open(sys.argv[1], "w")
file.write("not flushed yet")
atexit.register(lambda: print("atexit", flush=True))
def ending():
    print("ending", flush=True)
def dropped():
    print("dropped", flush=True)
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
    raise Stopped(143, ending, dropped, time.monotonic() + 10)
finally:
    print("finally")
"""
    assert run(tmp_path, rest) == "143 finally+ending+atexit not flushed yet"


def test_a_thread_of_the_scripts_does_not_keep_it(tmp_path: Path) -> None:
    rest = """
threading.Thread(target=time.sleep, args=(60,)).start()
raise Stopped(143, ending, dropped, time.monotonic() + 0.5)
"""
    began = time.monotonic()
    assert run(tmp_path, rest) == "143 ending not flushed yet"
    assert time.monotonic() - began < 15


def test_one_that_is_caught_leaves_nothing(tmp_path: Path) -> None:
    rest = """
try:
    raise Stopped(143, ending, dropped, time.monotonic() + 0.1)
except SystemExit as error:
    print(error.code)
print(threading.active_count(), flush=True)
time.sleep(0.3)
"""
    assert run(tmp_path, rest) == "0 143+dropped+1+atexit not flushed yet"


KEPT = {
    "a name": """
try:
    raise Stopped(143, ending, dropped, time.monotonic() + 5)
except SystemExit as error:
    kept = error
""",
    "a cycle": """
def leave():
    try:
        raise Stopped(143, ending, dropped, time.monotonic() + 5)
    except SystemExit:
        info = sys.exc_info()
        raise
leave()
""",
    "asyncio": """
import asyncio
async def leave():
    raise Stopped(143, ending, dropped, time.monotonic() + 5)
asyncio.run(leave())
""",
    "a thread": """
from concurrent.futures import ThreadPoolExecutor
def leave():
    raise Stopped(143, ending, dropped, time.monotonic() + 5)
with ThreadPoolExecutor() as pool:
    kept = pool.submit(leave).exception()
""",
    "a context manager": """
class Keeps:
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        self.error = error
keeps = Keeps()
with keeps:
    raise Stopped(143, ending, dropped, time.monotonic() + 5)
""",
    "another error": """
try:
    raise Stopped(143, ending, dropped, time.monotonic() + 5)
finally:
    raise ValueError
""",
    "another code": """
try:
    raise Stopped(143, ending, dropped, time.monotonic() + 5)
except SystemExit:
    sys.exit(75)
""",
}


@pytest.mark.parametrize("where, code", [*zip(KEPT, [0, 143, 143, 0, 143, 1, 75])])
def test_the_process_ends_whoever_keeps_the_error(tmp_path: Path, where: str, code: int) -> None:
    found = run(tmp_path, KEPT[where]).split()
    assert int(found[0]) == code
    assert ("ending" in found[1]) == (code == 143) and "atexit" in found[1]


def test_at_once(tmp_path: Path) -> None:
    rest = "threading.Thread(target=exit_now, args=(5,)).start(); time.sleep(30)"
    assert run(tmp_path, rest) == "5  not flushed yet"
