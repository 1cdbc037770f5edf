"""Reference pages made from the code: settings, verbs, keys of ``summary.json``; and equations as MathML, which browsers draw
without a network. A Sphinx extension; ``conf.py`` names it.

They are written beside the other pages of ``reference/`` when a build begins, only where they changed.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from latex2mathml.converter import convert

from sargnn.cli.conf import built_in_folder
from sargnn.cli.verb import Verb
from sargnn.cli.verbs import VERBS
from sargnn.config.fields import documented
from sargnn.tracking.summary import Summary

FOLDER = Path(__file__).parent / "reference"
MADE = ("settings.md", "verbs.md", "summary.md")
LEFT_OUT = ("experiment", "debug", "slurm")
"""Groups whose options are no settings of a run by themselves."""


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return re.sub(r"``([^`]+)``", r"`\1`", " ".join(text.split())).replace("|", "\\|")


def settings_page() -> str:
    """Every setting of ``sargnn train`` with its default, from its class and the files of options."""
    folders = built_in_folder()
    lines = [
        "# Settings",
        "",
        "Every setting of a run, as `key=value` on the command line, and its default. `sargnn train --help` prints the same.",
        "A group is chosen as `group=option`; its first option here is the default. `???` must be given.",
        "",
        "## Of every run",
        "",
        "| setting | default | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| `{s.key}` | `{cell(s.value)}` | {cell(s.comment)} |" for s in folders.settings("train").values()]
    for group, default in folders.groups("train").items():
        if group in LEFT_OUT:
            continue
        options = folders.options(group)
        if default in options:
            options = {default: options[default]} | options
        lines += ["", f"## {group}", "", "| option | what it is |", "|---|---|"]
        lines += [f"| `{group}={name}` | {cell(option.sentence)} |" for name, option in options.items()]
        rows: dict[str, list[str]] = {}
        for name in options:
            for setting in folders.settings_of(group, name).values():
                if setting.key != f"{group}.name":
                    rows.setdefault(f"| `{setting.key}` | `{cell(setting.value)}` | {cell(setting.comment)} |", []).append(name)
        if rows:
            lines += ["", "| setting | default | meaning | with |", "|---|---|---|---|"]
            every = len(options)
            lines += [f"{row} {'all' if len(names) == every else ', '.join(names)} |" for row, names in rows.items()]
    return "\n".join([*lines, ""])


def verbs_page() -> str:
    """Every verb with what it does, its own settings and its examples."""
    lines = ["# Verbs", "", "`sargnn VERB --help` prints the same, with a verb's groups and settings.", ""]
    verbs: list[Verb] = [inner for verb in VERBS.values() for inner in (verb.verbs or (verb,))]
    for verb in verbs:
        lines += [f"## {verb.name}", "", verb.text, "", "```text", f"sargnn {verb.name} {verb.usage}".rstrip(), "```", ""]
        if verb.settings:
            lines += ["| setting | default | meaning |", "|---|---|---|"]
            for setting in verb.settings:
                default = str(setting.default).lower() if isinstance(setting.default, bool) else setting.default
                lines.append(
                    f"| `{setting.name}` | {'' if default in (None, '') else f'`{default}`'} | {cell(setting.comment)} |"
                )
            lines.append("")
        if verb.examples:
            lines += [
                "```text",
                *(f"sargnn {command}" + (f"  # {remark}" if remark else "") for command, remark in verb.examples),
            ]
            lines += ["```", ""]
    return "\n".join(lines)


def summary_page() -> str:
    """Every key of ``summary.json`` with its type and its meaning, from the records that write it."""
    lines = [
        "# summary.json",
        "",
        "Each run leaves `summary.json` in its folder. A key without a value is null: the run did not measure it.",
    ]
    for record in (record for record in Summary.__mro__ if dataclasses.is_dataclass(record)):
        own = [field for field in dataclasses.fields(record) if field.name in vars(record).get("__annotations__", {})]
        if not own:
            continue
        text = record.__doc__ or ""
        meanings = documented(text)
        title = text.strip().splitlines()[0].rstrip(".") if text else record.__name__
        lines += ["", f"## {title}", "", "| key | type | meaning |", "|---|---|---|"]
        lines += [f"| `{f.name}` | `{cell(str(f.type))}` | {cell(meanings.get(f.name, ''))} |" for f in own]
    return "\n".join([*lines, ""])


def write(_app: Any = None) -> None:
    """Write the pages that changed."""
    for name, text in zip(MADE, (settings_page(), verbs_page(), summary_page()), strict=True):
        path = FOLDER / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def inline_equation(translator: Any, node: Any) -> None:
    """An equation in a line."""
    translator.body.append(convert(node.astext()))
    raise SkipNode


def equation(translator: Any, node: Any) -> None:
    """An equation by itself."""
    translator.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise SkipNode


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", write)
    app.add_html_math_renderer("mathml", (inline_equation, None), (equation, None))
    return {"parallel_read_safe": True}
