"""Which checkpoint a start goes on from, and what it leaves behind. Pure functions."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence, Tuple, Union

from paddle_resume.errors import CheckpointError, ConfigError
from paddle_resume.types import Manifest, Origin, ResumePlan

__all__ = [
    "FORMS",
    "Entry",
    "ResumeFrom",
    "descendants",
    "new_run_id",
    "newer_not_of_line",
    "parse_resume_from",
    "plan",
    "select",
]

Entry = Tuple[Path, Manifest]
"""A checkpoint's folder and its manifest."""

_WORDS = ("auto", "never", "best", "finite")
_NUMBERED = ("epoch", "step")
FORMS = '"auto", "never", "best", "finite", "epoch:50", "step:500" or the path of a checkpoint'


@dataclass(frozen=True)
class ResumeFrom:
    """A parsed `resume_from`.

    Attributes:
        kind: auto, never, best, finite, epoch, step or path.
        text: the argument as given; a start is recognised by it when it is made again.
        number: of the epoch or step.
    """

    kind: str
    text: str
    number: int = -1


def parse_resume_from(text: Union[str, "os.PathLike[str]"]) -> ResumeFrom:
    """Reads the argument `resume_from`.

    Args:
        text: as the user gave it.

    Returns:
        What it means.

    Raises:
        ConfigError: it is none of the allowed forms.

    Example:
        >>> parse_resume_from("step:500")
        ResumeFrom(kind='step', text='step:500', number=500)
    """
    if isinstance(text, os.PathLike):
        return ResumeFrom("path", _same_text(os.fspath(text)))
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"resume_from={text!r}: {FORMS} expected")
    if text in _WORDS:
        return ResumeFrom(text, text)
    if text in ("latest", "last", "newest") and not os.path.exists(text):
        raise ConfigError(
            f'resume_from={text!r}: did you mean "auto", the newest? {FORMS} expected'
        )
    kind, colon, number = text.partition(":")
    if not colon or kind not in _NUMBERED:
        return ResumeFrom("path", _same_text(text))
    if not (number.isascii() and number.isdigit() and len(number) <= 18):
        raise ConfigError(f"resume_from={text!r}: {number!r} is not a number; {FORMS} expected")
    return ResumeFrom(kind, text, int(number))


def descendants(resume_from: str, entries: Sequence[Entry]) -> List[Entry]:
    """The checkpoints of the run that an earlier start with the same argument made.

    Args:
        resume_from: the argument as given.
        entries: all checkpoints, newest first.

    Returns:
        Those of the newest such run, newest first.
    """
    own = [entry for entry in entries if _origin_text(entry[1]) == resume_from]
    return [entry for entry in own if entry[1].run_id == own[0][1].run_id]


def newer_not_of_line(
    source_step: int, run_id: Optional[str], entries: Sequence[Entry]
) -> List[Path]:
    """The checkpoints in the way of a run that goes on from a step.

    Args:
        source_step: where it goes on from; -1 for a start from nothing.
        run_id: the run that goes on; None for a new one.
        entries: all checkpoints, newest first.

    Returns:
        Those that are newer and of another run, newest first.
    """
    return [
        path
        for path, manifest in entries
        if manifest.position.step > source_step and manifest.run_id != run_id
    ]


def select(resume_from: ResumeFrom, entries: Sequence[Entry]) -> List[Entry]:
    """Finds the checkpoint at a step, or the one at the end of an epoch.

    Args:
        resume_from: of kind step or epoch.
        entries: all checkpoints, newest first.

    Returns:
        Those that fit, newest first.

    Raises:
        CheckpointError: none does; the nearest ones are named.
    """
    found = [entry for entry in entries if _number(resume_from.kind, entry) == resume_from.number]
    if found:
        return found
    numbers = {_number(resume_from.kind, entry) for entry in entries} - {None}
    nearest = sorted(sorted(numbers, key=lambda n: abs(n - resume_from.number))[:5])  # type: ignore
    there = ", ".join(f"{resume_from.kind}:{number}" for number in nearest)
    raise CheckpointError(
        f"resume_from={resume_from.text!r}: no checkpoint is at this {resume_from.kind}; "
        + (f"the nearest ones are {there}" if there else f"none is at any {resume_from.kind} here")
    )


def plan(
    resume_from: ResumeFrom,
    goes_on: bool,
    source: Optional[Entry],
    entries: Sequence[Entry],
    rejected: Sequence[Tuple[Path, str]] = (),
) -> ResumePlan:
    """Decides under which run a start writes, and what it leaves behind.

    Args:
        resume_from: the parsed argument.
        goes_on: whether the source's own run goes on; else a new run starts from it.
        source: the checkpoint that has been found good; None for a start from nothing.
        entries: all checkpoints of the save_dir, newest first.
        rejected: folder and fault of those that were not good, newest first; they are not also
            left behind.

    Returns:
        The plan, with action "fresh" or "continue".
    """
    bad = {path for path, _ in rejected}
    if source is None:
        step, parent = -1, None
    else:
        step = source[1].position.step
        parent = (source[1].run_id, step)
    if goes_on and source is not None:
        run_id, origin = source[1].run_id, source[1].origin
    else:
        run_id, origin = new_run_id(), None
        if resume_from.kind != "auto":
            origin = Origin(resume_from.text, *(parent or (None, None)))
    # One from elsewhere has no place here: what stands at its very step is in the way too.
    here = {os.path.realpath(path) for path, _ in entries}
    elsewhere = source is not None and os.path.realpath(source[0]) not in here
    in_the_way = newer_not_of_line(step - elsewhere, run_id, entries)
    return ResumePlan(
        action="fresh" if source is None else "continue",
        source=source[0] if source else None,
        run_id=run_id,
        parent=parent,
        origin=origin,
        rejected=tuple(rejected),
        leave_behind=tuple(path for path in in_the_way if path not in bad),
    )


def _same_text(path: str) -> str:
    """One text for one checkpoint, so that a start made again is recognised; a link stays one."""
    path = os.path.normpath(path)
    stem, ending = os.path.splitext(path)
    if ending in (".pdparams", ".pdopt"):
        path = stem
    return os.path.dirname(path) if os.path.isfile(path + ".pdparams") else path


def new_run_id() -> str:
    """Makes an id that no other run has and that sorts by time.

    Example:
        >>> len(new_run_id())
        24
    """
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(4)


def _origin_text(manifest: Manifest) -> Optional[str]:
    return manifest.origin.resume_from if manifest.origin else None


def _number(kind: str, entry: Entry) -> Optional[int]:
    position = entry[1].position
    if kind == "step":
        return position.step
    return position.epoch if position.batch == 0 else None
