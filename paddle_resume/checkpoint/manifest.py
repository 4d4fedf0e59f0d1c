"""manifest.json: what a checkpoint consists of, with a checksum of its own."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NoReturn, Optional, Tuple

import xxhash

from paddle_resume.checkpoint import signing
from paddle_resume.checkpoint.faults import NewerFormat, unreadable
from paddle_resume.checkpoint.layout import FORMAT, is_plain_name, parse_folder_name, parse_position
from paddle_resume.errors import CheckpointError
from paddle_resume.regular import read_regular
from paddle_resume.types import Manifest, Origin

__all__ = ["MANIFEST_FILE", "dump_json", "dumps", "loads", "parse_json", "read"]

MANIFEST_FILE = "manifest.json"
_CHECKSUM = "checksum"
_SIGNATURE = "signature"
_SHA256 = "sha256"
_DEEPEST = 300  # above what `codec` and the layout make of the deepest value
_LARGEST = 64 << 20  # bytes: a hundred times that of a run on thousands of processes


def dumps(manifest: Manifest, key: Optional[bytes] = None) -> bytes:
    """Writes a manifest as JSON with a checksum over it.

    Args:
        manifest: its files are filled in; for a signed one their SHA-256 too.
        key: that signs it; None for no signature.

    Returns:
        What manifest.json holds.
    """
    found = asdict(manifest)
    secure = found.pop(_SHA256)
    found["files"] = {
        name: {"size": size, "xxh3": digest, **({_SHA256: secure[name]} if key else {})}
        for name, (size, digest) in manifest.files.items()
    }
    if key is not None:
        found[_SIGNATURE] = signing.sign(_one_form(found), key)
    found[_CHECKSUM] = _checksum(found)
    return dump_json(found, MANIFEST_FILE)


def loads(data: bytes, key: Optional[bytes] = None) -> Manifest:
    """Reads what `dumps` wrote.

    Args:
        data: the bytes of a manifest.json.
        key: that must have signed it; None where signatures do not matter.

    Returns:
        The manifest.

    Raises:
        CheckpointError: it is damaged, of a newer format, or not signed with the key.
    """
    found = parse_json(data, MANIFEST_FILE)
    checksum = found.pop(_CHECKSUM, None)
    _check_format(found, checksum)
    if checksum != _checksum(found):
        _refuse("its own checksum does not fit its content")
    signature = found.pop(_SIGNATURE, None)
    if key is not None:
        signing.verify(_one_form(found), signature, key)
    wanted = set(Manifest.__dataclass_fields__) - {_SHA256}
    if set(found) != wanted:
        _refuse(f"its keys differ in {', '.join(sorted(set(found) ^ wanted))}")
    files = _typed(found, "files", dict)
    digests = ("xxh3", _SHA256) if signature is not None else ("xxh3",)
    return Manifest(
        format=FORMAT,
        run_id=_text(found, "run_id"),
        parent=_parent(found["parent"]),
        origin=_origin(found["origin"]),
        position=parse_position(found["position"]),
        reasons=tuple(_text_of(item, "reasons") for item in _typed(found, "reasons", list)),
        created=_text(found, "created"),
        files={
            name: (_whole(entry["size"], name), entry["xxh3"])
            for name, entry in _entries(files, digests)
        },
        world_size=_whole(found["world_size"], "world_size"),
        versions={
            name: _text_of(version, "versions")
            for name, version in _typed(found, "versions", dict).items()
        },
        sha256={
            name: entry[_SHA256]
            for name, entry in _entries(files, digests)
            if signature is not None
        },
    )


def read(folder: Path, key: Optional[bytes] = None) -> Manifest:
    """Reads the manifest of a checkpoint.

    Args:
        folder: the checkpoint.
        key: see `loads`.

    Returns:
        Its manifest.

    Raises:
        CheckpointError: it is missing or damaged, of a newer format, not signed with the key, or
            of another step than the folder's name says.
    """
    path = folder / MANIFEST_FILE
    try:
        data = read_regular(path, _LARGEST)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing: the checkpoint is not complete") from error
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        manifest = loads(data, key)
    except CheckpointError as error:
        raise type(error)(f"{path}: {error}") from error
    step = parse_folder_name(folder.name)
    if step is not None and step != manifest.position.step:
        raise CheckpointError(
            f"{path} is of step {manifest.position.step}, its folder of step {step}: the folder "
            f"was renamed, or its files come from another checkpoint"
        )
    return manifest


def dump_json(value: Mapping[str, Any], name: str) -> bytes:
    """Writes JSON that every parser reads: without NaN. The order of keys is part of a state.

    Args:
        value: JSON values.
        name: of the file, for the message.

    Returns:
        The text, indented where it is small.

    Raises:
        CheckpointError: a value is not JSON.
    """
    try:
        text = json.dumps(value, allow_nan=False)
        if len(text) < 65536:
            text = json.dumps(value, allow_nan=False, indent=1)
        if _is_deeper(value, _DEEPEST):
            raise RecursionError(f"nested more than {_DEEPEST} deep")
    except (TypeError, ValueError, RecursionError) as error:
        where = _first_unwritable(value, "")
        raise CheckpointError(f"{name} cannot be written as JSON: {where or error}") from error
    return text.encode() + b"\n"


def parse_json(data: bytes, name: str) -> Dict[str, Any]:
    """Reads a JSON object.

    Args:
        data: the text.
        name: of the file, for the message.

    Returns:
        The object.

    Raises:
        CheckpointError: it is not a JSON object, says something twice, or is nested too deeply.

    Example:
        >>> parse_json(b'{"step": 5}', "finished.json")
        {'step': 5}
    """
    try:
        found = json.loads(
            data.decode("utf-8"),
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_once_each,
        )
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name} is damaged: not JSON ({error})") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{name} holds a {type(found).__name__}; a JSON object expected")
    if _is_deeper(found, _DEEPEST):  # whoever goes through it may do so by recursion
        raise CheckpointError(f"{name} is damaged: it is nested more than {_DEEPEST} deep")
    return found


def _is_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        below = [item for item in level if isinstance(item, (dict, list, tuple))]
        level = [x for item in below for x in (item.values() if isinstance(item, dict) else item)]
        if not level:
            return False
    return True


def _first_unwritable(value: Any, path: str) -> Optional[str]:
    if len(path) > 1000:
        return f"{path[:60]}… is nested too deeply"
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    for key, item in items:
        found = _first_unwritable(item, f"{path}/{key}")
        if found:
            return found
    try:
        if not items:
            json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return f"{path} is {value!r:.60} ({type(value).__name__})"
    return None


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.40} is no number that a computer holds")
    return number


def _once_each(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        # Other programs take the first, or all: what one has checked another would not load.
        for key, _ in pairs:
            if key not in found:
                raise ValueError(f"the key {key!r:.60} stands there twice")
            del found[key]
    return found


def _one_form(found: Mapping[str, Any]) -> bytes:
    """One text for one content, whatever the white space and the order of keys."""
    text = json.dumps(found, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return text.encode()


def _checksum(found: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(_one_form(found))


def _check_format(found: Mapping[str, Any], checksum: Any) -> None:
    number = found.get("format")
    if type(number) is not int or number < 1:
        _refuse(f"its format is {number!r:.60}; {FORMAT} expected")
    if number > FORMAT:
        # A flipped bit in that one digit must not look like a newer paddle_resume's.
        if _is_one_bit_off(number) and checksum == _checksum({**found, "format": FORMAT}):
            _refuse(f"its format is {number}, and {FORMAT} was written")
        raise NewerFormat(
            f"it was written by a newer paddle_resume (format {number}, this one reads up to "
            f"{FORMAT}): upgrade paddle_resume to use this checkpoint"
        )


def _is_one_bit_off(number: int) -> bool:
    return number < 10 and bin(ord(str(number)) ^ ord(str(FORMAT))).count("1") == 1


def _refuse(why: str) -> NoReturn:
    raise CheckpointError(f"the manifest is damaged: {why}")


def _typed(found: Mapping[str, Any], key: str, kind: type) -> Any:
    if not isinstance(found[key], kind):
        _refuse(f"{key} is {found[key]!r:.60}; a {kind.__name__} expected")
    return found[key]


def _text(found: Mapping[str, Any], key: str) -> str:
    return _text_of(found[key], key)


def _text_of(value: Any, key: str) -> str:
    if not isinstance(value, str):
        _refuse(f"{key} holds {value!r:.60}; text expected")
    return str(value)


def _whole(value: Any, key: str) -> int:
    if type(value) is not int or value < 0:
        _refuse(f"{key} holds {value!r:.60}; a whole number expected")
    return int(value)


def _parent(value: Any) -> Optional[Tuple[str, int]]:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        _refuse(f"parent is {value!r:.60}; a run and its step expected")
    return _text_of(value[0], "parent"), _whole(value[1], "parent")


def _origin(value: Any) -> Optional[Origin]:
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) != {"resume_from", "run_id", "step"}:
        _refuse(f"origin is {value!r:.60}; resume_from, run_id and step expected")
    return Origin(
        _text(value, "resume_from"),
        None if value["run_id"] is None else _text(value, "run_id"),
        None if value["step"] is None else _whole(value["step"], "origin"),
    )


def _entries(
    files: Mapping[str, Any], digests: Tuple[str, ...]
) -> Iterator[Tuple[str, Mapping[str, Any]]]:
    for name, entry in files.items():
        if not is_plain_name(name) or name == MANIFEST_FILE:
            _refuse(f"{name!r:.60} is not the name of a file in the checkpoint's folder")
        if not isinstance(entry, dict) or set(entry) != {"size", *digests}:
            _refuse(f"{name} has {entry!r:.60}; size and {' and '.join(digests)} expected")
        for digest in digests:
            _text_of(entry[digest], name)
        yield name, entry
