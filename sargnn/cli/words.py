"""Settings as Python has them, as the words of a command line that mean them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sargnn.errors import ConfigError

_WORDS_OF_YAML = ("null", "true", "false", "nan", "inf", "yes", "no", "on", "off")


def words_of(key: str, value: Any) -> Iterator[str]:
    """``key=value``; of a mapping a word for each value in it. Raises ``ConfigError`` for what no setting can have."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from words_of(f"{key}.{name}", inner)
    else:
        yield f"{key}={_text(key, value)}"


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
        return f"[{','.join(_text(key, entry) for entry in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{name}:{_text(key, entry)}' for name, entry in value.items())}}}"
    if isinstance(value, str | os.PathLike):
        return _quoted(os.fspath(value))
    raise ConfigError(f"'{key}' has a value that no setting can have.", given=f"a {type(value).__name__}")


def _quoted(text: str) -> str:
    """A text that stays one: in quotes unless it is a plain word that means nothing else."""
    if re.fullmatch(r"[A-Za-z_][\w./-]*", text, flags=re.ASCII) and text.lower() not in _WORDS_OF_YAML:
        return text
    escaped = text.replace("${", "\\${")  # or it would be looked up
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), escaped) + "'"
