"""The figures that a run has in MLflow: about a dozen, in units that a person reads.

Seconds and decimal megabytes with four digits, which a column has room for; fractions. A figure that settles while the run
trains (a median, a peak) is sent epoch by epoch, as it is so far: its last value, which MLflow's table shows, is the one of
``summary.json``.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from typing import Any

from sargnn.tracking.scores import SCORE_KEYS, SMOOTHED_KEYS, column_of
from sargnn.tracking.summary import Summary

_MB = 1e6
_RANKS = {
    "compute_time_s": ("compute_s", 1.0),
    "comm_wait_time_s": ("wait_s", 1.0),
    "sent_bytes": ("sent_mb", _MB),
    "peak_train_bytes": ("peak_mb", _MB),
    "peak_evaluate_bytes": ("peak_evaluate_mb", _MB),
    "peak_smooth_bytes": ("peak_smooth_mb", _MB),
    "peak_rss_bytes": ("resident_mb", _MB),
}
"""A rank's figure in our files -> its name in MLflow, and what it is divided by."""


class EpochFigures:
    """Those of one epoch after the other, in order; with ``ranks`` also each rank's."""

    def __init__(self, *, ranks: bool = False) -> None:
        self._ranks = ranks
        self._peak_mb = 0.0
        self._medians = {name: SteadyMedian() for name in ("epoch_s", "wait_s", "sent_mb")}

    def add(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Those after an epoch, by name; ``row``: its line of ``metrics.jsonl``."""
        figures = {"loss": row.get("loss"), "lr": row.get("lr")}
        if (steps := row.get("optimizer_steps")) is not None and steps != row["epoch"] + 1:
            figures["optimizer_steps"] = steps
        times = {
            "epoch_s": row.get("epoch_time_s"),
            "wait_s": row.get("comm_wait_time_s"),
            "sent_mb": _mb(row.get("comm_bytes")),
        }
        figures |= {name: _short(self._medians[name].add(value)) for name, value in times.items() if value is not None}
        if peaks := row.get("ranks", {}).get("peak_train_bytes"):
            self._peak_mb = max(self._peak_mb, max(peaks) / _MB)
            figures["peak_mb"] = _short(self._peak_mb)
        if row.get("metric") is not None:
            figures[f"val_{column_of(row['metric'])}"] = row.get("val_metric")
        if self._ranks:
            figures |= dict(_of_ranks(row.get("ranks", {})))
        return {name: float(value) for name, value in figures.items() if value is not None}


class SteadyMedian:
    """The median of all values so far but the first, which warms up; of the first while there is no other."""

    def __init__(self) -> None:
        self._count = 0
        self._sorted: list[float] = []

    def add(self, value: float) -> float:
        self._count += 1
        if self._count > 1:
            bisect.insort(self._sorted, value)
        values = self._sorted or [value]
        middle = len(values) // 2
        return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def settled_figures(summary: Summary) -> dict[str, float]:
    """What figures that settle came to, by name."""
    figures = {
        "epoch_s": summary.epoch_time_s,
        "wait_s": summary.comm_wait_time_s,
        "sent_mb": _mb(summary.comm_bytes_per_epoch),
        "peak_mb": _mb(max(summary.peak_train_bytes)) if summary.peak_train_bytes else None,
    }
    return {name: _short(value) for name, value in figures.items() if value is not None}


def single_figures(summary: Summary, *, ranks: bool = False) -> dict[str, float]:
    """What a run has once, by name; with ``ranks`` also of each rank."""
    figures: dict[str, float | None] = {}
    if summary.metric is not None:
        name = column_of(summary.metric)
        keys = [key for key in SCORE_KEYS if key.startswith(("test_", "best_"))] + [*SMOOTHED_KEYS]
        figures |= {key.replace("metric", name): getattr(summary, key) for key in keys}
    for split, values in (summary.metrics or {}).items():
        figures |= {f"{'val' if split == 'valid' else split}_{column_of(name)}": value for name, value in values.items()}
    figures |= {
        "resident_mb": _short(max(summary.peak_rss_bytes) / _MB) if summary.peak_rss_bytes else None,
        "edge_cut": summary.edge_cut,
        "disk_written_mb": _mb(summary.disk_written_per_epoch),
        "disk_read_mb": _mb(summary.disk_read_per_epoch),
        "startup_s": None if summary.startup_time_s is None else _short(summary.startup_time_s),
    }
    if ranks:
        figures |= dict(_of_ranks({key: getattr(summary, key, None) or [] for key in ("peak_rss_bytes", "peak_smooth_bytes")}))
    return {name: float(value) for name, value in figures.items() if value is not None}


def _of_ranks(figures: Mapping[str, list[float]]) -> Iterator[tuple[str, float]]:
    for key, values in figures.items():
        name, unit = _RANKS.get(key, (key, 1.0))
        for rank, value in enumerate(values):
            yield f"rank_{rank:02d}/{name}", _short(value / unit)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _mb(count: float | None) -> float | None:
    return None if count is None else count / _MB
