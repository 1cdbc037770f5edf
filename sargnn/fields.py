"""Dataclasses from plain mappings, checked field by field; every mistake is a ``ConfigError`` with its key's dotted name."""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from sargnn.errors import ConfigError, nearest

T = TypeVar("T")


def number(
    *, low: float | None = None, high: float | None = None, open_low: bool = False, open_high: bool = False
) -> dict[str, Any]:
    """Metadata of a field: its bounds, themselves allowed unless open."""
    return {"low": low, "high": high, "open_low": open_low, "open_high": open_high}


POSITIVE = number(low=0, open_low=True)
NOT_NEGATIVE = number(low=0)
AT_LEAST_ONE = number(low=1)
PROBABILITY = number(low=0, high=1, open_high=True)
FRACTION = number(low=0, high=1)


def build(cls: type[T], mapping: Any, prefix: str) -> T:
    """An instance of the dataclass ``cls``. Raises ``ConfigError`` for unknown and missing keys, wrong types, and bounds.

    Args:
        prefix: of the keys' names, with its dot.
    """
    if not isinstance(mapping, dict):
        raise ConfigError(f"'{prefix.rstrip('.')}' must be a group of settings.", given=repr(mapping))
    hints = get_type_hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in mapping:
        if key not in known:
            raise ConfigError(
                f"There is no setting '{prefix}{key}'.", allowed=[prefix + name for name in nearest(str(key), known)]
            )
    values: dict[str, Any] = {}
    for key, spec in known.items():
        if key not in mapping:
            if spec.default is not dataclasses.MISSING:
                continue
            raise ConfigError(f"The setting '{prefix}{key}' is missing.")
        values[key] = _convert(hints[key], mapping[key], prefix + key, dict(spec.metadata))
    return cls(**values)


def _convert(hint: Any, value: Any, key: str, bounds: dict[str, Any]) -> Any:
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        classes = [option for option in options if dataclasses.is_dataclass(option)]
        if classes:
            return _choose(classes, value, key)
        if value is None and type(None) in options:
            return None
        hint = next(option for option in options if option is not type(None))
        return _convert(hint, value, key, bounds)
    if dataclasses.is_dataclass(hint):
        return build(hint, value, f"{key}.")  # type: ignore[arg-type]
    if origin is list:
        if not isinstance(value, list):
            raise ConfigError(f"'{key}' must be a list.", given=repr(value), allowed="[a,b,c]")
        return [_convert(options[0], one, f"{key}[{index}]", bounds) for index, one in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value):
            raise ConfigError(f"'{key}' must be a mapping.", given=repr(value), allowed="{name: value}")
        return {name: _convert(options[1], one, f"{key}.{name}", bounds) for name, one in value.items()}
    if origin is Literal:
        if value not in options:
            allowed = [str(o).lower() if isinstance(o, bool) else str(o) for o in options]
            raise ConfigError(f"'{key}' has a value that is not known.", given=repr(value), allowed=allowed)
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if hint is str and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # a name such as 2024 reaches us as a number
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"'{key}' has the wrong type.", given=repr(value), allowed=_TYPE_NAMES[hint])
    if hint in (int, float):
        _check_bounds(value, key, bounds)
    return value


_TYPE_NAMES: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _check_bounds(value: float, key: str, bounds: dict[str, Any]) -> None:
    low, high = bounds.get("low"), bounds.get("high")
    too_low = low is not None and (value <= low if bounds["open_low"] else value < low)
    too_high = high is not None and (value >= high if bounds["open_high"] else value > high)
    if math.isfinite(value) and not too_low and not too_high:
        return
    words = []
    if low is not None:
        words.append(f"{'more than' if bounds['open_low'] else 'at least'} {low}")
    if high is not None:
        words.append(f"{'less than' if bounds['open_high'] else 'at most'} {high}")
    raise ConfigError(f"'{key}' is out of range.", given=value, allowed=" and ".join(words) or "a finite number")


def _choose(classes: list[Any], value: Any, key: str) -> Any:
    names = {name: cls for cls in classes for name in get_args(get_type_hints(cls)["name"])}
    name = value.get("name") if isinstance(value, dict) else None
    if name not in names:
        raise ConfigError(f"'{key}.name' is not known.", given=repr(name), allowed=nearest(str(name), names))
    return build(names[name], value, f"{key}.")
