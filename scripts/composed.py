"""For scripts: a run's configuration from command-line overrides, as ``sargnn train`` composes it."""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from sargnn.cli.main import conf_dir
from sargnn.config import RunConfig, parse


def config_of(overrides: Sequence[str]) -> RunConfig:
    """The checked configuration."""
    with initialize_config_dir(config_dir=str(conf_dir().resolve()), version_base="1.3"):
        mapping = OmegaConf.to_container(compose("train", overrides=list(overrides)), resolve=True)
    assert isinstance(mapping, dict)
    mapping.pop("experiment", None)
    return parse({str(key): value for key, value in mapping.items()})
