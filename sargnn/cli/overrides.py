"""``key=value`` words as Hydra's grammar reads them; what it cannot read is answered with how to write it."""

from __future__ import annotations

import os
import random
import re
import shlex
from collections.abc import Sequence
from itertools import islice
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, Quote, QuotedString, RangeSweep
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from sargnn.cli.conf import MAPPINGS, ConfFolders, refuse_hydra
from sargnn.errors import ConfigError, nearest

_SHORT = {"memory_budget": "memory_budget.size"}
"""Settings that may be named by their group."""
_MOST_VALUES = 10_000


def readable(override: str) -> str:
    """The same as Hydra reads it: a path that begins with ``~`` as it is meant, ``memory_budget=6GB`` as its size, and
    ``compare=a,b`` as a list, where commas alone are a sweep to Hydra."""
    key, equals, value = override.partition("=")
    if not equals:
        return override
    if key in _SHORT and not value.startswith("{"):
        key = _SHORT[key]
    elif key == "compare" and value not in ("", "null") and not value.startswith("["):
        value = f"[{value}]"
    if value.startswith("~") and "," not in value and (path := os.path.expanduser(value)) != value:
        value = quoted(path)
    return f"{key}={value}"


def is_argument(key: str) -> bool:
    """Whether a key is one that no file of options can name, such as ``model.args.KEY``."""
    return key.startswith(tuple(f"{mapping}." for mapping in MAPPINGS)) or key in MAPPINGS


def quoted(text: str) -> str:
    """A text that stays one, whatever it holds."""
    return QuotedString(text=text, quote=Quote.single).with_quotes()


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Raises ``ConfigError`` for one that cannot be read, and for settings of Hydra that do nothing here."""
    overrides = [readable(override) for override in overrides]
    for override in overrides:
        key, equals, value = override.partition("=")
        if override.startswith("~"):
            raise ConfigError("'~' cannot be used: every setting is needed.", given=override, hint="write key=value")
        refuse_hydra(key, value, override)
        if not equals:
            raise ConfigError("An override cannot be read.", given=override, hint="write key=value or group=option")
    try:
        return list(OverridesParser.create().parse_overrides(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise _unreadable(error) from error


def read_overrides(overrides: Sequence[str]) -> list[Override]:
    """Overrides with one value each. Raises ``ConfigError`` for one that cannot be read or has several."""
    parsed = parse_overrides(overrides)
    for override in parsed:
        if override.is_interval_sweep():
            raise _interval(override)
        if override.is_sweep_override():
            raise ConfigError(
                "An override has several values.",
                given=override.input_line,
                hint=f"-m {shlex.quote(str(override.input_line))} runs them all; a list is written [a,b], a text in quotes",
            )
    return parsed


def _unreadable(error: Exception) -> ConfigError:
    """The answer to what Hydra's grammar does not take, with how to write it where that can be known."""
    override = getattr(error, "override", None)
    if override is None:
        return ConfigError(str(error).splitlines()[0] if str(error) else type(error).__name__)
    what = "An override cannot be read."
    key, equals, value = str(override).partition("=")
    if equals and (call := re.fullmatch(r"(.+:\w+)\(.*\)", value)):
        what = "A function is named without parentheses."
        return ConfigError(what, given=override, hint=shlex.quote(f"{key}={call.group(1)}"))
    key = key.strip()
    options = [value.strip("=,; "), f"[{value[1:-1]}]" if re.fullmatch(r"\(.*\)", value) else value]
    if re.search(r"[/() ]", value) and not re.search(r"['\"\\$`!;]", value):
        options.append(quoted(value))
    for text in options if equals and value else ():
        if text and f"{key}={text}" != override and _can_be_read(f"{key}={text}"):
            word = f"{key}={text}"
            return ConfigError(what, given=override, hint=f'"{word}"' if text[0] == "'" else shlex.quote(word))
    if (several := [part.strip() for part in str(override).split(";")])[1:] and all(map(_can_be_read, several)):
        return ConfigError(what, given=override, hint=" ".join(several))
    return ConfigError(what, given=override, hint="write key=value, and quote special characters")


def _can_be_read(override: str) -> bool:
    try:
        return not OverridesParser.create().parse_override(override).is_sweep_override()
    except (HydraException, OmegaConfBaseException, ValueError):
        return False


def list_values(override: Override, folders: ConfFolders) -> list[str]:
    """The values of an override, one or several: a list, ``choice``, ``range`` or ``glob`` over the options of a group.

    ``glob`` leaves out options with a setting that must be given, unless it names them.
    ``shuffle`` gives the same order each time: a sweep that is started again is the same.

    Raises:
        ConfigError: they cannot be listed, or are too many.
    """
    sweep: Any = override._value
    if not override.is_sweep_override():
        return [str(override.input_line).partition("=")[2]]
    if override.is_interval_sweep():
        raise _interval(override)
    if isinstance(sweep, Glob):
        return _matching(override, sweep, folders)
    shuffles = isinstance(sweep, ChoiceSweep | RangeSweep) and sweep.shuffle
    if shuffles:
        sweep.shuffle = False
    try:
        values = [_with_colons(value) for value in islice(override.sweep_string_iterator(), _MOST_VALUES + 1)]
    except (HydraException, OmegaConfBaseException, ValueError, ArithmeticError) as error:
        raise ConfigError(
            "A sweep's values cannot be listed.", given=override.input_line, hint="name them: key=a,b,c or key=range(1,5)"
        ) from error
    if len(values) > _MOST_VALUES:
        raise ConfigError("A sweep has too many values.", given=override.input_line, allowed=f"at most {_MOST_VALUES:,}")
    if shuffles:
        random.Random(override.input_line).shuffle(values)
    return values


def _with_colons(value: str) -> str:
    """A value as a person writes it: Hydra puts a backslash before each colon, which needs none."""
    return value if value[:1] in ("'", '"') or "\\\\" in value else value.replace("\\:", ":")


def _matching(override: Override, pattern: Glob, folders: ConfFolders) -> list[str]:
    group = override.get_key_element()
    options = list(folders.options(group)) if re.fullmatch(r"\w+", group) else []
    if not options:
        raise ConfigError(
            "glob() is for the options of a group.", given=override.input_line, hint="name values: key=a,b,c or key=range(1,5)"
        )
    matched: list[str] = [
        option for option in pattern.filter(options) if option in pattern.include or not folders.needs(group, option)
    ]
    if not matched:
        allowed = nearest(" ".join(pattern.include).strip("*"), options)
        hint = None if allowed else f"sargnn train {group} --help lists its options"
        raise ConfigError(f"No option of '{group}' is like this.", given=override.input_line, allowed=allowed, hint=hint)
    return matched


def _interval(override: Override) -> ConfigError:
    key = override.get_key_element()
    return ConfigError(
        "An interval has no end of values, and a sweep runs them all.",
        given=override.input_line,
        hint=f"name them: -m {key}=a,b,c or '{key}=range(START,STOP,STEP)'",
    )
