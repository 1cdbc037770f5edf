"""A race: ways to train, with the same budget and seeds each, by how soon their validation metric reaches targets.

``conf/race/NAME.yaml`` says before anything runs what is raced; ways that lose are shown as those that win. Times are of
training alone, without evaluations, as ``metrics.jsonl`` has them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from sargnn.config.fields import AT_LEAST_ONE, POSITIVE, build, read_yaml
from sargnn.errors import ConfigError
from sargnn.report.charts import Chart, Picture, Series
from sargnn.report.draw import write_pngs
from sargnn.tasks.kinds import is_better
from sargnn.tracking.files import MetricsTail


@dataclass(frozen=True)
class RaceSpec:
    """What is raced.

    Attributes:
        title: in words.
        common: words of ``sargnn train`` for all ways.
        ways: name -> further words.
        seeds: how many, from 0.
        seconds: of training that each run may take; null: the epochs of ``common`` decide.
        targets: values of the validation metric.
        needs: what it needs beside this project.
    """

    title: str
    common: list[str]
    ways: dict[str, list[str]]
    targets: list[float]
    seeds: int = field(default=3, metadata=AT_LEAST_ONE)
    seconds: float | None = field(default=None, metadata=POSITIVE)
    needs: str = ""


def read_race(path: Path) -> RaceSpec:
    """Raises ``ConfigError`` naming the file and what is wrong in it."""
    try:
        spec = build(RaceSpec, read_yaml(path, "A race"), "")
    except ConfigError as error:
        raise ConfigError(f"'{path}': {error}") from error
    if not spec.ways:
        raise ConfigError("A race needs ways to train.", given=f"{path}: no ways")
    return spec


def points_of(spec: RaceSpec, words: Sequence[str]) -> dict[str, list[tuple[str, ...]]]:
    """Way -> the words of its runs, one for each seed. ``words``: for all, behind the ways' own."""
    limit = [] if spec.seconds is None else [f"max_seconds={spec.seconds:g}"]
    points: dict[str, list[tuple[str, ...]]] = {}
    if any(word.startswith("seed=") for word in (*spec.common, *words, *(word for own in spec.ways.values() for word in own))):
        raise ConfigError("A race has its own seeds.", given="seed=", hint="'seeds' in the race's file says how many")
    for way, own in spec.ways.items():
        # Of words with the same key the last one counts, in the place of the first.
        last = {word.lstrip("+~").partition("=")[0]: word for word in (*spec.common, *limit, *own, *words)}
        points[way] = [(*last.values(), f"seed={seed}") for seed in range(spec.seeds)]
    return points


@dataclass(frozen=True)
class Reached:
    """When a run's validation metric was first as good as a target.

    Attributes:
        seconds: of training.
        steps: optimizer steps.
    """

    seconds: float
    steps: int


@dataclass(frozen=True)
class Ran:
    """One run.

    Attributes:
        way: its name.
        seed: its seed.
        metric: the metric.
        points: seconds of training, optimizer steps, validation and test metric, of each evaluation.
    """

    way: str
    seed: int
    metric: str
    points: list[tuple[float, int, float, float | None]]

    @property
    def best(self) -> tuple[float, int, float, float | None]:
        """The first of the best evaluations."""
        best = self.points[0]
        for point in self.points[1:]:
            if is_better(self.metric, point[2], best[2]):
                best = point
        return best

    def reached(self, target: float) -> Reached | None:
        """When it was first as good; None: never."""
        for seconds, steps, value, _ in self.points:
            if value == target or is_better(self.metric, value, target):
                return Reached(seconds, steps)
        return None


def read_ran(way: str, seed: int, run_dir: Path) -> Ran | None:
    """From a run's folder; None where it was never evaluated."""
    rows = list(MetricsTail(run_dir).new_rows())
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
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
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
            there = [reached for run in runs if (reached := run.reached(target)) is not None]
            if not there:
                cells.append("never")
                continue
            of = "" if len(there) == len(runs) else f", {len(there)} of {len(runs)} runs"
            seconds, steps = spread([each.seconds for each in there], 1), mean(each.steps for each in there)
            cells.append(f"{seconds} s, {steps:.0f} steps{of}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def pictures_of(spec: RaceSpec, ran: Mapping[str, Sequence[Ran]]) -> list[Picture]:
    """The validation metric against seconds, and against optimizer steps, each the mean over seeds with its spread."""
    metric = next(run.metric for runs in ran.values() for run in runs)
    pictures = []
    for at, (key, label) in enumerate((("seconds", "seconds of training"), ("steps", "optimizer steps"))):
        series = [drawn for way, runs in ran.items() if (drawn := _series(way, runs, at)) is not None]
        pictures.append(Picture(key, spec.title, [Chart("curves", f"validation {metric}", label, series)]))
    return pictures


def _series(way: str, runs: Sequence[Ran], at: int) -> Series | None:
    """Of the evaluations that all seeds have, by optimizer steps. ``at``: 0: x is seconds, else steps."""
    each = [{point[1]: point for point in run.points} for run in runs]
    common = [steps for steps in each[0] if all(steps in points for points in each)] if each else []
    if not common:
        return None
    values = [[points[steps][2] for points in each] for steps in common]
    seconds = [mean(points[steps][0] for points in each) for steps in common]
    return Series(
        way,
        seconds if at == 0 else [float(steps) for steps in common],
        [mean(of_seeds) for of_seeds in values],
        [stdev(of_seeds) if len(of_seeds) > 1 else 0.0 for of_seeds in values],
        [f"{way}, seed {run.seed}" for run in runs],
        values,
    )


def write_race(
    name: str, spec: RaceSpec, ran: Mapping[str, Sequence[Ran]], where: str, folder: Path
) -> tuple[list[str], list[Path]]:
    """Write ``race.md``, ``race.json``, ``seconds.png`` and ``steps.png``; the table's lines and the pictures' paths.

    Args:
        where: what it ran on, in words.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = table_of(spec, ran)
    budget = "the epochs that are given" if spec.seconds is None else f"{spec.seconds:g} seconds of training"
    notes = [f"# {spec.title}", "", f"{spec.seeds} seeds, {budget} for each run; {where}.", ""]
    (folder / "race.md").write_text("\n".join([*notes, *lines, ""]))
    runs: list[dict[str, Any]] = [asdict(run) for each in ran.values() for run in each]
    (folder / "race.json").write_text(json.dumps({"race": name, "spec": asdict(spec), "where": where, "runs": runs}, indent=1))
    return lines, write_pngs(pictures_of(spec, ran), folder)
