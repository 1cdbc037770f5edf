"""``key=value`` words of verbs that need no configuration groups, beside plain words such as run folders."""

from __future__ import annotations

from collections.abc import Sequence

from sargnn.errors import ConfigError, nearest

Value = str | int | bool | None


def read_settings(arguments: Sequence[str], defaults: dict[str, Value]) -> tuple[list[str], dict[str, Value]]:
    """Plain words, and the settings; a value must have its default's type, any text where that is None.

    Raises:
        ConfigError: a setting or a flag that does not exist, or a value of another type.
    """
    plain: list[str] = []
    settings = dict(defaults)
    for word in arguments:
        key, equals, text = word.partition("=")
        if not equals:
            if word.startswith("-"):
                raise ConfigError(f"There is no flag '{word}'.", allowed="--help")
            plain.append(word)
            continue
        if key not in defaults:
            raise ConfigError(f"There is no setting '{key}'.", allowed=nearest(key, defaults) or "none")
        settings[key] = _converted(key, text, defaults[key])
    return plain, settings


def _converted(key: str, text: str, default: Value) -> Value:
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"'{key}' has the wrong type.", given=repr(text), allowed="true or false")
        return text.lower() == "true"
    if isinstance(default, int):
        try:
            return int(text)
        except ValueError as error:
            raise ConfigError(f"'{key}' has the wrong type.", given=repr(text), allowed="a whole number") from error
    return text
