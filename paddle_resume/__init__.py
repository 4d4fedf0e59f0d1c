"""Fault tolerance for training with PaddlePaddle.

Kill a training anywhere, start the same command again, and it goes on as if nothing had happened:

    model.fit(train_set, eval_set, epochs=10, callbacks=pr.resume_callbacks("output/run1"))

Importing this package imports neither Paddle nor any optional dependency; the first name that
needs one does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, List

from paddle_resume._version import __version__
from paddle_resume.errors import (
    CheckpointError,
    ConfigError,
    LockedError,
    MismatchError,
    ResumeError,
)

if TYPE_CHECKING:
    from paddle_resume.callbacks.auto_resume import AutoResume
    from paddle_resume.callbacks.best_saver import BestSaver
    from paddle_resume.callbacks.emergency_saver import EmergencySaver
    from paddle_resume.callbacks.periodic_saver import PeriodicSaver
    from paddle_resume.callbacks.shortcut import resume_callbacks
    from paddle_resume.catalog import Checkpoint, checkpoints, load
    from paddle_resume.config.build import callbacks_from_config

__all__ = [
    "AutoResume",
    "BestSaver",
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "EmergencySaver",
    "LockedError",
    "MismatchError",
    "PeriodicSaver",
    "ResumeError",
    "__version__",
    "callbacks_from_config",
    "checkpoints",
    "load",
    "resume_callbacks",
]

_HOMES = {
    "AutoResume": "paddle_resume.callbacks.auto_resume",
    "BestSaver": "paddle_resume.callbacks.best_saver",
    "Checkpoint": "paddle_resume.catalog",
    "EmergencySaver": "paddle_resume.callbacks.emergency_saver",
    "PeriodicSaver": "paddle_resume.callbacks.periodic_saver",
    "callbacks_from_config": "paddle_resume.config.build",
    "checkpoints": "paddle_resume.catalog",
    "load": "paddle_resume.catalog",
    "resume_callbacks": "paddle_resume.callbacks.shortcut",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> List[str]:
    return sorted(__all__)
