"""What every way of reading a loader has in common."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Mapping, MutableMapping, Optional, Protocol

import numpy as np

from paddle_resume.data.worker_signals import end_workers, iterator_of
from paddle_resume.data.workers import WorkerStart

__all__ = [
    "Source",
    "Values",
    "batch_size_of",
    "is_past_the_end",
    "length_of",
    "patched",
    "start_workers",
    "workers_tied",
]

Values = Dict[str, Any]


class Source(Protocol):
    """One way to read a loader from any batch of an epoch."""

    @property
    def owns_host(self) -> bool:
        """Whether a loading thread draws from Python's and numpy's streams, so that the training
        must not set them."""
        ...

    @property
    def owns_paddle(self) -> bool:
        """The same for Paddle's stream."""
        ...

    def open(
        self,
        start: int,
        saved: Optional[Mapping[str, Any]],
        tensors: Mapping[str, np.ndarray],
    ) -> Iterator[Any]:
        """Starts an epoch's iteration.

        The streams of random numbers are as they were at the epoch's start.

        Args:
            start: the first batch to give out.
            saved: what `capture` returned; None for an epoch from its start.
            tensors: the arrays that go with it.

        Returns:
            An iterator that stands before batch `start`, whose next() is safe to call once the
            training's own streams are set.
        """
        ...

    def capture(
        self, done: int, tensors: MutableMapping[str, np.ndarray], unsaved: List[str]
    ) -> Values:
        """Returns what `open` needs to continue before batch `done`, as JSON."""
        ...

    def close(self, hurry: bool = False) -> None:
        """Takes back what would outlive the fit.

        Args:
            hurry: do not wait for a sample that is being loaded: the process ends.
        """
        ...


@contextlib.contextmanager
def patched(loader: Any, **attributes: Any) -> Iterator[None]:
    """Sets attributes of a loader while an iterator is made from it, and puts them back."""
    before = {name: getattr(loader, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(loader, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(loader, name, value)


def start_workers(loader: Any, start: WorkerStart, **attributes: Any) -> Any:
    """Makes an iterator of a DataLoader, and with it its workers.

    Args:
        loader: a `paddle.io.DataLoader` whose workers do not run.
        start: what each worker begins with.
        **attributes: of the loader, for this iterator only.

    Returns:
        Paddle's iterator.
    """
    with patched(loader, worker_init_fn=start, **attributes):
        return iterator_of(loader) if start.tied else iter(loader)


def workers_tied(loader: Any) -> Iterator[Any]:
    """Makes an iterator of any loader; DataLoader workers live and end with this process."""
    if not getattr(loader, "num_workers", 0) or not hasattr(loader, "worker_init_fn"):
        return iter(loader)
    runs = getattr(loader, "_iterator", None) is not None  # persistent, from an iteration before
    start = WorkerStart(loader.worker_init_fn)
    return _read(loader, iter(loader) if runs else start_workers(loader, start))


def _read(loader: Any, iterator: Iterator[Any]) -> Iterator[Any]:
    """Ends workers at the end of an iteration, also where it is left early: Paddle would wait for
    the batches that they are at. Persistent ones stay."""
    try:
        yield from iterator
    finally:
        if getattr(loader, "_iterator", None) is not iterator:
            end_workers(iterator)


def batch_size_of(loader: Any) -> Optional[int]:
    """Returns the number of samples in a batch, None where the loader does not tell."""
    size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def length_of(loader: Any) -> Optional[int]:
    """Returns the number of batches of an epoch, None where the loader cannot tell."""
    try:
        return len(loader)
    except Exception:  # hapi passes over whatever a loader raises here, and Paddle's raise much
        return None


def is_past_the_end(start: int, sampler: Any) -> bool:
    """Whether an epoch has no batch `start`; the length of Paddle's own samplers is true."""
    parts = (sampler, getattr(sampler, "sampler", sampler))
    if not all(type(part).__module__.startswith("paddle.") for part in parts):
        return False
    length = length_of(sampler)
    return length is not None and start >= length
