"""What is said to words that are no ``key=value``: an option alone, a setting with dashes or spaces, a folder, another verb."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from sargnn.cli.answers import Known, read_known
from sargnn.cli.conf import ConfFolders
from sargnn.cli.verbs import VERBS, Verb
from sargnn.errors import MOST_SHOWN, ConfigError, nearest

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


def bare_word(verb: Verb, words: Sequence[str], place: int, folders: ConfFolders) -> ConfigError:
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
        *others, last = (f"'{option.partition('=')[0]}'" for option in options)
        groups = f"{', '.join(others)} and {last}" if others else last
        return ConfigError(f"'{word}' is an option of {groups}.", hint=" or ".join(options))
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
        hint=f"write key=value or group=option; sargnn {verb.name} --help lists them",
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
    hint = f"write {key}=OPTION; sargnn {verb.name} {key} --help lists them"
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
        return f"sargnn {verb.name} resume={shlex.quote(word)}"
    if path.suffix in (".yaml", ".yml"):
        return "experiment=NAME for a file conf/experiment/NAME.yaml here, or in --config-dir FOLDER"
    if path.suffix == ".py":
        return f"sargnn {verb.name} dataset=python dataset.target={shlex.quote(word)}:FUNCTION"
    if not exists or "dataset" not in known.options:
        return None
    option = "stored" if (path / "manifest.json").is_file() else "ogb_dir" if (path / "raw").is_dir() else "arrays"
    return f"sargnn {verb.name} dataset={option} dataset.root={shlex.quote(word)}"


def dashed_word(verb: Verb, words: Sequence[str], place: int, folders: ConfFolders) -> ConfigError:
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
            return ConfigError(
                _NO_DASHES, given=word, hint=f"write {word.lstrip('-')}; sargnn {verb.name} --help lists settings"
            )
    allowed = nearest(flag, verb.flags) if re.match(r"--?\w{2}", flag) else verb.flags
    return ConfigError(f"There is no flag '{word}'.", allowed=allowed)


def chosen_by_name(verb: Verb, key: str, value: str, folders: ConfFolders) -> ConfigError | None:
    """The answer to ``model.name=gat``, which would give one option's settings the name of another; None for anything else."""
    group, _, last = key.rpartition(".")
    if last != "name" or verb.config is None or group not in folders.groups(verb.config):
        return None
    if value not in folders.options(group):
        return None
    return ConfigError(f"'{key}' does not choose an option.", given=f"{key}={value}", hint=f"{group}={value}")
