"""A map-style DataLoader with worker processes.

Batches are dealt to the workers in turn, so an iteration restarts at a batch of the same worker
as in an unbroken one (at most num_workers - 1 batches are loaded once more and dropped), each
worker with the streams it had before the first batch it loads again.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Mapping, MutableMapping, Optional, Tuple

import numpy as np

from paddle_resume.codec import Unencodable, decode, encode
from paddle_resume.data.sampler import RecordedSampler, Restart
from paddle_resume.data.source import (
    Values,
    batch_size_of,
    is_past_the_end,
    length_of,
    start_workers,
)
from paddle_resume.data.worker_signals import end_workers
from paddle_resume.data.workers import Collate, WorkerStart, split_batch, streams_of, worker_of
from paddle_resume.runtime import require_paddle
from paddle_resume.state.rng import set_all_streams

__all__ = ["PoolSource"]


_SAME_INDICES = ("num_workers", "batch_size", "length", "batches_done")


class PoolSource:
    """See `Source`.

    Args:
        loader: a map-style `paddle.io.DataLoader` with workers and batches.
    """

    owns_host = False
    owns_paddle = False

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._count = loader.num_workers
        self._persistent = bool(loader._persistent_workers)
        ahead = loader.prefetch_factor * max(self._count, len(loader.places))
        self._sampler = RecordedSampler(
            loader.batch_sampler, in_thread=False, keep=ahead + 2 * self._count
        )
        self._marks: Dict[int, List[bytes]] = {}
        self._first_worker = 0
        self._was_reset = False
        self._running: Any = None
        if self._persistent:
            self._end_persistent()  # workers from before the fit do not send their streams

    def open(
        self,
        start: int,
        saved: Optional[Mapping[str, Any]],
        tensors: Mapping[str, np.ndarray],
    ) -> Iterator[Any]:
        """See `Source.open`."""
        first, at = 0, Restart()
        streams: Dict[int, Mapping[str, Any]] = {}
        reset = False
        if not self._persistent:
            self._marks, self._first_worker = {}, 0
        if saved is not None:
            first, at, streams = self._restart(start, saved, tensors)
            reset = bool(saved.get("was_reset", False))
        self._sampler.restart(at)
        past = saved is not None and is_past_the_end(start, self._loader.batch_sampler)
        if past and not self._persistent:
            return iter(list(self._sampler)[:0])
        iterator = self._iterator(streams, saved if reset else None, first)
        self._running = iterator
        source = self._unpack(iterator, first)
        for _ in range(start - first):
            next(source, None)
        return source

    def capture(
        self, done: int, tensors: MutableMapping[str, np.ndarray], unsaved: List[str]
    ) -> Values:
        """See `Source.capture`."""
        again = self._again(done)
        repeated = {
            (number + self._first_worker) % self._count for number in range(done - again, done)
        }
        workers = {}
        for worker, marks in self._marks.items():
            known = marks[:-1] if worker in repeated else marks
            if known:
                workers[str(worker)] = streams_of(known[-1])
        values: Values = {
            "sampler_start": self._sampler.started_with,
            "workers": workers,
            "first_worker": self._first_worker,
            "was_reset": self._was_reset,
        }
        try:
            indices = encode(self._sampler.indices_from(done - again), tensors, "indices")
            values["indices"] = json.loads(json.dumps(indices))
        except Unencodable:
            pass  # not plain: the sampler is asked for them again
        return values

    def close(self, hurry: bool = False) -> None:
        """See `Source.close`: ends the workers of an epoch that was left early; those of a
        persistent pool send their streams, which nobody outside the fit expects.

        Args:
            hurry: do not give workers in the middle of a batch a second to end it.
        """
        running, self._running = self._running, None
        end_workers(running, hurry)
        if self._persistent:
            self._end_persistent(hurry)

    def _again(self, batch: int) -> int:
        """How many batches before `batch` are loaded once more."""
        return min(batch, (batch + self._first_worker) % self._count)

    def _restart(
        self, start: int, saved: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
    ) -> Tuple[int, Restart, Dict[int, Mapping[str, Any]]]:
        self._first_worker = saved.get("first_worker", 0)
        streams: Dict[int, Mapping[str, Any]] = {}
        if saved.get("num_workers") == self._count:
            streams = {int(worker): held for worker, held in saved.get("workers", {}).items()}
        else:
            self._first_worker = 0
        self._marks = {
            worker: [f"{worker}:{json.dumps(held)}".encode()] for worker, held in streams.items()
        }
        first = start - self._again(start)
        indices = []
        now = (self._count, batch_size_of(self._loader), length_of(self._loader), start)
        if now == tuple(saved.get(key) for key in _SAME_INDICES):
            indices = decode(saved.get("indices", []), tensors)
        skip = first + len(indices)
        at = Restart(first, skip, saved.get("sampler_start") or None, indices=indices)
        return first, at, streams

    def _iterator(
        self,
        streams: Mapping[int, Mapping[str, Any]],
        reset_from: Optional[Mapping[str, Any]],
        first: int,
    ) -> Any:
        loader = self._loader
        if self._persistent and loader._iterator is not None:
            self._was_reset = True
            return iter(loader)
        collate = loader.collate_fn or require_paddle().io.dataloader.collate.default_collate_fn
        self._was_reset = reset_from is not None and self._persistent
        self._sampler.empty = self._was_reset
        iterator = start_workers(
            loader,
            WorkerStart(loader.worker_init_fn, streams),
            batch_sampler=self._sampler,
            collate_fn=Collate(collate),
        )
        self._sampler.empty = False
        if self._was_reset and reset_from is not None:
            # From its second epoch on a persistent pool is reset, not made: no seed is drawn.
            for _ in range((first + self._first_worker) % self._count):
                next(iterator._workers_idx_cycle)
            set_all_streams(reset_from["epoch_start"]["streams"])
            iterator._reset()
        return iterator

    def _unpack(self, iterator: Any, number: int) -> Iterator[Any]:
        for item in iterator:
            batch, mark = split_batch(item)
            worker = worker_of(mark)
            self._first_worker = (worker - number) % self._count
            marks = self._marks.setdefault(worker, [])
            marks.append(mark)
            del marks[:-2]
            number += 1
            yield batch

    def _end_persistent(self, hurry: bool = False) -> None:
        end_workers(self._loader._iterator, hurry)
        self._loader._iterator = None
