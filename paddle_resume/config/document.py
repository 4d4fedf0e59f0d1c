"""One YAML text: read safely, with the line of each setting."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Tuple

import yaml

from paddle_resume.errors import ConfigError

__all__ = ["SECTION", "Document", "KeyPath", "Tagged", "parse"]

SECTION = "Resume"
"""The section of a bigger training config that is ours."""

KeyPath = Tuple[str, ...]

_DEEPEST = 3  # Resume, best, monitor: below that no key is ours
_PYTHON = "tag:yaml.org,2002:python/"


@dataclass(frozen=True)
class Document:
    """What a text says.

    Attributes:
        values: its content; None for an empty text.
        lines: where each key of ours stands, from 1.
    """

    values: Any
    lines: Mapping[KeyPath, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Tagged:
    """A value under a tag of someone else, such as PaddleDetection's `!CosineDecay`.

    Attributes:
        tag: with its exclamation mark.
    """

    tag: str

    def __repr__(self) -> str:
        return self.tag


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, without YAML 1.1's surprises in what a plain word means."""


def _resolvers() -> Dict[str, List[Any]]:
    # YAML 1.1 reads 1e-4 as a text, 1:30 as 90, 010 as 8, and 2024-01-01, a good name for a folder,
    # as a date. Numbers are written as in Python and YAML 1.2; nothing else is one.
    kept = ("bool", "null", "merge")
    found: Dict[str, List[Any]] = {}
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items():
        found[first] = [rule for rule in rules if rule[0].rpartition(":")[2] in kept]
    whole = re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$")
    real = re.compile(
        r"^[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
        r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$|^\.(?:nan|NaN|NAN)$"
    )
    for first in "-+.0123456789":
        found.setdefault(first, []).append(("tag:yaml.org,2002:int", whole))
        found[first].append(("tag:yaml.org,2002:float", real))
    return found


_Loader.yaml_implicit_resolvers = _resolvers()
_Loader.add_multi_constructor("!", lambda loader, tag, node: Tagged("!" + tag))


def parse(text: str, name: str) -> Document:
    """Reads a YAML text. Nothing that it names is ever run.

    Args:
        text: the YAML.
        name: of the file or the override, for messages.

    Returns:
        What it says.

    Raises:
        ConfigError: it is no YAML, asks for Python objects, or gives a key of ours twice.

    Example:
        >>> parse("Resume:\\n  save_dir: output/run1\\n", "train.yml").values
        {'Resume': {'save_dir': 'output/run1'}}
        >>> parse("min_delta: 1e-4", "best.yml").values
        {'min_delta': 0.0001}
        >>> parse("a: 1\\na: 2", "twice.yml")
        Traceback (most recent call last):
        paddle_resume.errors.ConfigError: twice.yml:2: a is given twice, first in line 1. Keep one.
    """
    loader: Any = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines = _lines(node, name)
        return Document(None if node is None else loader.construct_document(node), lines)
    except yaml.constructor.ConstructorError as error:
        raise ConfigError(_not_allowed(error, name)) from error
    except yaml.MarkedYAMLError as error:
        raise ConfigError(
            f"{_place(name, error.problem_mark, column=True)}: this is no valid YAML: "
            f"{error.problem or error.context}. Often the indentation, a missing space after a "
            "colon, a tab, or an open bracket or quote above is the cause."
        ) from error
    # PyYAML trips over some values of its own tags (!!timestamp x).
    except (
        yaml.YAMLError,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise ConfigError(f"{name}: this is no valid YAML: {error}") from error
    except RecursionError:
        raise ConfigError(f"{name}: this YAML is nested too deeply to be read") from None
    finally:
        if loader is not None:
            loader.dispose()


def _not_allowed(error: "yaml.constructor.ConstructorError", name: str) -> str:
    place, problem = _place(name, error.problem_mark), error.problem or ""
    if _PYTHON not in problem:
        return f"{place}: this is no valid YAML here: {problem}"
    tag = problem.partition(_PYTHON)[2].strip("'\"")
    return (
        f"{place}: !!python/{tag} asks to run or to make something of Python. A config is loaded "
        "safely, so nothing was run; numbers, words, lists and sections are allowed. Take it out, "
        "and look where this file comes from."
    )


def _place(name: str, mark: Any, column: bool = False) -> str:
    if mark is None:
        return name
    return f"{name}:{mark.line + 1}" + (f":{mark.column + 1}" if column else "")


def _lines(node: Any, name: str) -> Dict[KeyPath, int]:
    """Finds the line of each key of ours, and refuses those that are given twice."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    # In a training config a section of someone else is left alone, twice or not.
    shared = any(key.value == SECTION for key, _ in node.value)
    lines: Dict[KeyPath, int] = {}
    todo: List[Tuple[KeyPath, Any]] = [((), node)]
    while todo:
        above, mapping = todo.pop()
        for key, value in mapping.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
                continue
            path = (*above, key.value)
            if shared and path[0] not in (SECTION, "_BASE_"):
                continue
            line = key.start_mark.line + 1
            if path in lines:
                raise ConfigError(
                    f"{name}:{line}: {'.'.join(path)} is given twice, first in line "
                    f"{lines[path]}. Keep one."
                )
            lines[path] = line
            if isinstance(value, yaml.MappingNode) and len(path) < _DEEPEST:
                todo.append((path, value))
    return lines
