"""What ``sargnn compare`` prints: runs side by side as text, a line of figures per run where the terminal is wide enough, else
its settings below it; for scripts one JSON document, or a CSV table with a row per run.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sargnn.report.charts import Picture
from sargnn.report.groups import BY_KEY, FIGURES, Figure, Group, Value, best_scores, figures_of, loss_notes, parts_of
from sargnn.report.runs import LeftOut, Run, Settings, differences, show_settings, show_value
from sargnn.tracking.scores import column_of, show_score

_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
_GAP = "  "
_LOSSES = "losses_depend_on"
_MEMORY = "memory of the largest process: train above what it had loaded, total resident"


@dataclass(frozen=True)
class Column:
    """A figure's column: two lines of head, and how a value is shown in it."""

    key: str
    heads: tuple[str, str]
    show: Callable[[float], str]


def runs_lines(runs: Sequence[Run], width: int) -> list[str]:
    """No line is longer than ``width``, at least 80."""
    differing = differences(runs)
    several = len({run.dataset for run in runs}) > 1
    shown = [({"dataset": run.dataset} if several else {}) | settings for run, settings in zip(runs, differing, strict=True)]
    if not several:
        shown = [{key: value for key, value in differs.items() if key != "dataset"} for differs in shown]
    above, texts = _said(shown, width)
    columns = _columns(runs)
    values = [figures_of(run) for run in runs]
    cells = [
        [_cell(column, figures[column.key], run.metric) for column in columns]
        for run, figures in zip(runs, values, strict=True)
    ]
    marked = False
    for number, column in enumerate(columns):
        if column.key not in ("test_score", "test_metric_smoothed"):
            continue
        best = best_scores(runs, BY_KEY[column.key])
        marked |= any(best)
        for row, is_best in zip(cells, best, strict=True):
            row[number] += "*" if is_best else " "
    where = "of its dataset" if len({run.judged_on[0] for run in runs}) > 1 else "of all"
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    on = datasets[0] if len(datasets) == 1 else f"{len(datasets)} datasets"
    title = f"{_count(len(runs), 'run')} on {on}" + (f"; * is the best {where}" if marked else "")
    heads = ["run", *([] if not any(texts) else ["differs in"])]
    return [
        *_wrap(title, width, ""),
        *_wrap(_MEMORY, width, ""),
        *above,
        "",
        *_table(heads, columns, [run.name for run in runs], texts, cells, width),
        *(line for note in loss_notes(runs) for line in ("", *_wrap(note, width, ""))),
    ]


def groups_lines(groups: Sequence[Group], width: int) -> list[str]:
    """Means over seeds, below each its standard deviation behind ``±``."""
    columns = _columns([run for group in groups for run in group.members], of_means=True)
    cells = [
        [
            "-" if (spread := group.figures[column.key]) is None else _cell(column, spread.mean, group.first.metric)
            for column in columns
        ]
        for group in groups
    ]
    spreads = [
        ["" if (spread := group.figures[column.key]) is None else f"±{column.show(spread.std)}" for column in columns]
        if len(group.members) > 1
        else []
        for group in groups
    ]
    names = [f"{group.name} ({_count(len(group.members), 'seed')})" for group in groups]
    above, texts = _said([group.differs for group in groups], width)
    lines = _table(["runs", *(["differs in"] if any(texts) else [])], columns, names, texts, cells, width, spreads)
    return ["mean and standard deviation over seeds", *above, "", *lines]


def _table(
    heads: Sequence[str],
    columns: Sequence[Column],
    names: Sequence[str],
    texts: Sequence[str],
    cells: Sequence[Sequence[str]],
    width: int,
    below: Sequence[Sequence[str]] = (),
) -> list[str]:
    """``below``: of each row further cells under its own; an empty one has none."""
    below = below or [[]] * len(cells)
    widths = [
        max(len(text) for text in (*column.heads, *(row[number] for row in (*cells, *below) if row)))
        for number, column in enumerate(columns)
    ]
    right = sum(widths) + len(_GAP) * len(widths)
    room = width - right
    name = max(len(label) for label in (heads[0], *names))
    text = max(len(words) for words in (heads[-1] if len(heads) > 1 else "", *texts))

    def figures(row: Sequence[str]) -> str:
        return "".join(_GAP + cell.rjust(wide) for cell, wide in zip(row, widths, strict=True))

    first, second = ([column.heads[line] for column in columns] for line in (0, 1))
    if name + len(_GAP) + text <= room:  # everything of a run in one line
        left = [label.ljust(name) + (_GAP + what.ljust(text) if text else "") for label, what in zip(names, texts, strict=True)]
        head = heads[0].ljust(name) + (_GAP + heads[1].ljust(text) if text else "")
        lines = [" " * len(head) + figures(first), head + figures(second)]
        lines += ["-" * len(lines[1])]
        for start, row, more in zip(left, cells, below, strict=True):
            lines += [start + figures(row), *([" " * len(head) + figures(more)] if more else [])]
        return [line.rstrip() for line in lines]
    head = ", ".join(heads) if len(", ".join(heads)) <= room else heads[0]
    column = min(max(name, len(head)), room)
    lines = [" " * column + figures(first), head.ljust(column) + figures(second), "-" * (column + right)]
    for label, what, row, more in zip(names, texts, cells, below, strict=True):
        if len(label) > column:
            lines += [*_wrap(label, width, ""), " " * column + figures(row)]
        else:
            lines += [label.ljust(column) + figures(row)]
        lines += [" " * column + figures(more)] if more else []
        lines += _wrap(what, width, "  ") if what else []
    return [line.rstrip() for line in lines]


def _columns(runs: Sequence[Run], *, of_means: bool = False) -> list[Column]:
    every = [figures_of(run) for run in runs]
    metrics = {run.metric for run in runs}
    columns = []
    for figure in FIGURES:
        values = [value for figures in every if (value := figures[figure.key]) is not None]
        if not values or (of_means and figure.key == "comm_wait_time_s"):
            continue
        columns.append(_column(figure, values, metrics))
    return columns


def _column(figure: Figure, values: Sequence[float], metrics: set[str]) -> Column:
    if figure.key == "test_score":
        name = column_of(next(iter(metrics))) if len(metrics) == 1 else "metric"
        return Column(figure.key, ("test", name), lambda value: show_score(value, None))
    if figure.unit == "bytes":
        unit, size = next(scale for scale in _UNITS if max(values) >= scale[1] or scale[1] == 1.0)
        head = {"comm_bytes_per_epoch": "sent", "peak_train_bytes": "train", "peak_rss_bytes": "total"}[figure.key]
        return Column(figure.key, (head, unit), lambda value: f"{value / size:.1f}")
    if figure.unit == "s":
        return Column(figure.key, (figure.head, "s"), lambda value: f"{value:.3f}" if max(values) < 1000 else f"{value:.0f}")
    heads = ("last", "loss") if figure.key == "last_loss" else ("smooth", "acc")
    return Column(figure.key, heads, lambda value: f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}")


def _cell(column: Column, value: Value, metric: str) -> str:
    if value is None:
        return "-"
    if column.key == "test_score":
        return (f"{column_of(metric)} " if column.heads[1] == "metric" else "") + show_score(value, metric)
    return column.show(value)


def _said(differing: Sequence[Settings], width: int) -> tuple[list[str], list[str]]:
    """Lines of what is said once above the table, and what is said of each row."""
    counts = Counter((key, show_value(value)) for settings in differing for key, value in settings.items())
    usual = {  # what more than half of all runs have, where all have the setting
        key: value
        for settings in differing
        for key, value in settings.items()
        if counts[key, show_value(value)] * 2 > len(differing) and all(key in others for others in differing)
    }
    rows = (
        {key: value for key, value in settings.items() if key not in usual or usual[key] != value} for settings in differing
    )
    above = _wrap(f"unless said otherwise: {', '.join(show_settings(usual))}", width, "") if usual else []
    return above, [", ".join(show_settings(settings)) for settings in rows]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _wrap(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + ("  " if indent else ""))


def as_json(runs: Sequence[Run], groups: Sequence[Group], pictures: Sequence[Picture], out: Sequence[LeftOut]) -> str:
    """The document: ``runs``, ``groups`` (mean and spread of their figures), ``pictures`` (the series that are drawn),
    ``left_out``."""
    document = {
        "runs": [run_record(run, differs) for run, differs in zip(runs, differences(runs), strict=True)],
        "groups": [
            {
                "name": group.name,
                "members": [run.name for run in group.members],
                "seeds": group.seeds,
                "differs": group.differs,
                "figures": {k: None if spread is None else dataclasses.asdict(spread) for k, spread in group.figures.items()},
            }
            for group in groups
        ],
        "pictures": {picture.key: picture.as_dict() for picture in pictures},
        "left_out": [{"folder": str(skipped.folder), "reason": skipped.reason} for skipped in out],
    }
    return json.dumps(document, indent=1, default=str)


def run_record(run: Run, differs: dict[str, Any]) -> dict[str, Any]:
    """A run, with its workers' memory by parts, bytes, and the settings that changed its losses (``tracking.summary``)."""
    return {
        "name": run.name,
        "folder": str(run.folder),
        "dataset": run.dataset,
        "metric": run.metric,
        "seed": run.seed,
        "world": run.world,
        "differs": differs,
        "figures": figures_of(run),
        "memory_bytes": parts_of(run.result),
        "losses_depend_on": run.result.losses_depend_on or [],
    }


def as_csv(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    """A row per run: name, folder, the number of its group, dataset, seed, metric, a column per setting that differs, figures,
    and at the end the settings that changed its losses. Seconds and bytes are plain numbers; what a run has not is empty."""
    differing = differences(runs, seed=False)
    settings = [key for key in dict.fromkeys(key for of_run in differing for key in of_run) if key != "dataset"]
    group_of = {id(run): number for number, group in enumerate(groups) for run in group.members}
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(
        ["run", "folder", "group", "dataset", "seed", *settings, "metric", *(figure.key for figure in FIGURES), _LOSSES]
    )
    for run, differs in zip(runs, differing, strict=True):
        own = [show_value(differs[key]) if key in differs else "" for key in settings]
        figures = ["" if value is None else _number(value) for value in figures_of(run).values()]
        lossy = " ".join(setting["setting"] for setting in run.result.losses_depend_on or ())
        writer.writerow([run.name, run.folder, group_of[id(run)], run.dataset, run.seed, *own, run.metric, *figures, lossy])
    return content.getvalue()


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) > 1000 else repr(value)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of Markdown."""
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
