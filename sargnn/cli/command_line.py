"""A verb's command line, taken apart as its record says: flags, settings, overrides and other words.

And the other way round: settings as Python has them, as the words that mean them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sargnn.cli.answers import unknown_own_setting, unknown_setting
from sargnn.cli.conf import ConfFolders, built_in_folder, find_folders
from sargnn.cli.typed import bare_word, chosen_by_name, dashed_word
from sargnn.cli.verbs import Setting, Value, Verb
from sargnn.errors import ConfigError

SWEEP = ("-m", "--multirun")
SHOW = ("--cfg", "-c")
CONFIG_DIR = "--config-dir"
DRY_RUN = "--dry-run"


@dataclass(frozen=True)
class CommandLine:
    """What an entry function gets.

    Attributes:
        words: those that are neither flag nor setting nor override, such as run folders.
        settings: those of the verb's record, with their defaults.
        overrides: what is handed to Hydra.
        multirun: ``-m`` was given.
        show: ``--cfg job``: print the configuration and run nothing.
        dry_run: say what would be done, and do nothing.
        folders: where configuration is looked for.
        instead: the flag that asks for another function of the verb.
    """

    words: tuple[str, ...] = ()
    settings: dict[str, Value] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    multirun: bool = False
    show: bool = False
    dry_run: bool = False
    folders: ConfFolders = field(default_factory=built_in_folder)
    instead: str | None = None


def asks_for_help(arguments: Iterable[str]) -> bool:
    """Whether help is asked for."""
    return any(word in ("-h", "--help", "help") for word in arguments)


def read_command_line(verb: Verb, arguments: Sequence[str]) -> CommandLine:
    """Raises ``ConfigError`` for a flag, a setting or a word that the verb does not take, and a value that cannot be."""
    for flag in verb.instead:
        if any(word == flag or word.startswith(f"{flag}=") for word in arguments):
            others = (word.removeprefix(f"{flag}=") for word in arguments if word != flag)
            return CommandLine(words=tuple(others), instead=flag)
    arguments, folders = take_folders(verb, arguments)
    own = {setting.name: setting for setting in verb.settings}
    settings: dict[str, Value] = {name: setting.default for name, setting in own.items()}
    words: list[str] = []
    overrides: list[str] = []
    multirun = show = dry_run = False
    rest = iter(enumerate(arguments))
    for place, word in rest:
        key, equals, text = word.partition("=")
        if word in SWEEP and verb.config:
            multirun = True
        elif word == DRY_RUN and DRY_RUN in verb.flags:
            dry_run = True
        elif key in SHOW and verb.config:
            show = _shows(text or next(rest, (0, ""))[1])
        elif word == "--resolve" and verb.config:
            continue  # what is shown is resolved anyhow
        elif word.startswith("--") and (flagged := own.get(word[2:])) is not None and flagged.flag:
            settings[flagged.name] = True
        elif word.startswith("-"):
            raise dashed_word(verb, arguments, place, folders)
        elif equals and key in own:
            settings[key] = convert(own[key], text)
        elif verb.takes == "one run" and not equals and not settings["run"]:
            settings["run"] = word
        elif verb.config and verb.takes == "one of a few" and not equals and not word.startswith("+"):
            words.append(word)
        elif verb.config:
            if not equals or not key or (not text and _is_bare(arguments[place + 1 : place + 2])):
                raise bare_word(verb, arguments, place, folders)
            if (error := chosen_by_name(verb, key, text, folders)) is not None:
                raise error
            overrides.append(word)
        elif equals:
            raise unknown_own_setting(verb, key, text)
        else:
            words.append(word)
    if multirun and not verb.sweeps:
        raise ConfigError("This verb has no sweeps.", given="-m", hint="call it once for each value")
    if multirun and show:
        raise ConfigError("--cfg shows one configuration.", hint="leave -m out, and give single values")
    if verb.changes_a_run or (verb.config and verb.takes == "one of a few"):
        _check_changes(verb, own, overrides, folders)
        if show and verb.changes_a_run:
            raise ConfigError("A run's configuration is in its folder.", given="--cfg", hint="config.yaml in the run folder")
    if words and verb.takes in ("nothing", "one run"):
        raise ConfigError("This verb takes no such word.", given=words[0], allowed=[f"{name}=..." for name in own])
    return CommandLine(tuple(words), settings, tuple(overrides), multirun, show, dry_run, folders)


def take_folders(verb: Verb, arguments: Sequence[str]) -> tuple[list[str], ConfFolders]:
    """The arguments without ``--config-dir``, and the folders that a composing verb looks at."""
    if not verb.config:
        return list(arguments), built_in_folder()
    others: list[str] = []
    given: str | None = None
    rest = iter(arguments)
    for word in rest:
        if word == CONFIG_DIR:
            given = next(rest, "")
        elif word.startswith(f"{CONFIG_DIR}="):
            given = word.removeprefix(f"{CONFIG_DIR}=")
        else:
            others.append(word)
    return others, find_folders(given)


def _is_bare(words: Sequence[str]) -> bool:
    return any("=" not in word and not word.startswith("-") for word in words)


def _shows(what: str) -> bool:
    if what not in ("job", "all"):
        raise ConfigError("--cfg shows the configuration.", given=what or "nothing", allowed="--cfg job")
    return True


def _check_changes(verb: Verb, own: dict[str, Setting], overrides: Sequence[str], folders: ConfFolders) -> None:
    """The first part of what changes a run's configuration must be a setting of a run."""
    assert verb.config is not None
    groups, settings = folders.groups(verb.config), folders.settings(verb.config)
    known = [*own, *groups, *settings]
    firsts = {name.partition(".")[0] for name in known}
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if key.partition(".")[0] not in firsts:
            raise unknown_setting(verb.config, key, overrides, folders, own)


def convert(setting: Setting, text: str) -> Value:
    """A value of its default's type. Raises ``ConfigError`` for one of another type, out of range, or not known."""
    if isinstance(setting.default, bool):
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"'{setting.name}' has the wrong type.", given=repr(text), allowed="true or false")
        return text.lower() == "true"
    if isinstance(setting.default, int):
        return _number(setting, text)
    if setting.allowed and text not in setting.allowed:
        raise ConfigError(f"'{setting.name}' has a value that is not known.", given=text, allowed=setting.allowed)
    return text


def _number(setting: Setting, text: str) -> int:
    try:
        value = int(text)
    except ValueError as error:
        raise ConfigError(f"'{setting.name}' has the wrong type.", given=repr(text), allowed="a whole number") from error
    low, high = setting.low, setting.high
    if (low is not None and value < low) or (high is not None and value > high):
        allowed = f"{low} to {high}" if low is not None and high is not None else f"at least {low}"
        raise ConfigError(f"'{setting.name}' is out of range.", given=value, allowed=allowed)
    return value


_WORDS_OF_YAML = ("null", "true", "false", "nan", "inf", "yes", "no", "on", "off")


def words_of(key: str, value: Any) -> Iterator[str]:
    """``key=value``; of a mapping a word for each value in it. Raises ``ConfigError`` for what no setting can have."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from words_of(f"{key}.{name}", inner)
    else:
        yield f"{key}={_text(key, value)}"


def _text(key: str, value: Any) -> str:
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of NumPy or torch
        value = value.item()
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(_text(key, entry) for entry in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{name}:{_text(key, entry)}' for name, entry in value.items())}}}"
    if isinstance(value, str | os.PathLike):
        return _quoted(os.fspath(value))
    raise ConfigError(f"'{key}' has a value that no setting can have.", given=f"a {type(value).__name__}")


def _quoted(text: str) -> str:
    """A text that stays one: in quotes unless it is a plain word that means nothing else."""
    if re.fullmatch(r"[A-Za-z_][\w./-]*", text, flags=re.ASCII) and text.lower() not in _WORDS_OF_YAML:
        return text
    escaped = text.replace("${", "\\${")  # or it would be looked up
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), escaped) + "'"
