"""How soon the ways of a race reach its targets. Times are of training alone, as ``metrics.jsonl`` has them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from sargnn.errors import writing
from sargnn.report.charts import Chart, Picture, mean_curves
from sargnn.report.draw import write_pngs
from sargnn.report.study import RaceSpec
from sargnn.report.table import markdown_table
from sargnn.tasks.kinds import is_better

Point = tuple[float, int, float, float | None]
"""Of an evaluation: seconds of training, optimizer steps, validation and test metric."""


@dataclass(frozen=True)
class Ran:
    way: str
    seed: int
    metric: str
    points: list[Point]

    @property
    def best(self) -> Point:
        """The first of the best evaluations."""
        best = self.points[0]
        for point in self.points[1:]:
            if is_better(self.metric, point[2], best[2]):
                best = point
        return best

    def reached(self, target: float) -> Point | None:
        """The first evaluation that is as good."""
        good = (point for point in self.points if point[2] == target or is_better(self.metric, point[2], target))
        return next(good, None)


def read_ran(way: str, seed: int, rows: Sequence[dict[str, Any]]) -> Ran | None:
    """From the lines of ``metrics.jsonl``; None where the run was never evaluated."""
    until = accumulate(float(row["epoch_time_s"]) for row in rows)
    points = [
        (time_s, int(row["optimizer_steps"]), float(row["val_metric"]), row.get("test_metric"))
        for row, time_s in zip(rows, until, strict=True)
        if row.get("val_metric") is not None and math.isfinite(row["val_metric"])
    ]
    metric = next((row["metric"] for row in rows if row.get("metric")), "accuracy")
    return Ran(way, seed, metric, points) if points else None


def spread(values: Sequence[float], digits: int) -> str:
    """Mean +- sample standard deviation."""
    if not values:
        return "-"
    text = f"{mean(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} +- {stdev(values):.{digits}f}"


def table_of(spec: RaceSpec, ran: Mapping[str, Sequence[Ran]]) -> list[str]:
    """Lines of Markdown: a row for each way; of targets the seconds and optimizer steps, and how many runs reached it."""
    heads = ["way", "steps", "seconds", "best validation", "test then", *(f"to {target:g}" for target in spec.targets)]
    rows = []
    for way, runs in ran.items():
        best = [run.best for run in runs]
        cells = [
            way,
            spread([run.points[-1][1] for run in runs], 0),
            spread([run.points[-1][0] for run in runs], 1),
            spread([point[2] for point in best], 4),
            spread([point[3] for point in best if point[3] is not None], 4),
        ]
        for target in spec.targets:
            there = [point for run in runs if (point := run.reached(target)) is not None]
            if not there:
                cells.append("never")
                continue
            of = "" if len(there) == len(runs) else f", {len(there)} of {len(runs)} runs"
            seconds, steps = spread([point[0] for point in there], 1), mean([point[1] for point in there])
            cells.append(f"{seconds} s, {steps:.0f} steps{of}")
        rows.append(cells)
    return markdown_table(heads, rows)


def pictures_of(spec: RaceSpec, ran: Mapping[str, Sequence[Ran]]) -> list[Picture]:
    """The validation metric against seconds, and against optimizer steps, each the mean over seeds with its spread."""
    metric = next(run.metric for runs in ran.values() for run in runs)
    pictures = []
    for at, (key, label) in enumerate((("seconds", "seconds of training"), ("steps", "optimizer steps"))):
        series = mean_curves(
            (way, {f"{way}, seed {run.seed}": {point[1]: (point[:2][at], point[2]) for point in run.points} for run in runs})
            for way, runs in ran.items()
        )
        pictures.append(Picture(key, spec.title, [Chart("curves", f"validation {metric}", label, series)]))
    return pictures


def write_race(
    name: str, spec: RaceSpec, ran: Mapping[str, Sequence[Ran]], where: str, folder: Path
) -> tuple[list[str], list[Path]]:
    """Write ``race.md``, ``race.json``, ``seconds.png`` and ``steps.png``; the table's lines and the pictures' paths.

    ``where``: what it ran on, in words. Raises ``ConfigError`` where they cannot be written.
    """
    lines = table_of(spec, ran)
    budget = "the epochs that are given" if spec.seconds is None else f"{spec.seconds:g} seconds of training"
    notes = [f"# {spec.title}", "", f"{spec.seeds} seeds, {budget} for each run; {where}.", ""]
    content = {
        "race": name,
        "spec": asdict(spec),
        "where": where,
        "runs": [asdict(run) for runs in ran.values() for run in runs],
    }
    with writing("The race's folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "race.md").write_text("\n".join([*notes, *lines, ""]))
        (folder / "race.json").write_text(json.dumps(content, indent=1))
        return lines, write_pngs(pictures_of(spec, ran), folder)
