"""resume_callbacks: everything with good defaults."""

from __future__ import annotations

import difflib
import inspect
from typing import Any, List

from paddle_resume.callbacks.auto_resume import AutoResume
from paddle_resume.callbacks.base import ResumeCallback, SaveDir
from paddle_resume.callbacks.best_saver import BestSaver
from paddle_resume.callbacks.emergency_saver import EmergencySaver
from paddle_resume.callbacks.periodic_saver import PeriodicSaver
from paddle_resume.errors import ConfigError

__all__ = ["resume_callbacks"]

_KINDS = (AutoResume, PeriodicSaver, BestSaver, EmergencySaver)


def resume_callbacks(save_dir: SaveDir, **keys: Any) -> List[ResumeCallback]:
    """Builds the callbacks of a run that can be killed at any time.

    Args:
        save_dir: where the run's checkpoints are.
        **keys: any argument of `AutoResume`, `PeriodicSaver`, `BestSaver` and `EmergencySaver`.
            Without one of its own, BestSaver stands aside where fit has no evaluation.

    Returns:
        The callbacks, for `fit(callbacks=...)`.

    Raises:
        ConfigError: an unknown or wrong argument.

    Example:
        >>> [type(c).__name__ for c in resume_callbacks("output/run1", snapshot_step=500)]
        ['AutoResume', 'PeriodicSaver', 'BestSaver', 'EmergencySaver']
    """
    known = {kind: set(inspect.signature(kind).parameters) - {"save_dir"} for kind in _KINDS}
    allowed = sorted(set().union(*known.values()))
    for key in keys:
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{key} is no argument.{hint} Allowed: {', '.join(allowed)}.")
    callbacks = [
        kind(save_dir, **{key: value for key, value in keys.items() if key in known[kind]})
        for kind in _KINDS
    ]
    own = known[BestSaver] - {"extra", "sign_key"}
    for item in callbacks:
        if isinstance(item, BestSaver):
            item.needs_evaluation = not own & set(keys)
    return callbacks
