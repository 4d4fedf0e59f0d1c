"""A disk between a program and a power cut: what was asked of it, and what of that is certain.

The model is that of ALICE (Pillai et al., "All File Systems Are Not Created Equal", OSDI'14), in
its weakest form:

- A file's bytes are certain after an fsync of that file. Before, any part of them may be there, the
  size may be there without them, and what is there may be old blocks.
- A name in a folder (created, renamed, removed) is certain after an fsync of that folder; the fsync
  of a file makes its own name no more certain. Before, any of them may be there without the others,
  in this folder and in others, but for one rule: what happens to one name keeps its order.
- A rename is one step, as on every journaling file system. So is a symbolic link and its target.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence, Tuple, Union

from .trace import Call

__all__ = ["Content", "Data", "Disk", "Mark", "Names", "Op", "Sync", "Tree", "replay", "tree_of"]

Content = Union[bytes, str, None]
"""Of a file its bytes, of a link its target, of a folder None."""
Tree = Dict[str, Content]
"""Relative path to content."""


@dataclass(frozen=True)
class Names:
    """Changes of names that happen together: folder, name, what it means now (None: nothing)."""

    changes: Tuple[Tuple[int, str, Optional[int]], ...]


@dataclass(frozen=True)
class Data:
    """Bytes into a file; None cuts it off there."""

    inode: int
    offset: int
    data: Optional[bytes]


@dataclass(frozen=True)
class Sync:
    """An fsync of a file or folder."""

    inode: int


@dataclass(frozen=True)
class Mark:
    """Something the program said meanwhile."""

    text: str


Op = Union[Names, Data, Sync, Mark]


@dataclass
class Disk:
    """Folders, files and links by number; 0 is the root."""

    folders: Dict[int, Dict[str, int]] = field(default_factory=lambda: {0: {}})
    files: Dict[int, bytes] = field(default_factory=dict)
    links: Dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: Tree) -> "Disk":
        """Makes the disk that holds a tree."""
        disk = cls()
        for path in sorted(tree):
            parent, name = os.path.split(path)
            disk.folders[disk.find(parent)][name] = disk.new(tree[path])
        return disk

    def copy(self) -> "Disk":
        """Returns one that can be changed."""
        folders = {inode: dict(names) for inode, names in self.folders.items()}
        return Disk(folders, dict(self.files), dict(self.links))

    def new(self, content: Content) -> int:
        """Adds something that has no name yet."""
        inode = len(self.folders) + len(self.files) + len(self.links)
        if content is None:
            self.folders[inode] = {}
        elif isinstance(content, bytes):
            self.files[inode] = content
        else:
            self.links[inode] = content
        return inode

    def find(self, path: str) -> int:
        """Returns what a path from the root means.

        Raises:
            KeyError: nothing.
        """
        inode = 0
        for name in filter(None, path.split("/")):
            inode = self.folders[inode][name]
        return inode

    def apply(self, op: Op) -> None:
        """Does what the program asked for."""
        if isinstance(op, Names):
            for folder, name, inode in op.changes:
                if inode is None:
                    self.folders[folder].pop(name, None)
                else:
                    self.folders[folder][name] = inode
        elif isinstance(op, Data):
            self.files[op.inode] = written(self.files[op.inode], op)

    def tree(self) -> Tree:
        """Returns all that can be reached."""
        found: Tree = {}
        todo = [("", 0)]
        while todo:
            prefix, folder = todo.pop()
            for name, inode in self.folders[folder].items():
                path = prefix + name
                if inode in self.folders:
                    found[path] = None
                    todo.append((path + "/", inode))
                else:
                    found[path] = self.files.get(inode, self.links.get(inode))
        return found


def written(content: bytes, op: Data) -> bytes:
    """Returns a file's bytes after an operation."""
    before = content[: op.offset].ljust(op.offset, b"\0")
    if op.data is None:
        return before
    return before + op.data + content[op.offset + len(op.data) :]


def tree_of(folder: "str | os.PathLike[str]") -> Tree:
    """Reads a tree from the real disk."""
    found: Tree = {}
    for where, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(where, name)
            key = os.path.relpath(path, folder)
            if os.path.islink(path):
                found[key] = os.readlink(path)
            elif os.path.isdir(path):
                found[key] = None
            else:
                with open(path, "rb") as file:
                    found[key] = file.read()
    return found


def replay(calls: Sequence[Call], root: str, before: Tree, marks: str) -> Tuple[Disk, List[Op]]:
    """Turns system calls into operations on a disk.

    Args:
        calls: as traced.
        root: the folder that is looked at; what lies elsewhere is nothing to it.
        before: what it held before the first call.
        marks: path of the file that the program writes its marks to, a line each.

    Returns:
        The disk as it was before, but with a number for whatever is created later, and the
        operations.

    Raises:
        NotImplementedError: a call in this folder that the model does not know.
    """
    reader = _Reader(root, Disk.of(before), marks)
    for call in calls:
        if call.result >= 0:
            reader.read(call)
    start = Disk.of(before)
    start.folders = {inode: start.folders.get(inode, {}) for inode in reader.disk.folders}
    start.files = {inode: start.files.get(inode, b"") for inode in reader.disk.files}
    start.links = reader.disk.links
    return start, reader.ops


class _Reader:
    """Follows descriptors and paths through a process's calls."""

    def __init__(self, root: str, disk: Disk, marks: str) -> None:
        self.disk = disk
        self.ops: List[Op] = []
        self._root = root.rstrip("/") + "/"
        self._marks = marks
        self._open: Dict[int, Tuple[Optional[int], str]] = {}  # descriptor to inode and path
        self._at: Dict[int, int] = {}  # descriptor to its place in the file
        self._append: Dict[int, bool] = {}

    def read(self, call: Call) -> None:
        name, args = call.name, call.args
        if name == "openat":
            self._openat(self._path(args[0], args[1]), str(args[2]), call.result)
        elif name == "close":
            self._open.pop(int(args[0]), None)
        elif name in ("write", "pwrite64"):
            self._write(call)
        elif name in ("fsync", "fdatasync"):
            inode = self._inode(args[0])
            if inode is not None:
                self._do(Sync(inode))
        elif name == "ftruncate":
            inode = self._inode(args[0])
            if inode is not None:
                self._do(Data(inode, int(args[1]), None))
        elif name in ("mkdir", "mkdirat"):
            self._enter(self._path(*(("AT_FDCWD", args[0]) if name == "mkdir" else args[:2])), None)
        elif name in ("symlink", "symlinkat"):
            where = self._path(*(("AT_FDCWD", args[1]) if name == "symlink" else args[1:3]))
            self._enter(where, os.fsdecode(args[0]))
        elif name in ("unlink", "rmdir"):
            self._leave(self._path("AT_FDCWD", args[0]))
        elif name == "unlinkat":
            self._leave(self._path(args[0], args[1]))
        elif name in ("rename", "renameat", "renameat2"):
            pairs = ("AT_FDCWD", args[0], "AT_FDCWD", args[1]) if name == "rename" else args[:4]
            self._move(self._path(pairs[0], pairs[1]), self._path(pairs[2], pairs[3]))
        elif self._concerns_us(call):
            raise NotImplementedError(f"the model does not know {call}")

    def _do(self, op: Op) -> None:
        self.disk.apply(op)
        self.ops.append(op)

    def _inode(self, descriptor: Union[bytes, str]) -> Optional[int]:
        return self._open.get(int(descriptor), (None, ""))[0]

    def _path(self, at: Union[bytes, str], path: Union[bytes, str]) -> str:
        text = os.fsdecode(path)
        if text.startswith("/") or at == "AT_FDCWD":
            return os.path.normpath(text)
        return os.path.normpath(os.path.join(self._open.get(int(at), (None, "/?"))[1], text))

    def _place(self, path: str) -> Optional[Tuple[int, str]]:
        """The folder and name of a path; None where it is not below the root."""
        if not path.startswith(self._root):
            return None
        parent, name = os.path.split(path[len(self._root) :])
        return self.disk.find(parent), name

    def _openat(self, path: str, flags: str, descriptor: int) -> None:
        place = self._place(path)
        inode: Optional[int] = None
        if path + "/" == self._root:
            inode = 0
        elif place is not None:
            inode = self.disk.folders[place[0]].get(place[1])
            if inode is None:
                inode = self._enter(path, b"")
            elif "O_TRUNC" in flags and self.disk.files.get(inode):
                self._do(Data(inode, 0, None))
        self._open[descriptor] = (inode, path)
        self._at[descriptor] = 0
        self._append[descriptor] = "O_APPEND" in flags

    def _write(self, call: Call) -> None:
        descriptor, data = int(call.args[0]), call.args[1]
        inode, path = self._open.get(descriptor, (None, ""))
        assert isinstance(data, bytes)
        if path == self._marks:
            self.ops.extend(Mark(line) for line in data.decode().splitlines())
        if inode is None:
            return
        at = int(call.args[3]) if call.name == "pwrite64" else self._at[descriptor]
        if self._append[descriptor]:
            at = len(self.disk.files[inode])
        self._do(Data(inode, at, data[: call.result]))
        if call.name == "write":
            self._at[descriptor] = at + call.result

    def _enter(self, path: str, content: Content) -> Optional[int]:
        place = self._place(path)
        if place is None:
            return None
        inode = self.disk.new(content)
        self._do(Names(((*place, inode),)))
        return inode

    def _leave(self, path: str) -> None:
        place = self._place(path)
        if place is not None:
            self._do(Names(((*place, None),)))

    def _move(self, source: str, target: str) -> None:
        old, new = self._place(source), self._place(target)
        if old is None and new is None:
            return
        if old is None or new is None:
            raise NotImplementedError(f"a rename in or out of the folder: {source} to {target}")
        inode = self.disk.folders[old[0]][old[1]]
        self._do(Names(((*old, None), (*new, inode))))

    def _concerns_us(self, call: Call) -> bool:
        if call.name in ("sync", "syncfs"):
            return True
        paths = [os.fsdecode(arg) for arg in call.args if isinstance(arg, bytes)]
        if any(path.startswith(self._root) for path in paths):
            return True
        numbers = [arg for arg in call.args if isinstance(arg, str) and arg.isdigit()]
        return any(self._inode(number) is not None for number in numbers[:2])
