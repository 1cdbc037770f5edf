"""A verb's command line, taken apart as its record says: flags, settings, overrides and other words; and what is said to
words that are none of these: an option alone, a setting with dashes or spaces, a folder, another verb.

And the other way round: settings as Python has them, as the words that mean them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sargnn.cli.answers import Known, read_known, unknown_own_setting, unknown_setting
from sargnn.cli.conf import ConfFolders, built_in_folder, find_folders
from sargnn.cli.verb import Setting, Value, Verb
from sargnn.cli.verbs import VERBS
from sargnn.errors import MOST_SHOWN, ConfigError, nearest

SWEEP = ("-m", "--multirun")
SHOW = ("--cfg", "-c")
CONFIG_DIR = "--config-dir"
DRY_RUN = "--dry-run"
_WORDS_OF_YAML = ("null", "true", "false", "nan", "inf", "yes", "no", "on", "off")
_ONE_WORD = "A setting and its value are one word, with = between them."
_NO_DASHES = "A setting is written without dashes."
_OF_HYDRA = {
    **dict.fromkeys(("--config-path", "-cp", "-cd"), "--config-dir FOLDER adds a folder's options"),
    **dict.fromkeys(("--config-name", "-cn"), "experiment=NAME; conf/experiment/NAME.yaml can be one of your own"),
    **dict.fromkeys(("--package", "-p"), "--cfg job shows the whole configuration"),
    **dict.fromkeys(("--info", "-i"), "--cfg job shows the configuration, --dry-run what would be done"),
    "--hydra-help": "--help lists all groups and settings",
    **dict.fromkeys(("--shell-completion", "-sc"), "sargnn completion bash"),
    "--experimental-rerun": "resume=RUN goes on with a run",
    **dict.fromkeys(("--version", "-V"), "sargnn --version"),
}
"""Flags that Hydra's programs or others have -> what there is here."""


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
            what = text or next(rest, (0, ""))[1]
            if what not in ("job", "all"):
                raise ConfigError("--cfg shows the configuration.", given=what or "nothing", allowed="--cfg job")
            show = True
        elif word == "--resolve" and verb.config:
            continue  # what is shown is resolved anyhow
        elif word.startswith("--") and (flagged := own.get(word[2:])) is not None and flagged.flag:
            settings[flagged.name] = True
        elif word.startswith("-"):
            raise _dashed_word(verb, arguments, place, folders)
        elif equals and key in own:
            settings[key] = convert(own[key], text)
        elif verb.takes == "one run" and not equals and not settings["run"]:
            settings["run"] = word
        elif verb.config and verb.takes in ("one of a few", "one file") and not equals and not word.startswith("+"):
            words.append(word)
        elif verb.config:
            after = arguments[place + 1] if place + 1 < len(arguments) else "="
            if not equals or not key or (not text and "=" not in after and not after.startswith("-")):
                raise _bare_word(verb, arguments, place, folders)
            group, _, last = key.rpartition(".")
            if last == "name" and group in folders.groups(verb.config) and text in folders.options(group):
                # It would give one option's settings the name of another.
                raise ConfigError(f"'{key}' does not choose an option.", given=f"{key}={text}", hint=f"{group}={text}")
            overrides.append(word)
        elif equals:
            raise unknown_own_setting(verb, key, text)
        else:
            words.append(word)
    if multirun and not verb.sweeps:
        raise ConfigError("This verb has no sweeps.", given="-m", hint="call it once for each value")
    if multirun and show:
        raise ConfigError("--cfg shows one configuration.", hint="leave -m out, and give single values")
    if verb.changes_a_run or (verb.config and verb.takes in ("one of a few", "one file")):
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
    if not isinstance(setting.default, int):
        if setting.allowed and text not in setting.allowed:
            raise ConfigError(f"'{setting.name}' has a value that is not known.", given=text, allowed=setting.allowed)
        return text
    try:
        value = int(text)
    except ValueError as error:
        raise ConfigError(f"'{setting.name}' has the wrong type.", given=repr(text), allowed="a whole number") from error
    low, high = setting.low, setting.high
    if (low is not None and value < low) or (high is not None and value > high):
        allowed = f"{low} to {high}" if low is not None and high is not None else f"at least {low}"
        raise ConfigError(f"'{setting.name}' is out of range.", given=value, allowed=allowed)
    return value


def _bare_word(verb: Verb, words: Sequence[str], place: int, folders: ConfFolders) -> ConfigError:
    """The answer to ``words[place]`` of a composing verb, which has no ``=``."""
    assert verb.config is not None
    word = words[place]
    before = words[place - 1] if place else ""
    after = words[place + 1] if place + 1 < len(words) else ""
    known = read_known(verb.config, [override for override in words if "=" in override], folders)
    if after.startswith("=") or word.endswith("=") or (before.endswith("=") and before.strip("=")):
        return _parted(known, words, place)
    if before.endswith(","):
        more = "-m " if verb.sweeps else ""
        return ConfigError("A list is one word.", given=f"{before} {word}", hint=f"{more}{before}{word}")
    if word not in known.keys and (command := _of_a_place(known, verb, word)) is not None:
        return ConfigError("A word alone says nothing here.", given=word, hint=command)
    keys = known.called(word)
    if len(keys) == 1 and after and "=" not in after and not after.startswith("-") and not known.called(after):
        return ConfigError(_ONE_WORD, given=f"{word} {after}", hint=known.words(keys[0], after))
    if options := known.options_called(word):
        if len(options) > 1:
            return ConfigError(f"'{word}' is an option of several groups.", allowed=options)
        return ConfigError(f"'{word}' is an option of '{options[0].partition('=')[0]}'.", hint=options[0])
    if keys:
        return _without_value(known, verb, word, keys)
    if (key_and_value := _other_sign(known, word)) is not None:
        return ConfigError(_ONE_WORD, given=word, hint=key_and_value)
    if word in VERBS:
        return ConfigError("One verb at a time.", given=f"{verb.name} ... {word}", hint=f"sargnn {word}")
    every = [f"{group}={name}" for group, names in known.options.items() for name in names]
    close = nearest(word, [option.partition("=")[2] for option in every])
    allowed = [option for name in close for option in every if option.endswith(f"={name}")]
    return ConfigError(
        "A word cannot be read.",
        given=word,
        allowed=allowed,
        hint=f"write key=value or group=option; {verb.command} --help lists them",
    )


def _parted(known: Known, words: Sequence[str], place: int) -> ConfigError:
    """``world = 4``, ``world =4`` or ``world= 4``."""
    start = place - 1 if place and words[place - 1].endswith("=") else place
    parts = [words[start]]
    for word in words[start + 1 : start + 3]:
        joined = "".join(parts)
        if "=" in joined and not joined.endswith("="):
            break
        parts.append(word)
    key, _, value = "".join(parts).partition("=")
    keys = known.called(key)
    return ConfigError(_ONE_WORD, given=" ".join(parts), hint=known.words(keys[0] if len(keys) == 1 else key, value or "VALUE"))


def _without_value(known: Known, verb: Verb, word: str, keys: Sequence[str]) -> ConfigError:
    if len(keys) > 1:
        return ConfigError(f"'{word}' needs a value.", allowed=[f"{key}=..." for key in keys])
    (key,) = keys
    if key not in known.options:
        return ConfigError(f"'{word}' needs a value.", hint=known.words(key, _default(known, key)))
    options = [f"{key}={option}" for option in known.options[key]]
    hint = f"write {key}=OPTION; {verb.command} {key} --help lists them"
    return ConfigError(f"'{word}' needs one of its options.", allowed=options if len(options) <= MOST_SHOWN else (), hint=hint)


def _default(known: Known, key: str) -> str:
    """What is written in its file, as an example; else ``VALUE``."""
    settings = known.folders.settings(known.config)
    if key in known.owners:
        settings = known.folders.settings_of(key.partition(".")[0], known.owner(key))
    value = settings[key].value
    return value if value not in ("null", "???", "{}", "[]") else "VALUE"


def _other_sign(known: Known, word: str) -> str | None:
    """``model:gat``, ``model/gat`` or ``model.gat`` as it is written here."""
    for sign in ":/.":
        head, separator, value = word.partition(sign)
        key = "".join(known.called(head)[:1]) if head else ""
        if not separator or not key or not value:
            continue
        if key in known.options:
            same = [option for option in known.options[key] if option.casefold() == value.casefold()]
            return f"{key}={same[0]}" if same else None
        if sign == ":":
            return known.words(key, value)
    return None


def _of_a_place(known: Known, verb: Verb, word: str) -> str | None:
    """The command for a run, or for a path that is a graph or a configuration."""
    path = Path(os.path.expanduser(word))
    try:
        exists = path.exists()
    except (OSError, ValueError):
        return None
    from sargnn.tracking.find_runs import RUNS, is_run

    if verb.config in ("train", "slurm") and (is_run(path) or is_run(RUNS / word)):
        return f"{verb.command} resume={shlex.quote(word)}"
    if path.suffix in (".yaml", ".yml"):
        return "experiment=NAME for a file conf/experiment/NAME.yaml here, or in --config-dir FOLDER"
    if path.suffix == ".py":
        return f"{verb.command} dataset=python dataset.target={shlex.quote(word)}:FUNCTION"
    if not exists or "dataset" not in known.options:
        return None
    option = "stored" if (path / "manifest.json").is_file() else "ogb_dir" if (path / "raw").is_dir() else "arrays"
    return f"{verb.command} dataset={option} dataset.root={shlex.quote(word)}"


def _dashed_word(verb: Verb, words: Sequence[str], place: int, folders: ConfFolders) -> ConfigError:
    """The answer to ``words[place]``, which begins with a dash and is no flag of the verb."""
    word = words[place]
    flag, equals, value = word.partition("=")
    if verb.config and flag in _OF_HYDRA:
        return ConfigError(f"There is no flag '{flag}'.", hint=_OF_HYDRA[flag])
    name = flag.lstrip("-")
    after = words[place + 1] if place + 1 < len(words) else ""
    follows = not equals and after and "=" not in after and not after.startswith("-")
    given = f"{word} {after}" if follows else word
    value = value or (after if follows else "")
    own = [setting.name for setting in verb.settings]
    if name in own:
        return ConfigError(_NO_DASHES, given=given, hint=f"{name}={shlex.quote(value or 'VALUE')}")
    if verb.config and len(name) > 1:
        known = read_known(verb.config, [override for override in words if "=" in override], folders)
        keys = known.called(name) or known.called(name.replace("-", "_"))
        if keys:
            default = "OPTION" if keys[0] in known.options else _default(known, keys[0])
            shown = known.words(keys[0], value or ("true" if default in ("true", "false") else default))
            return ConfigError(_NO_DASHES, given=given, hint=shown)
        if options := known.options_called(name):
            return ConfigError(_NO_DASHES, given=word, hint=" or ".join(options))
        if equals:
            return ConfigError(_NO_DASHES, given=word, hint=f"write {word.lstrip('-')}; {verb.command} --help lists settings")
    allowed = nearest(flag, verb.flags) if re.match(r"--?\w{2}", flag) else verb.flags
    return ConfigError(f"There is no flag '{word}'.", allowed=allowed)


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
        text = os.fspath(value)
        if re.fullmatch(r"[A-Za-z_][\w./-]*", text, flags=re.ASCII) and text.lower() not in _WORDS_OF_YAML:
            return text
        # In quotes, or it would mean something else; "${" would be looked up.
        escaped = text.replace("${", "\\${")
        return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), escaped) + "'"
    raise ConfigError(f"'{key}' has a value that no setting can have.", given=f"a {type(value).__name__}")
