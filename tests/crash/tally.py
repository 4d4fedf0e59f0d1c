"""How much has been tried, and how much of it went wrong: a line for each kind."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import Dict, Iterator, List

from .check import LOADED_WRONG, LOST, UNCLEAN, Fault

__all__ = ["count", "lines", "trying"]

_TRIED: "Counter[str]" = Counter()
_FAULTS: Dict[str, "Counter[str]"] = {}


def count(kind: str, times: int) -> None:
    """Counts what went well; see `trying`."""
    _TRIED[kind] += times


@contextmanager
def trying(kind: str) -> Iterator[None]:
    """Counts one try.

    Args:
        kind: as `"crash states"`.

    Raises:
        Fault: what the try raised.
    """
    count(kind, 1)
    try:
        yield
    except Fault as fault:
        _FAULTS.setdefault(kind, Counter())[fault.kind] += 1
        raise


def lines() -> List[str]:
    """Returns what has been counted.

    Example:
        >>> with trying("kills"):
        ...     pass
        >>> lines()[-1]
        'kills tried: 1, lost: 0, loaded wrong: 0, not clean: 0'
    """
    found = []
    for kind, tried in _TRIED.items():
        faults = _FAULTS.get(kind, Counter())
        what = ", ".join(f"{name}: {faults[name]}" for name in (LOST, LOADED_WRONG, UNCLEAN))
        found.append(f"{kind} tried: {tried:,}, {what}")
    return found
