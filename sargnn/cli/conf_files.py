"""One file of a configuration folder: its settings with comments and lines, and what its defaults list names.

Hydra composes; this reads the same files for help, completion and messages, without Hydra, which takes time to import.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from sargnn.errors import ConfigError


@dataclass(frozen=True)
class FileSetting:
    """A setting as a file has it.

    Attributes:
        key: dotted, as it is overridden on the command line.
        value: as it is written. comment: beside it, or above it.
        path, line: where.
    """

    key: str
    value: str
    comment: str
    path: Path
    line: int


@dataclass(frozen=True)
class Named:
    """What a line of a defaults list names.

    Attributes:
        group: of a choice (``group: option``); empty for a file that is built on.
        option: the choice, or the file's path without suffix, relative to the file's folder unless it starts with ``/``.
        package: after ``@``, if there is one. override: it replaces another file's choice.
    """

    group: str
    option: str
    package: str | None
    override: bool


@dataclass(frozen=True)
class ConfFile:
    """One file, read.

    Attributes:
        package: of its header ``# @package``. sentence: its first comment.
        defaults: its defaults list. own_first: whether its own settings come before those of the files that it names.
        settings: its own, with keys relative to its package.
    """

    path: Path
    package: str | None
    sentence: str
    defaults: tuple[Named, ...]
    own_first: bool
    settings: tuple[FileSetting, ...]


def read_file(path: Path) -> ConfFile:
    """Raises ``ConfigError`` with the line for what is no YAML, and for what is no mapping."""
    try:
        state = path.stat()
    except (OSError, ValueError):
        return _read(path, 0, 0)  # which says why
    return _read(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=1024)
def _read(path: Path, _changed_ns: int, _size: int) -> ConfFile:
    try:
        text = path.read_text()
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise broken_yaml(error, path) from error
    except (OSError, ValueError) as error:
        problem = str(error).splitlines()[0]
        raise ConfigError(f"A configuration file cannot be read: {problem}.", given=show_path(path)) from error
    except RecursionError as error:
        raise ConfigError("A configuration file is nested too deeply.", given=show_path(path)) from error
    if root is not None and not isinstance(root, yaml.MappingNode):
        raise ConfigError("A configuration file must hold settings.", given=show_path(path), allowed="lines of KEY: VALUE")
    lines = text.splitlines()
    comments = [line.lstrip("# ").strip() for line in lines if line.startswith("#")]
    package = next((comment.removeprefix("@package").strip() for comment in comments if comment.startswith("@package")), None)
    sentence = next((comment for comment in comments if comment and not comment.startswith("@")), "")
    defaults: list[Named] = []
    own_first = False
    settings: list[FileSetting] = []
    for key, value in root.value if root is not None else ():
        if key.value == "defaults" and isinstance(value, yaml.SequenceNode):
            entries = [named for entry in value.value for named in _named(entry)]
            own_first = bool(entries) and entries[0].option == "_self_"
            defaults = [default for default in entries if default.option != "_self_"]
        elif isinstance(key, yaml.ScalarNode):
            settings += _leaves(key, value, "", lines, path, text)
    return ConfFile(path, package, sentence, tuple(defaults), own_first, tuple(settings))


def broken_yaml(error: yaml.YAMLError, path: Path | None = None) -> ConfigError:
    """The message that names the file and the line."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if path is None and mark is not None:
        path = Path(str(mark.name))
    line = f", line {mark.line + 1}" if mark is not None else ""
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    place = f"{show_path(path) if path else '?'}{line}"
    return ConfigError(f"A configuration file is no YAML: {problem}.", given=place)


def show_path(path: Path) -> str:
    """Relative to the working folder where it lies in it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _named(entry: yaml.Node) -> Iterator[Named]:
    if isinstance(entry, yaml.ScalarNode):
        option, _, package = str(entry.value).removeprefix("optional ").partition("@")
        yield Named("", option, package or None, False)
    elif isinstance(entry, yaml.MappingNode):
        for key, value in entry.value:
            words = str(key.value).split()
            group, _, package = words[-1].partition("@") if words else ("", "", "")
            options = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for option in options:
                yield Named(group, str(option.value), package or None, "override" in words[:-1])


def _leaves(
    key: yaml.Node, value: yaml.Node, prefix: str, lines: Sequence[str], path: Path, text: str
) -> Iterator[FileSetting]:
    name = f"{prefix}{key.value}"
    if isinstance(value, yaml.MappingNode) and value.value:
        for inner_key, inner_value in value.value:
            if isinstance(inner_key, yaml.ScalarNode):
                yield from _leaves(inner_key, inner_value, f"{name}.", lines, path, text)
        return
    start, end = value.start_mark, value.end_mark
    written = " ".join(text[start.index : end.index].split()) or "null"
    rest = lines[end.line][end.column :] if end.line < len(lines) and end.line == key.start_mark.line else ""
    beside = re.match(r"\s*#\s*(.*)", rest)
    comment = beside.group(1).strip() if beside else _above(lines, key.start_mark.line)
    yield FileSetting(name, written, comment, path, key.start_mark.line + 1)


def _above(lines: Sequence[str], line: int) -> str:
    """The comment directly above a line, unless it is the one that the file begins with."""
    first = line
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return " ".join(comment.strip().lstrip("# ") for comment in lines[first:line]) if first else ""
