"""A config, read and validated: the settings, and where each comes from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Set, Tuple

from pydantic import BaseModel, ValidationError

from paddle_resume.config.document import SECTION, KeyPath
from paddle_resume.config.layers import (
    Config,
    Layer,
    file_layers,
    merged,
    override_layer,
    place_of,
    sections,
)
from paddle_resume.config.problems import ALLOWED, problem_of_policy, problems
from paddle_resume.config.schema import Settings
from paddle_resume.errors import ConfigError
from paddle_resume.save_dir import VARIABLE, replacement, save_dir_from_environment

__all__ = ["Loaded", "Setting", "describe", "load"]

_KEYS = tuple(path[0] for path in ALLOWED if len(path) == 1)
_MOST_PROBLEMS = 10


@dataclass(frozen=True)
class Setting:
    """One effective setting.

    Attributes:
        key: dotted, such as `"best.monitor"`.
        value: what is used.
        source: `"default"`, a file and line, an override, or `PADDLE_RESUME_SAVE_DIR`.
    """

    key: str
    value: Any
    source: str


@dataclass(frozen=True)
class Loaded:
    """A validated config.

    Attributes:
        name: of the config, for messages.
        settings: all of them, defaults too.
        layers: what was given, the last one winning.
    """

    name: str
    settings: Settings
    layers: Tuple[Layer, ...]

    def source(self, path: KeyPath) -> Optional[str]:
        """Returns where a key's value was given; None where it is the default."""
        given: Any = self.settings
        for key in path:
            if not isinstance(given, BaseModel) or key not in given.model_fields_set:
                return None
            given = getattr(given, key)
        place = place_of(path, self.layers) or self.name
        of_this = f"{self.name}, "  # an override of this config
        return place[len(of_this) :] if place.startswith(of_this) else place

    def explained(self, error: ConfigError) -> ConfigError:
        """Adds file and key to what a callback says about its arguments."""
        return ConfigError(problem_of_policy(str(error), _places(self.name, self.layers)))


def load(config: Config, overrides: Optional[Sequence[str]] = ()) -> Loaded:
    """Reads and validates a config, without Paddle.

    Args:
        config: the path of a YAML file, or a dict.
        overrides: `"a.b=value"` each; the later ones win.

    Returns:
        The settings and where they come from.

    Raises:
        ConfigError: something is wrong; every wrong key is named.

    Example:
        >>> load({"save_dir": "output/run1"}, ["best.monitor=acc"]).settings.best
        Best(monitor='acc', mode='auto', min_delta=0.0, keep_best_max=1)
    """
    files = file_layers(config)
    name = files[-1].name
    ours = [*sections(files, _KEYS), *_overrides(overrides, name, _others(files))]
    folder = replacement()
    if folder is not None:  # replaces a save_dir, so it also does without one
        ours.insert(0, Layer(VARIABLE, {"save_dir": str(folder)}))
    values = merged(ours)
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        found = problems(error, values, _places(name, ours))
        raise ConfigError(_together(name, found)) from error
    return Loaded(name, settings, tuple(ours))


def describe(config: Config, overrides: Optional[Sequence[str]] = ()) -> Tuple[Setting, ...]:
    """Tells the effective settings, and where each comes from.

    Args:
        config: the path of a YAML file, or a dict.
        overrides: `"a.b=value"` each; the later ones win.

    Returns:
        All settings, those of a section that is off as one.

    Raises:
        ConfigError: something is wrong; every wrong key is named.

    Example:
        >>> for setting in describe({"save_dir": "/run1", "best": False}, ["snapshot_epoch=2"])[:2]:
        ...     print(setting.key, setting.value, setting.source)
        save_dir /run1 the config
        snapshot_epoch 2 override 'snapshot_epoch=2'
    """
    loaded = load(config, overrides)
    found = []
    for path, value in _leaves(loaded.settings):
        source = loaded.source(path) or "default"
        if path == ("save_dir",):
            value, source = _final_save_dir(value, source)
        found.append(Setting(".".join(path), value, source))
    return tuple(found)


def _others(files: Sequence[Layer]) -> Set[Any]:
    """The keys of a training config that are not ours."""
    if not any(SECTION in layer.values for layer in files):
        return set()
    return {key for layer in files for key in layer.values} - {SECTION, *_KEYS}


def _overrides(overrides: Optional[Sequence[str]], name: str, others: Set[Any]) -> List[Layer]:
    """The layers of the overrides, but for those that are for others."""
    if isinstance(overrides, str):
        raise ConfigError(f"overrides={overrides!r}: a list expected: [{overrides!r}]")
    found = []
    for text in overrides or ():
        layer = override_layer(text, name)
        if SECTION in layer.values:
            layer = layer.section(SECTION)
        elif not others.isdisjoint(layer.values):
            continue
        found.append(layer)
    return found


def _places(name: str, layers: Sequence[Layer]) -> Callable[[KeyPath], str]:
    def place(path: KeyPath) -> str:
        return place_of(path, layers) or name

    return place


def _together(name: str, found: Sequence[str]) -> str:
    if len(found) == 1:
        return found[0]
    lines = [f"{name}: {len(found)} settings cannot be used:", *found[:_MOST_PROBLEMS]]
    if len(found) > _MOST_PROBLEMS:
        lines.append(f"and {len(found) - _MOST_PROBLEMS} more")
    return "\n  ".join(lines)


def _leaves(settings: BaseModel, above: KeyPath = ()) -> List[Tuple[KeyPath, Any]]:
    found: List[Tuple[KeyPath, Any]] = []
    for name, value in settings:
        path = (*above, name)
        if isinstance(value, BaseModel):
            found += _leaves(value, path)
        else:
            off = value is None and path in (("best",), ("emergency",))
            found.append((path, False if off else value))
    return found


def _final_save_dir(save_dir: str, source: str) -> Tuple[str, str]:
    if not os.environ.get(VARIABLE):
        return save_dir, source
    return str(save_dir_from_environment(Path(save_dir))), VARIABLE
