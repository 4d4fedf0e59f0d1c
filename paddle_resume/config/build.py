"""callbacks_from_config: the callbacks that a config describes."""

from __future__ import annotations

from typing import List, Optional, Sequence

from paddle_resume.callbacks.auto_resume import AutoResume
from paddle_resume.callbacks.base import ResumeCallback
from paddle_resume.callbacks.best_saver import BestSaver
from paddle_resume.callbacks.emergency_saver import EmergencySaver
from paddle_resume.callbacks.periodic_saver import PeriodicSaver
from paddle_resume.config.layers import Config
from paddle_resume.config.schema import SECTIONS, Settings
from paddle_resume.config.settings import load
from paddle_resume.errors import ConfigError

__all__ = ["callbacks_from_config"]


def callbacks_from_config(
    config: Config, overrides: Optional[Sequence[str]] = ()
) -> List[ResumeCallback]:
    """Builds the callbacks of a run from YAML.

    The keys are the callbacks' argument names: those of PeriodicSaver beside `save_dir`, the others
    in the sections `best`, `emergency` and `resume`. They fill a file of their own, or the section
    `Resume:` of a training config. `best: false` and `emergency: false` turn these off. `_BASE_:`
    names a file, or several, that this one is based on. A relative `save_dir` counts from the
    current folder, as everywhere; `PADDLE_RESUME_SAVE_DIR` replaces it.

    Args:
        config: the path of a YAML file, or what would stand in one as a dict.
        overrides: `"a.b=value"` each, the value in YAML; they win over the file.

    Returns:
        The callbacks, for `fit(callbacks=...)`.

    Raises:
        ConfigError: something is wrong: file, key, value, nearest valid key, allowed values.

    Example:
        >>> import paddle_resume as pr
        >>> config = {"save_dir": "output/run1", "snapshot_step": 500, "best": False}
        >>> callbacks = pr.callbacks_from_config(config, overrides=["snapshot_epoch=2"])
        >>> [type(callback).__name__ for callback in callbacks]
        ['AutoResume', 'PeriodicSaver', 'EmergencySaver']
    """
    loaded = load(config, overrides)
    try:
        return _build(loaded.settings)
    except ConfigError as error:
        raise loaded.explained(error) from error


def _build(settings: Settings) -> List[ResumeCallback]:
    periodic = {key: value for key, value in settings if key not in SECTIONS}
    save_dir, key = periodic.pop("save_dir"), {"sign_key": periodic.pop("sign_key")}
    made: List[ResumeCallback] = [
        AutoResume(save_dir, **dict(settings.resume), **key),
        PeriodicSaver(save_dir, **periodic, **key),
    ]
    if settings.best is not None:
        saver = BestSaver(save_dir, **dict(settings.best), **key)
        # As from resume_callbacks: one that nobody asked for stands aside without an evaluation.
        saver.needs_evaluation = "best" not in settings.model_fields_set
        made.append(saver)
    if settings.emergency is not None:
        made.append(EmergencySaver(save_dir, **dict(settings.emergency), **key))
    return made
