"""An iterable dataset that knows its own place."""

from __future__ import annotations

import copy
from typing import Any, Dict, Iterator

__all__ = ["Stream"]


class Stream:
    """Stands in for an iterable dataset with state_dict() and set_state_dict() during one epoch.

    A last batch that is not full ends the dataset's iteration while it is loaded, and the dataset
    may then stand at the start of its next pass; so the end is noted with the state.

    Args:
        dataset: the dataset.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._ended = False

    @staticmethod
    def fits(dataset: Any) -> bool:
        """Whether a dataset can tell and take its place."""
        return hasattr(dataset, "state_dict") and hasattr(dataset, "set_state_dict")

    def __iter__(self) -> Iterator[Any]:
        self._ended = False
        yield from self._dataset
        self._ended = True

    def place(self) -> Dict[str, Any]:
        """Returns the dataset's state, and whether its iteration has ended."""
        # A copy: a dataset may hand out the very dict that it goes on to change.
        return {"state": copy.deepcopy(self._dataset.state_dict()), "ended": self._ended}

    def go_to(self, place: Dict[str, Any]) -> bool:
        """Sets the dataset's state.

        Returns:
            Whether this epoch gives more samples.
        """
        self._dataset.set_state_dict(place["state"])
        return not place["ended"]
