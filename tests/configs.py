"""Configurations as the command line composes them."""

from __future__ import annotations

import os
from copy import copy, deepcopy

from hydra._internal.config_repository import ConfigRepository
from hydra.plugins.config_source import ConfigResult

from sargnn.cli.compose import compose_verb
from sargnn.cli.conf import conf_dir
from sargnn.config.run import RunConfig, parse

_PACKAGES = f"{conf_dir()}/"


def config(*overrides: str) -> RunConfig:
    """What ``sargnn train`` with these words runs."""
    return parse(compose_verb("train", overrides))


def _written(path: str) -> tuple[str, int, int]:
    """A file, and when it was written; but for the package's, which no test writes to."""
    if path.startswith(_PACKAGES):
        return path, 0, 0
    try:
        stat = os.stat(path)
    except OSError:
        return path, 0, 0
    return path, stat.st_mtime_ns, stat.st_size


def keep_read_files() -> None:
    """Let Hydra, which reads some thirty files for every command, read a file again only after it has changed."""
    read = ConfigRepository.load_config
    known: dict[object, ConfigResult | None] = {}

    def load_config(self: ConfigRepository, config_path: str) -> ConfigResult | None:
        written = tuple(_written(f"{source.path}/{config_path.removesuffix('.yaml')}.yaml") for source in self.sources)
        if (written, config_path) not in known:
            known[written, config_path] = read(self, config_path)
        found = copy(known[written, config_path])
        if found is not None:
            found.config = deepcopy(found.config)  # it becomes a part of what is composed, and that is changed
        return found

    ConfigRepository.load_config = load_config  # type: ignore[method-assign]
