"""JSON values as dotted keys, and how two of them differ."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Tuple

__all__ = ["MISSING", "changes", "leaves"]

MISSING = "(missing)"
_LONGEST = 8
_LONGEST_TEXT = 120


def leaves(value: Any, name: str = "") -> Iterator[Tuple[str, Any]]:
    """Walks through JSON values.

    Args:
        value: objects, lists, and what is in them.
        name: of the value.

    Yields:
        Dotted key and value; a longer list of plain values is one value.

    Example:
        >>> list(leaves({"lr": {"step": 5, "rates": [0.1, 0.2]}}))
        [('lr.step', 5), ('lr.rates', [0.1, 0.2])]
    """
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(item, (list, Mapping)) for item in value):
        for number, item in enumerate(value):
            yield from leaves(item, f"{name}[{number}]")
    else:
        yield name, value


def changes(one: Any, other: Any) -> List[Dict[str, Any]]:
    """Compares JSON values.

    Args:
        one: as they were.
        other: as they are.

    Returns:
        For each key that differs its name, and how it reads in both.

    Example:
        >>> changes({"step": 5, "seed": 1}, {"step": 7, "seed": 1})
        [{'value': 'step', 'a': '5', 'b': '7'}]
    """
    left, right = dict(leaves(one)), dict(leaves(other))
    found = []
    for name in [*left, *(name for name in right if name not in left)]:
        a, b = left.get(name, MISSING), right.get(name, MISSING)
        if type(a) is not type(b) or a != b:
            found.append({"value": name, **dict(zip("ab", _shown(a, b)))})
    return found


def _shown(a: Any, b: Any) -> Tuple[str, str]:
    if isinstance(a, list) and isinstance(b, list) and max(len(a), len(b)) > _LONGEST:
        same = sum(x == y for x, y in zip(a, b))
        return f"{len(a)} values", f"{len(b)} values, {max(len(a), len(b)) - same} of them others"
    if isinstance(a, str) and isinstance(b, str) and max(len(a), len(b)) > _LONGEST_TEXT:
        return f"{len(a)} characters", f"{len(b)} characters, others"
    return _short(a), _short(b)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}… ({len(text)} long)"
