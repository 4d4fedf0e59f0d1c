"""DataLoader workers and signals: they hear none that asks to stop, and their parent ends them.

Ctrl-C, a launcher, Slurm and systemd signal every process of a run. A worker that died by that
would end the training, by Paddle's watch over its workers, before the boundary at which it saves.
Then only SIGKILL is left to end a worker in the middle of a batch; multiprocessing, which has
SIGTERM, would wait for it at the interpreter's exit.
"""

from __future__ import annotations

import signal
import time
import traceback
import weakref
from multiprocessing.util import Finalize
from typing import Any, Iterable, Iterator

from paddle_resume.deaths import Deaths
from paddle_resume.runtime import require_paddle

__all__ = ["deafen", "end_workers", "iterator_of"]

_NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU")
_STOPPING = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]

_PATIENCE_S = 1.0
_HURRY_S = 0.05  # one that waits for work ends in 10 ms, and frees its shared memory
_BEFORE_CHILDREN = 100  # any number from 0 on comes before multiprocessing waits for its children


def iterator_of(loader: Iterable[Any]) -> Iterator[Any]:
    """Calls iter(loader) so that its new workers can `deafen` themselves, and end with the process.

    Until they have, signals wait for them, as they do for the calling thread until this returns.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        iterator = iter(loader)
        if isinstance(iterator, _pool()):
            # By a weak reference: one that was let go of before has ended its workers itself.
            at_exit = (weakref.ref(iterator),)
            Finalize(iterator, _end_at_exit, at_exit, exitpriority=_BEFORE_CHILDREN)
        return iterator
    except BaseException as error:
        # Half-made, in a frame that lives as long as the error: at the exit Paddle 2.6 could not
        # end its workers, and 3.3 would hang.
        for frame, _ in traceback.walk_tb(error.__traceback__):
            end_workers(frame.f_locals.get("self"), hurry=True)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def deafen() -> None:
    """Makes this process, a new worker, do nothing at a signal that asks to stop."""
    signal.set_wakeup_fd(-1)  # it is the parent's
    for number in _STOPPING:
        ignored = signal.getsignal(number) is signal.SIG_IGN
        # A function, not SIG_IGN: programs that the worker runs would start with that.
        signal.signal(number, signal.SIG_IGN if ignored else _hear)
        signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)


def end_workers(iterator: Any, hurry: bool = False) -> None:
    """Ends the workers of a DataLoader's iterator, by force where they do not end in time.

    Args:
        iterator: Paddle's; nothing is done where it is another.
        hurry: do not give those in the middle of a batch a second to end it.
    """
    if not isinstance(iterator, _pool()):
        return
    iterator.__dict__.setdefault("_shutdown", False)  # Paddle 2.6 sets it last
    deaths = Deaths()
    deaths.hush()
    deaths.arm()
    try:
        iterator._try_shutdown_all(0)  # tells them, waits for none, and ends Paddle's watch
    finally:
        deadline = time.monotonic() + (_HURRY_S if hurry else _PATIENCE_S)
        for worker in iterator._workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        for worker in iterator._workers:
            worker.kill()
        for worker in iterator._workers:
            worker.join()
        deaths.release()


def _end_at_exit(reference: "weakref.ref[Any]") -> None:
    end_workers(reference(), hurry=True)


def _pool() -> Any:
    return require_paddle().io.dataloader.dataloader_iter._DataLoaderIterMultiProcess


def _hear(number: int, frame: Any) -> None:
    pass
