"""Hydra composes one verb's configuration, once for the options that are chosen; settings are then changed in it.

What can be wrong with a command line or with a file of the user's is found before Hydra composes, and answered as everywhere.
Hydra's compose API is used, not its main function: flags, help and sweeps are ours, so that one failed point of a sweep does
not stop the others. ``key=value`` words are read by Hydra's grammar; what that cannot read is answered with how to write it.
"""

from __future__ import annotations

import copy
import itertools
import os
import random
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any, get_args

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, Quote, QuotedString, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from sargnn.cli.answers import settings_class, unknown_option, unknown_setting
from sargnn.cli.conf import EXAMPLES, MAPPINGS, OVERRIDING, ConfFolders, find_folders, in_a_file, show_path
from sargnn.config.choices import Task
from sargnn.config.fields import brief
from sargnn.config.groups import AUTO
from sargnn.errors import ConfigError, nearest
from sargnn.resolve import is_target
from sargnn.tasks import TASKS

_PLAIN = (ValueError, TypeError, AssertionError, RecursionError, KeyError, AttributeError)
"""Hydra and OmegaConf check some defaults lists and values with plain errors of Python."""
_SHORT = {"memory_budget": "memory_budget.size"}
"""Settings that may be named by their group."""
_MOST_VALUES = 10_000
NOT_OF_A_RUN = ("experiment", "debug", "skip_finished", "resume", "slurm", "bench_dir")


def compose_verb(
    verb: str, overrides: Sequence[str], keep: Sequence[str] = (), folders: ConfFolders | None = None
) -> dict[str, Any]:
    """The resolved mapping of ``conf/{verb}.yaml`` with the overrides applied, without what is no setting of a run.

    Args:
        keep: of the latter, what is wanted nonetheless.
        folders: where options are looked for; None: as without ``--config-dir``.

    Raises ``ConfigError``: an override that cannot be understood or applied, or a setting that must be given.
    """
    folders = folders or find_folders()
    config = _without_hydra(_composed(verb, overrides, folders))
    with _answering():
        if missing := sorted(OmegaConf.missing_keys(config)):
            value = EXAMPLES.get(missing[0].rpartition(".")[2], "VALUE")
            raise ConfigError(f"The setting '{missing[0]}' must be given.", hint=f"add {missing[0]}={value}")
        mapping = OmegaConf.to_container(config, resolve=True)
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
    if says_how_labels_are_read(task, trains="epochs" in mapping):
        mapping["dataset"]["task"] = task
    elif task is not None:
        mapping["task"] = task
    return {str(key): value for key, value in mapping.items()}


def provisional(mapping: dict[str, Any]) -> dict[str, Any]:
    """A composed configuration with one worker where it leaves their number open, for checks that need no graph."""
    return {**mapping, "world": 1} if mapping.get("world") == AUTO else mapping


def says_how_labels_are_read(task: Any, *, trains: bool = True) -> bool:
    """Whether a value of ``task`` is short for ``dataset.task``; else it names the task itself, or nothing.

    ``trains``: the verb trains, so that there is a task to name. Raises ``ConfigError``: it is neither.
    """
    if task is None or (trains and (str(task) in TASKS or is_target(str(task)))):
        return False
    of_labels = get_args(Task)
    if str(task).strip("'\"") not in (*of_labels, "null"):
        allowed = [*of_labels, *(TASKS if trains else ()), *(["FILE.py:CLASS"] if trains else [])]
        raise ConfigError("'task' has a value that is not known.", given=brief(task), allowed=allowed)
    return True


_INSTEAD = (
    (r"hydra\.run\.dir", "run_dir={value}"),
    (r"hydra\.sweep\.", "the runs of a sweep go to sweeps/KEY/, a folder for each"),
    (r"hydra\.job\.name", "run_name={value}"),
    (r"hydra\.job\.chdir", "a run's files go to its folder: run_dir=FOLDER"),
    (r"hydra[/.]launcher", "sargnn slurm -m writes a job for each point"),
    (r"hydra[/.]sweeper", "-m key=a,b,c, or an experiment that sets hydra.sweeper.params"),
    (r"hydra\.searchpath", "--config-dir {value}, or a folder conf/ here: both add options"),
    (r"hydra[/.](job_logging|hydra_logging|verbose)", "logs are in RUN/logs/; SARGNN_FULL_ERROR=1 shows tracebacks"),
    (r"hydra\.(output_subdir|runtime)", "a run's configuration is in its folder, config.yaml"),
    (r"hydra[/.](help|hydra_help)", "sargnn train --help"),
    (r"", "run_dir=FOLDER, run_name=NAME, -m for sweeps, sargnn slurm -m for their jobs"),
)


def _refuse_hydra(key: str, value: str, given: str) -> None:
    """Raises ``ConfigError`` for a setting of Hydra that would do nothing, with what there is instead.

    This project composes with Hydra and runs by itself; only what makes an experiment a sweep is read.

    ``given``: how it was given, or where.
    """
    key = key.lstrip("+~")
    if not re.match(r"hydra([./@]|$)", key) or re.match(r"hydra\.(mode|sweeper\.params)(\.|$)", key):
        return
    instead = next(text for pattern, text in _INSTEAD if re.match(pattern, key))
    plain = value.strip("[]'\"").removeprefix("file://") or "FOLDER"
    raise ConfigError("Hydra's own settings do nothing here.", given=given, hint=instead.format(value=shlex.quote(plain)))


def _readable(override: str) -> str:
    """The same as Hydra reads it: a path that begins with ``~`` as it is meant, ``memory_budget=6GB`` as its size, and
    ``compare=a,b`` as a list, where commas alone are a sweep to Hydra."""
    key, equals, value = override.partition("=")
    if not equals:
        return override
    if key in _SHORT and not value.startswith("{"):
        key = _SHORT[key]
    elif key == "compare" and value not in ("", "null") and not value.startswith("["):
        value = f"[{value}]"
    if value.startswith("~") and "," not in value and (path := os.path.expanduser(value)) != value:
        value = quoted(path)
    return f"{key}={value}"


def quoted(text: str) -> str:
    """A text that stays one, whatever it holds."""
    return QuotedString(text=text, quote=Quote.single).with_quotes()


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Raises ``ConfigError`` for one that cannot be read, and for settings of Hydra that do nothing here."""
    overrides = [_readable(override) for override in overrides]
    for override in overrides:
        key, equals, value = override.partition("=")
        if override.startswith("~"):
            raise ConfigError("'~' cannot be used: every setting is needed.", given=override, hint="write key=value")
        _refuse_hydra(key, value, override)
        if not equals:
            raise ConfigError("An override cannot be read.", given=override, hint="write key=value or group=option")
    try:
        return list(OverridesParser.create().parse_overrides(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise _unreadable(error) from error


def read_overrides(overrides: Sequence[str]) -> list[Override]:
    """Overrides with one value each. Raises ``ConfigError`` for one that cannot be read or has several."""
    parsed = parse_overrides(overrides)
    for override in parsed:
        if override.is_interval_sweep():
            raise _interval(override)
        if override.is_sweep_override():
            raise ConfigError(
                "An override has several values.",
                given=override.input_line,
                hint=f"-m {shlex.quote(str(override.input_line))} runs them all; a list is written [a,b], a text in quotes",
            )
    return parsed


def _unreadable(error: Exception) -> ConfigError:
    """The answer to what Hydra's grammar does not take, with how to write it where that can be known."""
    override = getattr(error, "override", None)
    if override is None:
        return ConfigError(str(error).splitlines()[0] if str(error) else type(error).__name__)
    what = "An override cannot be read."
    key, equals, value = str(override).partition("=")
    if equals and (call := re.fullmatch(r"(.+:\w+)\(.*\)", value)):
        what = "A function is named without parentheses."
        return ConfigError(what, given=override, hint=shlex.quote(f"{key}={call.group(1)}"))
    key = key.strip()
    options = [value.strip("=,; "), f"[{value[1:-1]}]" if re.fullmatch(r"\(.*\)", value) else value]
    if re.search(r"[/() ]", value) and not re.search(r"['\"\\$`!;]", value):
        options.append(quoted(value))
    for text in options if equals and value else ():
        if text and f"{key}={text}" != override and _can_be_read(f"{key}={text}"):
            word = f"{key}={text}"
            return ConfigError(what, given=override, hint=f'"{word}"' if text[0] == "'" else shlex.quote(word))
    if (several := [part.strip() for part in str(override).split(";")])[1:] and all(map(_can_be_read, several)):
        return ConfigError(what, given=override, hint=" ".join(several))
    return ConfigError(what, given=override, hint="write key=value, and quote special characters")


def _can_be_read(override: str) -> bool:
    try:
        return not OverridesParser.create().parse_override(override).is_sweep_override()
    except (HydraException, OmegaConfBaseException, ValueError):
        return False


def _list_values(override: Override, folders: ConfFolders) -> list[str]:
    """The values of an override, one or several: a list, ``choice``, ``range`` or ``glob`` over the options of a group.

    ``glob`` leaves out options with a setting that must be given, unless it names them.
    ``shuffle`` gives the same order each time: a sweep that is started again is the same.
    """
    sweep: Any = override._value
    if not override.is_sweep_override():
        return [str(override.input_line).partition("=")[2]]
    if override.is_interval_sweep():
        raise _interval(override)
    if isinstance(sweep, Glob):
        return _matching(override, sweep, folders)
    shuffles = isinstance(sweep, ChoiceSweep | RangeSweep) and sweep.shuffle
    if shuffles:
        sweep.shuffle = False
    try:
        values = list(islice(override.sweep_string_iterator(), _MOST_VALUES + 1))
    except (HydraException, OmegaConfBaseException, ValueError, ArithmeticError) as error:
        raise ConfigError(
            "A sweep's values cannot be listed.", given=override.input_line, hint="name them: key=a,b,c or key=range(1,5)"
        ) from error
    if len(values) > _MOST_VALUES:
        raise ConfigError("A sweep has too many values.", given=override.input_line, allowed=f"at most {_MOST_VALUES:,}")
    if shuffles:
        random.Random(override.input_line).shuffle(values)
    # As a person writes them: Hydra puts a backslash before each colon, which needs none.
    return [value if value[:1] in ("'", '"') or "\\\\" in value else value.replace("\\:", ":") for value in values]


def _matching(override: Override, pattern: Glob, folders: ConfFolders) -> list[str]:
    group = override.get_key_element()
    options = list(folders.options(group)) if re.fullmatch(r"\w+", group) else []
    if not options:
        raise ConfigError(
            "glob() is for the options of a group.", given=override.input_line, hint="name values: key=a,b,c or key=range(1,5)"
        )
    matched: list[str] = [
        option for option in pattern.filter(options) if option in pattern.include or not folders.needs(group, option)
    ]
    if not matched:
        allowed = nearest(" ".join(pattern.include).strip("*"), options)
        hint = None if allowed else f"sargnn train {group} --help lists its options"
        raise ConfigError(f"No option of '{group}' is like this.", given=override.input_line, allowed=allowed, hint=hint)
    return matched


def _interval(override: Override) -> ConfigError:
    key = override.get_key_element()
    return ConfigError(
        "An interval has no end of values, and a sweep runs them all.",
        given=override.input_line,
        hint=f"name them: -m {key}=a,b,c or '{key}=range(START,STOP,STEP)'",
    )


def show_configuration(verb: str, overrides: Sequence[str], folders: ConfFolders | None = None) -> str:
    """The composed configuration as YAML."""
    return OmegaConf.to_yaml(_without_hydra(_composed(verb, overrides, folders or find_folders()))).rstrip()


def sweep_points(
    verb: str, overrides: Sequence[str], *, multirun: bool, folders: ConfFolders | None = None
) -> list[tuple[str, ...]] | None:
    """The overrides of each point of a sweep, in order; None for a single run.

    A sweep is asked for with ``-m``, or by an experiment that sets ``hydra.mode`` and ``hydra.sweeper.params``. The product of
    all lists is taken, the last one varying fastest.

    Raises ``ConfigError``: several values without ``-m``, or an override that cannot be read.
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
        [f"{override.get_key_element()}={value}" for value in _list_values(override, folders)] for override in [*theirs, *swept]
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
    tasks = [str(override.value()) for override in parsed if override.key_or_group == "task"]
    config = copy.deepcopy(_from_hydra(verb, chosen, tasks[-1] if tasks else None, folders, folders.state()))
    for override, chooses in zip(parsed, is_choice, strict=True):
        if not chooses:
            _change(config, override, verb, words, folders)
    return config


def _without_hydra(config: DictConfig) -> DictConfig:
    with open_dict(config):
        del config["hydra"]
    return config


@lru_cache(maxsize=64)
def _from_hydra(verb: str, chosen: tuple[str, ...], task: str | None, folders: ConfFolders, _state: object) -> DictConfig:
    """Hydra takes a tenth of a second, and the points of a sweep, or one command, choose the same options several times.
    ``task``: that the words name."""
    first = folders.primary(verb).parent.absolute()  # Hydra looks for the primary file in one folder alone
    others = [quoted(f"file://{folder.absolute()}") for folder in folders.both if folder.absolute() != first]
    search = [f"hydra.searchpath=[{','.join(others)}]"] if others else []
    with _answering(), initialize_config_dir(config_dir=str(first), version_base="1.3"):
        composed = compose(verb, overrides=[*search, *chosen], return_hydra_config=True)
        choices = composed.hydra.runtime.choices
        options = {group: str(choices[group]) for group in folders.groups(verb) if choices.get(group) is not None}
        whole = OmegaConf.create()
        for key, (value, _) in folders.starts(verb, options, task or composed.get("task")).items():
            OmegaConf.update(whole, key, copy.deepcopy(value), force_add=True)
        whole.merge_with(composed)
        OmegaConf.set_struct(whole, True)
        return whole


@contextmanager
def _answering() -> Iterator[None]:
    """What Hydra or OmegaConf refuses is a ``ConfigError`` with the first line of what it says."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, *_PLAIN) as error:
        text = str(error) or str(error.__cause__ or "") or type(error).__name__
        if isinstance(error, HydraException | OmegaConfBaseException):
            raise ConfigError(text.splitlines()[0]) from error
        raise ConfigError("The configuration cannot be composed.", given=text.splitlines()[0]) from error


def _is_group(key: str, folders: ConfFolders) -> bool:
    """Whether a folder of configuration has this name, such as that of another verb's group."""
    return "." not in key and any(os.path.isdir(folder / key) for folder in folders.both)


def _check_override(
    override: Override, verb: str, groups: Mapping[str, str], words: Sequence[str], folders: ConfFolders
) -> None:
    """One value, for a group one option, and no setting of an option that is not chosen: else ``ConfigError``."""
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
    elif (adds or in_a_file(key) in MAPPINGS) and not key.startswith(("hydra", "slurm")):
        group, _, rest = key.partition(".")
        known = settings_class(verb, group if rest else None, words, folders)
        if known is not None and (rest or group).partition(".")[0] not in known.__dataclass_fields__:
            if rest or group not in folders.settings(verb):
                raise unknown_setting(verb, key, words, folders)


def _check_files(verb: str, groups: Mapping[str, str], words: Sequence[str], folders: ConfFolders) -> None:
    """The options that ``words`` choose are there, and the user's files can be composed: else ``ConfigError``."""
    if (own := folders.own) is not None:
        files_of_groups = (path for group in groups for path in (own / group).rglob("*.yaml"))
        for path in sorted([*own.glob("*.yaml"), *files_of_groups]):
            if (folders.built_in / path.relative_to(own)).is_file():
                hint = "give it another name; its defaults list can build on the one of sargnn; or choose --config-dir"
                raise ConfigError("A file has the name of one that sargnn has itself.", given=show_path(path), hint=hint)
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
            place = f"{group}={option} in {', '.join(namers)}" if namers else None
            late = folders.own is not None and os.path.isfile(folders.own / group / f"{option}.yml")
            rename = f"name the file {option}.yaml" if late else None
            raise unknown_option(verb, group, option, folders, given=place, hint=rename)
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
            _refuse_hydra(setting.key, setting.value, f"{setting.key} in {setting.place}")


def _change(config: DictConfig, override: Override, verb: str, words: Sequence[str], folders: ConfFolders) -> None:
    """Give a setting its value. Raises ``ConfigError`` for one that is not there, and with a ``+`` for one that is."""
    key, value = override.key_or_group, override.value()
    adds = override.is_add() or override.is_force_add() or in_a_file(key) in MAPPINGS
    with _answering():
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
