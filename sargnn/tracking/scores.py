"""The metric that a run is judged by, as tables, lines, plots and MLflow name and show it.

Figures of before there were tasks have accuracies alone: they are given the metric's keys when they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sargnn.tasks.kinds import OF_ANY_SIZE, is_metric

SCORE_KEYS = ("train_metric", "val_metric", "test_metric", "best_val_metric", "test_metric_at_best_val")
"""Of ``summary.json``; the first three also of a line of ``metrics.jsonl``."""
SMOOTHED_KEYS = ("val_metric_smoothed", "test_metric_smoothed")
"""Likewise, after Correct & Smooth."""


def add_metric(content: Mapping[str, Any]) -> dict[str, Any]:
    """Figures with ``task``, ``metric`` and the metric's values; from accuracies, where they know nothing of metrics."""
    values = {key: content[old] for key in SCORE_KEYS if (old := key.replace("metric", "acc")) in content}
    smoothed = {key: content[old] for key in SMOOTHED_KEYS if (old := key.replace("metric", "acc")) in content}
    if "metric" in content or not values:
        return {**smoothed, **content}
    return {**content, "task": "classes", "metric": "accuracy", **values, **smoothed}


def column_of(metric: str) -> str:
    """The metric's name in a narrow column and in MLflow's keys, which have no ``@``."""
    return "acc" if metric == "accuracy" else metric.replace("@", "_at_")


def show_score(value: float | None, metric: str | None) -> str:
    """Fractions with four digits behind the point; what may be of any size with four in all."""
    if value is None:
        return "-"
    is_share = metric is None or (is_metric(metric) and metric not in OF_ANY_SIZE)
    return f"{value:.4f}" if is_share else f"{value:.4g}"
