"""Hydra composes one verb's configuration; its complaints become this project's messages.

Hydra's compose API is used, not its main function: flags, help and sweeps are ours, so that one failed point of a sweep does
not stop the others and every mistake is answered alike.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sargnn.cli.main import conf_dir
from sargnn.errors import ConfigError, nearest

_NOT_OF_A_RUN = ("experiment", "debug", "skip_finished", "resume", "slurm", "bench_dir")
FLAGS = ("--help", "-h", "--multirun", "-m", "--cfg", "--resolve")


@dataclass(frozen=True)
class Words:
    """A command line, taken apart.

    Attributes:
        overrides: what is handed to Hydra.
        multirun: ``-m`` was given.
        show: ``--cfg job``: print the configuration and run nothing.
    """

    overrides: tuple[str, ...]
    multirun: bool
    show: bool


def read_words(arguments: Sequence[str]) -> Words:
    """Flags and overrides apart. Raises ``ConfigError`` for a flag that does not exist."""
    overrides: list[str] = []
    multirun = show = False
    words = iter(arguments)
    for word in words:
        name, _, value = word.partition("=")
        if word in ("-m", "--multirun"):
            multirun = True
        elif name in ("--cfg", "-c"):
            value = value or next(words, "")
            if value not in ("job", "all"):
                raise ConfigError("--cfg shows the configuration.", given=value or "nothing", allowed="--cfg job")
            show = True
        elif word == "--resolve":
            continue  # what is shown is resolved anyhow
        elif word.startswith("-") and "=" not in word.lstrip("-"):
            raise ConfigError(f"There is no flag '{word}'.", allowed=nearest(word, FLAGS))
        elif word.startswith("--"):
            raise ConfigError("A setting is written without dashes.", given=word, hint=f"write {word.lstrip('-')}")
        else:
            overrides.append(word)
    if multirun and show:
        raise ConfigError("--cfg shows one configuration.", hint="leave -m out, and give single values")
    return Words(tuple(overrides), multirun, show)


def compose_verb(verb: str, overrides: Sequence[str], keep: Sequence[str] = ()) -> dict[str, Any]:
    """The resolved mapping of ``conf/{verb}.yaml`` with the overrides applied, without what is no setting of a run.

    Args:
        keep: of the latter, what is wanted nonetheless.

    Raises:
        ConfigError: an override that cannot be understood or applied, or a setting that must be given.
    """
    config = _composed(verb, overrides)
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ConfigError(f"The setting '{missing[0]}' must be given.", hint=f"add {missing[0]}=VALUE")
    try:
        mapping = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise _explained(error) from error
    assert isinstance(mapping, dict)
    for name in set(_NOT_OF_A_RUN).difference(keep):
        mapping.pop(name, None)
    return {str(key): value for key, value in mapping.items()}


def shown(verb: str, overrides: Sequence[str]) -> str:
    """The composed configuration as YAML."""
    return OmegaConf.to_yaml(_composed(verb, overrides)).rstrip()


def sweep_points(verb: str, overrides: Sequence[str], *, multirun: bool) -> list[tuple[str, ...]] | None:
    """The overrides of each point of a sweep, in order; None for a single run.

    A sweep is asked for with ``-m``, or by an experiment that sets ``hydra.mode`` and ``hydra.sweeper.params``. The product of
    all lists is taken, the last one varying fastest.

    Raises:
        ConfigError: several values without ``-m``, or an override that cannot be read.
    """
    parsed = _parsed(overrides)
    swept = [one for one in parsed if one.is_sweep_override()]
    if swept and not multirun:
        raise ConfigError(
            "An override has several values.", given=swept[0].input_line, hint="add -m to run them all, or quote a text"
        )
    single = [str(one.input_line) for one in parsed if not one.is_sweep_override()]
    config = _composed(verb, single, with_hydra=True)
    mode = OmegaConf.select(config, "hydra.mode")
    if not multirun and "MULTIRUN" not in str(mode):
        return None
    params: dict[str, Any] = dict(OmegaConf.select(config, "hydra.sweeper.params") or {})
    given = {one.get_key_element() for one in parsed}
    lists = [[f"{key}={value}" for value in _values(key, values)] for key, values in params.items() if key not in given]
    for one in swept:
        key = one.get_key_element()
        lists.append([f"{key}={value}" for value in _swept(one)])
    points = [(*single, *point) for point in itertools.product(*lists)]
    if not points:
        raise ConfigError("A sweep has no point.", given=" ".join(overrides), hint="name values: key=a,b,c or key=range(1,5)")
    return points


def _values(key: str, values: Any) -> list[str]:
    (parsed,) = _parsed([f"{key}={values}"])
    return _swept(parsed) if parsed.is_sweep_override() else [str(values)]


def _swept(override: Override) -> list[str]:
    try:
        return list(override.sweep_string_iterator())
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(
            "A sweep's values cannot be listed.", given=override.input_line, hint="name them: key=a,b,c or key=range(1,5)"
        ) from error


def _parsed(overrides: Sequence[str]) -> list[Override]:
    for override in overrides:
        if override.startswith("~"):
            raise ConfigError("'~' cannot be used: every setting is needed.", given=override, hint="write key=value")
        if "=" not in override.lstrip("~"):
            raise ConfigError("An override cannot be read.", given=override, hint="write key=value or group=option")
    try:
        return list(OverridesParser.create().parse_overrides(list(overrides)))
    except (HydraException, OmegaConfBaseException) as error:
        raise _explained(error) from error


def _composed(verb: str, overrides: Sequence[str], *, with_hydra: bool = False) -> DictConfig:
    _parsed(overrides)
    try:
        with initialize_config_dir(config_dir=str(conf_dir().resolve()), version_base="1.3"):
            return compose(verb, overrides=list(overrides), return_hydra_config=with_hydra)
    except (HydraException, OmegaConfBaseException) as error:
        raise _explained(error) from error
    except (ValueError, TypeError, AssertionError, RecursionError, KeyError, AttributeError) as error:
        # Hydra checks some words with plain Python errors of its own.
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError("The configuration cannot be composed.", given=text) from error


def _explained(error: Exception) -> ConfigError:
    text = str(error)
    override = getattr(error, "override", None)
    if override is not None:
        return ConfigError("An override cannot be read.", given=override, hint="write key=value, and quote special characters")
    if "Could not append to config" in text and (known := re.search(r"already at '([\w.]+)'", text)):
        return ConfigError(f"'{known.group(1)}' is a setting already.", hint=f"write {known.group(1)}=... without the +")
    if again := re.search(r"Multiple values for ([\w/]+)", text):
        return ConfigError(f"'{again.group(1)}' is chosen twice.", hint=f"write {again.group(1)}=OPTION once, without a +")
    key = re.search(r"(?:Could not override|Key|Could not delete from config\. The value of) '([\w./@]+)'", text)
    option = re.search(r"Could not find '([\w.-]+)/([\w./-]+)'", text)
    if option:
        group, name = option.groups()
        options = sorted(p.stem for p in (conf_dir() / group).glob("*.yaml"))
        return ConfigError(f"'{group}' has no option '{name}'.", allowed=nearest(name, options))
    if key is not None:
        name = key.group(1)
        if name.startswith("slurm.additional_parameters"):
            example = "+slurm.additional_parameters.mail-type=END"
            return ConfigError("Other options of sbatch are added one by one.", given=name, allowed=f"such as {example}")
        return ConfigError(f"There is no setting '{name}'.", allowed=nearest(name, known_keys()))
    return ConfigError(text.splitlines()[0] if text else type(error).__name__)


def known_keys() -> list[str]:
    """Every top-level key and every ``group.key`` of the configuration folder."""
    import yaml

    keys: set[str] = set()
    for path in conf_dir().rglob("*.yaml"):
        group = path.parent.name if path.parent != conf_dir() else ""
        if group in ("experiment", "debug"):
            continue
        content = yaml.safe_load(path.read_text()) or {}
        keys |= {f"{group}.{key}" if group else key for key in content if key not in ("defaults", "hydra", "name")}
        nested = {key: value for key, value in content.items() if isinstance(value, dict) and key != "hydra"}
        keys |= {f"{key}.{inner}" for key, value in nested.items() for inner in value}
        if group:
            keys.add(group)
    return sorted(keys)
