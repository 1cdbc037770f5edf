"""A figure's files: pictures four and eight inches wide, a scalable one, and the numbers as a table. Pictures are bars, lines,
curves or shares; ours are filled, the paper's numbers are outlines beside them.

Series differ in colour (Okabe and Ito, which every eye tells apart), and in hatch or marker, so that grey print shows them.

Letters: S series, X values of x.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from sargnn.errors import writing
from sargnn.report.draw import COLOURS, MARKERS, save, styled
from sargnn.report.study import Cell, FigureSpec
from sargnn.report.table import markdown_table
from sargnn.report.values import VALUES, PanelData, RunFigures, gather

WIDTHS = (8, 4)
"""Inches: a page, and a column of one."""
HATCHES = ("", "//", "xx", "\\\\", "..", "--", "++")
_DASHES = ((None, None), (4, 1.5), (1.2, 1.2), (6, 1.5, 1.2, 1.5), (2.5, 1), (8, 2), (1, 2))
_PANEL_HEIGHT, _LINE, _CAPTION_LINE, _MARGIN, _DPI = 2.0, 0.17, 0.125, 0.06, 100
"""Inches, and dots in one."""
_CHARACTERS = 17.5
"""Of a caption, in an inch of the picture's width."""
_AXIS_CHARACTERS = 24
"""Of an axis's name, in a line."""
_PAPERS = "the paper"
_OUTLINE: dict[str, Any] = {"fill": False, "edgecolor": "black", "linestyle": "--", "linewidth": 0.9}
_THIN, _MOST_NUMBERED = 0.16, 14
"""Bars narrower than this have their numbers turned; a panel with more of them has none."""

_NARROW, _ROOM = 6.0, 1.18
"""Inches below which a picture has fewer panels side by side; an axis's length over its highest bar."""


def draw_figure(kind: str, panels: Sequence[Sequence[PanelData]], *, title: str, x: str, caption: str, width: float) -> Any:
    """A ``matplotlib.figure.Figure``.

    Args:
        kind: of ``DRAWINGS``.
        panels: by panel, by group.
        x: the name of the axis.
        width: inches.
    """
    with styled():
        from matplotlib.figure import Figure

        columns = _columns(len(panels[0]), len(panels), width)
        flat = [panel for row in panels for panel in row]
        rows = -(-len(flat) // columns)
        titles, lines = textwrap.wrap(title, round(width * 12.5)), textwrap.wrap(caption, round(width * _CHARACTERS))
        names = _names(flat, kind)
        # As many names beside each other as there is room for.
        across = max(1, min(len(names), int(width * 14 / (max(map(len, names), default=0) + 8))))
        heights = [
            0.1 + _LINE * (len(titles) + -(-len(names) // across)),
            rows * _PANEL_HEIGHT,
            0.08 + _CAPTION_LINE * len(lines),
        ]
        figure = Figure(figsize=(width, sum(heights)), layout="constrained", facecolor="white")
        places: Any = figure.subfigures(3, 1, height_ratios=heights)
        top, middle, bottom = places
        top.text(_MARGIN / width, 1 - 0.05 / heights[0], "\n".join(titles), va="top", fontsize=9, fontweight="bold")
        bottom.text(_MARGIN / width, 1, "\n".join(lines), va="top", fontsize=6.5, linespacing=1.15)
        grid = middle.subplots(rows, columns, squeeze=False).ravel()
        for axes, data in zip(grid, flat, strict=False):
            axes.set_title(data.group)
            DRAWINGS[kind](axes, data, width < _NARROW)
            name = "\n".join(textwrap.wrap(data.title, _AXIS_CHARACTERS))
            if kind == "shares":
                axes.set_xlabel(name)
            else:
                axes.set_ylabel(name)
                axes.set_xlabel("epoch" if kind == "curves" and not x else x)
        for axes in grid[len(flat) :]:
            axes.set_visible(False)
        drawn = {label: handle for axes in middle.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        if kind in ("lines", "curves") and _PAPERS in drawn:  # of no single series
            drawn[_PAPERS] = copy(drawn[_PAPERS])
            drawn[_PAPERS].set(color="black", marker="o")
        if handles := [drawn[name] for name in names if name in drawn]:
            top.legend(handles=handles, loc="lower left", ncols=across, frameon=False, fontsize=7, borderaxespad=0.1)
    return figure


def _columns(groups: int, panels: int, width: float) -> int:
    """Side by side: the groups, or two panels of a single group."""
    most = 1 if width < _NARROW and groups * panels < 3 else 2 if width < _NARROW else 4
    return min(most, groups if groups > 1 else panels)


def _names(panels: Sequence[PanelData], kind: str) -> list[str]:
    """What the legend names."""
    if kind == "shares":
        names = [part for panel in panels for part in _parts(panel)]
    elif kind == "curves":
        names = [_joined(series, x) for series in panels[0].ours for x in panels[0].x]
    else:
        names = list(panels[0].ours) if len(panels[0].ours) > 1 else []
    return list(dict.fromkeys([*names, *([_PAPERS] if any(_given(panel.paper) for panel in panels) else [])]))


def _look(number: int, *keys: str) -> dict[str, Any]:
    cycles = {"color": COLOURS, "facecolor": COLOURS, "marker": MARKERS, "hatch": HATCHES, "dashes": _DASHES}
    return {key: cycles[key][number % len(cycles[key])] for key in keys}


def _bars(axes: Any, data: PanelData, narrow: bool) -> None:
    """A cross where a run failed; the paper's bars are dashed outlines around or beside."""
    count = len(data.ours)
    width = 0.84 / count
    other = _papers_axes(axes, data)
    for number, series in enumerate(data.ours):
        at = [place + (number - (count - 1) / 2) * width for place in range(len(data.x))]
        bars, heights = _known(at, data.numbers(series))
        if bars:
            look = _look(number, "color", "hatch")
            axes.bar(bars, heights, width * 0.94, edgecolor="white", linewidth=0.3, label=series, **look)
        if not narrow and count * len(data.x) <= _MOST_NUMBERED:
            turned = 90 if width < _THIN else 0
            for position, height in zip(bars, heights, strict=True):
                axes.annotate(f"{height:.3g}", (position, height), ha="center", va="bottom", fontsize=6, rotation=turned)
        for position, label in zip(at, data.x, strict=True):
            if (series, label) in data.failed:
                axes.annotate("x", (position, 0), ha="center", va="bottom", fontweight="bold", **_look(number, "color"))
        outlines, given = _known(at, data.paper.get(series, ()))
        if outlines:
            other.bar(outlines, given, width * 0.94, zorder=3, label=_PAPERS, **_OUTLINE)
    _set_axes(axes, other, data)


def _lines(axes: Any, data: PanelData, narrow: bool) -> None:
    """The paper's numbers are hollow markers on dashed lines."""
    other, places = _papers_axes(axes, data), range(len(data.x))
    for number, series in enumerate(data.ours):
        look = _look(number, "color", "marker")
        axes.plot(*_known(places, data.numbers(series)), markersize=4.5, label=series, **look)
        at, given = _known(places, data.paper.get(series, ()))
        if at:
            other.plot(at, given, markersize=6.5, linestyle="--", linewidth=0.8, fillstyle="none", label=_PAPERS, **look)
    axes.set_xlim(-0.3, len(data.x) - 0.7)
    _set_axes(axes, other, data)


def _known(places: Sequence[float], values: Sequence[float | None]) -> tuple[list[float], list[float]]:
    pairs = [(place, value) for place, value in zip(places, values, strict=False) if value is not None]
    return [place for place, _ in pairs], [value for _, value in pairs]


def _papers_axes(axes: Any, data: PanelData) -> Any:
    """Where the paper's numbers are drawn: beside ours, or, of another graph and not relative, on an axis of their own."""
    own_axis = data.panel.relative_to is None and data.panel.published.unit is not None
    return axes.twinx() if own_axis and _given(data.paper) else axes


def _set_axes(axes: Any, other: Any, data: PanelData) -> None:
    """Ticks of x, the paper's below where they are others, and scales with room for what is drawn. ``other``: the paper's
    axis."""
    labels = [x if x == paper else f"{x}\n({paper})" for x, paper in zip(data.x, data.paper_x, strict=True)]
    axes.set_xticks(range(len(data.x)), labels)
    ours, papers = [value for series in data.ours for value in data.numbers(series) if value is not None], _given(data.paper)
    for each, values in [(axes, ours), (other, papers)] if other is not axes else [(axes, [*ours, *papers])]:
        if data.panel.log and values and min(values) > 0:
            each.set_yscale("log")
        elif values:
            each.set_ylim(0, _ROOM * max(values))
    if data.panel.relative_to is not None:
        axes.axhline(1, color="black", linewidth=0.6, linestyle=":")
    if other is not axes:
        other.set_ylabel(f"the paper's, {data.panel.published.unit}", fontsize=6.5)
        other.spines["right"].set_visible(True)


def _curves(axes: Any, data: PanelData, narrow: bool) -> None:
    """A curve for each series and x; a hollow marker at the right edge where the paper says how it ended."""
    curves = [(_joined(name, data.x[place]), value) for name, values in data.ours.items() for place, value in enumerate(values)]
    ends = [given for series in data.ours for given in data.paper.get(series, [None] * len(data.x))]
    last = 0.0
    for number, (name, value) in enumerate(curves):
        if isinstance(value, tuple) and value[0]:
            xs, ys = value
            last = max(last, xs[-1])
            marks = {"markersize": 3.5, "markevery": max(1, len(xs) // 7)}
            axes.plot(xs, ys, linewidth=1.3, label=name, **marks, **_look(number, "color", "dashes", "marker"))
    for number, given in enumerate(ends):
        if given is not None:
            hollow = {"fillstyle": "none", "markersize": 7, "linestyle": "", "clip_on": False, "label": _PAPERS}
            axes.plot([last], [given], **hollow, **_look(number, "color", "marker"))
    if data.panel.log:
        axes.set_yscale("log")


def _shares(axes: Any, data: PanelData, narrow: bool) -> None:
    """A lying bar for each series and x, of parts that add up, every second one hatched; the paper's total is an outline."""
    looks = {}
    for number, part in enumerate(_parts(data)):
        hatch = HATCHES[1 + number // 2 % (len(HATCHES) - 1)] if number % 2 else ""
        looks[part] = {"facecolor": COLOURS[number % len(COLOURS)], "hatch": hatch, "edgecolor": "white", "linewidth": 0.3}
    bars = [(series, place, value) for series, values in data.ours.items() for place, value in enumerate(values)]
    for height, (series, place, value) in enumerate(bars):
        left = 0.0
        for part, look in looks.items() if isinstance(value, dict) else ():
            assert isinstance(value, dict)
            size = value.get(part, 0.0)
            axes.barh(height, size, left=left, height=0.72, label=part, **look)
            left += size
        given = data.paper.get(series, [None] * len(data.x))[place]
        if given is not None:
            axes.barh(height, given, height=0.72, label=_PAPERS, **_OUTLINE)
    axes.set_yticks(range(len(bars)), [_joined(series, data.x[place]) for series, place, _ in bars])
    axes.invert_yaxis()


DRAWINGS: dict[str, Callable[[Any, PanelData, bool], None]] = {
    "bars": _bars,
    "lines": _lines,
    "curves": _curves,
    "shares": _shares,
}


def _joined(series: str, x: str) -> str:
    return ", ".join(label for label in (series, x) if label)


def _parts(data: PanelData) -> list[str]:
    shares = (value for values in data.ours.values() for value in values if isinstance(value, dict))
    return list(dict.fromkeys(part for of_run in shares for part in of_run))


def _given(paper: dict[str, list[float | None]]) -> list[float]:
    return [value for values in paper.values() for value in values if value is not None]


def caption_of(spec: FigureSpec, runs: Sequence[RunFigures]) -> str:
    scales = [(run.config.dataset.name, getattr(run.config.dataset, "scale", None)) for run in runs]
    graphs = dict.fromkeys(name if scale is None else f"{name} at scale {scale:g}" for name, scale in scales)
    worlds = sorted({run.config.world for run in runs})
    workers = ", ".join(map(str, worlds))
    cpus = [(run.summary.cores, run.summary.cpu) for run in runs]
    machines = dict.fromkeys(f"{cores} cores, {cpu}" for cores, cpu in cpus if cores is not None and cpu is not None)
    text = f"{'; '.join(graphs)}. {workers} worker{'s' * (worlds != [1])}. {'; '.join(machines)}."
    about = list(dict.fromkeys(panel.published.about for panel in spec.panels if panel.published.about))
    return " ".join([text, *(f"The paper: {note.rstrip('.')}." for note in about)])


def table_of(panels: Sequence[Sequence[PanelData]], x: str) -> list[str]:
    """All numbers, ours and the paper's, as lines of Markdown. Of curves their last values, of parts their sums."""
    flat = [[of_groups[number] for of_groups in panels] for number in range(len(panels[0]))]
    grouped, several = len(flat) > 1, len(flat[0][0].ours) > 1
    labels = any(label for by_panel in flat for label in by_panel[0].x)
    heads = [*([""] if grouped else []), *([x] if labels else []), *(["run"] if several else [])]
    for row in panels:
        heads.append(row[0].title)
        if any(data.paper for data in row):
            unit = row[0].panel.published.unit
            heads.append(f"the paper{f', {unit}' if unit else ''}")
    rows = []
    for of_group in flat:
        for place, label in enumerate(of_group[0].x):
            for series in of_group[0].ours:
                paper_x = of_group[0].paper_x[place]
                tick = label if label == paper_x else f"{label} ({paper_x})"
                cells = [*([of_group[0].group] if grouped else []), *([tick] if labels else [])]
                cells += [series] if several else []
                for number, data in enumerate(of_group):
                    value = data.last(series)[place]
                    failed = (series, label) in data.failed
                    cells.append(
                        "failed" if failed else "" if value is None else f"{value:.{VALUES[data.panel.value].digits}g}"
                    )
                    if any(other.paper for other in panels[number]):
                        given = data.paper.get(series, [None] * len(data.x))[place]
                        cells.append("" if given is None else f"{given:g}")
                rows.append(cells)
    return markdown_table(heads, rows)


def write_figure(
    name: str, spec: FigureSpec, cells: Sequence[Cell], runs: Mapping[Cell, RunFigures], folder: Path
) -> tuple[list[str], list[Path]]:
    """``NAME-8in.png``, ``NAME-4in.png``, ``NAME.svg`` and ``NAME.md`` in the folder; lines to print, and the widest picture's
    path. Raises ``ConfigError`` where they cannot be written."""
    panels, caption = gather(spec, cells, runs), caption_of(spec, list(runs.values()))
    paths = [folder / f"{name}-{width}in.png" for width in WIDTHS]
    table = table_of(panels, spec.x.name)
    lines = [f"# {name}: {spec.title}", "", f"{spec.shows} {spec.paper}.", "", f"![{spec.title}]({paths[0].name})", ""]
    lines += [*table, "", caption, "", spec.differs, ""]
    with writing("The figure", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, width in zip([*paths, folder / f"{name}.svg"], (*WIDTHS, WIDTHS[0]), strict=True):
            picture = draw_figure(spec.kind, panels, title=spec.title, x=spec.x.name, caption=caption, width=width)
            save(picture, path, _DPI)
        (folder / f"{name}.md").write_text("\n".join(lines))
    return [*table, "", caption, spec.differs], paths[:1]
