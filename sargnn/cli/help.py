"""``--help`` of every verb, read from the configuration folder: groups, their options, settings, examples. 80 columns.

Reads the YAML files as text, so that help needs neither Hydra nor anything else that takes time to import.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sargnn.cli.main import conf_dir
from sargnn.errors import ConfigError

if TYPE_CHECKING:
    from sargnn.cli.compose import Words

WIDTH = 80


@dataclass(frozen=True)
class Help:
    """What a verb says about itself.

    Attributes:
        usage: after ``usage: sargnn``. text: what it does.
        examples: (command without ``sargnn``, remark).
        config: its primary file in ``conf/``, without suffix; None for a verb without settings.
    """

    usage: str
    text: str
    examples: tuple[tuple[str, str], ...] = ()
    config: str | None = None


def wanted(arguments: Sequence[str]) -> bool:
    """Whether help is asked for."""
    return any(word in ("-h", "--help", "help") for word in arguments)


def words_of(about: Help, arguments: Sequence[str]) -> Words | None:
    """A verb's command line, taken apart; None where help or the configuration was asked for, and printed."""
    if wanted(arguments):
        print(help_text(about))
        return None
    from sargnn.cli.compose import read_words, shown

    words = read_words(arguments)
    if not words.show:
        return words
    assert about.config is not None
    print(shown(about.config, words.overrides))
    return None


def refuse_sweep(words: Words) -> None:
    """For verbs that do one thing. Raises ``ConfigError``."""
    if words.multirun:
        raise ConfigError("This verb has no sweeps.", given="-m", hint="call it once for each value")


def help_text(about: Help) -> str:
    """The whole text."""
    lines = [f"usage: sargnn {about.usage}", "", *textwrap.wrap(about.text, WIDTH)]
    if about.config:
        groups, settings = groups_of(about.config), settings_of(about.config)
        if groups:
            lines += ["", "groups (group=option; the first line of each is the default):"]
        for group, default in groups.items():
            options = options_of(group)
            if default in options:
                options = {default: options[default]} | options
            lines += [_line(f"{group}={name}", text) for name, text in options.items()]
        lines += ["", "settings (key=value; those of a group: GROUP.KEY, see --cfg job):"]
        lines += [_line(f"{key}={value}", text) for key, value, text in settings]
    if about.examples:
        lines += ["", "examples:"]
        for command, remark in about.examples:
            lines += [_line(f"sargnn {command}", remark) if remark else f"  sargnn {command}"]
    if about.config:
        lines += ["", "--cfg job prints the composed configuration and runs nothing."]
    return "\n".join(lines)


def groups_of(config: str) -> dict[str, str]:
    """The groups of a primary file, with their default options."""
    groups: dict[str, str] = {}
    for text in _texts(config):
        groups |= {group: option for group, option in re.findall(r"^  - (\w+): ([\w.-]+)", text, flags=re.M)}
    return groups


def _texts(config: str) -> list[str]:
    """A primary file, behind those that it builds on."""
    text = (conf_dir() / f"{config}.yaml").read_text()
    others = [name for name in re.findall(r"^  - (\w+)$", text, flags=re.M) if name != "_self_"]
    return [*(text for name in others for text in _texts(name)), text]


def options_of(group: str) -> dict[str, str]:
    """A group's options, each with the first sentence of its file."""
    options = {}
    for path in sorted((conf_dir() / group).glob("*.yaml")):
        comments = [line[2:].strip() for line in path.read_text().splitlines() if line.startswith("# ")]
        options[path.stem] = next((line for line in comments if not line.startswith("@")), "")
    return options


def settings_of(config: str) -> list[tuple[str, str, str]]:
    """Top-level settings of a primary file: (key, default, comment)."""
    settings, parent = [], ""
    for line in "\n".join(_texts(config)).splitlines():
        found = re.match(r"^( *)([\w]+):\s*([^#]*?)\s*(?:#\s*(.*))?$", line)
        if not found:
            continue
        indent, key, value, text = found.groups()
        if not indent:
            parent = key
            if value and key != "defaults":
                settings.append((key, value, text or ""))
        elif parent not in ("defaults", "hydra") and value:
            settings.append((f"{parent}.{key}", value, text or ""))
    return settings


def _line(left: str, text: str) -> str:
    """Two columns; the right one wrapped, below where the left one is long."""
    column = 28
    if not text:
        return f"  {left}"
    wrapped = textwrap.wrap(text, WIDTH - column)
    if len(left) + 4 > column:
        return "\n".join([f"  {left}", *(" " * column + part for part in wrapped)])
    return "\n".join([f"  {left:<{column - 2}}{wrapped[0]}", *(" " * column + part for part in wrapped[1:])])
