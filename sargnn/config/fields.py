"""Dataclasses from plain mappings, checked field by field; every mistake is a ``ConfigError`` with its key's dotted name.

A setting is said once, in its class. The class's docstring has what help says of it, a line under ``Attributes:``. The field's
metadata has what is allowed, such as bounds, targets, a table of settings classes, what the setting decides, and what a command
starts from. It is joined with ``|``: ``field(metadata=AT_LEAST_ONE | FREE | starts(3))``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
import reprlib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from sargnn.errors import MOST_SHOWN, ConfigError, nearest
from sargnn.resolve import absolute_target, describe_source, is_target, load_attribute, resolve

T = TypeVar("T")
Metadata = dict[str, Any]

TARGET: Metadata = {"target": True}
"""A text that names an object outside the package (``sargnn.resolve``); its path is made absolute."""

PATH: Metadata = {"path": True}
"""A path, made absolute; a relative one starts at the working folder."""

PLAIN_NAME: Metadata = {"plain": True}
"""A text that can be a part of a folder's name."""


def chosen_from(kind: str, table: str) -> Metadata:
    """A group whose settings class is found by its ``name``, or named by its ``target``.

    Args:
        kind: what is chosen ("model"), for messages.
        table: where the table of classes is, as "module:ATTRIBUTE".
    """
    return {"kind": kind, "table": table}


def one_of(names: Sequence[str] | str) -> Metadata:
    """One of these texts, of NAME@K with any whole number from 1 for K, or a target. ``names``: the texts, or where the table
    is that has them, as "module:ATTRIBUTE"."""
    return {"one_of": names} | TARGET


def names_of(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """What ``one_of`` allows beside a target; none where it says nothing."""
    names = metadata.get("one_of", ())
    return tuple(load_attribute(names) if isinstance(names, str) else names)


def is_among(value: str, names: Sequence[str]) -> bool:
    """Whether the names, as ``one_of`` has them, allow the text."""
    return re.sub(r"@[1-9]\d{0,17}$", "@K", value) in names and not value.endswith("@K")


def gone(values: Mapping[str, str]) -> Metadata:
    """Values that earlier versions knew, and what to use instead."""
    return {"gone": values}


def starts(value: Any, **by_task: Any) -> Metadata:
    """What holds where no file of options and no word of a command says otherwise, if that is not the field's default: this is
    what a run's file means that lacks the setting. A setting with neither must be given.

    ``by_task``: what holds instead where a run has that task.
    """
    return {"start": value, "by_task": by_task}


def only_with(*options: str) -> Metadata:
    """Only options of these names have the setting."""
    return {"only_with": options}


def number(*, low: float | None = None, high: float | None = None, open_low: bool = False, open_high: bool = False) -> Metadata:
    """Bounds, themselves allowed unless open."""
    return {"low": low, "high": high, "open_low": open_low, "open_high": open_high}


POSITIVE = number(low=0, open_low=True)
NOT_NEGATIVE = number(low=0)
AT_LEAST_ONE = number(low=1)
PROBABILITY = number(low=0, high=1, open_high=True)
FRACTION = number(low=0, high=1)

DECIDES = "decides"
LOSSES: Metadata = {DECIDES: "losses"}
"""The losses depend on it: a resumed run keeps it, and it is in ``config_hash``."""
RUN: Metadata = {DECIDES: "run"}
"""It tells runs apart that are compared: it may change when a run is resumed, but not between two submissions of one run."""
FREE: Metadata = {DECIDES: "nothing"}
"""It may change whenever a run is started or submitted again."""

ALWAYS_HASHED: Metadata = {"always": True}
"""In ``config_hash`` also at its default. Other settings are left out there: a new one leaves older hashes as they are."""

_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 200


def brief(value: Any) -> str:
    """``repr``, cut where it is long or deep: a value from a file may be of any size."""
    try:
        return _BRIEF.repr(value)
    except (ValueError, RecursionError):  # a number of more digits than Python writes
        return f"a value of type {type(value).__name__} that is too long to show"


def check_plain(value: Any, key: str) -> None:
    """Refuse what cannot be written to a file and compared. Raises ``ConfigError``."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str):
                hint = f"{{'{name}': ...}}" if isinstance(name, int | float) else None
                raise ConfigError(f"'{key}' has a name that is no text.", given=brief(name), allowed="{name: value}", hint=hint)
            check_plain(inner, f"{key}.{name}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            check_plain(inner, f"{key}[{index}]")
    elif not isinstance(value, str | int | float | None):
        allowed = "a number, a text, true, false, null, a list or a mapping"
        raise ConfigError(f"'{key}' has a value that no setting can have.", given=brief(value), allowed=allowed)


def written(value: Any) -> str:
    """As a command line and a file of options have it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def build(cls: type[T], mapping: Any, prefix: str) -> T:
    """An instance of the dataclass ``cls``. Raises ``ConfigError`` for unknown and missing keys, wrong types, and bounds.

    ``prefix``: of the keys' names, with its dot.
    """
    if not isinstance(mapping, dict):
        what = f"'{prefix.rstrip('.')}' must be a group of settings." if prefix else "A configuration is a mapping of settings."
        names = [f"{prefix}{field.name}" for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        raise ConfigError(what, given=brief(mapping), allowed=names if prefix else ())
    hints = get_type_hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in mapping:
        if key not in known:
            name = key if isinstance(key, str) and len(key) < 200 else brief(key)
            raise ConfigError(
                f"There is no setting '{prefix}{name}'.", allowed=[prefix + setting for setting in nearest(name, known)]
            )
    values: dict[str, Any] = {}
    for key, spec in known.items():
        if key not in mapping:
            if spec.default is not dataclasses.MISSING or spec.default_factory is not dataclasses.MISSING:
                continue
            raise ConfigError(f"The setting '{prefix}{key}' is missing.")
        values[key] = _convert(hints[key], mapping[key], prefix + key, dict(spec.metadata))
    return cls(**values)


MUST_BE_GIVEN = "???"
"""What a setting without a default starts from, as Hydra has it."""


@functools.cache
def starts_of(
    cls: Any, name: str = "", leave: frozenset[str] = frozenset(), task: str | None = None
) -> dict[str, tuple[Any, str]]:
    """Dotted key -> what a command starts from, and what help says, of those of a class's settings that its docstring names.

    Args:
        name: of the option that is chosen.
        leave: names of groups that have options of their own.
        task: of the run; None: the usual one.
    """
    hints = _hints(cls)
    meanings: dict[str, str] = {}
    values: dict[str, tuple[Any, str]] = {}
    for base in reversed(cls.__mro__):
        meanings |= documented(base.__doc__ or "")
    for field in dataclasses.fields(cls):
        says, hint = field.metadata, hints[field.name]
        if dataclasses.is_dataclass(hint):
            if "table" not in says and field.name not in leave:
                assert isinstance(hint, type)
                values |= {f"{field.name}.{key}": inner for key, inner in starts_of(hint).items()}
        elif field.name in meanings and name in says.get("only_with", (name,)):
            by_task = says.get("by_task", {})
            start = by_task.get(task, says.get("start", field.default))
            if field.name not in ("name", "target") or "start" in says:  # these are an option's own
                meaning = meanings[field.name].replace("``", "").removesuffix(".")
                meaning += "".join(f"; task={other}: {written(value)}" for other, value in by_task.items())
                values[field.name] = (MUST_BE_GIVEN if start is dataclasses.MISSING else start, meaning)
    return values


def started_by_task(settings: Any, task: str, prefix: str = "") -> list[str]:
    """``KEY=VALUE`` of each setting of a dataclass that has what ``starts`` names for a task."""
    words = []
    for field in dataclasses.fields(settings):
        value, by_task = getattr(settings, field.name), field.metadata.get("by_task", {})
        if dataclasses.is_dataclass(value):
            words += started_by_task(value, task, f"{prefix}{field.name}.")
        elif task in by_task and by_task[task] == value:
            words.append(f"{prefix}{field.name}={written(value)}")
    return words


def documented(docstring: str) -> dict[str, str]:
    """Attribute -> what a docstring's ``Attributes:`` says of it."""
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in docstring.partition("Attributes:")[2].splitlines():
        if match := re.match(r" {8}(\w[\w, ]*): (.*)", line):
            names = [name.strip() for name in match.group(1).split(",")]
            meanings |= dict.fromkeys(names, match.group(2))
        elif line.startswith(" " * 12):
            meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
    return meanings


_hints = functools.cache(get_type_hints)


def class_of(settings: Any, group: str, values: Mapping[str, Any]) -> Any:
    """The package's settings class of a group as it is chosen; None where there is none, or a user's own.

    Args:
        settings: the class that has the group.
        values: the group's settings, of which ``name`` and ``target`` count.
    """
    field = settings.__dataclass_fields__.get(group)
    if field is None or "table" not in field.metadata:
        hint = _hints(settings)[group] if field is not None else None
        return hint if dataclasses.is_dataclass(hint) else None
    place = load_attribute(field.metadata["table"]).get(str(values.get("name")))
    cls: Any = load_attribute(place) if place is not None else None
    return cls if cls is not None and (not values.get("target") or getattr(cls, "reads_target", None)) else None


def _convert(hint: Any, value: Any, key: str, metadata: Metadata) -> Any:
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        if value == "None" and type(None) in options:
            raise ConfigError(f"'{key}' would be a text.", given=brief(value), hint=f"{key}=null")
        kinds = [option for option in options if option is not type(None)]
        words = next((kind for kind in kinds if get_origin(kind) is Literal), None)
        if len(kinds) > 1 and words is not None:  # words, or another type
            if value in get_args(words):
                return value
            if isinstance(value, str):
                other = next(kind for kind in kinds if kind is not words)
                allowed = [*_describe(words), str(_describe(other))]
                raise ConfigError(f"'{key}' has a value that is not known.", given=brief(value), allowed=allowed)
            kinds.remove(words)
        kinds.sort(key=lambda kind: (get_origin(kind) is dict) != isinstance(value, dict))  # one value, or a mapping
        return _convert(kinds[0], value, key, metadata)
    if dataclasses.is_dataclass(hint):
        return build(_choose(hint, value, key, metadata) if "table" in metadata else hint, value, f"{key}.")  # type: ignore[arg-type]
    if origin is list:
        if not isinstance(value, list):
            raise ConfigError(f"'{key}' must be a list.", given=brief(value), allowed="[a,b,c]")
        return [_convert(options[0], entry, f"{key}[{index}]", metadata) for index, entry in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict) or not all(isinstance(entry_name, str) for entry_name in value):
            raise ConfigError(f"'{key}' must be a mapping.", given=brief(value), allowed="{name: value}")
        return {name: _convert(options[1], entry, f"{key}.{name}", metadata) for name, entry in value.items()}
    if hint is not Any and isinstance(value, list | dict):
        raise ConfigError(
            f"'{key}' takes one value.", given=brief(value), allowed=_describe(hint), hint=_for_several(key, value)
        )
    if origin is Literal:
        if value in metadata.get("gone", {}):
            raise ConfigError(f"'{key}={value}' is gone.", allowed=metadata["gone"][value])
        if value not in options:
            allowed = _nearest_first(str(value), _describe(hint))
            raise ConfigError(f"'{key}' has a value that is not known.", given=brief(value), allowed=allowed)
        return value
    if hint is Any:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            value = math.inf if value > 0 else -math.inf
    if hint is str and isinstance(value, int | float) and not isinstance(value, bool):
        value = brief(value)  # a name such as 2024 reaches us as a number
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        meant = _as_meant(value, hint)
        hint_for = f"{key}={meant}" if meant is not None else None
        raise ConfigError(f"'{key}' has the wrong type.", given=brief(value), allowed=_describe(hint), hint=hint_for)
    if hint in (int, float):
        _check_bounds(value, key, metadata)
    return _check_text(value, key, metadata) if hint is str else value


_TYPE_NAMES: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _describe(hint: Any) -> str | list[str]:
    """What a value of the type looks like."""
    if get_origin(hint) is Literal:
        return [str(literal).lower() if isinstance(literal, bool) else str(literal) for literal in get_args(hint)]
    return _TYPE_NAMES.get(hint, str(hint))


def _for_several(key: str, value: Any) -> str | None:
    """What to write where a list stands for one value."""
    values = [str(entry) for entry in value] if isinstance(value, list) else []
    if not values or not all(re.fullmatch(r"[\w.+-]{1,40}", text) for text in values):
        return None
    return f"{key}={values[0]}" if len(values) == 1 else f"-m {key}={','.join(values)} runs them all"


def _as_meant(value: Any, hint: Any) -> str | None:
    """The value of this type that another one stands for, such as 10 for 10.0 or "10"."""
    try:
        number = float(value) if isinstance(value, str | float) and hint in (int, float) else math.nan
    except ValueError:
        return None
    if not math.isfinite(number) or (hint is int and not number.is_integer()):
        return None
    return str(int(number)) if hint is int else repr(number)


def _check_bounds(value: float, key: str, metadata: Metadata) -> None:
    low, high = metadata.get("low"), metadata.get("high")
    too_low = low is not None and (value <= low if metadata["open_low"] else value < low)
    too_high = high is not None and (value >= high if metadata["open_high"] else value > high)
    if (isinstance(value, int) or math.isfinite(value)) and not too_low and not too_high:
        return
    words = []
    if low is not None:
        words.append(f"{'more than' if metadata['open_low'] else 'at least'} {low}")
    if high is not None:
        words.append(f"{'less than' if metadata['open_high'] else 'at most'} {high}")
    raise ConfigError(f"'{key}' is out of range.", given=brief(value), allowed=" and ".join(words) or "a finite number")


def _nearest_first(value: str, names: Sequence[str]) -> list[str]:
    """All the names; of more than a message shows, those like the value come first."""
    alike = nearest(value[:200], names) if len(names) > MOST_SHOWN else []
    return [*alike, *(name for name in names if name not in alike)]


def _check_text(value: str, key: str, metadata: Metadata) -> str:
    """A target, or a path, made absolute; any other text as it is, if it is allowed."""
    if metadata.get("plain") and not re.fullmatch(r"\w[\w.+-]{0,99}", value):
        raise ConfigError(
            f"'{key}' cannot be a part of a folder's name.", given=brief(value), allowed="letters, digits, . _ + -"
        )
    if metadata.get("path"):
        return os.path.abspath(os.path.expanduser(value))
    names = names_of(metadata)
    if is_among(value, names):
        return value
    if names and not is_target(value):
        raise ConfigError(
            f"'{key}' has a value that is not known.",
            given=brief(value),
            allowed=["FILE.py:NAME", *_nearest_first(value, names)]
            if len(names) > MOST_SHOWN
            else [*(nearest(value, names) or names), "FILE.py:NAME"],
        )
    return absolute_target(f"setting '{key}'", value) if metadata.get("target") else value


def _choose(base: Any, value: Any, key: str, metadata: Metadata) -> Any:
    """The settings class of a group: that of its ``name`` in the table, or the one that its ``target`` names."""
    table: dict[str, str] = load_attribute(metadata["table"])
    name, target = (value.get("name"), value.get("target")) if isinstance(value, dict) else (None, None)
    known = load_attribute(table[name]) if isinstance(name, str) and name in table else None
    if target is None or getattr(known, "reads_target", None):
        if known is None:
            raise ConfigError(f"'{key}.name' is not known.", given=brief(name), allowed=nearest(str(name)[:200], table))
        return known
    if not isinstance(target, str):
        raise ConfigError(f"'{key}.target' has the wrong type.", given=brief(target), allowed="a text")
    target_class = resolve(metadata["kind"], table, str(name)[:200], target)
    if not (isinstance(target_class, type) and issubclass(target_class, base) and "__dataclass_fields__" in vars(target_class)):
        allowed = f"a dataclass that extends {base.__name__}"
        hint = next(
            (f"{key}={option} takes {text}" for option in table if (text := load_attribute(table[option]).reads_target)), None
        )
        raise ConfigError(f"'{key}.target' does not name a class of settings.", given=target, allowed=allowed, hint=hint)
    if missing := sorted(getattr(target_class, "__abstractmethods__", ())):
        raise ConfigError(
            f"The class that '{key}.target' names is not complete.", given=target, hint=f"define {', '.join(missing)} in it"
        )
    return target_class


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases: a few lines of them can stand for a document that fits no memory."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read")
        return super().compose_node(parent, index)


def read_yaml(path: Path, what: str) -> Any:
    """The file's document, of plain values.

    ``what``: the file's role ("A run's configuration"), for the message. Raises ``ConfigError``: the file cannot be read, is no
    YAML, is nested too deeply or has aliases.
    """
    try:
        return yaml.load(path.read_text(), Loader=_PlainLoader)  # a SafeLoader
    except (yaml.YAMLError, OSError, ValueError, RecursionError) as error:
        nested = isinstance(error, RecursionError)
        reason = "it is nested too deeply" if nested else (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{what} cannot be read.", given=str(path), hint=reason) from error


def only_when(name: str) -> Metadata:
    """The setting decides the losses only where this property of ``RunConfig`` is true; else it is of the kind ``RUN``."""
    return {"when": name}


def hashed_as(value: Any) -> Metadata:
    """It does not decide the losses, and ``config_hash`` holds this value in its place."""
    return {"hashed_as": value}


def find_deciding(settings: Any, run: Any, kind: str = "") -> dict[str, Any]:
    """The settings of a dataclass that decide the losses; those of a group in it as a mapping of their own, also where only one
    of its fields says that it does.

    A setting at its default is left out, so that a new one leaves older runs' hashes as they are. Of a target the name and the
    content of its file are given, not its path.

    Args:
        run: what has the properties that ``only_when`` names.
        kind: what a field decides that says nothing itself.
    """
    deciding: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value, says = getattr(settings, field.name), field.metadata
        if "hashed_as" in says:
            deciding[field.name] = says["hashed_as"]
        elif "when" in says and not getattr(run, says["when"]):
            continue
        elif dataclasses.is_dataclass(value):
            own = says.get(DECIDES, kind)
            inner = find_deciding(value, run, own)
            if inner or own == LOSSES[DECIDES]:
                deciding[field.name] = inner
        elif says.get(DECIDES, kind) != LOSSES[DECIDES]:
            continue
        elif says.get("always") or value != field.default:
            outside = says.get("target") and is_target(str(value))
            if outside and getattr(settings, "reads_target", False):  # what it makes is compared, not how it is written
                deciding[field.name] = str(value).rpartition(":")[2]
            else:
                deciding[field.name] = describe_source(value) if outside else value
    return deciding


def find_free(settings: Any) -> set[str]:
    """The dotted keys of settings that are ``FREE``, in a dataclass where every field says what it decides."""
    free: set[str] = set()
    for field in dataclasses.fields(settings):
        value, kind = getattr(settings, field.name), field.metadata[DECIDES]
        inner = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        kinds = {f"{field.name}.{each.name}": each.metadata.get(DECIDES, kind) for each in inner} or {field.name: kind}
        free |= {key for key, decides in kinds.items() if decides == FREE[DECIDES]}
    return free


def flat(mapping: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value, of a mapping of mappings."""
    flattened: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            flattened |= flat(value, f"{prefix}{key}.")
        else:
            flattened[f"{prefix}{key}"] = value
    return flattened


def as_mapping(settings: Any) -> dict[str, Any]:
    """A settings dataclass as a plain mapping, groups inside it likewise; without ``target`` where there is none."""
    mapping = dataclasses.asdict(settings)
    for group in (mapping, *(value for value in mapping.values() if isinstance(value, dict))):
        if group.get("target", "") is None:
            del group["target"]
    return mapping
