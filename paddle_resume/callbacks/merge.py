"""What several callbacks of one save_dir ask for together."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from paddle_resume.best import BestPolicy
from paddle_resume.callbacks.auto_resume import AutoResume
from paddle_resume.callbacks.base import ResumeCallback
from paddle_resume.callbacks.best_saver import BestSaver
from paddle_resume.callbacks.emergency_saver import EmergencySaver
from paddle_resume.callbacks.periodic_saver import PeriodicSaver
from paddle_resume.checkpoint.signing import sign_key as read_key
from paddle_resume.errors import ConfigError
from paddle_resume.monitor import check_monitor
from paddle_resume.resumer import ResumePolicy
from paddle_resume.retention import KeepNewest
from paddle_resume.saver import SavePolicy
from paddle_resume.stops import EmergencyPolicy

__all__ = [
    "best_policy",
    "emergency_policy",
    "extra_objects",
    "one_save_dir",
    "resume_policy",
    "save_policy",
    "sign_key",
]

_KEPT_OF_EMERGENCIES = 3  # as PeriodicSaver's default


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


def best_policy(
    callbacks: Sequence[ResumeCallback], metrics: Sequence[str], evaluates: bool
) -> Optional[BestPolicy]:
    """Returns what BestSaver asks for; None where there is none, or it stands aside.

    Args:
        callbacks: of one fit.
        metrics: that this fit has.
        evaluates: whether it has an evaluation.

    Raises:
        ConfigError: there are several, or its monitor is none of the metrics.
    """
    found = [item for item in callbacks if isinstance(item, BestSaver)]
    if len(found) > 1:
        raise ConfigError(f"{len(found)} BestSaver callbacks in one fit: keep one")
    if not found or (found[0].needs_evaluation and not evaluates):
        return None
    check_monitor(found[0].policy.monitor, metrics)
    return found[0].policy


def emergency_policy(callbacks: Sequence[ResumeCallback]) -> Optional[EmergencyPolicy]:
    """Returns what EmergencySaver asks for; None where there is none.

    Raises:
        ConfigError: there are several.
    """
    found = [item.policy for item in callbacks if isinstance(item, EmergencySaver)]
    if len(found) > 1:
        raise ConfigError(f"{len(found)} EmergencySaver callbacks in one fit: keep one")
    return found[0] if found else None


def save_policy(
    callbacks: Sequence[ResumeCallback], best: Optional[BestPolicy]
) -> Optional[SavePolicy]:
    """Returns what the savers ask for together; None where there is none.

    Args:
        callbacks: of one fit.
        best: what `best_policy` returned.
    """
    periodic = [item.policy for item in callbacks if isinstance(item, PeriodicSaver)]
    if periodic:
        return SavePolicy(
            triggers=tuple(trigger for policy in periodic for trigger in policy.triggers),
            retention=tuple(rule for policy in periodic for rule in policy.retention),
            in_background=all(policy.in_background for policy in periodic),
            best=best,
        )
    if emergency_policy(callbacks) is not None:
        return SavePolicy((), (KeepNewest(_KEPT_OF_EMERGENCIES),), True, best)
    return None if best is None else SavePolicy((), (KeepNewest(1),), True, best)


def sign_key(callbacks: Sequence[ResumeCallback]) -> Optional[bytes]:
    """Returns the key that the checkpoints are signed with; None where nobody asks for it.

    Raises:
        ConfigError: they name several variables, or it holds no key.
    """
    names = sorted({item.sign_key for item in callbacks if item.sign_key is not None})
    if len(names) > 1:
        raise ConfigError(
            f"the callbacks of one fit have {len(names)} sign_keys: {', '.join(names)}. Give them "
            "one and the same."
        )
    return read_key(names[0]) if names else None


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
