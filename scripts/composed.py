"""For scripts: a run's configuration from command-line overrides, as ``sargnn train`` composes it."""

from __future__ import annotations

from collections.abc import Sequence

from sargnn.cli.compose import compose_verb
from sargnn.config.run import RunConfig, parse


def config_of(overrides: Sequence[str]) -> RunConfig:
    """The checked configuration."""
    return parse(compose_verb("train", overrides))
