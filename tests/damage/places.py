"""The classes of places in a checkpoint's files: where a flipped bit can fall."""

from __future__ import annotations

import pickletools
import re
from pathlib import Path
from typing import Dict, List, Tuple

Range = Tuple[int, int]


def classes(path: Path) -> Dict[str, List[Range]]:
    """Returns the ranges of bytes of each class of a file; together they are all of it."""
    data = path.read_bytes()
    found = _of_json(data) if path.suffix == ".json" else _of_pickle(data)
    covered = sum(end - start for ranges in found.values() for start, end in ranges)
    assert covered == len(data), path
    return found


def _of_pickle(data: bytes) -> Dict[str, List[Range]]:
    ops = [(op.name, arg, at) for op, arg, at in pickletools.genops(data)]
    ends = [at for _, _, at in ops[1:]] + [len(data)]
    found: Dict[str, List[Range]] = {}
    for (name, arg, start), end in zip(ops, ends):
        content = len(arg) if name == "BINBYTES8" else 0
        if name in ("PROTO", "STOP"):
            found.setdefault("header" if name == "PROTO" else "tail", []).append((start, end))
            continue
        found.setdefault(f"opcode {name}", []).append((start, start + 1))
        if end - content > start + 1:
            found.setdefault(f"argument of {name}", []).append((start + 1, end - content))
        if content:
            found.setdefault("tensor data", []).append((end - content, end))
    return found


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[-0-9.eE+]+|true|false|null|[{}\[\],:]|\s+')


def _of_json(data: bytes) -> Dict[str, List[Range]]:
    """By kind of token and, for what is below a key of the top level, that key."""
    found: Dict[str, List[Range]] = {}
    depth, key, last = 0, "", len(data.rstrip())
    for token in _TOKEN.finditer(data):
        text = token.group()
        if text in (b"}", b"]"):
            depth -= 1
        kind = "text" if text[:1] == b'"' else "space" if text.isspace() else "mark"
        if text[:1].isalnum() or text[:1] == b"-":
            kind = "number"
        if depth == 1 and kind == "text" and data[token.end() : token.end() + 1] == b":":
            key = text.decode().strip('"')
            kind = "key"
        where = (
            "header" if token.start() == 0 else "tail" if token.end() >= last else f"{key} {kind}"
        )
        found.setdefault(where, []).append(token.span())
        if text in (b"{", b"["):
            depth += 1
    return found
