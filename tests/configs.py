"""Configurations as the command line composes them."""

from __future__ import annotations

from sargnn.cli.compose import compose_verb
from sargnn.config import RunConfig, parse


def config(*overrides: str) -> RunConfig:
    """What ``sargnn train`` with these words runs."""
    return parse(compose_verb("train", overrides))
