"""Every state that a power cut may leave: what was certain, and any part of what was not."""

from __future__ import annotations

import hashlib
import itertools
import random
from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional, Sequence, Set, Tuple

from .model import Data, Disk, Mark, Names, Op, Sync, Tree, written

__all__ = ["State", "crash_states", "lying_states"]

_STALE = bytes(random.Random(1).randbytes(4096))


@dataclass(frozen=True)
class State:
    """What a power cut has left.

    Attributes:
        point: how many operations had been asked for.
        marks: how many marks had been passed of these.
        tree: what the disk holds.
    """

    point: int
    marks: int
    tree: Tree


def crash_states(start: Disk, ops: Sequence[Op], most: int, seed: int) -> Iterator[State]:
    """Yields each distinct state after each operation.

    Args:
        start: the disk before the first operation; all of it is certain.
        ops: what was asked of it.
        most: up to so many combinations at one point all are tried, else as many drawn ones.
        seed: of the draws.
    """
    draw = random.Random(seed)
    seen: Set[Tuple[int, bytes]] = set()
    for point in range(len(ops) + 1):
        if point and isinstance(ops[point - 1], Sync):
            continue  # what it makes certain was possible before; the next point tells
        marks = sum(isinstance(op, Mark) for op in ops[:point])
        for tree in _trees(start, ops[:point], most, draw):
            key = (marks, _digest(tree))
            if key not in seen:
                seen.add(key)
                yield State(point, marks, tree)


def lying_states(tree: Tree, newest: str, count: int, seed: int) -> Iterator[Tree]:
    """Yields a finished folder as a disk leaves it that did not do what its fsync promised.

    Args:
        tree: the folder after a save.
        newest: the path of the folder that it wrote.
        count: how many.
        seed: of the draws.
    """
    draw = random.Random(seed)
    files = sorted(
        path for path, content in tree.items() if path.startswith(newest + "/") and content
    )
    for number in range(count):
        path = files[number % len(files)]
        content = tree[path]
        assert isinstance(content, bytes)
        damaged = bytearray(content)
        kind = draw.choice(("bit", "zeros", "stale", "short", "gone"))
        at = draw.randrange(len(content))
        end = min(len(content), at + draw.choice((1, 16, 512, 4096)))
        if kind == "bit":
            damaged[at] ^= 1 << draw.randrange(8)
        elif kind == "zeros":
            damaged[at:end] = bytes(end - at)
        elif kind == "stale":
            damaged[at:end] = _STALE[: end - at]
        elif kind == "short":
            del damaged[at:]
        found = {**tree, path: bytes(damaged)}
        if kind == "gone":
            del found[path]
        if found != tree:
            yield found


def _digest(tree: Tree) -> bytes:
    return hashlib.blake2b(repr(sorted(tree.items())).encode()).digest()


def _trees(start: Disk, ops: Sequence[Op], most: int, draw: random.Random) -> Iterator[Tree]:
    names = [op for op in ops if isinstance(op, Names)]
    needs = _needs(start, names)
    certain = _certain(ops, names, needs)
    open_ = [number for number in range(len(names)) if number not in certain]
    contents = _contents(start, ops, draw)
    files = sorted(contents)
    total = 2 ** len(open_)
    for inode in files:
        total *= len(contents[inode])
    if total <= most:
        picks: Iterator[Tuple[Tuple[bool, ...], Tuple[bytes, ...]]] = itertools.product(
            itertools.product((True, False), repeat=len(open_)),
            itertools.product(*(contents[inode] for inode in files)),
        )
    else:
        picks = _drawn(len(open_), [contents[inode] for inode in files], most, draw)
    for there, chosen in picks:
        kept = set(certain)
        for number, is_there in zip(open_, there):
            if is_there and needs[number] <= kept:
                kept.add(number)
        disk = start.copy()
        disk.files.update(zip(files, chosen))
        for number in sorted(kept):
            disk.apply(names[number])
        yield disk.tree()


def _drawn(
    length: int, contents: List[List[bytes]], count: int, draw: random.Random
) -> Iterator[Tuple[Tuple[bool, ...], Tuple[bytes, ...]]]:
    """All, none, and draws; every other one leaves out a single operation, or puts in one."""
    whole = tuple(found[-1] for found in contents)
    for is_there in (True, False):
        yield (is_there,) * length, whole
    for number in range(count):
        if length and number % 2:
            single, rest = draw.randrange(length), draw.random() < 0.7
            there = tuple((one == single) != rest for one in range(length))
        else:
            share = draw.choice((0.1, 0.5, 0.9))
            there = tuple(draw.random() < share for _ in range(length))
        yield there, tuple(draw.choice(found) for found in contents)


def _needs(start: Disk, names: Sequence[Names]) -> List[Set[int]]:
    """Which operations each one cannot be there without, those of these included."""
    last: Dict[Tuple[int, str], int] = {}
    made: Dict[int, int] = {}
    found: List[Set[int]] = []
    for number, op in enumerate(names):
        needed: Set[int] = set()
        for folder, name, inode in op.changes:
            if (folder, name) in last:
                needed.add(last[folder, name])
            # Moved into a folder that is not there it would be nowhere; a rename is one step.
            if folder != op.changes[0][0] and folder in made:
                needed.add(made[folder])
            last[folder, name] = number
            if inode in start.folders and len(op.changes) == 1:
                made[inode] = number
        found.append(needed.union(*(found[other] for other in needed)))
    return found


def _certain(ops: Sequence[Op], names: Sequence[Names], needs: Sequence[Set[int]]) -> Set[int]:
    found: Set[int] = set()
    unsure: Dict[int, Set[int]] = {}
    number = 0
    for op in ops:
        if isinstance(op, Names):
            for folder, _, _ in op.changes:
                unsure.setdefault(folder, set()).add(number)
            number += 1
        elif isinstance(op, Sync):
            for done in unsure.pop(op.inode, set()):
                found |= {done} | needs[done]
    return found


def _contents(start: Disk, ops: Sequence[Op], draw: random.Random) -> Dict[int, List[bytes]]:
    """What each file that was written to may hold; the last is what it should."""
    certain: Dict[int, bytes] = {}
    unsure: Dict[int, List[Data]] = {}
    for op in ops:
        if isinstance(op, Data):
            unsure.setdefault(op.inode, []).append(op)
        elif isinstance(op, Sync) and op.inode in unsure:
            content = certain.get(op.inode, start.files[op.inode])
            for pending in unsure.pop(op.inode):
                content = written(content, pending)
            certain[op.inode] = content
    found = {inode: [content] for inode, content in certain.items()}
    for inode, pending_ops in unsure.items():
        before = certain.get(inode, start.files[inode])
        found[inode] = _torn(before, pending_ops, draw)
    return found


def _torn(before: bytes, pending: Sequence[Data], draw: random.Random) -> List[bytes]:
    found: List[bytes] = [before]
    content = before
    for op in pending:
        if op.data:
            half = len(op.data) // 2
            cut = draw.randrange(len(op.data))
            for part in (op.data[:half], op.data[:cut]):
                found.append(written(content, Data(op.inode, op.offset, part)))
        content = written(content, op)
        found.append(content)
    changed = next((at for at in range(len(content)) if content[at] != _at(before, at)), None)
    if changed is not None:
        size = len(content) - changed
        middle = changed + size // 2
        stale = (_STALE * (size // len(_STALE) + 1))[:size]
        found.append(content[:changed] + bytes(size))
        found.append(content[:changed] + stale)
        found.append(content[:changed] + bytes(middle - changed) + content[middle:])
        found.append(content[:middle] + bytes(len(content) - middle))
    found.append(content)
    return [*(other for other in dict.fromkeys(found) if other != content), content]


def _at(content: bytes, at: int) -> Optional[int]:
    return content[at] if at < len(content) else None
