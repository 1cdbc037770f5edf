"""Shell completion: verbs, groups with their options, settings with their values, names of runs.

``sargnn completion bash`` prints a script that asks ``sargnn completion --candidates WORD ...`` for what may follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from sargnn.cli.command_line import CONFIG_DIR, CommandLine, take_folders
from sargnn.cli.conf_files import FileSetting
from sargnn.cli.conf_folders import ConfFolders, find_folders
from sargnn.cli.verbs import VERBS, Setting, Verb
from sargnn.errors import ConfigError, nearest

_BASH = """\
_sargnn() {
    local line=("${COMP_WORDS[@]:1:COMP_CWORD}") word="" words=() part
    # bash splits at '='; put key=value together again
    for part in "${line[@]}"; do
        if [[ $part == "=" ]]; then word+="="
        elif [[ $word == *= ]]; then word+="$part"
        else [[ -n $word ]] && words+=("$word"); word="$part"; fi
    done
    if [[ ${COMP_WORDS[COMP_CWORD]} == "" && $word != *= && -n $word ]]; then words+=("$word"); word=""; fi
    local found
    found=$(sargnn completion --candidates "${words[@]}" "$word" 2>/dev/null)
    [[ $word == *=* ]] && found=$(printf '%s\\n' "$found" | sed 's/^[^=]*=//') && word="${word#*=}"
    COMPREPLY=($(compgen -W "$found" -- "$word"))
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -F _sargnn sargnn
"""
_ZSH = """\
#compdef sargnn
_sargnn() {
    local -a found
    found=(${(f)"$(sargnn completion --candidates "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    compadd -S '' -- $found
}
compdef _sargnn sargnn
"""
_FISH = """\
complete -c sargnn -f -a '(sargnn completion --candidates (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def main(line: CommandLine) -> int:
    """Print a script."""
    if not line.words:
        from sargnn.cli.help import help_text

        print(help_text(VERBS["completion"]))
        return 0
    shell = line.words[0]
    if shell not in SCRIPTS:
        raise ConfigError("There is no completion for this shell.", given=shell, allowed=nearest(shell, SCRIPTS))
    print(SCRIPTS[shell], end="")
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """What the last word may become; the words before it are given."""
    *before, last = words or [""]
    completions: Iterable[str] = VERBS
    if before:
        verb = VERBS.get(before[0])
        if verb is None:
            return []
        below = {subverb.name.split()[-1]: subverb for subverb in verb.verbs}
        if below and len(before) > 1:
            verb = below.get(before[1], verb)
            before = before[1:]
        completions = below if verb.verbs else _of_verb(verb, before[1:], last)
    return [word for word in dict.fromkeys(completions) if word.startswith(last)]


def _of_verb(verb: Verb, before: Sequence[str], last: str) -> list[str]:
    """What may follow a verb, some of it not yet what ``last`` begins."""
    if before and before[-1] in (*verb.instead, CONFIG_DIR):
        return _run_folders(last) if before[-1] in verb.instead else _folders(last)
    if last.startswith("-"):
        return list(verb.flags)
    key, equals, start = last.partition("=")
    settings = {setting.name: setting for setting in verb.settings}
    if equals and key in settings:
        return [f"{key}={value}" for value in _values(settings[key], start)]
    completions = [f"{name}=" for name in settings]
    if verb.takes == "run folders":
        completions = [*_run_folders(last), *completions]
    elif verb.takes == "one run" and not any("=" not in word for word in before):
        completions = [*_run_folders(last), *completions]
    elif verb.takes == "one of a few":
        named = find_folders().options(verb.choices_in) if verb.choices_in else ()
        completions = [*verb.choices, *named, *completions]
    elif verb.takes == "one file":
        completions = [*_files(last), *completions]
    if verb.config is None:
        return completions
    try:
        others, folders = take_folders(verb, before)
    except ConfigError:  # the folder does not exist
        others, folders = take_folders(verb, ())
    try:
        return completions + _composed(folders, verb.config, others, last)
    except ConfigError:  # one of the user's files cannot be read
        return completions


_RUNS = ("resume", "init_from")
"""Settings of a run that name another one."""


def _composed(folders: ConfFolders, config: str, before: Sequence[str], last: str) -> list[str]:
    groups, settings = folders.groups(config), folders.settings(config)
    key, equals, value = last.partition("=")
    earlier, comma, _ = value.rpartition(",")  # of a sweep: a,b
    if equals and key in groups:
        given = earlier.split(",") if comma else []
        return [f"{key}={earlier}{comma}{option}" for option in folders.options(key) if option not in given]
    if equals and key in _RUNS:
        return [f"{key}={run}" for run in _run_folders(value)]
    if equals:
        from sargnn.cli.allowed_values import allowed_values

        return [f"{key}={earlier}{comma}{allowed}" for allowed in allowed_values(config, key, before, folders)]
    nested: dict[str, FileSetting] = {}
    if "." in last:
        choice = folders.choice(config, before)
        for group in groups:
            options = folders.named_options(group, choice.options[group]) if group in choice.named else folders.options(group)
            for option in options:
                nested |= folders.nested([group], {group: option})
    return [f"{name}=" for name in (*groups, *settings, *sorted(nested))]


def _values(setting: Setting, start: str) -> list[str]:
    if isinstance(setting.default, bool):
        return ["true", "false"]
    if setting.allowed:
        return list(setting.allowed)
    if setting.names == "run":
        return _run_folders(start)
    return _folders(start) if setting.names == "folder" else []


def _run_folders(start: str) -> list[str]:
    """The names of the runs here, or what a path leads to."""
    from sargnn.tracking.find_runs import run_names, sweeps_here

    names = run_names()
    if "/" in start and not any(name.startswith(start) for name in names):
        return _folders(start)
    return [*names, *(sweep.name for sweep in sweeps_here())]


def _files(start: str) -> list[str]:
    """The JSON files of a folder, and folders that may hold some."""
    head, slash, _ = start.rpartition("/")
    try:
        files = [head + slash + path.name for path in sorted(Path(head + slash).glob("*.json"))]
    except (OSError, ValueError):
        files = []
    return files + [f"{folder}/" for folder in _folders(start)]


def _folders(start: str) -> list[str]:
    head, slash, _ = start.rpartition("/")
    folder = Path(head + slash) if slash else Path()
    try:
        return [head + slash + path.name for path in sorted(folder.iterdir()) if path.is_dir() and path.name[:1] != "."]
    except OSError:
        return []
