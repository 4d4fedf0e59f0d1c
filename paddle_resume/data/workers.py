"""DataLoader workers: their random streams travel with each batch, and they live with the parent.

A worker seeds its streams once and draws from them for each sample it loads, so a restarted
worker must continue where the lost one was after its last batch that the training consumed.
Workers are forked, so what is here never goes through pickle to reach them.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from paddle_resume.data.worker_signals import deafen
from paddle_resume.runtime import require_paddle
from paddle_resume.state.rng import all_streams, set_all_streams

__all__ = ["Collate", "WorkerStart", "split_batch", "streams_of", "worker_of"]

_PR_SET_PDEATHSIG = 1


class WorkerStart:
    """A `worker_init_fn`: ties the worker to its parent and restores its random streams.

    Args:
        user: the user's own worker_init_fn; signal handlers that it sets stay.
        streams: worker id to the streams to continue with; None for a worker as seeded.

    Attributes:
        tied: whether the workers live and end with this process, deaf to other signals. The
            kernel's signal comes when the creating thread ends, which only the main thread does
            together with the process; others start workers as Paddle does.
    """

    def __init__(
        self,
        user: Optional[Callable[[int], None]],
        streams: Optional[Mapping[int, Mapping[str, Any]]] = None,
    ) -> None:
        self._user = user
        self._streams = streams or {}
        self._parent = os.getpid()
        self.tied = threading.current_thread() is threading.main_thread()

    def __call__(self, worker: int) -> None:
        """Runs in the worker, before it loads anything."""
        if self.tied:
            _die_with(self._parent)
            deafen()
        if self._user is not None:
            self._user(worker)
        if worker in self._streams:
            set_all_streams(self._streams[worker])


class Collate:
    """A `collate_fn` that adds the worker's streams to each batch it has collated.

    Args:
        user: the collate function of the loader.
    """

    def __init__(self, user: Callable[[Any], Any]) -> None:
        self._user = user

    def __call__(self, samples: Any) -> Any:
        """Returns `[batch, mark]`; see `split_batch`."""
        batch = self._user(samples)
        worker = require_paddle().io.get_worker_info().id
        return [batch, f"{worker}:{json.dumps(all_streams())}".encode()]


def split_batch(item: Any) -> Tuple[Any, bytes]:
    """Splits what a worker with `Collate` sent into the batch and the worker's mark."""
    batch, mark = item
    return batch, mark


def worker_of(mark: bytes) -> int:
    """Returns the id of the worker that made a mark.

    Example:
        >>> worker_of(b'3:{}')
        3
    """
    return int(mark[: mark.index(b":")])


def streams_of(mark: bytes) -> Dict[str, Any]:
    """Returns the random streams in a mark."""
    streams: Dict[str, Any] = json.loads(mark[mark.index(b":") + 1 :])
    return streams


def _die_with(parent: int) -> None:
    """Has the kernel end this worker when its parent is gone; Paddle's workers outlive it."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
