"""Format 1: which file of a checkpoint holds which part of the state. Nothing is read here."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from paddle_resume.checkpoint.faults import NewerFormat
from paddle_resume.errors import CheckpointError
from paddle_resume.types import (
    EPOCH_END,
    TRAIN,
    TRAIN_END,
    Captured,
    Position,
    TrainingState,
)

__all__ = [
    "EXTRA_FILE",
    "FORMAT",
    "NAME_TABLE",
    "STATE_FILE",
    "folder_name",
    "is_plain_name",
    "join",
    "parse_folder_name",
    "parse_position",
    "split",
]

FORMAT = 1
"""Version of the layout that this module writes and reads."""
STATE_FILE = "state.json"
EXTRA_FILE = "extra.pdparams"
NAME_TABLE = "StructuredToParameterName@@"
"""Paddle's own key in a .pdparams: structured name to parameter name."""

_MASTER_WEIGHTS = "master_weights"
_FOLDER = re.compile(r"step_([0-9]{8,})")
_NUMBERS = ("epoch", "batch", "step")
# What plain paddle.load can turn into a tensor; one array of another dtype, such as uint32, and it
# could not open the file. Those are stored as bytes, their dtype and shape in state.json.
_STORED_DTYPE = re.compile(r"[<>|][iufcSU][0-9]{1,9}")
_PADDLE_DTYPES = ("b1", "f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "c8", "c16")


def folder_name(step: int) -> str:
    """Names the folder of the checkpoint at a step.

    Example:
        >>> folder_name(500)
        'step_00000500'
    """
    return f"step_{step:08d}"


def parse_folder_name(name: str) -> Optional[int]:
    """Reads the step from a folder's name.

    Args:
        name: the last component of its path.

    Returns:
        The step; None where the name is not a checkpoint's.

    Example:
        >>> parse_folder_name("step_00000500"), parse_folder_name("step_500.bak")
        (500, None)
    """
    found = _FOLDER.fullmatch(name)
    # int() refuses thousands of digits with a ValueError, and no training gets that far.
    return int(found.group(1)) if found and len(name) < 64 else None


def is_plain_name(name: str) -> bool:
    """Whether a name is that of a file right inside a checkpoint's folder.

    Args:
        name: from a manifest or a part's name; it must not reach outside.

    Returns:
        Whether it does not, and is not one of the hidden names that verification passes over.

    Example:
        >>> is_plain_name("model.pdopt"), is_plain_name("../model.pdopt"), is_plain_name(".x")
        (True, False, False)
    """
    return (
        0 < len(name) <= 255
        and name.isprintable()
        and not name.startswith(".")
        and not any(char in name for char in "/\\")
    )


def parse_position(value: Any) -> Position:
    """Reads a position from its JSON form.

    Args:
        value: whatever the JSON held.

    Returns:
        The position.

    Raises:
        CheckpointError: it is not one.
    """
    if not isinstance(value, dict) or set(value) != {*_NUMBERS, "phase"}:
        raise CheckpointError(f"its position is {value!r}; epoch, batch, step and phase expected")
    if any(type(value[key]) is not int or value[key] < 0 for key in _NUMBERS):
        raise CheckpointError(f"its position is {value!r}; whole numbers from 0 expected")
    if value["phase"] not in (TRAIN, EPOCH_END, TRAIN_END):
        raise CheckpointError(f"its phase is {value['phase']!r}; it is not known here")
    return Position(value["epoch"], value["batch"], value["step"], value["phase"])


def split(state: TrainingState) -> Dict[str, Mapping[str, Any]]:
    """Lays a state out in files.

    Args:
        state: the training's state; tensors are host arrays.

    Returns:
        File name to content: a .json holds JSON values, the others are pickled dicts.

    Raises:
        CheckpointError: two things would need the same place in a file, or a part's name cannot
            be that of a file.

    Example:
        >>> state = TrainingState(Position(0, 5, 5), {"extra": Captured(values={"seen": 80})})
        >>> sorted(split(state))
        ['extra.pdparams', 'state.json']
    """
    files: Dict[str, Dict[str, Any]] = {EXTRA_FILE: {}}
    as_bytes: Dict[str, Dict[str, Any]] = {}
    for part, captured in state.parts.items():
        name, places = _places(part, captured.values, list(captured.tensors))
        if name != EXTRA_FILE:
            if not is_plain_name(name):
                raise CheckpointError(f"the part {part!r} cannot be saved: {name!r} names no file")
            if name in files:
                raise CheckpointError(f"two parts of the state would both be written to {name}")
            files[name] = {}
        kind = captured.values.get("kind")
        if kind == "network":
            files[name][NAME_TABLE] = captured.values["parameter_names"]
        elif kind == "optimizer":
            files[name].update(captured.values.get("pdopt", {}))
        for key, place in places.items():
            tensor = captured.tensors[key]
            if tensor.dtype.str[1:] not in _PADDLE_DTYPES and tensor.dtype.kind in "iufcSU":
                as_bytes.setdefault(part, {})[key] = [tensor.dtype.str, list(tensor.shape)]
                tensor = np.frombuffer(tensor.tobytes(), np.uint8)
            _put(files[name], place, tensor, name)
    files[STATE_FILE] = {
        "format": FORMAT,
        "position": asdict(state.position),
        "inexact": list(state.inexact),
        "parts": {part: captured.values for part, captured in state.parts.items()},
        "tensors": {part: list(captured.tensors) for part, captured in state.parts.items()},
        "as_bytes": as_bytes,
        "ranks": sorted(state.by_rank),
        "rank": state.by_rank.get(0),
    }
    for rank, values in state.by_rank.items():
        if rank > 0:
            files[_rank_file(rank)] = dict(values)
    return dict(files)


def join(files: Mapping[str, Mapping[str, Any]]) -> TrainingState:
    """Puts together what `split` laid out.

    Args:
        files: file name to content, as read back.

    Returns:
        The state.

    Raises:
        CheckpointError: a file or tensor is missing, or the files do not fit together.
    """
    if STATE_FILE not in files:
        raise CheckpointError(f"{STATE_FILE} is missing, without it the state cannot be told")
    found = files[STATE_FILE]
    number = found.get("format")
    if type(number) is int and number > FORMAT:
        raise NewerFormat(
            f"{STATE_FILE} was written by a newer paddle_resume (format {number}, this one reads "
            f"up to {FORMAT}): upgrade paddle_resume to use this checkpoint"
        )
    if type(number) is not int or number < 1:
        raise CheckpointError(f"{STATE_FILE} has format {number!r:.60}, not {FORMAT}")
    values: Mapping[str, Any] = _typed(found, "parts", dict)
    tensors: Mapping[str, Any] = _typed(found, "tensors", dict)
    if set(values) != set(tensors):
        raise CheckpointError(f"{STATE_FILE} names other parts for values than for tensors")
    as_bytes = _typed(found, "as_bytes", dict)
    if set(as_bytes) - set(values):
        raise CheckpointError(f"{STATE_FILE} has dtypes for parts that it does not name")
    parts = {}
    for part in values:
        read = _gather(part, _typed(values, part, dict), _typed(tensors, part, list), files)
        if part in as_bytes:
            _restore_dtypes(part, read, _typed(as_bytes, part, dict))
        parts[part] = Captured(read, values[part])
    by_rank: Dict[int, Mapping[str, Any]] = {}
    for rank in _typed(found, "ranks", list):
        if type(rank) is not int or rank < 0:
            raise CheckpointError(f"{STATE_FILE} names a rank {rank!r}")
        by_rank[rank] = _typed(found, "rank", dict) if rank == 0 else _file(files, _rank_file(rank))
    if 0 not in by_rank and found.get("rank") is not None:
        raise CheckpointError(f"{STATE_FILE} has values of a rank that it does not name")
    inexact = _typed(found, "inexact", list)
    if any(not isinstance(reason, str) for reason in inexact):
        raise CheckpointError(f"{STATE_FILE} has something else than text among its reasons")
    return TrainingState(
        position=parse_position(found.get("position")),
        parts=parts,
        by_rank=by_rank,
        inexact=tuple(inexact),
    )


def _places(
    part: str, values: Mapping[str, Any], keys: Sequence[str]
) -> Tuple[str, Dict[str, Tuple[str, ...]]]:
    """The file of a part, and the path of each of its tensors inside that file's dict."""
    kind = values.get("kind")
    if kind == "network":
        return f"{part}.pdparams", {key: (key,) for key in keys}
    if kind == "optimizer":
        prefix = _MASTER_WEIGHTS + "/"
        return f"{values.get('file')}.pdopt", {
            key: (_MASTER_WEIGHTS, key[len(prefix) :]) if key.startswith(prefix) else (key,)
            for key in keys
        }
    return EXTRA_FILE, {key: (f"{part}/{key}",) for key in keys}


def _put(content: Dict[str, Any], place: Tuple[str, ...], tensor: Any, name: str) -> None:
    for key in place[:-1]:
        content = content.setdefault(key, {})
    if place[-1] in content:
        raise CheckpointError(f"two values would both be written to {'/'.join(place)} in {name}")
    content[place[-1]] = tensor


def _gather(
    part: str,
    values: Mapping[str, Any],
    keys: List[str],
    files: Mapping[str, Mapping[str, Any]],
) -> Dict[str, Any]:
    if any(not isinstance(key, str) for key in keys):
        raise CheckpointError(f"{STATE_FILE} names a tensor of {part} by something not a name")
    name, places = _places(part, values, keys)
    # A part without tensors has a file all the same where it has one of its own.
    content = _file(files, name)
    tensors = {}
    for key, place in places.items():
        found: Any = content
        for step in place:
            if not isinstance(found, dict) or step not in found:
                raise CheckpointError(f"{name} lacks the tensor {'/'.join(place)} of {part}")
            found = found[step]
        if not hasattr(found, "dtype"):
            raise CheckpointError(f"{'/'.join(place)} in {name} is not a tensor")
        tensors[key] = found
    return tensors


def _restore_dtypes(part: str, tensors: Dict[str, Any], as_bytes: Mapping[str, Any]) -> None:
    for key, stored in as_bytes.items():
        try:
            dtype, shape = stored
            if not _STORED_DTYPE.fullmatch(dtype):
                raise ValueError(dtype)
            if any(type(size) is not int or size < 0 for size in shape):
                raise ValueError(shape)
            tensors[key] = tensors[key].view(np.dtype(dtype)).reshape(shape)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{key} of {part} does not fit the dtype and shape {stored!r:.80} that "
                f"{STATE_FILE} has for it"
            ) from error


def _rank_file(rank: int) -> str:
    return f"rank_{rank:05d}.json"


def _file(files: Mapping[str, Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    if name not in files:
        raise CheckpointError(f"{name} is missing, {STATE_FILE} needs it")
    return files[name]


def _typed(found: Mapping[str, Any], key: str, kind: type) -> Any:
    value = found.get(key)
    if not isinstance(value, kind):
        raise CheckpointError(f"{STATE_FILE} has {key} = {value!r:.80}; a {kind.__name__} expected")
    return value
