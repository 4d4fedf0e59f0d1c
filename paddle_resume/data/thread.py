"""A DataLoader with `num_workers=0`: Paddle loads ahead in a thread of this process."""

from __future__ import annotations

import itertools
from typing import Any, Iterator, List, Mapping, MutableMapping, Optional

import numpy as np

from paddle_resume.codec import decode, encode
from paddle_resume.data.sampler import RecordedSampler, Restart, ThreadCollate
from paddle_resume.data.source import Values, is_past_the_end, patched
from paddle_resume.data.stream import Stream
from paddle_resume.runtime import require_paddle

__all__ = ["ThreadSource", "end_thread"]


class ThreadSource:
    """See `Source`.

    Args:
        loader: a `paddle.io.DataLoader` with batches (not `batch_size=None`), without workers.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        map_style = loader.dataset_kind == 0
        self._skips = map_style
        self._stream: Optional[Stream] = None
        if not map_style and Stream.fits(loader.dataset):
            self._stream = Stream(loader.dataset)
        # The thread is ahead by what its queues hold.
        keep = 16 + loader.prefetch_factor + getattr(loader, "reader_buffer_size", 2)
        self._loading: Any = None
        self._sampler = RecordedSampler(
            loader.batch_sampler,
            in_thread=True,
            keep=keep,
            stream=self._stream,
        )

    @property
    def owns_host(self) -> bool:
        """See `Source`."""
        return self._sampler.owns_host_streams

    @property
    def owns_paddle(self) -> bool:
        """See `Source`."""
        return self._sampler.draws_paddle

    def open(
        self,
        start: int,
        saved: Optional[Mapping[str, Any]],
        tensors: Mapping[str, np.ndarray],
    ) -> Iterator[Any]:
        """See `Source.open`."""
        sampler = self._sampler
        if saved is None:
            sampler.restart(Restart())
            return self._iterator()
        sampler.draws_host = bool(saved.get("owns_host", False))
        sampler.draws_paddle = bool(saved.get("owns_paddle", False))
        thread = saved.get("thread")
        if self._stream is not None and saved.get("stream") is not None:
            more = self._stream.go_to(decode(saved["stream"], tensors))
            sampler.restart(Restart(batch=start, thread_streams=thread), known=True)
            if not more:
                return iter(())
        elif not self._skips:
            sampler.restart(Restart(), known=True)
            return _skip(self._iterator(), start)
        else:
            at = Restart(start, start, saved.get("sampler_start") or None, thread)
            sampler.restart(at, known=True)
            if is_past_the_end(start, self._loader.batch_sampler):
                return iter(list(sampler)[:0])  # no thread, but the sampler ends as it would
        iterator = self._iterator()
        sampler.record_before(start, self._is_loading)  # None: the iterator raises why
        return iterator

    def capture(
        self, done: int, tensors: MutableMapping[str, np.ndarray], unsaved: List[str]
    ) -> Values:
        """See `Source.capture`."""
        values: Values = {
            "sampler_start": self._sampler.started_with,
            "owns_host": self.owns_host,
            "owns_paddle": self.owns_paddle,
        }
        if self.owns_paddle:
            unsaved.append(
                "the dataset draws from Paddle's generator in the loading thread "
                "(num_workers=0): exact only where the model draws nothing from it itself "
                "(no dropout). Use num_workers > 0, or numpy or random in the dataset"
            )
        if self._sampler.drawn_beside_loop and not self.owns_host:
            unsaved.append(
                "random numbers were drawn beside the loading thread (num_workers=0): exact only "
                "if it was the training that drew them, not the dataset. Use num_workers > 0"
            )
        if self.owns_host or self.owns_paddle or self._stream is not None:
            found = self._sampler.record_before(done, self._is_loading)
            if found is None:
                unsaved.append("the loading thread ended early: the data position is not exact")
                return values
            record = dict(found)
            if "stream" in record:
                values["stream"] = encode(record.pop("stream"), tensors, "stream")
            values["thread"] = record
        return values

    def close(self, hurry: bool = False) -> None:
        """See `Source.close`: ends the loading thread of an epoch that was left early."""
        loading, self._loading = self._loading, None
        end_thread(loading, hurry)

    def _iterator(self) -> Iterator[Any]:
        loader = self._loader
        collate = loader.collate_fn or require_paddle().io.dataloader.collate.default_collate_fn
        own = ThreadCollate(collate, self._sampler)
        dataset = self._stream if self._stream is not None else loader.dataset
        with patched(loader, dataset=dataset, batch_sampler=self._sampler, collate_fn=own):
            self._loading = iter(loader)
        return self._telling()

    def _telling(self) -> Iterator[Any]:
        """Tells the sampler when the loop waits for a batch."""
        loading = self._loading
        while True:
            self._sampler.loop_goes_on()
            batch = next(loading, self)
            self._sampler.loop_goes_on()
            if batch is self:
                if self._sampler.error is not None:
                    raise self._sampler.error
                return
            yield batch

    def _is_loading(self) -> bool:
        thread = getattr(self._loading, "_thread", None)
        return thread is not None and thread.is_alive()


def end_thread(iterator: Any, hurry: bool = False) -> None:
    """Ends the loading thread of a DataLoader's iterator.

    Left to the garbage collector, it may be ended in a forked worker, where its thread is not and
    Paddle would wait for it for ever.

    Args:
        iterator: Paddle's; nothing is done where it is another, or ended already.
        hurry: leave the thread alone with the sample that it is at; the process ends.
    """
    iterators = require_paddle().io.dataloader.dataloader_iter
    if not isinstance(iterator, iterators._DataLoaderIterSingleProcess) or iterator._shutdown:
        return
    iterator._exit_thread_expectedly()
    if iterator._thread is not None:
        # Without a limit: its sample may draw from the streams that the script goes on with.
        iterator._thread.join(0.0 if hurry else None)
    iterator._shutdown = True  # else Paddle would wait again, a second at least


def _skip(iterator: Iterator[Any], count: int) -> Iterator[Any]:
    """Reads batches and drops them."""
    for _ in itertools.islice(iterator, count):
        pass
    return iterator
