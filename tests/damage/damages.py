"""Every way to damage the newest checkpoint of a save_dir that the tests try."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import xxhash

from damage.places import classes

FILES = ("extra.pdparams", "manifest.json", "model.pdopt", "model.pdparams", "state.json")
OLDER, NEWEST = "step_00000400", "step_00000500"
FOUND, NEWER, PASSED_OVER = "found", "newer", "passed over"


@dataclass(frozen=True)
class Damage:
    """One damage.

    Attributes:
        name: where and what.
        apply: does it to a save_dir.
        outcome: what a start must make of it.
    """

    name: str
    apply: Callable[[Path], Any]
    outcome: str = FOUND


def of_bytes(save_dir: Path, seed: int, places: int) -> Iterator[Damage]:
    """Damages to the bytes of each file, `places` in each class of each file."""
    rnd = random.Random(seed)
    for name in FILES:
        data = (save_dir / NEWEST / name).read_bytes()
        for kind, ranges in sorted(classes(save_dir / NEWEST / name).items()):
            every = [at for start, end in ranges for at in range(start, end)]
            for at in sorted(rnd.sample(every, min(places, len(every)))):
                for what, changed in _changes(data, at, rnd):
                    if changed != data:
                        yield Damage(f"{name}, {kind}, byte {at}: {what}", _put(name, changed))
            start = rnd.choice(ranges)[0]
            yield Damage(f"{name}, {kind}: cut at {start}", _put(name, data[:start]))
        for size in sorted({0, 1, 2, 3, 4, 8, 511, 512, 4095, 4096, len(data) - 2, len(data) - 1}):
            # A manifest may lack its last byte, the end of the line: nothing is lost by that.
            if size < len(data) - (name == "manifest.json"):
                yield Damage(f"{name}: cut to {size} bytes", _put(name, data[:size]))


def _changes(data: bytes, at: int, rnd: random.Random) -> Iterator[Any]:
    bit = rnd.randrange(8)
    yield f"bit {bit} flipped", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
    what = rnd.randrange(6)
    size = rnd.choice((1, 16, 512))
    rest = data[at + size :]
    if what == 0:
        yield f"{size} bytes are zero", (data[:at] + bytes(size) + rest)[: len(data)]
    elif what == 1:
        yield f"{size} bytes are noise", (data[:at] + rnd.randbytes(size) + rest)[: len(data)]
    elif what == 2:
        yield f"{size} bytes are gone", data[:at] + rest
    elif what == 3:
        yield f"{size} bytes are twice there", data[: at + size] + data[at:]
    elif what == 4:
        yield "a byte more", data[:at] + bytes([rnd.randrange(256)]) + data[at:]
    else:
        end = min(len(data), at + size)
        yield f"{size} bytes in another order", data[:at] + data[at:end][::-1] + data[end:]


def _put(name: str, data: bytes) -> Callable[[Path], Any]:
    return lambda save_dir: (save_dir / NEWEST / name).write_bytes(data)


def of_files() -> Iterator[Damage]:
    """Damages to which files there are, and what stands in their places."""
    for name in FILES:
        for what, action in _KINDS.items():
            yield Damage(f"{name}: {what}", _on(name, action))
        for other in FILES:
            if other < name:
                yield Damage(f"{name} and {other} swapped", _swap(name, other))
        if name != "extra.pdparams":  # that of the samples is the same at every step
            yield Damage(f"{name} is the older checkpoint's", _copy_older(name))
            yield Damage(f"{name} and the older checkpoint's swapped", _swap_with_older(name))
    for what, make in _EXTRA.items():
        yield Damage(f"an extra {what}", lambda s, make=make: make(s / NEWEST / "notes.txt"))
    yield Damage("an empty folder", lambda s: [os.unlink(s / NEWEST / name) for name in FILES])
    yield Damage("all but the manifest from the older one", _copy_older(*set(FILES) - {FILES[1]}))
    yield Damage("all from the older one", _copy_older(*FILES))
    yield Damage("renamed to a later step", lambda s: os.rename(s / NEWEST, s / "step_00000501"))
    for what, make in {**_EXTRA, "link to a good one": _link_outside}.items():
        yield Damage(
            f"the whole folder is a {what}",
            lambda s, make=make: _instead_of_folder(s, make),
            FOUND if what == "folder" else PASSED_OVER,
        )


def _on(name: str, action: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda save_dir: action(save_dir / NEWEST / name)


def _swap(one: str, other: str, of: str = NEWEST) -> Callable[[Path], Any]:
    def swap(save_dir: Path) -> None:
        left, right, aside = save_dir / NEWEST / one, save_dir / of / other, save_dir / ".tmp-swap"
        os.rename(left, aside)
        os.rename(right, left)
        os.rename(aside, right)

    return swap


def _swap_with_older(name: str) -> Callable[[Path], Any]:
    def swap(save_dir: Path) -> None:
        # The older one must stay good, so it is swapped with a copy of it.
        shutil.copytree(save_dir / OLDER, save_dir / "other")
        _swap(name, name, "other")(save_dir)

    return swap


def _copy_older(*names: str) -> Callable[[Path], Any]:
    return lambda s: [shutil.copy(s / OLDER / name, s / NEWEST / name) for name in names]


def _link_outside(path: Path) -> None:
    """A link to what is whole, but outside."""
    away = path.parent.parent / "away" if path.parent.name == NEWEST else path.parent / "away"
    away.mkdir(exist_ok=True)
    shutil.move(str(path) if path.exists() else str(path.with_name("whole")), away / path.name)
    path.symlink_to(away / path.name)


def _instead_of_folder(save_dir: Path, make: Callable[[Path], Any]) -> None:
    os.rename(save_dir / NEWEST, save_dir / "whole")
    make(save_dir / NEWEST)


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _device(path: Path) -> None:
    # /dev/zero, which never ends. Where only root may make one, a link leads there.
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        path.symlink_to("/dev/zero")


def _instead(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
    def action(path: Path) -> None:
        path.unlink()
        make(path)

    return action


def _hole(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(b"")
    os.truncate(path, size)


_EXTRA: Dict[str, Callable[[Path], Any]] = {
    "file": lambda path: path.write_text("x"),
    "folder": Path.mkdir,
    "named pipe": os.mkfifo,
    "socket": _socket,
    "device": _device,
    "dangling link": lambda path: path.symlink_to("nowhere"),
}
_KINDS: Dict[str, Callable[[Path], Any]] = {
    "missing": Path.unlink,
    "empty": lambda path: os.truncate(path, 0),
    "a hole of its size": _hole,
    "a terabyte": lambda path: os.truncate(path, 1 << 40),
    "a byte longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "twice itself": lambda path: path.write_bytes(path.read_bytes() * 2),
    "renamed": lambda path: path.rename(path.with_name("notes.txt")),
    "a link to itself elsewhere": _link_outside,
    "a link to the older one's": _instead(
        lambda path: path.symlink_to(path.parent.parent / OLDER / path.name)
    ),
    "a link to itself": _instead(lambda path: path.symlink_to(path.name)),
    **{f"a {what}": _instead(make) for what, make in _EXTRA.items() if what != "file"},
}


def of_manifests(save_dir: Path) -> Iterator[Damage]:
    """Manifests whose checksum is right and whose content is not, and other texts."""
    path = save_dir / NEWEST / "manifest.json"
    found = json.loads(path.read_bytes())
    del found["checksum"]
    state = found["files"]["state.json"]
    values = [None, True, -1, 0.5, "x", [], [1], {}, {"a": None}, 10**400, "\ud800", _nested(400)]
    for key in found:
        for value in values:
            if not (value == [] and key == "reasons") and not _is_like(value, found[key], key):
                is_newer = key == "format" and value == 10**400
                yield _manifest(
                    f"{key} is {value!r:.30}", {**found, key: value}, NEWER if is_newer else FOUND
                )
        yield _manifest(f"without {key}", {k: v for k, v in found.items() if k != key})
    yield _manifest("with a key more", {**found, "more": 1})
    for key in found["position"]:
        for value in (None, -1, 1.0, "1", True, 499, 10**30):
            changed = {**found["position"], key: value}
            yield _manifest(f"{key} is {value!r}", {**found, "position": changed})
    for key, value in [("size", -1), ("size", 10**30), ("size", "1"), ("size", state["size"] + 1)]:
        files = {**found["files"], "state.json": {**state, key: value}}
        yield _manifest(f"{key} of a file is {value!r}", {**found, "files": files})
    for value in ("", "0" * 32, state["xxh3"].upper(), None, 5, "é" * 32):
        files = {**found["files"], "state.json": {**state, "xxh3": value}}
        yield _manifest(f"xxh3 of a file is {value!r}", {**found, "files": files})
    for name in NAMES:
        yield _manifest(f"names {name!r:.30}", {**found, "files": {**found["files"], name: state}})
        moved = {name if key == "state.json" else key: v for key, v in found["files"].items()}
        yield _manifest(f"names {name!r:.30} for state.json", {**found, "files": moved})
    for name in found["files"]:
        fewer = {key: value for key, value in found["files"].items() if key != name}
        yield _manifest(f"does not name {name}", {**found, "files": fewer})
    for what, number in [("zero", 0), ("text", "1"), ("real", 1.0), ("true", True)]:
        yield _manifest(f"its format is {what}", {**found, "format": number})
    for number in (2, 3, 99, 10**30):
        yield _manifest(f"its format is {number}", {**found, "format": number}, NEWER)
    text = path.read_text()
    for number in (2, 7, 99, 10**30):
        changed = text.replace('"format": 1', f'"format": {number}')
        yield _text(f"its format is {number}, the rest as it was", changed.encode(), NEWER)
    for flipped in (0, 3, 5, 9):
        changed = text.replace('"format": 1', f'"format": {flipped}')
        yield _text(f"the digit of its format has a flipped bit: {flipped}", changed.encode())
    yield _text("every key is twice there", (text.rstrip()[:-1] + "," + text[1:]).encode())
    twice = text.replace('"run_id"', '"files": {}, "run_id"', 1)
    yield _text("its files are twice there", twice.encode())
    twice = text.replace('"size"', '"size": 1, "size"', 1)
    yield _text("the size of a file is twice there", twice.encode())
    number = text.replace('"world_size": 1', '"world_size": 1e999')
    yield _text("a number is infinite", number.encode())
    number = text.replace('"world_size": 1', '"world_size": ' + "1" * 5000)
    yield _text("a number has 5000 digits", number.encode())
    for what, data in _TEXTS.items():
        yield _text(what, data)
    for coding in ("utf-16", "utf-32", "utf-8-sig", "utf-7"):
        changed = text.replace("run-a", "run-ä") if coding == "utf-7" else text
        yield _text(f"in {coding}", changed.encode(coding))


NAMES = (
    "..", ".", "", "/", "../x", f"../{OLDER}/state.json", f"../{NEWEST}/state.json", "./state.json",
    "/etc/passwd", "a/b", "a\\b", "..\\x", "a\0b", "state.json\0", ".hidden", "a\nb", "x" * 256,
    "manifest.json", "\ud800", "\u202estate.json", "state.json/", "~/x", "C:\\x",
)  # fmt: skip
_TEXTS = {
    "nothing but null": b"null",
    "a list": b"[]",
    "an empty object": b"{}",
    "an open bracket 100,000 times": b"[" * 100_000,
    "objects in objects": b'{"a":' * 100_000,
    "no UTF-8": b'{"format": 1, "run_id": "\xff"}',
    "NaN": b'{"format": NaN}',
    "a format of 10,000 digits": b'{"format": ' + b"9" * 10_000 + b"}",
    "a comment": b"// {}",
    "zeros": bytes(4096),
    "a pickle": b"\x80\x04}.",
    "HTML": b"<html>404</html>",
}


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _is_like(value: Any, right: Any, key: str) -> bool:
    """Whether a value is as good as the right one, which no reader can tell."""
    if value == {} and key == "versions":
        return True
    is_text = isinstance(value, str) and isinstance(right, str)
    is_count = key == "world_size" and type(value) is int and value > 0
    none_is_right = value is None and key in ("parent", "origin")
    return value == right and type(value) is type(right) or is_text or is_count or none_is_right


def _manifest(what: str, content: Dict[str, Any], outcome: str = FOUND) -> Damage:
    return _text(what, with_checksum(content), outcome)


def _text(what: str, data: bytes, outcome: str = FOUND) -> Damage:
    return Damage(f"manifest.json: {what}", _put("manifest.json", data), outcome)


def with_checksum(content: Dict[str, Any]) -> bytes:
    """A manifest as an enemy would write it, who knows the format."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    checksum = xxhash.xxh3_128_hexdigest(text.encode())
    return json.dumps({**content, "checksum": checksum}).encode()


def forge(checkpoint: Path, name: str, data: bytes) -> None:
    """Replaces a file, and makes the manifest fit."""
    (checkpoint / name).write_bytes(data)
    found = json.loads((checkpoint / "manifest.json").read_bytes())
    del found["checksum"]
    found["files"][name] = {"size": len(data), "xxh3": xxhash.xxh3_128_hexdigest(data)}
    (checkpoint / "manifest.json").write_bytes(with_checksum(found))


def of_states(save_dir: Path) -> Iterator[Damage]:
    """state.json files that fit their manifest and say something wrong."""
    found = json.loads((save_dir / NEWEST / "state.json").read_bytes())
    for key in found:
        for value in (None, True, -1, "x", [None], {"a": 1}, 10**400, _nested(400)):
            if (key, value) == ("rank", None):
                continue
            outcome = NEWER if key == "format" and value == 10**400 else FOUND
            yield _state(f"{key} is {value!r:.30}", {**found, key: value}, outcome)
        if key != "rank":
            yield _state(f"without {key}", {k: v for k, v in found.items() if k != key})
    yield _state("its format is 2", {**found, "format": 2}, NEWER)
    tensors = found["tensors"]
    for what, names in [("another", ["fc.other"]), ("a number", [5]), ("one more", ["fc.x"])]:
        yield _state(f"names {what}", {**found, "tensors": {**tensors, "model": names}})
    kinds = [("O", 6), ("|V4", 6), ("<M8[s]", 3), ("f4,O", 2), ("|O8", 3), ("<u8x", 3)]
    for kind, size in [*kinds, (None, 3), (5, 3)]:
        as_bytes = {"rng": {"numpy/keys": [kind, [size]]}}
        yield _state(f"has the dtype {kind}", {**found, "as_bytes": as_bytes})
    for shape in ([-7], [10**30], ["6"], None, [7]):
        as_bytes = {"rng": {"numpy/keys": ["<u4", shape]}}
        yield _state(f"has the shape {shape}", {**found, "as_bytes": as_bytes})


def _state(what: str, content: Dict[str, Any], outcome: str = FOUND) -> Damage:
    data = json.dumps(content).encode()

    def apply(save_dir: Path) -> None:
        forge(save_dir / NEWEST, "state.json", data)

    return Damage(f"state.json: {what}, its manifest fits", apply, outcome)


def every(save_dir: Path, seed: int, places: int) -> List[Damage]:
    """All of them."""
    return [
        *of_bytes(save_dir, seed, places),
        *of_files(),
        *of_manifests(save_dir),
        *of_states(save_dir),
    ]


def sample(save_dir: Path, seed: int) -> List[Damage]:
    """Some of each kind, the same for one seed."""
    rnd = random.Random(seed)
    kinds = [list(of_files()), list(of_manifests(save_dir)), list(of_states(save_dir))]
    kinds.append(list(of_bytes(save_dir, seed, 1)))
    counts = (60, 80, 30, 80)
    return [damage for kind, count in zip(kinds, counts) for damage in rnd.sample(kind, count)]
