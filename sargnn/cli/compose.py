"""Hydra composes one verb's configuration, once for the options that are chosen; settings are then changed in it.

What can be wrong with a command line or with a file of the user's is found before Hydra composes, and answered as everywhere.
Hydra's compose API is used, not its main function: flags, help and sweeps are ours, so that one failed point of a sweep does
not stop the others.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from sargnn.cli.answers import settings_class, unknown_option, unknown_setting
from sargnn.cli.conf import EXAMPLES, OVERRIDING, ConfFolders, find_folders, refuse_hydra, show_path
from sargnn.cli.overrides import is_argument, list_values, parse_overrides, quoted, read_overrides
from sargnn.errors import ConfigError, nearest
from sargnn.resolve import is_target
from sargnn.tasks import TASKS

_PLAIN = (ValueError, TypeError, AssertionError, RecursionError, KeyError, AttributeError)
"""Hydra and OmegaConf check some defaults lists and values with plain errors of Python."""
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
    config = _without_hydra(_composed(verb, overrides, folders))
    try:
        if missing := sorted(OmegaConf.missing_keys(config)):
            value = EXAMPLES.get(missing[0].rpartition(".")[2], "VALUE")
            raise ConfigError(f"The setting '{missing[0]}' must be given.", hint=f"add {missing[0]}={value}")
        mapping = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise _refused(error) from error
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
    return OmegaConf.to_yaml(_without_hydra(_composed(verb, overrides, folders or find_folders()))).rstrip()


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
    single = [str(override.input_line) for override in parsed if not override.is_sweep_override()]
    hydra = _composed(verb, single, folders)["hydra"]
    if not multirun and "MULTIRUN" not in str(OmegaConf.select(hydra, "mode")):
        return None
    params: dict[str, Any] = dict(OmegaConf.select(hydra, "sweeper.params") or {})
    given = {override.get_key_element() for override in parsed}
    theirs = parse_overrides([f"{key}={values}" for key, values in params.items() if key not in given])
    lists = [
        [f"{override.get_key_element()}={value}" for value in list_values(override, folders)] for override in [*theirs, *swept]
    ]
    points = [(*single, *point) for point in itertools.product(*lists)]
    if not points:
        raise ConfigError("A sweep has no point.", given=" ".join(overrides), hint="name values: key=a,b,c or key=range(1,5)")
    return points


def _composed(verb: str, overrides: Sequence[str], folders: ConfFolders) -> DictConfig:
    """The whole configuration, with Hydra's own; the caller may change it."""
    parsed = parse_overrides(overrides)
    words = [str(override.input_line) for override in parsed]
    groups = folders.groups(verb)
    for override in parsed:
        _check_override(override, verb, groups, words, folders)
    plain = [f"{o.key_or_group}={o.value()}" if o.key_or_group in groups else str(o.input_line) for o in parsed]
    _check_files(verb, groups, plain, folders)
    is_choice = [override.key_or_group in groups or _is_group(override.key_or_group, folders) for override in parsed]
    chosen = tuple(itertools.compress(words, is_choice))
    config = copy.deepcopy(_from_hydra(verb, chosen, folders, folders.state()))
    for override, chooses in zip(parsed, is_choice, strict=True):
        if not chooses:
            _change(config, override, verb, words, folders)
    return config


def _without_hydra(config: DictConfig) -> DictConfig:
    with open_dict(config):
        del config["hydra"]
    return config


@lru_cache(maxsize=64)
def _from_hydra(verb: str, chosen: tuple[str, ...], folders: ConfFolders, _state: object) -> DictConfig:
    """Hydra takes a tenth of a second, and the points of a sweep, or one command, choose the same options several times."""
    own = [] if folders.own is None else [f"hydra.searchpath=[{quoted(f'file://{folders.own.absolute()}')}]"]
    try:
        with initialize_config_dir(config_dir=str(folders.built_in), version_base="1.3"):
            return compose(verb, overrides=[*own, *chosen], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise _refused(error) from error
    except _PLAIN as error:
        raise ConfigError("The configuration cannot be composed.", given=str(_refused(error))) from error


def _refused(error: Exception) -> ConfigError:
    """What Hydra or OmegaConf says, in its first line."""
    text = str(error) or str(error.__cause__ or "")
    return ConfigError(text.splitlines()[0] if text else type(error).__name__)


def _is_group(key: str, folders: ConfFolders) -> bool:
    """Whether a folder of configuration has this name, such as that of another verb's group."""
    return "." not in key and any(os.path.isdir(folder / key) for folder in folders.both)


def _check_override(
    override: Override, verb: str, groups: Mapping[str, str], words: Sequence[str], folders: ConfFolders
) -> None:
    """One value, for a group one option, and no setting of an option that is not chosen.

    Args:
        words: the whole command line.

    Raises:
        ConfigError: it is not so.
    """
    key, adds = override.key_or_group, override.is_add() or override.is_force_add()
    if override.is_sweep_override():
        hint = "write a list as [a,b,c], and quote a text"
        raise ConfigError("An override has several values.", given=override.input_line, hint=hint)
    if override.package is not None:
        raise unknown_setting(verb, override.get_key_element().lstrip("+"), words, folders)
    if key in groups:
        value = override.value()
        if override.is_force_add() or (override.is_add() and value != groups[key]):
            raise ConfigError(f"'{key}' is chosen twice.", hint=f"write {key}=OPTION once, without a +")
        if isinstance(value, list | dict) or value in ("", None):
            names = [str(name) for name in value] if isinstance(value, list) else []
            hint = f"-m {key}={','.join(names)} runs them all" if len(names) > 1 else f"write {key}={(names or ['OPTION'])[0]}"
            raise ConfigError(f"'{key}' takes one option.", given=override.input_line, hint=hint)
    elif _is_group(key, folders) and not adds:
        raise unknown_setting(verb, key, words, folders)
    elif (adds or is_argument(key)) and not key.startswith(("hydra", "slurm")):
        group, _, rest = key.partition(".")
        known = settings_class(verb, group if rest else None, words, folders)
        if known is not None and (rest or group).partition(".")[0] not in known.__dataclass_fields__:
            if rest or group not in folders.settings(verb):
                raise unknown_setting(verb, key, words, folders)


def _check_files(verb: str, groups: Mapping[str, str], words: Sequence[str], folders: ConfFolders) -> None:
    """The options that ``words`` choose are there, and the user's files can be composed. Raises ``ConfigError``.

    Args:
        words: the whole command line, with options without quotes.
    """
    if (taken := folders.taken_name(groups)) is not None:
        hint = "give it another name; its defaults list can build on the one of sargnn; or choose --config-dir"
        raise ConfigError("A file has the name of one that sargnn has itself.", given=show_path(taken), hint=hint)
    choice = folders.choice(verb, words)
    files = {group: list(folders.files(group, choice.options[group])) for group in choice.named}
    for group in choice.named:
        option = choice.options[group]
        if not files[group] and option != "null":
            namers = [
                show_path(file.path)
                for name in OVERRIDING
                for file, _ in files.get(name, ())
                if any(named.group.lstrip("/") == group and named.option == option for named in file.defaults)
            ]
            late = folders.own is not None and os.path.isfile(folders.own / group / f"{option}.yml")
            raise unknown_option(
                verb,
                group,
                option,
                folders,
                given=f"{group}={option} in {', '.join(namers)}" if namers else None,
                hint=f"name the file {option}.yaml" if late else None,
            )
    for file, package in (entry for entries in files.values() for entry in entries):
        for missing in folders.missing_bases(file):
            group, _, name = missing.rpartition("/")
            allowed = nearest(name, folders.options(group)) or None
            given = f"{missing} in {show_path(file.path)}"
            raise ConfigError("A defaults list names a file that does not exist.", given=given, allowed=allowed)
        for named in file.defaults:
            if not named.override and named.group.startswith("/") and (group := named.group[1:]) in groups:
                given = f"{group}={named.option} in {show_path(file.path)}"
                raise ConfigError(
                    f"'{group}' is chosen twice.", given=given, hint=f"write: - override /{group}: {named.option}"
                )
            if named.override and (group := named.group.lstrip("/")) not in groups and not group.startswith("hydra"):
                raise unknown_setting(verb, group, words, folders)
        for setting in file.settings if not package else ():
            refuse_hydra(setting.key, setting.value, f"{setting.key} in {setting.place}")


def _change(config: DictConfig, override: Override, verb: str, words: Sequence[str], folders: ConfFolders) -> None:
    """Give a setting its value. Raises ``ConfigError`` for one that is not there, and with a ``+`` for one that is."""
    key, value = override.key_or_group, override.value()
    adds = override.is_add() or override.is_force_add() or is_argument(key)
    try:
        if override.is_add() and not isinstance(value, list | dict):
            if OmegaConf.select(config, key, throw_on_missing=False) is not None:
                raise ConfigError(f"'{key}' is a setting already.", hint=f"write {key}=... without the +")
        OmegaConf.update(config, key, value, merge=True, force_add=adds)
    except (ConfigAttributeError, ConfigKeyError) as error:
        if key.startswith("slurm.additional_parameters"):
            example = "such as +slurm.additional_parameters.mail-type=END"
            raise ConfigError("Other options of sbatch are added one by one.", given=key, allowed=example) from error
        raise unknown_setting(verb, key, words, folders) from error
    except OmegaConfBaseException as error:
        raise _refused(error) from error
    except _PLAIN as error:
        raise ConfigError("The configuration cannot be composed.", given=str(_refused(error))) from error
