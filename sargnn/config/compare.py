"""Runs' settings side by side."""

from __future__ import annotations

from typing import Any

from sargnn.config.decides import find_free, flat
from sargnn.config.run import RunConfig, flatten, loss_settings


def fixed_settings(config: RunConfig) -> dict[str, Any]:
    """Dotted key -> value of all settings that stay between two submissions of one run: all that are not ``FREE``.

    A finer list than resuming allows, for runs are compared.
    """
    free = find_free(config)
    return {key: value for key, value in flatten(config).items() if key not in free}


def differing(config: RunConfig, other: RunConfig) -> list[str]:
    """The settings that decide the losses and differ, as ``key: that of other instead of that of config``."""
    first, second = flat(loss_settings(config)), flat(loss_settings(other))
    keys = [key for key in sorted({*first, *second}) if first.get(key) != second.get(key)]
    first, second = flatten(config) | first, flatten(other) | second
    return [f"{key}: {second.get(key)} instead of {first.get(key)}" for key in keys]
