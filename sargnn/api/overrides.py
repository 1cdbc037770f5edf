"""Settings as Python has them, as the words of a command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sargnn.api.modules import words_of_module
from sargnn.cli.command_line import words_of
from sargnn.errors import ConfigError


def as_words(overrides: tuple[str, ...], settings: Mapping[str, Any]) -> list[str]:
    """The words that ``sargnn train`` would get.

    Args:
        overrides: such as "model=gat", as they are.
        settings: such as ``world=4`` or ``optim={"lr": 0.01}``.

            ``model`` may also be a class of modules, or a function that returns one.

    Raises:
        ConfigError: an override that is no text, or a value that no setting can have.
    """
    for override in overrides:
        if not isinstance(override, str):
            hint = "graph=... takes a graph, world=... and the like are keywords"
            raise ConfigError("An override is a text.", given=f"{type(override).__name__}", allowed='"key=value"', hint=hint)
    module: list[str] = []
    if callable(settings.get("model")):
        settings = dict(settings)
        module = words_of_module(settings.pop("model"))
    return [*overrides, *module, *(word for key, value in settings.items() for word in words_of(key, value))]
