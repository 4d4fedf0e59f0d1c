"""Where settings come from: a file, the files it is based on, overrides; each is one layer."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from paddle_resume.config.document import SECTION, Document, KeyPath, parse
from paddle_resume.errors import ConfigError

__all__ = ["BASE", "Layer", "file_layers", "merged", "override_layer", "place_of", "sections"]

BASE = "_BASE_"

Config = Union[str, "os.PathLike[str]", Mapping[str, Any]]


@dataclass(frozen=True)
class Layer:
    """Settings from one place; a later layer wins over an earlier one.

    Attributes:
        name: of the place, for messages.
        values: sections are mappings.
        lines: where each key stands, from 1, as far as known.
    """

    name: str
    values: Mapping[Any, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def place(self, path: KeyPath) -> str:
        """Returns the place of a key: file and line."""
        return f"{self.name}:{self.lines[path]}" if path in self.lines else self.name

    def section(self, name: str) -> "Layer":
        """Returns what stands in one section.

        Raises:
            ConfigError: it is no section.
        """
        values = self.values[name]
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"{self.place((name,))}: {name}: {values!r} found, a section with `key: value` "
                "lines, such as save_dir: output/run1, expected"
            )
        inside = {path[1:]: line for path, line in self.lines.items() if path[0] == name}
        return Layer(self.name, values, inside)


def file_layers(config: Config) -> List[Layer]:
    """Reads a config and all that it is based on.

    Args:
        config: the path of a file, or what would stand in one.

    Returns:
        The layers, whole files, the first base first and the config itself last.

    Raises:
        ConfigError: a file is missing, cannot be read, is no mapping, or is based on itself.

    Example:
        >>> [layer.values for layer in file_layers({"save_dir": "output/run1"})]
        [{'save_dir': 'output/run1'}]
    """
    if isinstance(config, Mapping):
        return list(_with_bases(Layer("the config", config), Path(), ()))
    if not isinstance(config, (str, os.PathLike)) or not isinstance(os.fspath(config), str):
        raise ConfigError(f"config={config!r}: the path of a YAML file, or a dict, expected")
    return list(_from_file(Path(config).expanduser(), ()))


def override_layer(text: str, file: str) -> Layer:
    """Reads an override such as `best.monitor=acc`.

    Args:
        text: a dotted key, `=`, and a value in YAML.
        file: what it overrides, for messages.

    Returns:
        A layer that holds this one key.

    Raises:
        ConfigError: it has another form, or its value is no YAML.

    Example:
        >>> override_layer("best.monitor=acc", "resume.yml").values
        {'best': {'monitor': 'acc'}}
    """
    name = f"{file}, override {text!r}"
    example = "key=value, such as snapshot_epoch=2 or best.monitor=acc"
    if not isinstance(text, str) or "=" not in text:
        raise ConfigError(f"{name}: there is no `=`; {example} expected")
    key, _, value = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not all(path):
        raise ConfigError(f"{name}: {key!r} is no key; {example} expected")
    if not value.strip():
        # An unset shell variable looks like this, and null would mean "keep all", "off", ...
        raise ConfigError(f"{name}: there is no value after `=`; for nothing write {key}=null")
    values: Any = parse(value, name).values
    for part in reversed(path):
        values = {part: values}
    return Layer(name, values)


def sections(layers: Sequence[Layer], keys: Sequence[str]) -> List[Layer]:
    """Takes out what is for paddle_resume.

    A file that has a `Resume:` section gives that and nothing else. Where no file has one, the
    files are ours as a whole. Where only others have one, a file counts if all its keys are ours.

    Args:
        layers: whole files.
        keys: all keys of ours.

    Returns:
        The settings of each file.
    """
    shared = any(SECTION in layer.values for layer in layers)
    found = []
    for layer in layers:
        if SECTION in layer.values:
            found.append(layer.section(SECTION))
        elif not shared or all(key in keys for key in layer.values):
            found.append(layer)
    return found


def merged(layers: Sequence[Layer]) -> Dict[Any, Any]:
    """Merges layers deeply, the later ones winning.

    Example:
        >>> base = Layer("base.yml", {"save_dir": "a", "best": {"monitor": "acc", "mode": "max"}})
        >>> merged([base, Layer("child.yml", {"best": {"monitor": "f1"}})])
        {'save_dir': 'a', 'best': {'monitor': 'f1', 'mode': 'max'}}
    """
    total: Dict[Any, Any] = {}
    for layer in layers:
        total = _merged(total, layer.values)
    return total


def place_of(path: KeyPath, layers: Sequence[Layer]) -> Optional[str]:
    """Returns where a key's value comes from: the last layer that has it; None for no layer."""
    for layer in reversed(layers):
        if _has(layer.values, path):
            return layer.place(path)
    return None


def _merged(below: Mapping[Any, Any], above: Mapping[Any, Any]) -> Dict[Any, Any]:
    total = dict(below)
    for key, value in above.items():
        old = total.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        total[key] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return total


def _has(values: Any, path: KeyPath) -> bool:
    for key in path:
        if not isinstance(values, Mapping) or key not in values:
            return False
        values = values[key]
    return True


def _from_file(path: Path, chain: Tuple[Path, ...]) -> Iterator[Layer]:
    chain = (*chain, path)
    text = _read(path, chain)
    document = parse(text, str(path))
    if document.values is None:
        raise ConfigError(f"{path}: the file says nothing; at least save_dir: FOLDER expected")
    yield from _with_bases(_whole(path, document), path.parent, chain)


def _whole(path: Path, document: Document) -> Layer:
    if not isinstance(document.values, Mapping):
        kind = "a list" if isinstance(document.values, list) else "a single value"
        raise ConfigError(
            f"{path}: {kind} found; lines of `key: value` expected, such as save_dir: output/run1"
        )
    return Layer(str(path), document.values, document.lines)


def _with_bases(layer: Layer, folder: Path, chain: Tuple[Path, ...]) -> Iterator[Layer]:
    """The layers of a file: those of its bases, one after the other, then its own."""
    for name in _bases(layer):
        base = folder / Path(name).expanduser()
        if os.path.realpath(base) in map(os.path.realpath, chain):
            raise ConfigError(
                f"{layer.place((BASE,))}: {BASE} goes round in a circle: "
                f"{_arrows((*chain, base))}. Take one of them out."
            )
        yield from _from_file(base, chain)
    own = {key: value for key, value in layer.values.items() if key != BASE}
    yield Layer(layer.name, own, layer.lines)


def _is_path(name: Any) -> bool:
    return isinstance(name, str) and bool(name) and "\0" not in name


def _bases(layer: Layer) -> List[str]:
    found = layer.values.get(BASE, [])
    names = [found] if isinstance(found, str) else found
    good = isinstance(names, (list, tuple)) and all(_is_path(name) for name in names)
    if not good:
        raise ConfigError(
            f"{layer.place((BASE,))}: {BASE}: {found!r:.200} found; the path of a file, or a "
            "list of such, expected"
        )
    return list(names)


def _read(path: Path, chain: Sequence[Path]) -> str:
    based = f" It was asked for as {BASE}: {_arrows(chain)}." if len(chain) > 1 else ""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        where = "" if path.is_absolute() else f" (looked for {path.absolute()})"
        raise ConfigError(f"{path}: there is no such file{where}.{based}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: this is a folder; a YAML file expected.{based}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{path}:{line}: the byte 0x{error.object[error.start]:02x} is no UTF-8. Save the "
            f"file as UTF-8 text.{based}"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: the file cannot be read: {error}.{based}") from error


def _arrows(chain: Sequence[Path]) -> str:
    return " -> ".join(map(str, chain))
