"""``sargnn train resume=RUN_DIR``: the run's own configuration, with what was given on the command line changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from sargnn.config import RunConfig, load, parse
from sargnn.errors import ConfigError, nearest

_REFUSED = ("experiment", "debug", "run_dir", "run_name")
_CONFIG = "config.yaml"


def resumed(overrides: Sequence[str]) -> tuple[RunConfig, Path] | None:
    """The configuration and the run folder; None where nothing is to be resumed.

    Raises:
        ConfigError: no such run, a setting that cannot be changed, or one that would change the losses.
    """
    folders = [one.partition("=")[2].strip("'\"") for one in overrides if one.startswith("resume=")]
    if not folders or folders[-1] in ("", "null"):
        return None
    run_dir = Path(folders[-1]).expanduser()
    if not (run_dir / _CONFIG).is_file():
        raise ConfigError("There is no run in this folder.", given=str(run_dir), hint="resume=RUN_DIR, as a run prints it")
    before = load(run_dir / _CONFIG)
    mapping = yaml.safe_load((run_dir / _CONFIG).read_text())
    changes = [one for one in overrides if not one.startswith("resume=")]
    for one in changes:
        key = one.lstrip("+").partition("=")[0]
        if key in _REFUSED or key.startswith("hydra"):
            raise ConfigError("A resumed run keeps its folder and its experiment.", given=one)
    _apply(mapping, changes)
    config = parse(mapping)
    if config.config_hash != before.config_hash:
        from sargnn.config import differing

        raise ConfigError(
            "A resumed run keeps what decides its losses.\n    " + "\n    ".join(differing(before, config)),
            hint="world, mode, kernel, partitioner, comm, threads, checkpoint and tracking may change",
        )
    return config, run_dir


def _apply(mapping: dict[str, Any], changes: Sequence[str]) -> None:
    """Put the changed groups and settings into a run's mapping, as Hydra composes them."""
    if not changes:
        return
    from sargnn.cli.compose import compose_verb

    keys = [one.lstrip("+").partition("=")[0] for one in changes]
    options = [f"{group}={value['name']}" for group, value in mapping.items() if isinstance(value, dict) and "name" in value]
    options = [one for one in options if one.partition("=")[0] not in keys]
    if "root" in mapping["dataset"] and not any(key in ("dataset", "dataset.root") for key in keys):
        escaped = str(mapping["dataset"]["root"]).replace("\\", "\\\\").replace("'", "\\'")
        options.append(f"dataset.root='{escaped}'")
    composed = compose_verb("train", [*options, *changes])
    for key in keys:
        target, source = mapping, composed
        *groups, leaf = key.split(".")
        try:
            for group in groups:
                target, source = target[group], source[group]
            target[leaf] = source[leaf]
        except (KeyError, TypeError) as error:
            raise ConfigError(f"A run has no setting '{key}'.", allowed=nearest(key.partition(".")[0], mapping)) from error
