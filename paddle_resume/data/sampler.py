"""The batch sampler of an epoch: recorded as it is drawn from, and restarted at any batch.

With `num_workers=0` Paddle draws indices and loads samples in a thread that runs ahead of the
training and shares its random streams; so the streams are recorded from before each batch. With
workers, indices are drawn ahead in the main thread; so the drawn ones are recorded.
"""

from __future__ import annotations

import collections
import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, Optional, Tuple

from paddle_resume.data.stream import Stream
from paddle_resume.state.rng import (
    all_streams,
    host_streams,
    paddle_streams,
    set_all_streams,
    set_host_streams,
    set_paddle_streams,
)

__all__ = ["RecordedSampler", "Restart", "ThreadCollate"]

_LOOKED_AT = 3
_LOOK_AGAIN_S = 0.2
_HOST = ("python", "numpy")


@dataclass(frozen=True)
class Restart:
    """Where an iteration of a `RecordedSampler` starts.

    Attributes:
        batch: the first batch to give out.
        skip: how many batches to draw and drop before it.
        streams: set before the sampler starts, so that it draws as it did; None for as they are.
        thread_streams: those that the loading thread owns are set just before the first batch is
            drawn.
        indices: of the first batches, where they had been drawn already.
    """

    batch: int = 0
    skip: int = 0
    streams: Optional[Mapping[str, Any]] = None
    thread_streams: Optional[Mapping[str, Any]] = None
    indices: List[Any] = field(default_factory=list)


class RecordedSampler:
    """Stands in for a loader's batch sampler during one epoch.

    Args:
        sampler: the batch sampler.
        in_thread: whether the loader draws from it in a thread of its own (num_workers=0).
        keep: for how many of the last batches records are kept.
        stream: an iterable dataset whose place is recorded with the random streams.
    """

    def __init__(
        self, sampler: Any, in_thread: bool, keep: int, stream: Optional[Stream] = None
    ) -> None:
        self._sampler = sampler
        self._in_thread = in_thread
        self._keep = keep
        self._stream = stream
        self._arrived = threading.Condition()
        self.draws_host = False
        self.draws_paddle = False
        self.empty = False
        self.restart(Restart())

    def restart(self, at: Restart, known: bool = False) -> None:
        """Sets where the next iteration starts.

        Args:
            at: where.
            known: whether `draws_host` and `draws_paddle` are known already.
        """
        self._at = at
        self._records: "collections.OrderedDict[int, Dict[str, Any]]" = collections.OrderedDict()
        self._indices: Deque[Tuple[int, Any]] = collections.deque(maxlen=self._keep)
        self._lazy: List[bool] = []
        self._before_fetch: Optional[Dict[str, Any]] = None
        self._fetch_turn = 0
        self._known = known
        self.loop_turn = 0
        self.drawn_beside_loop = False
        self.started_with: Dict[str, Any] = {}
        self.error: Optional[Exception] = None

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_sampler"], name)

    def __iter__(self) -> Iterator[Any]:
        return iter(()) if self.empty else self._iterate(self._at)

    def _iterate(self, at: Restart) -> Iterator[Any]:
        try:
            yield from self._draw(at)
        except Exception as error:
            if not self._in_thread:
                raise
            # Paddle's loading thread would end without a word, and the loop wait for ever.
            self.error = error

    def _draw(self, at: Restart) -> Iterator[Any]:
        if at.streams is not None:
            set_all_streams(at.streams)
        self.started_with = all_streams()
        iterator = iter(self._sampler)
        for _ in range(at.skip):
            if next(iterator, self) is self:
                break
        for number, indices in enumerate(at.indices, at.batch):
            self._indices.append((number, indices))
            yield indices
        if at.thread_streams is not None:
            if self.draws_host:
                set_host_streams(at.thread_streams)
            if self.draws_paddle:
                set_paddle_streams(at.thread_streams["paddle"])
        batch = at.batch + len(at.indices)
        while True:
            self._record(batch)
            indices = next(iterator, self)
            if indices is self:
                return
            self._look(batch)
            self._indices.append((batch, indices))
            yield indices
            batch += 1

    def _record(self, batch: int) -> None:
        if not self._in_thread:
            return
        record: Dict[str, Any] = host_streams()
        if self.draws_paddle or batch == self._at.batch:
            record["paddle"] = paddle_streams()
        if self._stream is not None:
            record["stream"] = self._stream.place()
        with self._arrived:
            self._records[batch] = record
            while len(self._records) > self._keep:
                self._records.popitem(last=False)
            self._arrived.notify_all()

    def _look(self, batch: int) -> None:
        """Notices a sampler that draws for each batch, not only at its start.

        The training may draw at the same moment: by chance once, hardly every time.
        """
        if not self._in_thread:
            return
        self._fetch_turn = self.loop_turn  # first: a loop that waits now has drawn before
        now = host_streams()
        if batch == self._at.batch and not self._known:
            now["paddle"] = paddle_streams()
        elif len(self._lazy) < _LOOKED_AT and not self._known:
            record = self._records[batch]
            self._lazy.append(any(record[stream] != now[stream] for stream in _HOST))
        # A loop that resumes sets the streams before its first turn.
        self._before_fetch = None if self._known and self._fetch_turn == 0 else now

    def notice_fetch(self) -> None:
        """Called in the loading thread when it has loaded a batch.

        Where the loop waited for a batch all that time, this thread drew what has changed. Beside
        a loop that trains, either may have: that is noted until it is known.
        """
        before, self._before_fetch = self._before_fetch, None
        if before is None:
            return
        if "paddle" in before and paddle_streams() != before["paddle"]:
            self.draws_paddle = True
        now = host_streams()
        if not self.draws_host and any(now[stream] != before[stream] for stream in _HOST):
            # Before its first turn the loop only makes the iterator.
            began, ends = self._fetch_turn or 1, self.loop_turn or 1
            if began % 2 == 1 and began == ends:
                self.draws_host = True
            else:
                self.drawn_beside_loop = True

    def loop_goes_on(self) -> None:
        """Called by the loop when it begins to wait for a batch, and when it has got it."""
        self.loop_turn += 1

    @property
    def owns_host_streams(self) -> bool:
        """Whether the loading thread, not the training, draws from the host's streams."""
        return self.draws_host or (bool(self._lazy) and all(self._lazy))

    def record_before(self, batch: int, is_alive: Callable[[], bool]) -> Optional[Dict[str, Any]]:
        """Waits for what is recorded just before a batch is drawn.

        Args:
            batch: its number in the epoch.
            is_alive: whether the loading thread is still running; it may have failed.

        Returns:
            The record; None where the thread ended before it.
        """
        with self._arrived:
            while batch not in self._records:
                ended = not is_alive()
                self._arrived.wait(_LOOK_AGAIN_S)
                if ended and batch not in self._records:
                    return None
            return self._records[batch]

    def indices_from(self, batch: int) -> List[Any]:
        """Returns the indices that are drawn for a batch and for those after it."""
        return [indices for number, indices in self._indices if number >= batch]


class ThreadCollate:
    """A `collate_fn` for num_workers=0 that tells the sampler when a batch is loaded.

    Args:
        user: the collate function of the loader.
        sampler: the sampler to tell.
    """

    def __init__(self, user: Callable[[Any], Any], sampler: RecordedSampler) -> None:
        self._user = user
        self._sampler = sampler

    def __call__(self, samples: Any) -> Any:
        """Returns the batch, unchanged."""
        batch = self._user(samples)
        self._sampler.notice_fetch()
        return batch
