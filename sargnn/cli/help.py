"""``--help`` of every verb, and shell completion: from the verbs' records and the configuration folders. 80 columns.

Where the command line chooses options, their settings are shown instead of the list of all groups. ``sargnn completion bash``
prints a script that asks ``sargnn completion --candidates WORD ...`` for what may follow.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from sargnn.cli.answers import Known, allowed_values, read_known, unknown_option
from sargnn.cli.command_line import CONFIG_DIR, CommandLine, take_folders
from sargnn.cli.conf import OVERRIDING, Choice, ConfFolders, Option, find_folders
from sargnn.cli.verb import Verb
from sargnn.cli.verbs import VERBS
from sargnn.errors import ConfigError, nearest

WIDTH = 80
_OVERVIEW = """\
usage: sargnn VERB [key=value ...] [group=option ...]

Exact, full-batch training of graph neural networks on graphs too large for
one machine.

verbs:
{verbs}

examples:
  sargnn train                          the embedded graph, 4 workers
  sargnn train model=gat mode=domain_parallel world=2
  sargnn train -m mode=sar,one_shot     a sweep
  sargnn train dataset=arrays dataset.root=FOLDER
  sargnn compare                        the runs of this folder
  sargnn train --help                   groups, options and settings
  sargnn train model=gat --help         the settings of one option
  sargnn help WORD                      what there is of it: sargnn help gpu

SARGNN_FULL_ERROR=1 shows tracebacks."""


def overview() -> str:
    """What ``sargnn --help`` prints."""
    return _OVERVIEW.format(verbs="\n".join(f"  {verb.name:<11} {verb.summary}" for verb in VERBS.values()))


def help_text(verb: Verb, words: Sequence[str] = (), folders: ConfFolders | None = None) -> str:
    """The whole text about a verb.

    Args:
        words: the others of the command line: what they choose is shown, and what a group, an option or a setting alone names.
        folders: of a verb that composes.

    Raises ``ConfigError``: a word chooses an option that does not exist, or a file cannot be read.
    """
    lines = [f"usage: {verb.command} {verb.usage}", "", *_wrap(verb.text)]
    if verb.verbs:
        lines += ["", f"{verb.name}:", *(_line(below.name, below.summary) for below in verb.verbs)]
    if verb.settings:
        lines += ["", "settings (key=value):"]
        for own in verb.settings:
            default = str(own.default).lower() if isinstance(own.default, bool) else own.default or ""
            lines.append(_line(f"{own.name}={default}", own.comment))
    if verb.config and folders is not None:
        known = read_known(verb.config, words, folders)
        groups, keys, words = _asked(known, words)
        choice = folders.choice(verb.config, words)
        if choice.named or groups or keys:
            defaults = folders.groups(verb.config)
            for group in groups:
                lines += ["", f"options of {group} (the first is the default):", *_options(folders, group, defaults[group])]
            if keys:
                lines += ["", "settings (key=value):", *(_line(*_setting(known, key)) for key in keys)]
            lines += _chosen(folders, choice, verb.config)
            return "\n".join([*lines, "", *_wrap(f"{verb.command} --help lists all groups and settings.")])
        if not verb.changes_a_run:
            lines += _groups(folders, verb.config, verb)
    if verb.examples:
        lines += ["", "examples:"]
        for command, remark in verb.examples:
            lines += [_line(f"{verb.program} {command}", remark) if remark else f"  {verb.program} {command}"]
    if verb.config and not verb.changes_a_run:
        lines += ["", "--cfg job prints the composed configuration and runs nothing."]
    if verb.changes_a_run:
        lines += ["", *_wrap(f"Settings and groups of a run: sargnn {verb.config} --help")]
    if verb.previews:
        lines += _wrap("--dry-run says what would be done, with -m for each point, and does nothing.")
    if verb.config:
        lines += _wrap("Options of your own: conf/GROUP/NAME.yaml here, or in the folder that --config-dir FOLDER names.")
    return "\n".join(lines)


def _groups(folders: ConfFolders, config: str, verb: Verb) -> list[str]:
    """All groups with their options, and the settings that are in none."""
    lines: list[str] = []
    groups = folders.groups(config)
    if groups:
        lines += ["", "groups (group=option; the first line of each is the default):"]
    for group, default in groups.items():
        lines += _options(folders, group, default)
    example = next((f"{group}={default}" for group, default in groups.items() if default != "null"), "GROUP=OPTION")
    lines += ["", "settings (key=value):"]
    lines += [_line(f"{setting.key}={setting.value}", setting.comment) for setting in folders.settings(config).values()]
    more = f"Settings of an option: {verb.command} {example} --help"
    return [*lines, "", *_wrap(more)]


def _options(folders: ConfFolders, group: str, default: str) -> list[str]:
    options = folders.options(group)
    if default in options:
        options = {default: options[default]} | options
    return [_line(f"{group}={name}", _about(option)) for name, option in options.items()]


def _asked(known: Known, words: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """The groups and the settings that words alone name, and the others, an option alone with its group."""
    groups: list[str] = []
    keys: list[str] = []
    others: list[str] = []
    for word in words:
        if "=" in word or word.startswith("-"):
            others.append(word)
        elif word in known.options:
            groups.append(word)
        elif options := known.options_called(word):
            others += options
        else:
            keys += [key for key in known.called(word) if key not in known.options]
    return groups, keys, others


def _setting(known: Known, key: str) -> tuple[str, str]:
    """A setting with its default, and what it is."""
    group = key.partition(".")[0]
    if key not in known.owners:
        setting = known.folders.settings(known.config)[key]
        return f"{key}={setting.value}", setting.comment
    option = known.chosen[group] if known.is_here(key) else known.owner(key)
    setting = known.folders.settings_of(group, option)[key]
    return f"{key}={setting.value}", setting.comment if known.is_here(key) else f"with {group}={option}: {setting.comment}"


def _chosen(folders: ConfFolders, choice: Choice, config: str) -> list[str]:
    """The options that the command line names, each with its settings as they would be."""
    lines: list[str] = []
    given = choice.theirs | choice.given
    for group in choice.named:
        for name in folders.named_options(group, choice.options[group]):
            if name == "null":
                continue
            options = folders.options(group)
            if name not in options:
                raise unknown_option(config, group, name, folders)
            if options[name].fault:
                raise ConfigError(options[name].fault)
            lines += ["", *_wrap(f"{group}={name}: {_about(options[name])}")]
            for key, setting in folders.settings_of(group, name).items():
                if key != f"{group}.name":
                    value = choice.given.get(key, setting.value) if group in OVERRIDING else given.get(key, setting.value)
                    lines += [_line(f"{key}={value}", setting.comment)]
    return lines


def _about(option: Option) -> str:
    """Its sentence, and where it comes from if it is the user's."""
    if option.fault:
        return f"cannot be read ({option.origin})"
    return " ".join(part for part in (option.sentence, f"({option.origin})" if option.origin else "") if part)


def _line(left: str, text: str) -> str:
    """Two columns; the right one wrapped, below where the left one is long."""
    column = 28
    wrapped = _wrap(text, WIDTH - column)
    if len(left) + 4 > column or not text:
        folded = textwrap.fill(left, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)  # a list
        return "\n".join([folded, *(" " * column + part for part in wrapped)])
    return "\n".join([f"  {left:<{column - 2}}{wrapped[0]}", *(" " * column + part for part in wrapped[1:])])


def _wrap(text: str, width: int = WIDTH) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


def topics(words: Sequence[str], folders: ConfFolders) -> str:
    """What ``sargnn help WORD ...`` prints: the answers of ``docs/answers.md`` whose title or other names have the words; else
    what is known of a setting or an option of that name. Raises ``ConfigError``: nothing is."""
    asked = _plain(" ".join(words))
    answers = _answers()
    exact = [title for title, (names, _) in answers.items() if asked in names]
    known = exact or [title for title, (names, _) in answers.items() if any(asked in f"{name} " for name in names)]
    if known:
        parts = [[title, *answers[title][1], ""] for title in known[:_MOST_ANSWERS]]
        return "\n".join(line for part in parts for line in part).rstrip()
    if read_known("train", (), folders).called(words[0]):
        return help_text(VERBS["train"], words[:1], folders)
    names = {name: title for title, (names, _) in answers.items() for name in names}
    near = dict.fromkeys(f"sargnn help {names[name].lower()}" for name in nearest(asked, names))
    near = near if len(near) < _MOST_ANSWERS else {}
    raise ConfigError(
        "Nothing is known of this.", given=" ".join(words), allowed=near, hint="sargnn --help, or the site's search"
    )


_MOST_ANSWERS = 4


def _answers() -> dict[str, tuple[tuple[str, ...], list[str]]]:
    """Title -> what it is also called, plainly, and its lines, 80 columns wide."""
    package = Path(__file__).parent.parent
    pages = (package / "answers.md", package.parent / "docs" / "answers.md")
    text = next((page.read_text() for page in pages if page.is_file()), "")
    answers = {}
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        title, _, body = section.partition("\n")
        also = re.search(r"^\*Also: (.*?)\.\*$", body, flags=re.M)
        names = [title, *(also.group(1).split(",") if also else ())]
        body = re.sub(r"^\*Also: .*$|`", "", body, flags=re.M)
        body = re.sub(r"\[([^\]]+)\]\(([^)]+)\)", r"\1 (docs/\2)", body)
        answers[title] = tuple(map(_plain, names)), _wrap(" ".join(body.split()))
    return answers


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9&']+", " ", text.lower()).strip()


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


def completion(line: CommandLine) -> int:
    """Print a script."""
    if not line.words:
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
        if verb.verbs and len(before) > 1:
            verb = verb.below.get(before[1], verb)
            before = before[1:]
        completions = verb.below if verb.verbs else _of_verb(verb, before[1:], last)
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
        setting = settings[key]
        values: Sequence[str] = setting.allowed
        if isinstance(setting.default, bool):
            values = ("true", "false")
        elif not values and setting.names != "text":
            values = _run_folders(start) if setting.names == "run" else _folders(start)
        return [f"{key}={value}" for value in values]
    completions = [f"{name}=" for name in settings]
    if verb.takes == "run folders" or (verb.takes == "one run" and all("=" in word for word in before)):
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
    with suppress(ConfigError):  # one of the user's files cannot be read
        completions += _composed(folders, verb.config, others, last)
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
        return [f"{key}={earlier}{comma}{allowed}" for allowed in allowed_values(config, key, before, folders)]
    nested: set[str] = set()
    if "." in last:
        choice = folders.choice(config, before)
        for group in groups.keys() - set(OVERRIDING):
            chosen = group in choice.named
            for option in folders.named_options(group, choice.options[group]) if chosen else folders.options(group):
                with suppress(ConfigError):
                    nested |= folders.settings_of(group, option).keys() - {f"{group}.name"}
    return [f"{name}=" for name in (*groups, *settings, *sorted(nested))]


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
