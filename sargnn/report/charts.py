"""What the pictures show, as numbers: series with names, points and spreads. Drawing (``draw``) adds nothing to them."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import mean, stdev
from typing import Any, Literal

from sargnn.report.groups import EPOCH_PARTS, Group, epoch_parts_of, parts_of
from sargnn.report.runs import Run, show_settings
from sargnn.tracking.memory import PARTS

MB = 1e6
_EPOCH_TIME = "median epoch time, s"
_OF_MICRO_BATCHES = ("batches.count", "batches.by", "batches.flows")
MOST_WORKERS_SHOWN = 32
"""Beyond so many bars the picture of memory shows only the largest worker of each group."""


@dataclass(frozen=True)
class Series:
    """A curve, a point, a bar, or a part of all bars.

    Attributes:
        ys: means over seeds.
        spread: sample standard deviation of each, 0 of one seed.
        members: the runs that it is made of.
        points: of each x the values of single seeds.
    """

    name: str
    xs: list[float]
    ys: list[float]
    spread: list[float]
    members: list[str]
    points: list[list[float]] = field(default_factory=list)

    @classmethod
    def over_seeds(cls, name: str, xs: Iterable[float], values: Sequence[list[float]], members: Iterable[str] = ()) -> Series:
        """``values``: of single seeds, one list for each x."""
        spreads = [stdev(of_seeds) if len(of_seeds) > 1 else 0.0 for of_seeds in values]
        return cls(name, [float(x) for x in xs], [mean(of_seeds) for of_seeds in values], spreads, list(members), list(values))


def mean_curves(curves: Iterable[tuple[str, Mapping[str, Mapping[int, tuple[float, float]]]]]) -> list[Series]:
    """Of each name the mean over its runs, each step -> (x, y), at the steps that all of them have, if there are any."""
    series = []
    for name, by_run in curves:
        first, *others = by_run.values()
        common = [[points[step] for points in (first, *others)] for step in first if all(step in points for points in others)]
        if common:
            xs, values = ([[point[axis] for point in of_seeds] for of_seeds in common] for axis in (0, 1))
            series.append(Series.over_seeds(name, map(mean, xs), values, by_run))
    return series


@dataclass(frozen=True)
class Chart:
    """One pair of axes.

    Attributes:
        kind: ``curves`` over epochs or seconds; ``workers``: against their number, or that of micro-batches; ``bars``: a row
            per group, or ``dots`` where 0 is of no meaning; ``stack``: a row per worker, a series per part.
        title: what is drawn, with its unit.
        rows: names of the rows of bars; a series' xs count them.
        line: a value that is marked.
    """

    kind: Literal["curves", "workers", "bars", "dots", "stack"]
    title: str
    x_label: str
    series: list[Series]
    rows: list[str] = field(default_factory=list)
    line: float | None = None


@dataclass(frozen=True)
class Picture:
    """One file, with one chart or several side by side. ``key``: the file's name."""

    key: str
    title: str
    charts: list[Chart]

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def make_pictures(groups: Sequence[Group], baseline: Group | None = None) -> list[Picture]:
    metrics = dict.fromkeys(row["metric"] for group in groups for run in group.members for row in run.epochs if "metric" in row)
    memory, seconds = ("peak_train_bytes", MB, "peak training memory of a worker, MB"), ("epoch_time_s", 1.0, _EPOCH_TIME)
    pictures = [
        _over_training(groups, None),
        _over_training(groups, None, seconds=True),
        *(_over_training(groups, metric) for metric in metrics),
        *(_over_training(groups, metric, seconds=True) for metric in metrics),
        _against_workers(groups, "memory", *memory),
        _against_workers(groups, "epoch_time", *seconds),
        _against_batches(groups, "batches_memory", *memory),
        _against_batches(groups, "batches_epoch_time", *seconds),
        _against_batches(groups, "batches_redundancy", "redundancy", 1.0, "rows computed / distinct rows"),
        Picture("figures", "time, memory, traffic and score; a dot per seed", _bars(groups)),
        Picture("memory_parts", "resident memory of workers", [memory_stack(groups)]),
        Picture("epoch_parts", "where an epoch's time goes", [epoch_stack(groups)]),
    ]
    if baseline is not None:
        pictures.append(Picture("baseline", f"times that of {baseline.name}", ratios(groups, baseline)))
    return [picture for picture in pictures if any(chart.series for chart in picture.charts)]


def _over_training(groups: Sequence[Group], metric: str | None, *, seconds: bool = False) -> Picture:
    """Curves of a metric on the validation nodes; None: of the loss."""
    what = "training loss" if metric is None else f"validation {metric}"
    series = curves(groups, "loss" if metric is None else "val_metric", metric, seconds=seconds)
    chart = Chart("curves", what, "seconds of training" if seconds else "epoch", series)
    key = (metric or "loss") + "_seconds" * seconds
    return Picture(key, f"{what} over {'time' if seconds else 'epochs'}", [chart])


def curves(groups: Sequence[Group], key: str, metric: str | None, *, seconds: bool = False) -> list[Series]:
    """A curve per group: the mean over its seeds, at the epochs that all of them have.

    Args:
        key: of a line of ``metrics.jsonl``.
        metric: only epochs that were evaluated by it; None: all.
        seconds: against the mean training time up to the end of the epoch instead of the epoch's number.
    """
    return mean_curves(
        (group.name, {run.name: _points(run, key, metric, seconds) for run in group.members}) for group in groups
    )


def _points(run: Run, key: str, metric: str | None, seconds: bool) -> dict[int, tuple[float, float]]:
    """Epoch, from 1 -> (seconds of training until its end, or its number; value)."""
    until = accumulate(float(row["epoch_time_s"]) for row in run.epochs)
    return {
        row["epoch"] + 1: (time_s if seconds else row["epoch"] + 1, float(row[key]))
        for row, time_s in zip(run.epochs, until, strict=True)
        if row.get(key) is not None and math.isfinite(row[key]) and metric in (None, row.get("metric"))
    }


def _line(name: str, points: Sequence[tuple[int, Group]], key: str, unit: float) -> Series:
    """A figure of groups at their xs; all of them have it."""
    members = [run.name for _, group in points for run in group.members]
    return Series.over_seeds(name, [x for x, _ in points], [group.in_unit(key, unit) for _, group in points], members)


def _against_workers(groups: Sequence[Group], name: str, key: str, unit: float, title: str) -> Picture:
    lines = [[group for group in line if group.figures[key] is not None] for line in scaling_lines(groups)]
    series = [_line(_line_name(line), [(group.first.world, group) for group in line], key, unit) for line in lines if line]
    words = title.partition(",")[0]
    return Picture(name, f"{words} against the number of workers", [Chart("workers", title, "workers", series)])


def _against_batches(groups: Sequence[Group], name: str, key: str, unit: float, title: str) -> Picture:
    """A line for runs that differ in the number of micro-batches alone; those without any begin every line like them."""
    lines: dict[str, list[tuple[int, Group]]] = {}
    for group in groups:
        if (count := _batches_of(group)) > 1:
            lines.setdefault(_without(group, ("batches.count",)), []).append((count, group))
    series = []
    for line in lines.values():
        first = line[0][1]
        same = _without(first, _OF_MICRO_BATCHES)
        alone = [(1, group) for group in groups if _batches_of(group) == 1 and _without(group, _OF_MICRO_BATCHES) == same]
        points = [point for point in sorted([*alone, *line], key=lambda point: point[0]) if point[1].figures[key] is not None]
        if points:  # a setting may be named by its last word
            others = {setting: value for setting, value in first.differs.items() if setting not in ("batches.count", "count")}
            series.append(_line(", ".join(show_settings(others)) or first.name, points, key, unit))
    words = title.partition(",")[0]
    return Picture(name, f"{words} against the number of micro-batches", [Chart("workers", title, "micro-batches", series)])


def _batches_of(group: Group) -> int:
    batches = group.first.result.batches if group.first.summary is not None else None
    return int(batches["count"]) if batches else 1


def _without(group: Group, names: Sequence[str]) -> str:
    """What tells a group from others but for these settings."""
    return json.dumps([{k: v for k, v in group.first.telling.items() if k not in names}, group.repeat], default=str)


def scaling_lines(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups that differ in the number of workers alone, in its order; a group that differs otherwise is a line by itself.

    Where the machine's cores are known, groups whose workers have the threads that sargnn shares out by itself are a line too:
    nobody has set threads there. No line is a part of another one.
    """
    lines: dict[str, list[Group]] = {}
    for group in groups:
        alone = {key: value for key, value in group.first.telling.items() if key != "world"}
        threads, cores, world = alone.get("threads"), alone.get("cores"), group.first.world
        kinds = [alone]
        if isinstance(cores, int) and threads == max(1, cores // world):
            kinds.append(alone | {"threads": "shared out"})
        for kind in kinds:
            key = json.dumps([kind, group.repeat], sort_keys=True, default=str)
            lines.setdefault(key, []).append(group)
    kept: list[list[Group]] = []
    for line in sorted(lines.values(), key=len, reverse=True):
        if not any(all(any(member is other for other in longer) for member in line) for longer in kept):
            kept.append(line)
    places = {id(group): number for number, group in enumerate(groups)}
    kept.sort(key=lambda line: min(places[id(group)] for group in line))
    return [sorted(line, key=lambda group: group.first.world) for line in kept]


def _line_name(line: Sequence[Group]) -> str:
    """What the names have in common but for the world, else all names."""
    if len(line) == 1:
        return line[0].name
    rests = {re.sub(r"-w\d+(?=-|$)|\s*\bworld=\d+", "", group.name).strip() for group in line}
    if len(rests) == 1 and (rest := next(iter(rests))):
        return rest
    names = [group.name for group in line]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more to {names[-1]}"


def _bars(groups: Sequence[Group]) -> list[Chart]:
    charts = [
        _figure_bars(groups, "epoch_time_s", 1.0, _EPOCH_TIME),
        _figure_bars(groups, "peak_train_bytes", MB, "peak training memory, MB"),
        _figure_bars(groups, "peak_rss_bytes", MB, "resident memory, MB"),
        _figure_bars(groups, "comm_bytes_per_epoch", MB, "sent in an epoch, MB"),
    ]
    for metric in dict.fromkeys(group.first.metric for group in groups):
        charts.append(_figure_bars(groups, "test_score", 1.0, f"test {metric}", metric))
    return [chart for chart in charts if chart.series]


def _figure_bars(groups: Sequence[Group], key: str, unit: float, title: str, metric: str | None = None) -> Chart:
    """A row per group; ``metric``: only of those judged by it, as dots."""
    series = []
    for row, group in enumerate(groups):
        if group.figures[key] is not None and metric in (None, group.first.metric):
            members = [run.name for run in group.members]
            series.append(Series.over_seeds(group.name, [row], [group.in_unit(key, unit)], members))
    return Chart("bars" if metric is None else "dots", title, "", series, [group.name for group in groups])


def ratios(groups: Sequence[Group], baseline: Group) -> list[Chart]:
    """Every group's figures over the baseline's mean; none where that is 0 or missing."""
    charts = []
    for key, title in (
        ("epoch_time_s", "epoch time"),
        ("peak_train_bytes", "peak training memory"),
        ("peak_rss_bytes", "resident memory"),
        ("comm_bytes_per_epoch", "sent in an epoch"),
    ):
        unit = baseline.figures[key]
        if unit is not None and unit.mean > 0:
            charts.append(dataclasses.replace(_figure_bars(groups, key, unit.mean, f"{title}, ratio"), line=1.0))
    return charts


def memory_stack(groups: Sequence[Group]) -> Chart:
    """A row per worker and group, its parts on each other, MB, means over seeds; of many workers only each group's largest."""
    every = sum(group.first.world for group in groups) <= MOST_WORKERS_SHOWN
    rows: list[str] = []
    parts: list[tuple[Group, list[dict[str, int]]]] = []
    for group in groups:
        of_seeds = [parts_of(run.result) for run in group.members]
        if not all(of_seeds):
            continue
        if every:
            ranks = range(min(map(len, of_seeds)))
            names = [group.name if len(ranks) == 1 else f"{group.name}, rank {rank}" for rank in ranks]
            of_rows = [[workers[rank] for workers in of_seeds] for rank in ranks]
        else:
            names, of_rows = [group.name], [[max(workers, key=lambda each: sum(each.values())) for workers in of_seeds]]
        for name, seeds in zip(names, of_rows, strict=True):
            if len({tuple(sizes) for sizes in seeds}) > 1:  # some of before the parts were measured
                seeds = [{"total": sum(sizes.values())} for sizes in seeds]
            rows.append(name)
            parts.append((group, seeds))
    series = [part for name in (*PARTS, "total") if (part := _part(name, parts, MB)).xs]
    title = "resident memory of a worker, MB" if every else "resident memory of the largest worker, MB"
    return Chart("stack", title, "", series, rows)


def epoch_stack(groups: Sequence[Group]) -> Chart:
    """A row per group of profiled runs: an epoch's seconds by what they went into, means over workers and seeds."""
    rows: list[tuple[Group, list[dict[str, float]]]] = []
    for group in groups:
        of_seeds = [epoch_parts_of(run) for run in group.members]
        if all(of_seeds):
            rows.append((group, of_seeds))
    series = [part for name in EPOCH_PARTS if any((part := _part(name, rows, 1.0)).ys)]
    return Chart("stack", "an epoch by what it goes into, s", "", series, [group.name for group, _ in rows])


def _part(name: str, rows: Iterable[tuple[Group, list[dict[str, Any]]]], unit: float) -> Series:
    bars = [
        (row, group, [parts[name] / unit for parts in seeds]) for row, (group, seeds) in enumerate(rows) if name in seeds[0]
    ]
    members = dict.fromkeys(run.name for _, group, _ in bars for run in group.members)
    return Series.over_seeds(name, [row for row, *_ in bars], [values for *_, values in bars], members)
