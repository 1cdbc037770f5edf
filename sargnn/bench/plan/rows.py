"""A row of the comparison: one run, what was planned of it, and what it measured.

Letters: P workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sargnn.bench.table.results import Figures
from sargnn.config.run import RunConfig
from sargnn.planner.epoch_time import EpochTime
from sargnn.planner.worlds import WorldPlan

TRAINING, WHOLE, EPOCH = "training", "whole", "epoch"
QUANTITIES = {TRAINING: ("MB", 1e-6), WHOLE: ("MB", 1e-6), EPOCH: ("s", 1.0)}
"""What is compared: its unit, and what brings it there. Training: above what was there when it started. Whole: all resident
memory at its peak. Epoch: the median of those after the first."""


@dataclass(frozen=True)
class Point:
    """A run of the comparison.

    Attributes:
        case: its model. name: of its row, alone in its case. more: settings beside model, mode and workers.
    """

    case: str
    name: str
    more: str
    config: RunConfig


@dataclass(frozen=True)
class Row:
    """What a run came to.

    Attributes:
        planned, measured: of each quantity a number for each worker [P], or one for the run. One that nobody plans is missing
            in ``planned``; without a plan that is empty, after a failure ``measured``.
        phase: in which the worker that holds most is planned to be largest.
        fault: why there is no plan, or how the run failed. broken: the planner did.
    """

    point: Point
    planned: dict[str, list[float]] = field(default_factory=dict)
    measured: dict[str, list[float]] = field(default_factory=dict)
    phase: str = ""
    fault: str = ""
    broken: bool = False

    def ratio(self, quantity: str) -> float | None:
        """Planned / measured of the worker where it is furthest from 1; None where one of both is missing or 0."""
        planned, measured = self.planned.get(quantity), self.measured.get(quantity)
        if planned is None or measured is None:
            return None
        ratios = (plan / other for plan, other in zip(planned, measured, strict=True) if other)
        return max(ratios, key=lambda ratio: abs(ratio - 1), default=None)


@dataclass(frozen=True)
class Errors:
    """How far plans are from runs: mean and largest of |planned / measured - 1|, over ``count`` rows; the worst row."""

    mean: float
    worst: float
    count: int
    row: Row


def planned_figures(plan: WorldPlan, time: EpochTime | None) -> dict[str, list[float]]:
    """What a plan says of each quantity. time: None where it is not planned."""
    figures: dict[str, list[float]] = {
        TRAINING: [worker.training for worker in plan.workers],
        WHOLE: [worker.total for worker in plan.workers],
    }
    return figures if time is None else figures | {EPOCH: [time.seconds]}


def measured_figures(figures: Figures) -> dict[str, list[float]]:
    """What a run says of each quantity."""
    return {
        TRAINING: figures["peak_train_bytes"],
        WHOLE: figures["peak_rss_bytes"],
        EPOCH: [median(figures["times_s"])],
    }


def errors_of(rows: Sequence[Row], quantity: str) -> Errors | None:
    """Over all rows that have both; None where there are none."""
    errors = [(abs(ratio - 1), row) for row in rows if (ratio := row.ratio(quantity)) is not None]
    if not errors:
        return None
    worst, row = max(errors, key=lambda pair: pair[0])
    return Errors(sum(error for error, _ in errors) / len(errors), worst, len(errors), row)


def as_json(row: Row) -> dict[str, Any]:
    """For a file."""
    config = row.point.config
    return {
        "case": row.point.case,
        "name": row.point.name,
        "mode": config.mode.name,
        "world": config.world,
        "more": row.point.more,
        "planned": row.planned,
        "measured": row.measured,
        "ratios": {name: row.ratio(name) for name in QUANTITIES},
        "phase": row.phase,
        "fault": row.fault,
    }
