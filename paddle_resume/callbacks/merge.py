"""What several callbacks of one save_dir ask for together."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from paddle_resume.callbacks.auto_resume import AutoResume
from paddle_resume.callbacks.base import ResumeCallback
from paddle_resume.callbacks.periodic_saver import PeriodicSaver
from paddle_resume.errors import ConfigError
from paddle_resume.resumer import ResumePolicy
from paddle_resume.saver import SavePolicy

__all__ = ["extra_objects", "one_save_dir", "resume_policy", "save_policy"]


def one_save_dir(callbacks: Sequence[ResumeCallback]) -> Path:
    """Returns the save_dir that all of them have.

    Raises:
        ConfigError: they have several.
    """
    folders = sorted({str(item.save_dir) for item in callbacks})
    if len(folders) > 1:
        raise ConfigError(
            f"the callbacks of one fit have {len(folders)} save_dirs: {', '.join(folders)}. Give "
            "them one and the same."
        )
    return callbacks[0].save_dir


def resume_policy(callbacks: Sequence[ResumeCallback]) -> Optional[ResumePolicy]:
    """Returns what AutoResume asks for; None where there is none.

    Raises:
        ConfigError: there are several.
    """
    found = [item.policy for item in callbacks if isinstance(item, AutoResume)]
    if len(found) > 1:
        raise ConfigError(f"{len(found)} AutoResume callbacks in one fit: keep one")
    return found[0] if found else None


def save_policy(callbacks: Sequence[ResumeCallback]) -> Optional[SavePolicy]:
    """Returns what the savers ask for together; None where there is none."""
    found = [item.policy for item in callbacks if isinstance(item, PeriodicSaver)]
    if not found:
        return None
    return SavePolicy(
        triggers=tuple(trigger for policy in found for trigger in policy.triggers),
        retention=tuple(rule for policy in found for rule in policy.retention),
        in_background=all(policy.in_background for policy in found),
    )


def extra_objects(callbacks: Sequence[ResumeCallback]) -> Dict[str, Any]:
    """Returns the union of their `extra`.

    Raises:
        ConfigError: one name stands for two objects.
    """
    objects: Dict[str, Any] = {}
    for callback in callbacks:
        for name, item in callback.extra.items():
            if objects.setdefault(name, item) is not item:
                raise ConfigError(f"extra: two different objects are called {name!r}")
    return objects
