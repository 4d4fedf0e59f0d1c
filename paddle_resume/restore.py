"""Puts a loaded state back into a training, part by part."""

from __future__ import annotations

from typing import Collection, Sequence

from paddle_resume.errors import CheckpointError, MismatchError, ResumeError
from paddle_resume.observe.log import log
from paddle_resume.types import Component, TrainingState

__all__ = ["restore"]

_MOST_NAMED = 10


def restore(
    state: TrainingState,
    components: Sequence[Component],
    known: Collection[str],
    optional: Collection[str],
    partial: bool,
    source: str,
) -> None:
    """Puts a state back.

    Args:
        state: as loaded.
        components: in the order to restore them.
        known: names of the parts that others restore.
        optional: names of the parts that a checkpoint need not have, nor the run.
        partial: load what fits, and list the rest.
        source: the checkpoint, for messages.

    Raises:
        MismatchError: the checkpoint does not fit this run.
        CheckpointError: a part holds something else than was ever written.
    """
    names = {component.name for component in components}
    strange = [name for name in state.parts if name not in {*names, *known, *optional}]
    problems = [f"the checkpoint has a part {name!r}, which this run has not" for name in strange]
    _refuse(problems, partial, source)
    for component in components:
        captured = state.parts.get(component.name)
        if captured is None and component.name in optional:
            continue
        if captured is None:
            problems = [f"the checkpoint has no part {component.name!r}"]
        else:
            try:
                problems = component.restore(captured)
            except ResumeError:
                raise
            except Exception as error:  # odd content, or a set_state_dict() that fails
                raise CheckpointError(
                    f"{source}: its part {component.name!r} cannot be restored: "
                    f"{type(error).__name__}: {error}"
                ) from error
        _refuse(problems, partial, source)


def _refuse(problems: Sequence[str], partial: bool, source: str) -> None:
    if not problems:
        return
    lines = [f"  {problem}" for problem in problems[:_MOST_NAMED]]
    if len(problems) > _MOST_NAMED:
        lines.append(f"  and {len(problems) - _MOST_NAMED} more")
    text = "\n".join(lines)
    if not partial:
        raise MismatchError(
            f"{source} does not fit this run:\n{text}\nMake these the same as in the run that "
            "wrote it; give another fit, fold or stage a folder of its own (another save_dir); or "
            "set partial=True to load what fits."
        )
    log.warning("partial=True: not restored:\n%s", text)
