"""Hydra, called for one verb, with its complaints turned into this project's messages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sargnn.cli.main import conf_dir
from sargnn.errors import ConfigError, nearest


def run_verb(verb: str, arguments: Sequence[str], task: Callable[[dict[str, Any]], None]) -> None:
    """Compose ``conf/{verb}.yaml`` with the arguments and hand the resolved mapping to ``task``.

    Raises:
        ConfigError: an override that cannot be understood or applied.
    """

    failures: list[Exception] = []

    def resolved(config: DictConfig) -> None:
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            raise ConfigError(f"The setting '{missing[0]}' must be given.", hint=f"add {missing[0]}=VALUE")
        mapping = OmegaConf.to_container(config, resolve=True)
        assert isinstance(mapping, dict)
        mapping.pop("experiment", None)
        try:
            task({str(key): value for key, value in mapping.items()})
        except Exception as error:  # Hydra would print a line of its own about it
            failures.append(error)

    os.environ["HYDRA_FULL_ERROR"] = "1"  # hands exceptions to us instead of printing them
    sys.argv = [f"sargnn {verb}", *arguments]
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=verb)(resolved)()
    except (HydraException, OmegaConfBaseException) as error:
        raise _explained(error) from error
    if failures:
        raise failures[0]


def _explained(error: Exception) -> ConfigError:
    text = str(error)
    override = getattr(error, "override", None)
    if override is not None:
        return ConfigError("An override cannot be read.", given=override, hint="write key=value, and quote special characters")
    key = re.search(r"(?:Could not override|Key) '([\w./@]+)'", text)
    option = re.search(r"Could not find '([\w.-]+)/([\w.-]+)'", text)
    if option:
        group, name = option.groups()
        options = sorted(p.stem for p in (conf_dir() / group).glob("*.yaml"))
        return ConfigError(f"'{group}' has no option '{name}'.", allowed=nearest(name, options))
    if key is not None:
        name = key.group(1)
        return ConfigError(f"There is no setting '{name}'.", allowed=nearest(name, _known_keys()))
    return ConfigError(text.splitlines()[0] if text else type(error).__name__)


def _known_keys() -> list[str]:
    """Every top-level key and every ``group.key`` of the configuration folder."""
    import yaml

    keys: set[str] = set()
    for path in conf_dir().rglob("*.yaml"):
        group = path.parent.name if path.parent != conf_dir() else ""
        if group == "experiment":
            continue
        content = yaml.safe_load(path.read_text()) or {}
        keys |= {f"{group}.{key}" if group else key for key in content if key not in ("defaults", "hydra", "name")}
        nested = {key: value for key, value in content.items() if isinstance(value, dict) and key != "hydra"}
        keys |= {f"{key}.{inner}" for key, value in nested.items() for inner in value}
        if group:
            keys.add(group)
    return sorted(keys)
