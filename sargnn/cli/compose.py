"""Hydra composes one verb's configuration; its complaints become this project's messages.

Hydra's compose API is used, not its main function: flags, help and sweeps are ours, so that one failed point of a sweep does
not stop the others and every mistake is answered alike.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from sargnn.cli.allowed_values import settings_class
from sargnn.cli.conf_files import broken_yaml, show_path
from sargnn.cli.conf_folders import EXAMPLES, OVERRIDING, ConfFolders, find_folders
from sargnn.cli.overrides import as_typed, list_values, parse_overrides, quoted, read_overrides, readable, unreadable
from sargnn.cli.unknown import unknown_option, unknown_setting
from sargnn.errors import ConfigError, nearest
from sargnn.resolve import is_target
from sargnn.tasks import TASKS

NOT_OF_A_RUN = ("experiment", "debug", "skip_finished", "resume", "slurm", "bench_dir")


def compose_verb(
    verb: str, overrides: Sequence[str], keep: Sequence[str] = (), folders: ConfFolders | None = None
) -> dict[str, Any]:
    """The resolved mapping of ``conf/{verb}.yaml`` with the overrides applied, without what is no setting of a run.

    Args:
        keep: of the latter, what is wanted nonetheless.
        folders: where options are looked for; None: as without ``--config-dir``.

    Raises:
        ConfigError: an override that cannot be understood or applied, or a setting that must be given.
    """
    folders = folders or find_folders()
    config = _composed(verb, overrides, folders).settings
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        value = EXAMPLES.get(missing[0].rpartition(".")[2], "VALUE")
        raise ConfigError(f"The setting '{missing[0]}' must be given.", hint=f"add {missing[0]}={value}")
    try:
        mapping = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise _explained(error, verb, overrides, folders) from error
    assert isinstance(mapping, dict)
    for group in OVERRIDING:
        if mapping.get(group):
            raise ConfigError(
                f"The file of an option of '{group}' says where its settings belong.",
                hint="let its first line be: # @package _global_",
            )
    for name in set(NOT_OF_A_RUN).difference(keep):
        mapping.pop(name, None)
    task = mapping.pop("task", None)
    if says_how_labels_are_read(task):
        mapping["dataset"]["task"] = task
    elif task is not None:
        mapping["task"] = task
    return {str(key): value for key, value in mapping.items()}


def says_how_labels_are_read(task: Any) -> bool:
    """Whether a value of ``task`` is short for ``dataset.task``; else it names the task itself."""
    return task is not None and task not in TASKS and not is_target(str(task))


def show_configuration(verb: str, overrides: Sequence[str], folders: ConfFolders | None = None) -> str:
    """The composed configuration as YAML."""
    return OmegaConf.to_yaml(_composed(verb, overrides, folders or find_folders()).settings).rstrip()


def sweep_points(
    verb: str, overrides: Sequence[str], *, multirun: bool, folders: ConfFolders | None = None
) -> list[tuple[str, ...]] | None:
    """The overrides of each point of a sweep, in order; None for a single run.

    A sweep is asked for with ``-m``, or by an experiment that sets ``hydra.mode`` and ``hydra.sweeper.params``. The product of
    all lists is taken, the last one varying fastest.

    Raises:
        ConfigError: several values without ``-m``, or an override that cannot be read.
    """
    folders = folders or find_folders()
    parsed = parse_overrides(overrides) if multirun else read_overrides(overrides)
    swept = [override for override in parsed if override.is_sweep_override()]
    single = [as_typed(str(override.input_line)) for override in parsed if not override.is_sweep_override()]
    hydra = _composed(verb, single, folders).hydra
    if not multirun and "MULTIRUN" not in str(OmegaConf.select(hydra, "mode")):
        return None
    params: dict[str, Any] = dict(OmegaConf.select(hydra, "sweeper.params") or {})
    given = {as_typed(override.get_key_element()) for override in parsed}
    lists = [
        [f"{key}={value}" for value in _values(key, values, folders)] for key, values in params.items() if key not in given
    ]
    for override in swept:
        key = as_typed(override.get_key_element())
        lists.append([f"{key}={value}" for value in list_values(override, folders)])
    points = [(*single, *point) for point in itertools.product(*lists)]
    if not points:
        raise ConfigError("A sweep has no point.", given=" ".join(overrides), hint="name values: key=a,b,c or key=range(1,5)")
    return points


def _values(key: str, values: Any, folders: ConfFolders) -> list[str]:
    (parsed,) = parse_overrides([f"{key}={values}"])
    return list_values(parsed, folders) if parsed.is_sweep_override() else [str(values)]


@dataclass(frozen=True)
class _Composed:
    """What Hydra gives, to be read and not changed. Attributes: settings: without Hydra's own. hydra: these."""

    settings: DictConfig
    hydra: DictConfig


def _composed(verb: str, overrides: Sequence[str], folders: ConfFolders) -> _Composed:
    """A command asks for the same up to three times, and Hydra takes a tenth of a second; so the last ones are kept."""
    return _from_hydra(verb, tuple(readable(overrides)), folders, folders.state())


@lru_cache(maxsize=64)
def _from_hydra(verb: str, overrides: tuple[str, ...], folders: ConfFolders, _: object) -> _Composed:
    groups = folders.groups(verb)
    _check_keys(verb, parse_overrides(overrides), groups, folders)
    folders.refuse_taken_names(groups)
    searched = []
    if folders.own is not None:
        if (fault := folders.chosen_fault(verb, overrides)) is not None:
            raise fault
        place = f"file://{folders.own.absolute()}"
        searched = [f"hydra.searchpath=[{quoted(place)}]"]
    try:
        with initialize_config_dir(config_dir=str(folders.built_in), version_base="1.3"):
            config = compose(verb, overrides=[*searched, *overrides], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise _explained(error, verb, overrides, folders) from error
    except yaml.YAMLError as error:
        raise broken_yaml(error) from error
    except (ValueError, TypeError, AssertionError, RecursionError, KeyError, AttributeError) as error:
        # Hydra checks some words with plain Python errors of its own.
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError("The configuration cannot be composed.", given=text) from error
    with open_dict(config):
        hydra = config.pop("hydra")
    return _Composed(config, hydra)


def _check_keys(verb: str, parsed: Sequence[Override], groups: dict[str, str], folders: ConfFolders) -> None:
    """What Hydra would take and should not: several options of a group at once, and with a ``+`` a setting of another option.

    Raises:
        ConfigError: it is there.
    """
    words = [str(override.input_line) for override in parsed]
    for override in parsed:
        key = override.key_or_group
        if key in groups and (isinstance(override.value(), list | dict) or override.value() == ""):
            values = override.value()
            names = [str(name) for name in values] if isinstance(values, list) else []
            hint = f"-m {key}={','.join(names)} runs them all" if len(names) > 1 else f"write {key}={(names or ['OPTION'])[0]}"
            raise ConfigError(f"'{key}' takes one option.", given=override.input_line, hint=hint)
        if not (override.is_add() or override.is_force_add()) or key in groups or key.startswith(("hydra", "slurm")):
            continue
        group, _, rest = key.partition(".")
        known = settings_class(verb, group if rest else None, words, folders)
        if known is not None and (rest or group).partition(".")[0] not in known.__dataclass_fields__ and "@" not in key:
            if not rest and group in folders.settings(verb):
                continue
            raise unknown_setting(verb, key, words, folders)


def _explained(error: Exception, verb: str, overrides: Sequence[str], folders: ConfFolders) -> ConfigError:
    """Hydra's complaint in this project's words."""
    text = str(error)
    if getattr(error, "override", None) is not None:
        return unreadable(error)
    if "Could not append to config" in text and (known := re.search(r"already at '([\w.]+)'", text)):
        return ConfigError(f"'{known.group(1)}' is a setting already.", hint=f"write {known.group(1)}=... without the +")
    if again := re.search(r"Multiple values for ([\w/]+)", text):
        return ConfigError(f"'{again.group(1)}' is chosen twice.", hint=f"write {again.group(1)}=OPTION once, without a +")
    namer = re.search(r"In '([\w./-]+)': Could not (?:find|load) '([\w./-]+)'", text)
    if namer and "/" in namer.group(1) and (file := folders.find(namer.group(1))) is not None:
        group, _, name = namer.group(2).rpartition("/")
        allowed = nearest(name, folders.options(group)) or None
        given = f"{namer.group(2)} in {show_path(file)}"
        return ConfigError("A defaults list names a file that does not exist.", given=given, allowed=allowed)
    option = re.search(r"Could not find '([\w.-]+)/([\w./-]+)'", text)
    if option:
        group, name = option.groups()
        hint = None
        if folders.own is not None and (folders.own / group / f"{name}.yml").is_file():
            hint = f"name the file {name}.yaml"
        namers = folders.files_that_choose(verb, overrides, group, name)
        place = f"{group}={name} in {', '.join(map(show_path, namers))}" if namers else None
        return unknown_option(verb, group, name, folders, given=place, hint=hint)
    key = re.search(r"(?:Could not override|Key|Could not delete from config\. The value of) '([\w./@-]+)'", text)
    if key is not None:
        name = key.group(1)
        if name.startswith("slurm.additional_parameters"):
            example = "+slurm.additional_parameters.mail-type=END"
            return ConfigError("Other options of sbatch are added one by one.", given=name, allowed=f"such as {example}")
        return unknown_setting(verb, name, overrides, folders)
    if "Ambiguous value" in text:
        given = text.partition("'")[2].partition("'")[0]
        return ConfigError("An override has several values.", given=given, hint="write a list as [a,b,c], and quote a text")
    return ConfigError(text.splitlines()[0] if text else type(error).__name__)
