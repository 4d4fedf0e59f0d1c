"""What is wrong with a config, said to people: place, key, value, what is allowed, what to do."""

from __future__ import annotations

import difflib
import re
import reprlib
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Type

from pydantic import BaseModel, ValidationError

from paddle_resume.config.document import SECTION, KeyPath
from paddle_resume.config.schema import REFUSED, SECTIONS, Settings
from paddle_resume.save_dir import VARIABLE

__all__ = ["ALLOWED", "problem_of_policy", "problems"]

_MODELS: Mapping[KeyPath, Type[BaseModel]] = {
    (): Settings,
    **{(name,): model for name, model in SECTIONS.items()},
}
ALLOWED: Mapping[KeyPath, str] = {
    (*above, name): str(field.description)
    for above, model in _MODELS.items()
    for name, field in model.model_fields.items()
}
"""What each key allows."""

Place = Callable[[KeyPath], str]

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 80, 80
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?")


def problems(error: ValidationError, values: Mapping[Any, Any], place: Place) -> List[str]:
    """Says what pydantic has found.

    Args:
        error: of `Settings`.
        values: what was validated.
        place: tells where a key stands: file and line, or an override.

    Returns:
        A message for each key that is wrong, in the order of the keys.

    Example:
        >>> values = {"save_dir": "output/run1", "snapshot_epochs": 2}
        >>> try:
        ...     Settings.model_validate(values)
        ... except ValidationError as error:
        ...     print(problems(error, values, lambda path: "resume.yml:2")[0][:75])
        resume.yml:2: snapshot_epochs=2: there is no such key. Did you mean snapsho
    """
    found: Dict[KeyPath, str] = {}
    for item in error.errors(include_url=False):
        loc: KeyPath = item["loc"]  # type: ignore[assignment]
        if item["type"] == "invalid_key":
            section = _value(values, loc[:-2])
            loc = (*loc[:-2], next((key for key in section if not isinstance(key, str)), loc[-1]))
        if item["type"] in ("extra_forbidden", "invalid_key"):
            message = f"{place(loc)}: {_unknown(loc, _value(values, loc))}"
        elif item["type"] == REFUSED:
            message = problem_of_policy(item["msg"], place, loc)
        else:
            loc = _known(loc)  # pydantic adds which type of a union it tried
            message = f"{place(loc)}: {_wrong(loc, _value(values, loc))}"
        found.setdefault(loc, message)
    return list(found.values())


def problem_of_policy(message: str, place: Place, above: KeyPath = ()) -> str:
    """Adds the place and the section to what a policy or a callback says about an argument.

    Args:
        message: it begins with the argument's name.
        place: tells where a key stands.
        above: the section, for a message that begins with another word.

    Example:
        >>> problem_of_policy("mode='most': unknown", lambda path: f"best.yml:{len(path)}")
        "best.yml:2: best.mode='most': unknown"
    """
    named = re.match(r"\w+", message)
    name = named.group() if named else ""
    path = next((path for path in ALLOWED if path[-1] == name), None)
    if path is None:
        return f"{place(above)}: {message}"
    return f"{place(path)}: {'.'.join((*path[:-1], message))}"


def _unknown(path: KeyPath, value: Any) -> str:
    *above, name = path
    section, name = tuple(above), str(name)
    what = f"{_shown(path)}={_SHORT.repr(value)}: "
    if name == "extra":
        return what + (
            "objects cannot be written in YAML. A callback of yours with state_dict() and "
            "set_state_dict() is saved with the rest, without being named."
        )
    homes = [home[:-1] for home in ALLOWED if home[-1] == name]
    if homes and not homes[0]:
        return what + f"{name} does not belong to {_shown(section)}: write it beside save_dir."
    if homes:
        home = homes[0][0]
        return what + (
            f"{name} belongs to {home}: write {home}: {{{name}: {_yaml(value)}}}, or "
            f"{home}.{name}={_yaml(value)} as an override"
        )
    here = [key[-1] for key in ALLOWED if key[:-1] == section]
    names = here if section else [*here, SECTION]
    near = _nearest(name, names)
    text = what + "there is no such key."
    if near:
        text += f" Did you mean {_shown((*section, near))}?"
    text += f" Allowed here: {', '.join(here)}."
    if not section and not near:
        text += f" In a training config with other keys, ours stand in a section {SECTION}:."
    return text


def _nearest(name: str, names: Sequence[str]) -> Optional[str]:
    found = difflib.get_close_matches(name, names, 1)
    if found:
        return found[0]
    lowered = {other.lower(): other for other in names}
    found = difflib.get_close_matches(name.lower(), lowered, 1)
    return lowered[found[0]] if found else None


def _wrong(path: KeyPath, value: Any) -> str:
    if path == ("save_dir",) and value is None:
        return (
            "save_dir is missing: write save_dir: output/run1, the folder for the checkpoints, or "
            f"set the variable {VARIABLE} to a folder that does not end with a slash"
        )
    hint = ""
    if value == "None":
        hint = " (in YAML, None is written null)"
    elif isinstance(value, str) and _NUMBER.fullmatch(value):
        hint = " (this is a text: take the quotes away)"
    return f"{_shown(path)}={_SHORT.repr(value)}: {ALLOWED[path]} expected{hint}"


def _known(loc: KeyPath) -> KeyPath:
    return next(loc[:end] for end in range(len(loc), 0, -1) if loc[:end] in ALLOWED)


def _value(values: Any, path: KeyPath) -> Any:
    for key in path:
        if not isinstance(values, Mapping):
            return None
        values = values.get(key)
    return values


def _shown(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _yaml(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    plain = isinstance(value, bool) or value is None
    return words[value] if plain else _SHORT.repr(value).strip("'")
