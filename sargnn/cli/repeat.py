"""The command that repeats a run: its configuration as options of groups, and settings that differ from what these say."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from sargnn.cli.conf_folders import MAPPINGS, OVERRIDING, ConfFolders, find_folders
from sargnn.cli.words import words_of
from sargnn.comparison.settings import defaults_of

_FILLED_IN = ("run_dir", "init_digest")
"""Settings that a new run chooses itself."""
_VERB = "train"
_ARGUMENTS = tuple(f"{key}." for key in MAPPINGS)


def command_of(settings: Mapping[str, Any], folders: ConfFolders | None = None) -> str | None:
    """``sargnn train ...``, which composes to the same settings but for the run folder.

    Args:
        settings: dotted key -> value, those of a run's ``config.yaml``. folders: None: those of the working folder.

    Returns:
        The command; None where no option of a group is what the run had, such as one of another folder's ``conf/``.
    """
    folders = folders or find_folders()
    composed = {key: _value(setting.value) for key, setting in folders.settings(_VERB).items()}
    words = []
    for group, default in folders.groups(_VERB).items():
        if group in OVERRIDING:
            continue
        option = _find_option(folders, group, default, settings)
        if option is None:
            return None
        if option != default:
            words.append(f"{group}={option}")
        composed |= _settings_of(folders, group, option)
    unnamed = defaults_of(settings)
    for key, value in settings.items():
        if key in _FILLED_IN or (key in composed and composed[key] == value):
            continue
        is_argument = key.startswith(_ARGUMENTS)
        if not (key in composed or is_argument) and (value in (None, {}) or (key in unnamed and unnamed[key] == value)):
            continue  # what an option's file does not name is at its default
        prefix = "" if key in composed or is_argument else "++"
        words += [f"{prefix}{word}" for word in (words_of(key, value) if value != {} else [f"{key}={{}}"])]
    return shlex.join(["sargnn", _VERB, *words])


def _find_option(folders: ConfFolders, group: str, default: str, settings: Mapping[str, Any]) -> str | None:
    """The option with the group's name that needs the fewest other settings; the default one, or one of that name, first."""
    name = settings.get(f"{group}.name")
    candidates = []
    for option in folders.options(group):
        own = _settings_of(folders, group, option)
        if own.get(f"{group}.name") == name:
            wrong = sum(settings.get(key) != value for key, value in own.items())
            unknown = sum(key not in settings for key in own)
            candidates.append((unknown, wrong, option != default, option != name, option))
    best = min(candidates, default=None)
    return None if best is None or best[0] else best[-1]


def _settings_of(folders: ConfFolders, group: str, option: str) -> dict[str, Any]:
    values = {key: _value(setting.value) for key, setting in folders.settings_of(group, option).items()}
    return {key: value for key, value in values.items() if value != {}}


def _value(written: str) -> Any:
    return yaml.safe_load(written)
