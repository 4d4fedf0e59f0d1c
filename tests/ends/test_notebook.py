"""A real notebook kernel: interrupt, evaluate, run the cell again."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Iterator, List, Tuple

import pytest

pytest.importorskip("ipykernel", reason="no ipykernel here")
jupyter_client = pytest.importorskip("jupyter_client", reason="no jupyter_client here")

from fit.models import STEPS

import paddle_resume as pr

from .runs import PATIENCE, Starter, environment, until

EPOCHS = 3
LAST = EPOCHS * STEPS

SETUP = """
import os
from ends.trainings import *

# Not to stdout, which the kernel sends to the notebook.
os.environ["ENDS_SAY_TO"] = str(os.open({said!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND))

def cell(**ask):
    global model
    model = make()
    fit(model, [Pace(ask), *ours(ask)], epochs=3, data=Noisy())
    print("digest", digest(model))
"""


class Notebook:
    """A kernel, and what it says.

    Args:
        folder: for its stdout and stderr.
    """

    def __init__(self, folder: Path) -> None:
        self.said = folder / "said"
        self.manager = jupyter_client.KernelManager(kernel_name="python3")
        self.manager.kernel_spec.argv[0] = sys.executable
        with (folder / "kernel").open("wb") as out:
            self.manager.start_kernel(
                env={**environment(), "IPYTHONDIR": str(folder)},
                stdout=out,
                stderr=out,
                stdin=None,
            )
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def begin(self, code: str) -> str:
        """Starts a cell."""
        return str(self.client.execute(code))

    def wait_for(self, word: str) -> None:
        """Waits until a cell has told something."""
        until(lambda: f"\n{word}\n" in f"\n{self.said.read_text()}", f"{word!r} is said")

    def end(self, message: str) -> Tuple[str, str]:
        """Waits for a cell's end; returns the name of its error, and all that it has printed."""
        printed, deadline = "", time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            got = self.client.get_iopub_msg(timeout=PATIENCE)
            if got["parent_header"].get("msg_id") != message:
                continue
            content = got["content"]
            if got["msg_type"] == "stream":
                printed += content["text"]
            elif got["msg_type"] == "status" and content["execution_state"] == "idle":
                break
        while True:  # others are answers to what wait_for_ready() has asked
            reply = self.client.get_shell_msg(timeout=PATIENCE)
            if reply["parent_header"].get("msg_id") == message:
                break
        return str(reply["content"].get("ename", "")), printed

    def run(self, code: str) -> str:
        """Runs a cell that works."""
        error, printed = self.end(self.begin(code))
        assert not error, printed
        return printed

    def digest(self, printed: str) -> str:
        return [line for line in printed.splitlines() if line.startswith("digest")][-1].split()[1]

    def steps(self) -> List[int]:
        """The steps whose boundary it has passed, of all cells."""
        lines = self.said.read_text().splitlines()
        return [int(line[5:]) for line in lines if line.startswith("done ")]

    def close(self) -> None:
        """Ends it."""
        with contextlib.suppress(Exception):
            self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture()
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    made = Notebook(tmp_path)
    try:
        made.run(SETUP.format(said=str(made.said)))
        made.said.touch()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def expected(starter: Starter) -> str:
    """The end of the uninterrupted training."""
    run = starter("train", pace=0)
    assert run.end() == 0
    return run.told("digest")


def saved(folder: Path) -> List[int]:
    return [checkpoint.step for checkpoint in pr.checkpoints(folder)]


CLEAN = """
import signal, threading
assert "_run_one_epoch" not in vars(model)
assert not [t.name for t in threading.enumerate() if "paddle_resume" in t.name]
assert "paddle_resume" not in str(signal.getsignal(signal.SIGINT))
assert "paddle_resume" not in str(signal.getsignal(signal.SIGTERM))
assert not {"minimize", "step"} & set(vars(model._optimizer))
"""


def test_interrupt_evaluate_run_again(tmp_path: Path, notebook: Notebook, expected: str) -> None:
    folder = tmp_path / "run"
    cell = f"cell(folder={str(folder)!r}, pace={{}}, slow={{}})"
    # In the middle of short steps.
    running = notebook.begin(cell.format(0.05, {}))
    notebook.wait_for("begin 2")
    notebook.manager.interrupt_kernel()
    error, _ = notebook.end(running)
    assert error == "KeyboardInterrupt"
    first = notebook.steps()[-1]
    assert saved(folder)[-1] == first >= 1
    notebook.run(CLEAN)
    notebook.run("print(model.evaluate(Points(16), batch_size=8, verbose=0))")
    notebook.run("model.predict(Points(16), batch_size=8, verbose=0)")
    # In the middle of a long step.
    running = notebook.begin(cell.format(0, {"7": 30.0}))
    notebook.wait_for("forward 7")
    began = time.monotonic()
    notebook.manager.interrupt_kernel()
    error, _ = notebook.end(running)
    assert error == "KeyboardInterrupt" and time.monotonic() - began < 10
    assert saved(folder)[-1] == 6
    notebook.run(CLEAN)
    printed = notebook.run(cell.format(0, {}))
    assert notebook.digest(printed) == expected
    assert notebook.steps() == list(range(1, LAST + 1)), "no step was done twice"
    notebook.run(CLEAN)
    assert notebook.digest(notebook.run(cell.format(0, {}))) == expected  # finished
    assert notebook.steps() == list(range(1, LAST + 1))


@pytest.mark.parametrize("apart", [0.1, 1.3])
def test_two_interrupts(tmp_path: Path, notebook: Notebook, expected: str, apart: float) -> None:
    folder = tmp_path / "run"
    running = notebook.begin(f"cell(folder={str(folder)!r}, pace=0, slow={{5: 30.0}})")
    notebook.wait_for("forward 5")
    notebook.manager.interrupt_kernel()
    time.sleep(apart)
    notebook.manager.interrupt_kernel()
    error, _ = notebook.end(running)
    assert error == "KeyboardInterrupt"
    assert saved(folder)[-1] in (3, 4)
    notebook.run("1 + 1")
    notebook.run(CLEAN)
    printed = notebook.run(f"cell(folder={str(folder)!r}, pace=0)")
    assert notebook.digest(printed) == expected


def test_sigterm_ends_the_kernel(tmp_path: Path, notebook: Notebook) -> None:
    folder = tmp_path / "run"
    notebook.begin(f"cell(folder={str(folder)!r}, pace=0.05)")
    notebook.wait_for("begin 5")
    process = notebook.manager.provisioner.process
    os.kill(process.pid, signal.SIGTERM)
    until(lambda: process.poll() is not None, "the kernel is gone")
    assert process.returncode == 143
    assert saved(folder)[-1] == notebook.steps()[-1] >= 4
