"""The training's place in its data: which loader, which batch, and how to get there again."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

import numpy as np

from paddle_resume.codec import Unencodable
from paddle_resume.data.guard import check_loader
from paddle_resume.data.memory import SamplerMemory
from paddle_resume.data.pool import PoolSource
from paddle_resume.data.replay import ReplaySource
from paddle_resume.data.source import Source, batch_size_of, length_of, workers_tied
from paddle_resume.data.thread import ThreadSource, end_thread
from paddle_resume.runtime import require_paddle
from paddle_resume.state.rng import all_streams, set_all_streams
from paddle_resume.types import Captured

__all__ = ["DataPosition", "TiedLoader"]

RestoreStreams = Callable[[bool, bool], None]
"""Sets the training's own streams: (host's, Paddle's), True for those to set."""


class DataPosition:
    """Follows one loader through the epochs of a fit.

    Args:
        loader: what the epochs iterate over.
    """

    name = "data"
    moves = "anytime"

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._source = _source_of(loader)
        sampler = getattr(loader, "batch_sampler", None)
        self._memory = SamplerMemory(sampler) if hasattr(sampler, "__dict__") else None
        self._epoch_start: Dict[str, Any] = {}
        self._epoch_tensors: Dict[str, np.ndarray] = {}
        self._unsaved: List[str] = []
        self.done = 0

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def batch_size(self) -> Optional[int]:
        """Samples in a batch, None where the loader does not tell."""
        return batch_size_of(self._loader)

    def batches(
        self,
        start: int = 0,
        saved: Optional[Captured] = None,
        restore_streams: Optional[RestoreStreams] = None,
    ) -> Iterator[Any]:
        """Iterates over one epoch.

        Args:
            start: the first batch to give out.
            saved: what `capture` returned in this epoch; None for an epoch from its start.
            restore_streams: called before the first batch is given out, when resuming.

        Yields:
            The loader's batches from `start` on, unchanged.
        """
        values = saved.values if saved is not None else None
        tensors = saved.tensors if saved is not None else {}
        self._begin(values, tensors)
        self.done = start
        iterator = self._source.open(start, values, tensors)
        if restore_streams is not None:
            restore_streams(not self._source.owns_host, not self._source.owns_paddle)
        for batch in iterator:
            self.done += 1
            yield batch

    def shares(self, loader: Any) -> bool:
        """Whether a loader's running workers are this one's: they send more than the batches."""
        return loader is self._loader and getattr(loader, "_iterator", None) is not None

    def read_again(self) -> Iterator[Any]:
        """Reads the loader from its start, for an evaluation on the training's own loader."""
        return self._source.open(0, None, {})

    def capture(self) -> Captured:
        """Returns what continues after the last batch given out."""
        tensors = dict(self._epoch_tensors)
        unsaved = list(self._unsaved)
        values = self._source.capture(self.done, tensors, unsaved)
        values.update(
            epoch_start=self._epoch_start,
            batches_done=self.done,
            num_workers=getattr(self._loader, "num_workers", 0),
            batch_size=self.batch_size,
            length=length_of(self._loader),
            unsaved=unsaved,
        )
        return Captured(tensors, values)

    def close(self, hurry: bool = False) -> None:
        """Takes back what would outlive the fit; see `Source.close`."""
        self._source.close(hurry)

    def _begin(self, saved: Optional[Mapping[str, Any]], tensors: Mapping[str, np.ndarray]) -> None:
        if saved is not None:
            self._epoch_start = dict(saved["epoch_start"])
            self._epoch_tensors = {k: v for k, v in tensors.items() if k in _keys(saved)}
            if self._memory is not None:
                self._memory.restore(self._epoch_start.get("sampler", {}), tensors)
            set_all_streams(self._epoch_start["streams"])
            return
        self._epoch_tensors, self._unsaved = {}, []
        self._epoch_start = {"streams": all_streams()}
        if self._memory is not None:
            try:
                held = self._memory.capture(self._epoch_tensors, self._unsaved)
                self._epoch_start["sampler"] = held
            except Unencodable as error:
                self._unsaved = [f"the sampler's state cannot be saved: {error}"]
        self._epoch_start["tensors"] = sorted(self._epoch_tensors)


class TiedLoader:
    """A loader whose workers end with this process, for evaluations.

    Args:
        loader: any loader.
        training: the training's position; its loader may be the same one.
    """

    def __init__(self, loader: Any, training: Optional[DataPosition]) -> None:
        self._loader = loader
        self._training = training
        self._reading: Any = None

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if self._training is not None and self._training.shares(self._loader):
            return self._training.read_again()
        self._reading = workers_tied(self._loader)
        return self._reading

    def close(self, hurry: bool = False) -> None:
        """Ends an iteration that was left early; see `Source.close`."""
        reading, self._reading = self._reading, None
        end_thread(reading, hurry)
        if hasattr(reading, "close"):
            reading.close()


def _keys(saved: Mapping[str, Any]) -> List[str]:
    keys: List[str] = saved["epoch_start"].get("tensors", [])
    return keys


def _source_of(loader: Any) -> Source:
    kind = require_paddle().io.DataLoader
    # A subclass that iterates in its own way is read in its own way.
    if not isinstance(loader, kind) or type(loader).__iter__ is not kind.__iter__:
        return ReplaySource(loader)
    if not loader.auto_collate_batch:
        return ReplaySource(loader)
    check_loader(loader)
    if loader.num_workers == 0:
        return ThreadSource(loader)
    if loader.dataset_kind == 0:
        return PoolSource(loader)
    return ReplaySource(loader)
