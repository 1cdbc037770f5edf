"""A run's curves, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Run = dict[str, Any]


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
