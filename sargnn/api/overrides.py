"""Settings as Python has them, as the words of a command line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from sargnn.errors import ConfigError

_WORDS_OF_YAML = ("null", "true", "false", "nan", "inf", "yes", "no", "on", "off")


def as_words(overrides: tuple[str, ...], settings: Mapping[str, Any]) -> list[str]:
    """The words that ``sargnn train`` would get.

    Args:
        overrides: such as "model=gat", as they are.
        settings: such as ``world=4`` or ``optim={"lr": 0.01}``.

    Raises:
        ConfigError: an override that is no text, or a value that no setting can have.
    """
    for one in overrides:
        if not isinstance(one, str):
            hint = "graph=... takes a graph, world=... and the like are keywords"
            raise ConfigError("An override is a text.", given=f"{type(one).__name__}", allowed='"key=value"', hint=hint)
    return [*overrides, *(word for key, value in settings.items() for word in _words(key, value))]


def _words(key: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [word for name, inner in value.items() for word in _words(f"{key}.{name}", inner)]
    return [f"{key}={_text(key, value)}"]


def _text(key: str, value: Any) -> str:
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of NumPy or torch
        value = value.item()
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(_text(key, one) for one in value)}]"
    if isinstance(value, str | os.PathLike):
        return _quoted(os.fspath(value))
    raise ConfigError(f"'{key}' has a value that no setting can have.", given=f"a {type(value).__name__}")


def _quoted(text: str) -> str:
    """A text that stays one: in quotes unless it is a plain word that means nothing else."""
    if re.fullmatch(r"[A-Za-z_][\w./-]*", text, flags=re.ASCII) and text.lower() not in _WORDS_OF_YAML:
        return text
    escaped = text.replace("${", "\\${")  # or it would be looked up
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), escaped) + "'"
