"""Configurations as the command line composes them."""

from __future__ import annotations

from copy import copy, deepcopy
from pathlib import Path

from hydra._internal.config_repository import ConfigRepository
from hydra.plugins.config_source import ConfigResult

from sargnn.cli.compose import compose_verb
from sargnn.config.run import RunConfig, parse


def config(*overrides: str) -> RunConfig:
    """What ``sargnn train`` with these words runs."""
    return parse(compose_verb("train", overrides))


def keep_read_files() -> None:
    """Let Hydra, which reads some thirty files for every command, read a file again only after it has changed."""
    read = ConfigRepository.load_config
    known: dict[object, ConfigResult | None] = {}

    def load_config(self: ConfigRepository, config_path: str) -> ConfigResult | None:
        files = [Path(f"{source.path}/{config_path.removesuffix('.yaml')}.yaml") for source in self.sources]
        stats = [file.stat() if file.is_file() else None for file in files]
        written = tuple(
            (file, stat and stat.st_mtime_ns, stat and stat.st_size) for file, stat in zip(files, stats, strict=True)
        )
        if (written, config_path) not in known:
            known[written, config_path] = read(self, config_path)
        found = copy(known[written, config_path])
        if found is not None:
            found.config = deepcopy(found.config)  # it becomes a part of what is composed, and that is changed
        return found

    ConfigRepository.load_config = load_config  # type: ignore[method-assign]
