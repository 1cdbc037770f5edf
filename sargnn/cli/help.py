"""``--help`` of every verb, from its record and the configuration folders: groups, options, settings, examples. 80 columns.

Where the command line chooses options, their settings are shown instead of the list of all groups.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from sargnn.cli.conf_folders import OVERRIDING, Choice, ConfFolders, Option
from sargnn.cli.unknown import Known, read_known, unknown_option
from sargnn.cli.verbs import VERBS, Setting, Verb
from sargnn.errors import ConfigError

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

SARGNN_FULL_ERROR=1 shows tracebacks."""


def overview() -> str:
    """What ``sargnn --help`` prints."""
    return _OVERVIEW.format(verbs="\n".join(f"  {verb.name:<11} {verb.summary}" for verb in VERBS.values()))


def help_text(verb: Verb, words: Sequence[str] = (), folders: ConfFolders | None = None) -> str:
    """The whole text about a verb.

    Args:
        words: the others of the command line: what they choose is shown, and what a group, an option or a setting alone names.
        folders: of a verb that composes.

    Raises:
        ConfigError: a word chooses an option that does not exist, or a file cannot be read.
    """
    lines = [f"usage: sargnn {verb.name} {verb.usage}", "", *_wrap(verb.text)]
    if verb.verbs:
        lines += ["", f"{verb.name}:", *(_line(below.name, below.summary) for below in verb.verbs)]
    if verb.settings:
        lines += ["", "settings (key=value):", *(_line(*_own(setting)) for setting in verb.settings)]
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
            return "\n".join([*lines, "", *_wrap(f"sargnn {verb.name} --help lists all groups and settings.")])
        if not verb.changes_a_run:
            lines += _groups(folders, verb.config, verb)
    if verb.examples:
        lines += ["", "examples:"]
        for command, remark in verb.examples:
            lines += [_line(f"sargnn {command}", remark) if remark else f"  sargnn {command}"]
    if verb.config and not verb.changes_a_run:
        lines += ["", "--cfg job prints the composed configuration and runs nothing."]
    if verb.changes_a_run:
        lines += ["", *_wrap(f"Settings and groups of a run: sargnn {verb.config} --help")]
    if verb.previews:
        lines += _wrap("--dry-run says what would be done, with -m for each point, and does nothing.")
    if verb.config:
        lines += _wrap("Options of your own: conf/GROUP/NAME.yaml here, or in the folder that --config-dir FOLDER names.")
    return "\n".join(lines)


def check_option(config: str, group: str, name: str, folders: ConfFolders) -> None:
    """Raises ``ConfigError`` for an option that a group does not have."""
    names = list(folders.options(group))
    if name not in names:
        raise unknown_option(config, group, name, folders)


def _own(setting: Setting) -> tuple[str, str]:
    default = setting.default
    return f"{setting.name}={str(default).lower() if isinstance(default, bool) else default or ''}", setting.comment


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
    more = f"Settings of an option: sargnn {verb.name} {example} --help"
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
            check_option(config, group, name, folders)
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
