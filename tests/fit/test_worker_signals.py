"""DataLoader workers neither end with a signal to all processes, nor keep the run from ending."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any, Counter, Iterator, List, Mapping, Tuple

import numpy as np
import paddle
import pytest

from paddle_resume.data.pool import PoolSource
from paddle_resume.data.worker_signals import end_workers

REPO = Path(__file__).parents[2]
PATIENCE_S = 120.0
SOON_S = 20.0  # on a busy machine; what is not to be waited for takes 60 s
SCRIPT = textwrap.dedent(
    """
    import contextlib, ctypes, hashlib, json, os, signal, sys, time

    with contextlib.suppress(ImportError):
        import scipy.linalg  # Paddle 2.6 needs it first
    import numpy as np
    import paddle

    import paddle_resume as pr

    ask = json.loads(sys.argv[1])
    heard = []
    if ask.get("handlers", True):
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"):
            signal.signal(getattr(signal, name), lambda number, frame: heard.append(number))


    def say(word):
        os.write(1, (word + chr(10)).encode())


    def stuck():
        say("stuck")
        if ask.get("in_c"):
            ctypes.PyDLL(None).sleep(60)  # the interpreter's lock stays taken
        else:
            time.sleep(60)


    class Data(paddle.io.Dataset):
        def __init__(self, name):
            self.name = name

        def __len__(self):
            return 24

        def __getitem__(self, index):
            say(f"load {self.name}")
            if ask.get("stuck") == self.name and index >= 16:
                stuck()
            time.sleep(ask.get("pause", 0.004))
            x = np.random.randn(4).astype("float32")
            return x, np.array([int(x.sum() > 0)])


    class Stream(paddle.io.IterableDataset):
        def __iter__(self):
            whole = Data("train")
            for index in range(paddle.io.get_worker_info().id, 24, 2):
                yield whole[index]


    class Batches(paddle.io.BatchSampler):
        def __iter__(self):
            if ask.get("sampler_fails"):
                raise ValueError("the sampler fails")
            return super().__iter__()


    def loader(name):
        kind = {"num_workers": 2, "persistent_workers": ask.get("persistent", False)}
        kind["use_shared_memory"] = ask.get("shared", True)
        if ask.get("stream") and name == "train":
            return paddle.io.DataLoader(Stream(), batch_size=4, **kind)
        data = Data(name)
        batches = Batches(dataset=data, shuffle=name == "train", batch_size=4)
        if ask.get("stuck"):
            batches = Batches(dataset=data, batch_size=4)
        return paddle.io.DataLoader(data, batch_sampler=batches, **kind)


    class Watch(paddle.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            say("start")

        def on_train_batch_begin(self, step, logs=None):
            say("step")
            time.sleep(ask.get("pause", 0.004))

        def on_train_batch_end(self, step, logs=None):
            self.leave("train")

        def on_eval_batch_end(self, step, logs=None):
            self.leave("eval")

        def leave(self, where):
            if ask.get("leave_in") == where:
                time.sleep(0.5)  # until a worker is in the middle of what takes long
                say("leaving")
                if ask["by"] == "exit":
                    sys.exit(7)
                raise RuntimeError("left")


    paddle.seed(1)
    np.random.seed(1)
    net = paddle.nn.Linear(4, 2)
    model = paddle.Model(net)
    model.prepare(
        paddle.optimizer.Adam(0.05, parameters=net.parameters()), paddle.nn.CrossEntropyLoss()
    )
    if ask.get("control"):
        import paddle_resume.data.workers

        stopping = paddle_resume.data.worker_signals._STOPPING
        paddle_resume.data.workers.deafen = lambda: signal.pthread_sigmask(
            signal.SIG_UNBLOCK, stopping
        )
    ours = [pr.AutoResume(ask["folder"]), pr.PeriodicSaver(ask["folder"], snapshot_step=2)]
    epochs = ask.get("epochs", 3)
    model.fit(loader("train"), loader("eval"), epochs=epochs, verbose=0, callbacks=[*ours, Watch()])
    weights = b"".join(p.numpy().tobytes() for p in net.parameters())
    say("heard " + str(len(heard)))
    say("digest " + hashlib.sha256(weights).hexdigest())
    say("leaving")
    if ask.get("stays"):
        time.sleep(60)
    """
)


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


class Run:
    """One training in a session of its own."""

    def __init__(self, folder: Path, **ask: Any) -> None:
        script = folder / "train.py"
        script.write_text(SCRIPT)
        self.log = folder / "log"
        ask.setdefault("folder", str(folder / f"run{time.monotonic_ns()}"))
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(script), json.dumps(ask)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(REPO)},
            )

    def words(self) -> Iterator[str]:
        """Yields what it says, to its end; one that does not come is forced, and a failure."""
        assert self.process.stdout is not None
        patience = threading.Timer(PATIENCE_S, self.process.kill)
        patience.start()
        try:
            for line in self.process.stdout:
                yield line.strip()
        finally:
            is_over = not patience.is_alive()
            patience.cancel()
        assert not is_over, f"not over within {PATIENCE_S} s: {self.log.read_text()}"

    def wait_for(self, word: str) -> None:
        """Reads on to a word."""
        assert any(said == word for said in self.words()), self.log.read_text()

    def signal_all(self, number: int) -> None:
        """Signals every process, as a terminal does."""
        os.killpg(self.process.pid, number)

    def end(self) -> int:
        """Waits for the end, which comes soon, and that nothing of it is left.

        Returns:
            The exit code.
        """
        code = self.process.wait(SOON_S)
        deadline = time.monotonic() + SOON_S
        while left(self.process.pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert left(self.process.pid) == []
        return code


@pytest.fixture()
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts trainings, and ends what is left of them."""
    runs: List[Run] = []

    def make(**ask: Any) -> Run:
        runs.append(Run(tmp_path, **ask))
        return runs[-1]

    yield make
    for run in runs:
        if run.process.poll() is None or left(run.process.pid):
            with contextlib.suppress(ProcessLookupError):
                run.signal_all(signal.SIGKILL)
        run.process.wait(10)
        assert run.process.stdout is not None
        run.process.stdout.close()


STOPPING = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]


def trained(run: Run, often: Mapping[str, int]) -> Tuple[str, int]:
    """Follows a training to its end.

    Args:
        run: the training.
        often: what it says to how many signals follow that, at random moments within 10 ms; each
            fifth time for what is said for each sample.

    Returns:
        Its digest, and the number of signals that its main process heard.
    """
    draw, told, said = random.Random(0), {}, Counter[str]()
    for word in run.words():
        key, _, value = word.partition(" ")
        told[key] = value
        said[word] += 1
        if key == "load" and said[word] % 5:
            continue
        for _ in range(often.get(word, 0)):
            time.sleep(draw.random() * 0.01)
            run.signal_all(draw.choice(STOPPING))
    assert run.end() == 0, run.log.read_text()
    assert "rror" not in run.log.read_text()
    return told["digest"], int(told["heard"])


@pytest.mark.parametrize(
    "loader",
    [{}, {"persistent": True}, {"shared": False}, {"stream": True}],
    ids=["plain", "persistent", "no-shared-memory", "stream"],
)
def test_signals_to_all_processes_change_nothing(start: Any, loader: Any) -> None:
    undisturbed, heard = trained(start(**loader), {})
    assert heard == 0
    often = {"load train": 1, "load eval": 1, "step": 1, "start": 1}
    disturbed, heard = trained(start(**loader), often)
    assert heard > 20
    assert disturbed == undisturbed


def test_signals_while_workers_start(start: Any) -> None:
    undisturbed, _ = trained(start(epochs=6, pause=0.0), {})
    disturbed, heard = trained(start(epochs=6, pause=0.0), {"start": 6})
    assert heard > 10
    assert disturbed == undisturbed


def test_without_it_the_training_dies(start: Any) -> None:
    run = start(control=True)
    run.wait_for("load train")
    run.signal_all(signal.SIGTERM)
    for _ in run.words():
        pass
    assert run.end() != 0
    log = run.log.read_text()
    assert "killed by signal" in log or "exit unexpectedly" in log


@pytest.mark.parametrize("by, code", [("exit", 7), ("exception", 1)])
@pytest.mark.parametrize(
    "how",
    [
        {"leave_in": "train"},
        {"leave_in": "train", "stuck": "train"},
        {"leave_in": "train", "stuck": "train", "in_c": True},
        {"leave_in": "train", "stuck": "train", "persistent": True},
        {"leave_in": "train", "stuck": "train", "stream": True},
        {"leave_in": "eval", "stuck": "eval"},
        {"leave_in": "eval", "stuck": "eval", "persistent": True, "in_c": True},
    ],
    ids=lambda how: "-".join(f"{key}={value}" for key, value in how.items()),
)
def test_workers_do_not_keep_the_process(start: Any, how: Any, by: str, code: int) -> None:
    run = start(by=by, **how)
    run.wait_for("leaving")
    assert run.end() == code
    log = run.log.read_text()
    assert "killed by signal" not in log and "atexit" not in log


class Slow(paddle.io.Dataset):  # type: ignore[misc]
    """Its later samples take long."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        if index >= 4:
            time.sleep(60)
        return np.zeros(4, "float32")


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("hurry", [False, True])
def test_closing_does_not_wait_for_workers(persistent: bool, hurry: bool) -> None:
    kind = {"num_workers": 2, "persistent_workers": persistent}
    source = PoolSource(paddle.io.DataLoader(Slow(), batch_size=2, **kind))
    others = set(multiprocessing.active_children())
    next(source.open(0, None, {}))
    workers = set(multiprocessing.active_children()) - others
    assert len(workers) == 2
    began = time.monotonic()
    source.close(hurry=hurry)
    assert time.monotonic() - began < SOON_S
    assert not any(worker.is_alive() for worker in workers)


def test_workers_that_die_while_they_are_ended_raise_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Paddle's handler would raise within a queue's lock, and the exit wait for that for ever."""
    heard: List[int] = []
    loader = paddle.io.DataLoader(Slow(), batch_size=2, num_workers=2)
    others = set(multiprocessing.active_children())
    iterator = iter(loader)
    next(iterator)
    workers = set(multiprocessing.active_children()) - others
    of_paddle = signal.getsignal(signal.SIGCHLD)
    end = iterator._try_shutdown_all

    def killed_meanwhile(timeout: float) -> None:
        for worker in workers:
            worker.kill()
            worker.join()
        time.sleep(0.05)
        end(timeout)

    monkeypatch.setattr(iterator, "_try_shutdown_all", killed_meanwhile)

    def of_the_scripts(number: int, frame: Any) -> None:
        heard.append(number)
        of_paddle(number, frame)

    before = signal.signal(signal.SIGCHLD, of_the_scripts)
    try:
        end_workers(iterator)
        assert heard, "the script hears of its children's ends"
        assert signal.getsignal(signal.SIGCHLD) is of_the_scripts
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_start_that_fails_half_way_does_not_keep_the_process(start: Any) -> None:
    run = start(sampler_fails=True)
    run.wait_for("start")
    assert run.end() == 1
    assert run.log.read_text().rstrip().endswith("ValueError: the sampler fails")


def test_persistent_workers_of_the_evaluation_end_with_the_process(start: Any) -> None:
    run = start(persistent=True, stays=True, handlers=False)
    run.wait_for("leaving")
    assert len(left(run.process.pid)) == 3
    run.signal_all(signal.SIGTERM)
    run.end()
    run = start(persistent=True)
    run.wait_for("leaving")
    assert run.end() == 0


def test_no_worker_outlives_a_sigkill(start: Any) -> None:
    run = start(stuck="train")
    run.wait_for("stuck")
    os.kill(run.process.pid, signal.SIGKILL)
    assert run.end() == -signal.SIGKILL


def test_what_was_ignored_stays_so_and_the_users_own_handlers_win() -> None:
    program = """
        import os, signal
        from multiprocessing import get_context
        from paddle_resume.data.worker_signals import iterator_of
        from paddle_resume.data.workers import WorkerStart

        def user(worker):
            signal.signal(signal.SIGUSR1, lambda number, frame: os._exit(3))

        def work(start):
            start(0)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
            assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
            assert signal.set_wakeup_fd(-1) == -1
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU):
                os.kill(os.getpid(), number)
            os.kill(os.getpid(), signal.SIGUSR1)
            os._exit(4)

        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        worker = get_context("fork").Process(target=work, args=(WorkerStart(user),))

        class Loader:
            def __iter__(self):
                assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
                worker.start()
                return iter([])

        iterator_of(Loader())
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
        worker.join(10)
        assert worker.exitcode == 3, worker.exitcode
        os.set_blocking(read, False)
        try:
            raise SystemExit(f"a worker woke its parent: {os.read(read, 9)}")
        except BlockingIOError:
            pass
    """
    program = textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=REPO, timeout=60
    )
    assert done.returncode == 0, done.stderr
