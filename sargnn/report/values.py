"""What a figure shows of a run: one number, a curve over epochs, or parts that add up, one record for each; and these values of
all its runs beside the paper's, in the places where they are drawn.

Letters: P workers, E epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from sargnn.config.run import RunConfig, load
from sargnn.report.groups import parts_of
from sargnn.report.study import Cell, FigureSpec, Panel
from sargnn.tracking.files import CONFIG, INPUTS, MetricsTail, read_json
from sargnn.tracking.summary import Summary

Curve = tuple[list[float], list[float]]
Shown = float | Curve | dict[str, float] | None


@dataclass(frozen=True)
class RunFigures:
    """A finished run, with its epochs' rows in order. ``num_nodes`` 0: not known."""

    summary: Summary
    config: RunConfig
    rows: list[dict[str, Any]]
    num_nodes: int


@dataclass(frozen=True)
class Value:
    """What is shown. ``title`` has its unit; ``of`` gives None where nothing was measured; ``digits``: those that count."""

    title: str
    of: Callable[[RunFigures], Shown]
    digits: int = 3


def read_figures(run_dir: Path, summary: Summary) -> RunFigures:
    """Raises ``SargnnError``: a file of the run is damaged."""
    stats = read_json(run_dir / INPUTS).get("partition_stats") or {}
    rows = list(MetricsTail(run_dir).new_rows())
    return RunFigures(summary, load(run_dir / CONFIG), rows, sum(stats.get("partition.nodes", ())))


def _giga(figures: RunFigures, name: str, choose: Callable[[Sequence[int]], float] = max) -> float | None:
    values = getattr(figures.summary, name)
    return choose(values) / 1e9 if values else None


def _scaled(figures: RunFigures, name: str, factor: float) -> float | None:
    value = getattr(figures.summary, name)
    return None if value is None else value * factor


def _wait_share(figures: RunFigures) -> float | None:
    summary = figures.summary
    if not summary.epoch_time_s or summary.comm_wait_time_s is None:
        return None
    return summary.comm_wait_time_s / summary.epoch_time_s


def _curve(figures: RunFigures, name: str, *, by_time: bool = False) -> Curve:
    """Of epochs that have it; ``by_time``: over seconds of training at their ends."""
    xs, ys, seconds = [], [], 0.0
    for row in figures.rows:
        seconds += row["epoch_time_s"]
        if row.get(name) is not None:
            xs.append(seconds if by_time else float(row["epoch"] + 1))
            ys.append(float(row[name]))
    return xs, ys


def _memory(figures: RunFigures) -> dict[str, float] | None:
    """Of the worker whose peak is largest, GB by part."""
    largest = max(parts_of(figures.summary), key=lambda parts: sum(parts.values()), default=None)
    return {part: size / 1e9 for part, size in largest.items()} if largest else None


def _time(figures: RunFigures) -> dict[str, float] | None:
    """Seconds of an epoch by what they went to, means over workers; of a profiled run."""
    profile = figures.summary.profile_s
    if not profile:
        return None
    return {part: value for part, values in profile.items() if (value := mean(values)) > 0}


def _waits(figures: RunFigures) -> dict[str, float] | None:
    """Seconds of an epoch of the slowest worker: computing, waiting inside and between servers."""
    summary = figures.summary
    if summary.epoch_time_s is None or summary.comm_wait_time_s is None:
        return None
    between = summary.between_servers_wait_s or 0.0
    inside = max(0.0, summary.comm_wait_time_s - between)
    return {
        "computing": max(0.0, summary.epoch_time_s - inside - between),
        "inside servers": inside,
        "between servers": between,
    }


def _batches(figures: RunFigures, of: Callable[[Mapping[str, Any]], float]) -> float | None:
    batches = figures.summary.batches
    return None if not batches else of(batches)


def _rows(figures: RunFigures) -> float | None:
    """Output rows that all layers compute in a step of all micro-batches, or of all rows."""
    if figures.summary.batches:
        return float(sum(layer["rows"] for batch in figures.summary.batches["layers"] for layer in batch))
    if figures.summary.mfg:
        return float(sum(layer["rows"] for layer in figures.summary.mfg["training"]))
    layers = getattr(figures.config.model, "num_layers", None)
    return float(figures.num_nodes * layers) if layers and figures.num_nodes else None


def _rows_by_layer(figures: RunFigures) -> dict[str, float] | None:
    if not figures.num_nodes:
        return None
    if figures.summary.mfg:
        layers = figures.summary.mfg["training"]
        return {f"layer {number}": layer["rows"] / figures.num_nodes for number, layer in enumerate(layers, 1)}
    return {f"layer {number}": 1.0 for number in range(1, 1 + getattr(figures.config.model, "num_layers", 0))} or None


def _input_rows(figures: RunFigures) -> float | None:
    """Rows that the first layer reads, over all micro-batches and steps of an epoch."""
    batches = figures.summary.batches
    if not batches:
        return float(figures.num_nodes) or None
    return float(sum(batch[0]["input_rows"] for batch in batches["layers"])) * batches.get("steps", 1)


def _efficiency(figures: RunFigures) -> float | None:
    """Millions of rows that an epoch's first layers read, in a second."""
    rows, seconds = _input_rows(figures), figures.summary.epoch_time_s
    return None if rows is None or not seconds else rows / seconds / 1e6


def _plan_error(figures: RunFigures) -> float | None:
    """Percent, of the worker furthest off."""
    planned, measured = figures.summary.planned_train_bytes, figures.summary.peak_train_bytes
    if not planned or not measured:
        return None
    return max(abs(plan / other - 1) for plan, other in zip(planned, measured, strict=True)) * 100


VALUES: dict[str, Value] = {
    "epoch_time": Value("seconds an epoch", lambda figures: figures.summary.epoch_time_s),
    "waiting": Value("share of an epoch spent waiting", _wait_share),
    "training_memory": Value("GB, peak of training, largest worker", lambda figures: _giga(figures, "peak_train_bytes")),
    "whole_memory": Value("GB, resident, largest worker", lambda figures: _giga(figures, "peak_rss_bytes")),
    "memory_of_all": Value("GB, peak of training, all workers", lambda figures: _giga(figures, "peak_train_bytes", sum)),
    "sent": Value("GB sent an epoch", lambda figures: _scaled(figures, "comm_bytes_per_epoch", 1e-9)),
    "sent_between": Value(
        "GB sent between servers an epoch", lambda figures: _scaled(figures, "between_servers_bytes_per_epoch", 1e-9)
    ),
    "edge_cut": Value("share of edges cut", lambda figures: figures.summary.edge_cut),
    "test_accuracy": Value("test accuracy, %", lambda figures: _scaled(figures, "test_metric_at_best_val", 100.0), 4),
    "smoothed_accuracy": Value(
        "test accuracy after Correct & Smooth, %", lambda figures: _scaled(figures, "test_acc_smoothed", 100.0), 4
    ),
    "redundancy": Value(
        "rows computed / distinct rows", lambda figures: _batches(figures, lambda batches: float(batches["redundancy"]))
    ),
    "rows": Value("rows computed in a step", _rows),
    "input_rows": Value("rows the first layer reads an epoch", _input_rows, 4),
    "efficiency": Value("million input rows a second", _efficiency),
    "plan_error": Value("error of planned memory, %", _plan_error, 2),
    "rows_by_layer": Value("rows computed / nodes, by layer", _rows_by_layer),
    "batches": Value("micro-batches", lambda figures: _batches(figures, lambda batches: float(batches["count"])) or 1.0),
    "loss": Value("training loss", lambda figures: _curve(figures, "loss")),
    "val_accuracy_by_epoch": Value("validation accuracy", lambda figures: _curve(figures, "val_metric")),
    "val_accuracy_by_time": Value("validation accuracy", lambda figures: _curve(figures, "val_metric", by_time=True)),
    "memory_parts": Value("GB, largest worker", _memory),
    "time_parts": Value("seconds an epoch", _time),
    "waits": Value("seconds an epoch", _waits),
}


@dataclass(frozen=True)
class PanelData:
    """One panel of one group.

    Attributes:
        title: of its axis, with its unit.
        x: labels, in order.
        paper_x: the paper's in their places.
        ours: by series, one for each x; None: there is none.
        paper: likewise.
        failed: series and x whose run is not finished.
    """

    panel: Panel
    group: str
    title: str
    x: tuple[str, ...]
    paper_x: tuple[str, ...]
    ours: dict[str, list[Shown]]
    paper: dict[str, list[float | None]]
    failed: frozenset[tuple[str, str]]

    def numbers(self, series: str) -> list[float | None]:
        """None for what is no number."""
        return [value if isinstance(value, float | int) else None for value in self.ours[series]]

    def last(self, series: str) -> list[float | None]:
        """Of curves their last numbers, of parts their sums."""
        return [_last(value) for value in self.ours[series]]


def _last(value: Shown) -> float | None:
    if isinstance(value, dict):
        return sum(value.values())
    if isinstance(value, tuple):
        return value[1][-1] if value[1] else None
    return value


def gather(spec: FigureSpec, cells: Sequence[Cell], runs: Mapping[Cell, RunFigures]) -> list[list[PanelData]]:
    """By panel, by group. ``runs``: of the cells, those that are finished."""
    at = {(cell.group, cell.series, cell.x): runs.get(cell) for cell in cells}
    panels = []
    for panel in spec.panels:
        of_groups = []
        for group in spec.groups:
            of, x = VALUES[panel.value].of, list(dict.fromkeys(cell.x for cell in cells if cell.group == group))
            paper_x = spec.x.paper[-len(x) :] or x  # fewer workers than there are shares: the largest ones have theirs
            ours: dict[str, list[Shown]] = {
                series: [None if (run := at[group, series, label]) is None else of(run) for label in x]
                for series in spec.series
            }
            paper = {series: [*numbers][-len(x) :] for series, numbers in panel.published.values.get(group, {}).items()}
            title = panel.title or VALUES[panel.value].title
            if panel.relative_to is not None:
                base = ours[panel.relative_to]
                ours = {
                    series: [
                        value / by if isinstance(value, float | int) and isinstance(by, float | int) and by else None
                        for value, by in zip(values, base, strict=True)
                    ]
                    for series, values in ours.items()
                }
                title = f"{panel.title or panel.value.replace('_', ' ')}, {panel.relative_to} = 1"
            missing = frozenset(place[1:] for place, run in at.items() if run is None and place[0] == group)
            of_groups.append(PanelData(panel, group, title, tuple(x), tuple(paper_x), ours, paper, missing))
        panels.append(of_groups)
    return panels
