"""The values of settings that a verb reads itself."""

from __future__ import annotations

from sargnn.cli.verbs import Setting, Value
from sargnn.errors import ConfigError


def convert(setting: Setting, text: str) -> Value:
    """A value of its default's type. Raises ``ConfigError`` for one of another type, out of range, or not known."""
    if isinstance(setting.default, bool):
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"'{setting.name}' has the wrong type.", given=repr(text), allowed="true or false")
        return text.lower() == "true"
    if isinstance(setting.default, int):
        return _number(setting, text)
    if setting.allowed and text not in setting.allowed:
        raise ConfigError(f"'{setting.name}' has a value that is not known.", given=text, allowed=setting.allowed)
    return text


def _number(setting: Setting, text: str) -> int:
    try:
        value = int(text)
    except ValueError as error:
        raise ConfigError(f"'{setting.name}' has the wrong type.", given=repr(text), allowed="a whole number") from error
    low, high = setting.low, setting.high
    if (low is not None and value < low) or (high is not None and value > high):
        allowed = f"{low} to {high}" if low is not None and high is not None else f"at least {low}"
        raise ConfigError(f"'{setting.name}' is out of range.", given=value, allowed=allowed)
    return value
