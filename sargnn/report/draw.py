"""Pictures, drawn by matplotlib: markers, names at the ends of curves, colours that every eye tells apart (Okabe and Ito)."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sargnn.report.charts import Chart, Picture, Series

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = "os^DvPX"
PART_COLOURS = {
    "base": "#BBBBBB",
    "runtime": "#BBBBBB",
    "graph": "#0072B2",
    "features": "#56B4E9",
    "parameters": "#E69F00",
    "training": "#D55E00",
    "kept for backward": "#D55E00",
    "working set": "#009E73",
    "communication": "#CC79A7",
    "optimizer": "#F0E442",
    "other": "#CC79A7",
    "total": "#777777",
    "computing": "#0072B2",
    "inside servers": "#56B4E9",
    "between servers": "#D55E00",
    "sums": "#E69F00",
    "rest": "#BBBBBB",
}
HATCHES = {"graph": "//", "parameters": "xx", "other": "..", "computing": "//", "sums": "xx"}
HATCHES |= {"working set": "\\\\", "communication": "..", "optimizer": "--"}
_FONT, _MOST_MARKED, _DASH = 8.0, 40, 5.0
_AXES_WIDTH, _AXES_HEIGHT, _LEFT, _BOTTOM, _TOP = 4.6, 3.1, 0.65, 0.5, 0.35
_ROW, _PANEL = 0.19, 1.75
_SAME = 0.002
_NAMED, _WIDTH = 6, 34


def write_pngs(pictures: Sequence[Picture], folder: Path) -> list[Path]:
    """``KEY.png`` of each, in this order, in a folder that is made. Raises ``OSError``."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{picture.key}.png" for picture in pictures]
    for picture, path in zip(pictures, paths, strict=True):
        save(draw(picture), path)
    return paths


def save(figure: Any, path: Path | io.StringIO, dpi: int = 110) -> None:
    """A PNG file; a scalable one with its text as text where the path ends so, or it is no path. Raises ``OSError``."""
    with styled():
        if isinstance(path, Path) and path.suffix != ".svg":
            figure.savefig(path, dpi=dpi)
        else:
            figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def as_svg(picture: Picture) -> str:
    content = io.StringIO()
    save(draw(picture), content)
    return content.getvalue()


def plot_run(rows: Sequence[dict[str, Any]], title: str) -> Any:
    """One run over its epochs: the loss, and the metric on each split. ``rows``: of ``metrics.jsonl``."""
    from matplotlib import pyplot  # so that a notebook knows how to show the figure

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    pyplot.close(figure)  # else it would be shown twice, and kept for good
    left.plot([row["epoch"] + 1 for row in rows], [row["loss"] for row in rows])
    left.set_ylabel("training loss")
    for key in ("train_metric", "val_metric", "test_metric"):
        points = [(row["epoch"] + 1, row[key]) for row in rows if row.get(key) is not None]
        if points:
            right.plot(*zip(*points, strict=True), label=key.partition("_")[0], marker="." if len(points) < 20 else "")
    right.set_ylabel(next((row["metric"] for row in reversed(rows) if row.get("metric")), "metric"))
    if right.lines:
        right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("epoch")
    figure.suptitle(title, fontsize=10)
    return figure


@contextmanager
def styled() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(
        {
            "font.size": _FONT,
            "svg.fonttype": "none",
            "svg.hashsalt": "sargnn",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": _FONT + 1,
            "axes.titlelocation": "left",
            "lines.linewidth": 1.4,
            "hatch.linewidth": 0.5,
        }
    ):
        yield


def draw(picture: Picture) -> Any:
    """A ``matplotlib.figure.Figure``."""
    with styled():
        if picture.charts[0].kind in ("curves", "workers"):
            return _draw_curves(picture.charts[0])
        return _draw_rows([chart for chart in picture.charts if chart.series])


def _new_figure() -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), facecolor="white")
    return figure, FigureCanvasAgg(figure).get_renderer()


def _size_of(figure: Any, renderer: Any, text: str) -> tuple[float, float]:
    """In inches."""
    drawn = figure.text(0, 0, text, fontsize=_FONT, parse_math=False)
    box = drawn.get_window_extent(renderer)
    drawn.remove()
    return box.width / figure.dpi, box.height / figure.dpi


def _draw_curves(chart: Chart) -> Any:
    figure, renderer = _new_figure()
    together = coinciding(chart.series)
    labels = [label_of(alike) for alike in together]
    sizes = [_size_of(figure, renderer, label) for label in labels]
    heights = [height + 0.045 for _, height in sizes]
    tall = max(_AXES_HEIGHT, sum(heights) + 0.05)
    width = _LEFT + _AXES_WIDTH + 0.4 + max(wide for wide, _ in sizes) + 0.08
    height = _BOTTOM + tall + _TOP + 0.16 * chart.title.count("\n")
    figure.set_size_inches(width, height)
    axes = figure.add_axes((_LEFT / width, _BOTTOM / height, _AXES_WIDTH / width, tall / height))
    number = 0
    for same in together:
        for place, series in enumerate(same):
            _draw_series(axes, series, number, place, len(same), band=chart.kind == "curves")
            number += 1
    _finish_axes(axes, chart)
    ends = [_end_of(axes, same[0], _AXES_WIDTH, tall) for same in together]
    placed = spread_out([end[1] for end in ends], heights, 0.0, tall)
    number = 0
    for same, label, end, at in zip(together, labels, ends, placed, strict=True):
        colour = COLOURS[number % len(COLOURS)]
        inches = (_AXES_WIDTH + 0.34) / _AXES_WIDTH, at / tall
        axes.plot(
            (end[0] / _AXES_WIDTH, (_AXES_WIDTH + 0.3) / _AXES_WIDTH),
            (end[1] / tall, inches[1]),
            color=colour,
            linewidth=0.5,
            alpha=0.6,
            transform=axes.transAxes,
            clip_on=False,
            gid="leader",
            label="_leader",
        )
        text = axes.text(*inches, label, transform=axes.transAxes, va="center", ha="left", parse_math=False)
        text.set_color(colour if len(same) == 1 else "black")
        number += len(same)
    return figure


def _draw_series(axes: Any, series: Series, number: int, place: int, of: int, *, band: bool) -> None:
    """Of ``of`` series on each other the one at ``place``: its dashes lie in the others' gaps, its markers around theirs.
    ``band``: the spread is one, not bars at the points."""
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[(number // len(COLOURS) + number) % len(MARKERS)]
    style: Any = "None"
    if len(series.xs) > 1:
        style = "-" if of == 1 else (_DASH * place, (_DASH, _DASH * (of - 1)))
    marked = max(1, len(series.xs) // 12) if len(series.xs) > _MOST_MARKED else 1
    size = 3.5 + 2.2 * place
    if len(series.xs) > 1 and place > 2:
        marker = ""  # its dashes show it; more rings would hide the others
    axes.plot(
        series.xs,
        series.ys,
        color=colour,
        linestyle=style,
        marker=marker,
        markersize=size,
        markevery=marked,
        label=series.name,
        markerfacecolor=colour if place == 0 else "none",
    )
    if any(series.spread):
        if band and len(series.xs) > 1:
            low, high = ([y + sign * s for y, s in zip(series.ys, series.spread, strict=True)] for sign in (-1, 1))
            axes.fill_between(series.xs, low, high, color=colour, alpha=0.18, linewidth=0)
        else:
            axes.errorbar(series.xs, series.ys, yerr=series.spread, color=colour, linestyle="None", capsize=2.5, linewidth=1)


def _finish_axes(axes: Any, chart: Chart) -> None:
    axes.set_title(chart.title)
    axes.set_xlabel(chart.x_label)
    if chart.kind == "workers":
        worlds = sorted({int(x) for series in chart.series for x in series.xs})
        axes.set_xscale("log", base=2)
        axes.set_xticks(worlds, [str(world) for world in worlds])
        axes.minorticks_off()
        axes.set_xlim(worlds[0] / 1.3, worlds[-1] * 1.3)
        axes.set_ylim(bottom=0)
    elif chart.x_label == "epoch":
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_xlim(axes.get_xlim())  # what is drawn beside the axes moves them no more
    axes.set_ylim(axes.get_ylim())


def _end_of(axes: Any, series: Series, width: float, height: float) -> tuple[float, float]:
    x, y = axes.transAxes.inverted().transform(axes.transData.transform((series.xs[-1], series.ys[-1])))
    return float(x) * width, float(y) * height


def _draw_rows(charts: Sequence[Chart]) -> Any:
    """Charts with the same rows, side by side."""
    figure, renderer = _new_figure()
    rows = [wrapped(name, 44) for name in charts[0].rows]
    left = max(_size_of(figure, renderer, name)[0] for name in rows) + 0.15
    stacked = charts[0].kind == "stack"
    panel = 4.6 if stacked else max(_PANEL, *(_size_of(figure, renderer, column.title)[0] * 1.15 for column in charts))
    tall = max(0.5, _ROW * sum(name.count("\n") * 0.7 + 1 for name in rows))
    legend_rows = -(-len(charts[0].series) // _legend_columns(charts[0])) if stacked else 0
    top = _TOP + 0.3 * min(1, legend_rows) + 0.15 * max(0, legend_rows - 1)
    texts = [["00000"] if stacked else [_value(series) for series in chart.series] for chart in charts]  # beside the rows
    beside = [max(_size_of(figure, renderer, text)[0] for text in of_chart) + 0.25 for of_chart in texts]
    width = left + len(charts) * panel + sum(beside)
    height = 0.35 + tall + top
    figure.set_size_inches(width, height)
    for number, chart in enumerate(charts):
        place = left + number * panel + sum(beside[:number])
        axes = figure.add_axes((place / width, 0.35 / height, panel / width, tall / height))
        (_draw_stack if stacked else _draw_bars)(axes, chart)
        names = rows if number == 0 else [""] * len(rows)
        axes.set_yticks(range(len(rows)), names, parse_math=False)
        axes.set_ylim(len(rows) - 0.45, -0.55)
        axes.tick_params(axis="y", length=0)
        axes.locator_params(axis="x", nbins=4)
        axes.set_title(chart.title, pad=11 + 11 * legend_rows if stacked else 6)
    return figure


def _value(series: Series) -> str:
    """With its spread where there are several seeds."""
    spread = f" ± {_digits(series.spread[0], 2)}" if len(series.points[0]) > 1 else ""
    return f"{_digits(series.ys[0], 4)}{spread}"


def _digits(value: float, digits: int) -> str:
    """So many digits that count; a large number whole, never as a power of ten."""
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def _draw_bars(axes: Any, chart: Chart) -> None:
    highest = max((y + s for series in chart.series for y, s in zip(series.ys, series.spread, strict=True)), default=0.0)
    for series in chart.series:
        (row,), (value,), (spread,), points = series.xs, series.ys, series.spread, series.points[0]
        colour = COLOURS[int(row) % len(COLOURS)]
        if chart.kind == "bars":
            axes.barh(row, value, height=0.62, color=colour, alpha=0.55, label=series.name)
        else:
            axes.plot(value, row, marker="o", markersize=6, color=colour, alpha=0.75, linestyle="None", label=series.name)
        if len(points) > 1:
            axes.errorbar(value, row, xerr=spread, color="black", capsize=2.5, linewidth=0.9)
            axes.plot(points, [row] * len(points), marker=".", markersize=4, linestyle="None", color="black", label="_seeds")
        axes.annotate(_value(series), (1.02, row), xycoords=("axes fraction", "data"), va="center", annotation_clip=False)
    if chart.kind == "bars":
        axes.set_xlim(0, highest * 1.04 or 1.0)
    if chart.line is not None:
        axes.axvline(chart.line, color="black", linewidth=0.8, linestyle=(0, (3, 2)))


def _legend_columns(chart: Chart) -> int:
    return len(chart.series) if len(chart.series) < 8 else 4


def _draw_stack(axes: Any, chart: Chart) -> None:
    ends = [0.0] * len(chart.rows)
    for series in chart.series:
        rows = [int(x) for x in series.xs]
        axes.barh(
            series.xs,
            series.ys,
            left=[ends[row] for row in rows],
            height=0.68,
            color=PART_COLOURS[series.name],
            label=series.name,
            hatch=HATCHES.get(series.name),
            edgecolor="white",
            linewidth=0,
        )
        for row, value in zip(rows, series.ys, strict=True):
            ends[row] += value
    for row, end in enumerate(ends):
        axes.annotate(_digits(end, 4), (1.02, row), xycoords=("axes fraction", "data"), va="center", annotation_clip=False)
    axes.set_xlim(0, max(*ends, chart.line or 0.0) * 1.02)
    if chart.line is not None:
        axes.axvline(chart.line, color="black", linewidth=1, linestyle="--")
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=_legend_columns(chart),
        frameon=False,
        handlelength=1.0,
        handletextpad=0.35,
        columnspacing=0.9,
        borderaxespad=0.1,
    )


def spread_out(wanted: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """Centres as near to the wanted ones as they can be without overlapping, in the same order, from ``low`` to ``high``: the
    sum of squared shifts is smallest (pool adjacent violators). Where there is no room for all, they go beyond ``high``."""
    order = sorted(range(len(wanted)), key=lambda number: wanted[number])
    starts, below = [], 0.0  # of each label's lower edge, if all below it had no height
    pools: list[tuple[float, int]] = []
    for number in order:
        starts.append(below)
        pools.append((wanted[number] - heights[number] / 2 - below, 1))
        below += heights[number]
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (previous, few), (two, more) = pools[-2:]
            pools[-2:] = [((previous * few + two * more) / (few + more), few + more)]
    edges = [max(low, min(edge, high - below)) for edge, count in pools for _ in range(count)]
    placed = [0.0] * len(wanted)
    for number, edge, start in zip(order, edges, starts, strict=True):
        placed[number] = edge + start + heights[number] / 2
    return placed


def coinciding(series: Sequence[Series]) -> list[list[Series]]:
    """Series that no eye could tell apart, together: the same xs, and ys within two thousandths of all that is drawn."""
    ys = [y for curve in series for y in curve.ys]
    near = _SAME * (max(ys) - min(ys)) if ys else 0.0
    xs = [x for curve in series for x in curve.xs]
    near_x = _SAME * (max(xs) - min(xs)) if xs else 0.0
    together: list[list[Series]] = []
    for curve in series:
        for others in together:
            first = others[0]
            if len(first.xs) == len(curve.xs) and all(
                abs(a - b) <= near_x and abs(c - d) <= near
                for a, b, c, d in zip(first.xs, curve.xs, first.ys, curve.ys, strict=True)
            ):
                others.append(curve)
                break
        else:
            together.append([curve])
    return together


def label_of(series: Sequence[Series]) -> str:
    """The names of series that coincide, in lines of a few words."""
    names = [curve.name for curve in series]
    text = " = ".join(names[:_NAMED]) + (f" = {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return wrapped(text)


def wrapped(text: str, width: int = _WIDTH) -> str:
    """In lines; a word that is longer than a line is cut."""
    return "\n".join(textwrap.wrap(text, width, break_on_hyphens=False)) or text
