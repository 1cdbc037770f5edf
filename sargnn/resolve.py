"""Strategies by name: literal dicts of name -> "module:attribute", imported on use, so that nothing loads dgl unasked."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from sargnn.errors import ConfigError, nearest


def resolve(kind: str, table: Mapping[str, str], name: str) -> Any:
    """The object that ``table[name]`` points to.

    Args:
        kind: what the table holds ("mode"), for the message.

    Raises:
        ConfigError: the table has no such name; the nearest names are listed.
    """
    if name not in table:
        raise ConfigError(f"There is no {kind} '{name}'.", allowed=nearest(name, table))
    module, attribute = table[name].split(":")
    return getattr(import_module(module), attribute)
