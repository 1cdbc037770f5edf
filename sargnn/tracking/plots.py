"""Plots of runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Run = dict[str, Any]


def write_plots(runs: Sequence[Run], folder: Path) -> list[Path]:
    """``memory.png``, ``epoch_time.png``, ``loss.png``, and ``METRIC.png`` of each metric that runs were evaluated by.

    Only those for which there is something to draw are written, and returned.
    """
    metrics = dict.fromkeys(row["metric"] for run in runs for row in run["epochs"] if "metric" in row)
    written = [
        _against_workers(runs, folder / "memory.png", "peak training memory of a worker, MB", peak_mb),
        _against_workers(runs, folder / "epoch_time.png", "median epoch time, s", lambda run: float(run["epoch_time_s"])),
        _over_epochs(runs, folder / "loss.png", "training loss", "loss"),
        *(_over_epochs(runs, folder / f"{one}.png", f"validation {one}", "val_metric", one) for one in metrics),
    ]
    return [path for path in written if path is not None]


def peak_mb(run: Run) -> float:
    """The largest worker's peak."""
    return max(run["peak_train_bytes"]) / 1e6


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _against_workers(runs: Sequence[Run], path: Path, label: str, value: Callable[[Run], float]) -> Path:
    """A line per model, dataset and mode; several runs at one number of workers are averaged."""
    figure, axes = _figure()
    lines: dict[str, dict[int, list[float]]] = {}
    several = len({(run["model"], run["dataset"]) for run in runs}) > 1
    for run in runs:
        name = f"{run['model']} on {run['dataset']}, {run['mode']}" if several else run["mode"]
        lines.setdefault(name, {}).setdefault(run["world"], []).append(value(run))
    for name, points in lines.items():
        worlds = sorted(points)
        axes.plot(worlds, [sum(points[w]) / len(points[w]) for w in worlds], marker="o", label=name)
    worlds = sorted({run["world"] for run in runs})
    axes.set_xscale("log", base=2)
    axes.set_xticks(worlds, [str(world) for world in worlds])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("workers")
    axes.set_ylabel(label)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)
    return path


def _has(row: Run, key: str, metric: str | None) -> bool:
    return row.get(key) is not None and metric in (None, row.get("metric"))


def _over_epochs(runs: Sequence[Run], path: Path, label: str, key: str, metric: str | None = None) -> Path | None:
    """A curve per run; with ``metric`` of the epochs that were evaluated by it."""
    curves = [(run["name"], [(row["epoch"] + 1, row[key]) for row in run["epochs"] if _has(row, key, metric)]) for run in runs]
    if not any(points for _, points in curves):
        return None
    figure, axes = _figure()
    for number, (name, points) in enumerate(curves):
        if points:
            # Curves of modes lie on each other, as they should: later ones are dashed, so that the earlier ones show.
            axes.plot(*zip(*points, strict=True), label=name, linestyle=("-", "--", ":", "-.")[number % 4])
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    axes.legend(frameon=False, fontsize=7, ncols=1 + len(curves) // 9)
    figure.savefig(path)
    return path


def plot_run(rows: Sequence[Run], title: str) -> Any:
    """A figure of one run over its epochs: the loss, and the metric on each split.

    Args:
        rows: of ``metrics.jsonl``.
    """
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
