"""The figures that runs are compared by; groups of runs that differ in nothing but the seed: a mean is taken over one group's
seeds, never over anything else; and loss curves set against each other."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import mean, stdev

from sargnn.config.losses import describe
from sargnn.config.run import differing, load
from sargnn.errors import ConfigError
from sargnn.profile import AGGREGATION, ALL_REDUCE, BETWEEN_WAIT, EVALUATION, EXCHANGE_WAIT, LINEAR, NODEWISE, PACKING
from sargnn.report.runs import Run, Settings, differences, show_settings
from sargnn.tasks.kinds import best_of
from sargnn.tracking.files import CONFIG
from sargnn.tracking.memory import PARTS
from sargnn.tracking.summary import Summary

Value = float | None


@dataclass(frozen=True)
class Figure:
    """One figure of a run.

    Attributes:
        key: in files for scripts.
        head: over a narrow column, two words at most.
        unit: ``s``, ``bytes`` or none.
    """

    key: str
    head: str
    unit: str
    read: Callable[[Run], Value]


def last_loss(run: Run) -> Value:
    return run.epochs[-1]["loss"] if run.epochs else None


def score_on_test(run: Run) -> Value:
    """The test metric at the best validation; of a graph without validation nodes that of the last evaluation."""
    if run.summary is None:
        return None
    at_best = run.summary.test_metric_at_best_val
    return at_best if at_best is not None else run.summary.test_metric


FIGURES = (
    Figure("last_loss", "loss", "", last_loss),
    Figure("test_score", "test", "", score_on_test),
    Figure("test_metric_smoothed", "smoothed", "", lambda run: run.result.test_metric_smoothed),
    Figure("epoch_time_s", "epoch", "s", lambda run: run.result.epoch_time_s),
    Figure("comm_wait_time_s", "wait", "s", lambda run: run.result.comm_wait_time_s),
    Figure("comm_bytes_per_epoch", "sent", "bytes", lambda run: run.result.comm_bytes_per_epoch),
    Figure("peak_train_bytes", "training", "bytes", lambda run: max(run.result.peak_train_bytes or (), default=None)),
    Figure("redundancy", "redundancy", "", lambda run: run.result.batches["redundancy"] if run.result.batches else None),
    Figure("peak_rss_bytes", "resident", "bytes", lambda run: max(run.result.peak_rss_bytes or (), default=None)),
)
"""In the order of the table's columns. Memory: of the worker that has most."""
BY_KEY = {figure.key: figure for figure in FIGURES}


def figures_of(run: Run) -> dict[str, Value]:
    """What is not finite counts as missing."""
    values = {figure.key: figure.read(run) for figure in FIGURES}
    return {key: float(value) if value is not None and math.isfinite(value) else None for key, value in values.items()}


@dataclass(frozen=True)
class Spread:
    """A figure over seeds. ``std``: the sample standard deviation, 0 of one seed; ``n``: seeds."""

    mean: float
    std: float
    n: int


def over_seeds(values: Sequence[Value]) -> Spread | None:
    """None where a value is missing."""
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return None
    return Spread(mean(known), stdev(known) if len(known) > 1 else 0.0, len(known))


def best_scores(runs: Sequence[Run], figure: Figure) -> list[bool]:
    """Which runs have the best value among those of the same dataset and metric; nobody where there is no other such run."""
    places: dict[tuple[str, str], list[float]] = {}
    scores = []
    for run in runs:
        value, place = figures_of(run)[figure.key], (run.judged_on[0], run.metric)
        scores.append((value, place))
        if value is not None:
            places.setdefault(place, []).append(value)
    best = {place: best_of(place[1], *values) for place, values in places.items()}
    return [value is not None and len(places[place]) > 1 and value == best[place] for value, place in scores]


def parts_of(summary: Summary) -> list[dict[str, int]]:
    """Of each worker the parts of its resident memory, bytes; of a run of before they were measured ``total`` alone."""
    totals = summary.peak_rss_bytes or []
    parts = summary.memory_bytes
    if parts is None or any(len(parts.get(name, ())) != len(totals) for name in PARTS):
        return [{"total": total} for total in totals]
    return [{name: parts[name][rank] for name in PARTS} for rank in range(len(totals))]


EPOCH_PARTS = ("computing", "inside servers", "between servers", "sums", "rest")
"""What an epoch goes into: work; waiting for rows and gradients of the own server, and of others; collectives; the rest."""
_OF_EPOCH = {
    LINEAR: "computing",
    AGGREGATION: "computing",
    NODEWISE: "computing",
    PACKING: "computing",
    EXCHANGE_WAIT: "inside servers",
    BETWEEN_WAIT: "between servers",
    ALL_REDUCE: "sums",
}


def epoch_parts_of(run: Run) -> dict[str, float]:
    """Seconds of an epoch by ``EPOCH_PARTS``, means over the workers; empty of a run that was not profiled."""
    if not run.result.profile_s:
        return {}
    parts = dict.fromkeys(EPOCH_PARTS, 0.0)
    for category, seconds in run.result.profile_s.items():
        if category != EVALUATION:
            parts[_OF_EPOCH.get(category, "rest")] += sum(seconds) / len(seconds)
    return parts


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone, each seed once.

    Attributes:
        name: that of its only run, or of its runs without the seed.
        members: in the order of their seeds.
        differs: the settings that other groups do not share.
        repeat: of runs with the same settings and seed the how manieth.
    """

    name: str
    members: tuple[Run, ...]
    differs: Settings = field(default_factory=dict)
    repeat: int = 1

    @property
    def first(self) -> Run:
        return self.members[0]

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.members]

    @property
    def label(self) -> str:
        """Its settings that differ, or its name where there are none."""
        return ", ".join(show_settings(self.differs)) or self.name

    @cached_property
    def values(self) -> dict[str, list[float | None]]:
        """One per member."""
        every = [figures_of(run) for run in self.members]
        return {key: [figures[key] for figures in every] for key in BY_KEY}

    def in_unit(self, key: str, unit: float) -> list[float]:
        """Those that there are, divided by ``unit``."""
        return [value / unit for value in self.values[key] if value is not None]

    @cached_property
    def figures(self) -> dict[str, Spread | None]:
        return {key: over_seeds(values) for key, values in self.values.items()}


def make_groups(runs: Sequence[Run]) -> list[Group]:
    """Groups in the order of their first runs. Runs that have the seed in common too are no more seeds: each starts a group."""
    places: dict[tuple[str, int], list[Run]] = {}
    seen: Counter[tuple[str, int]] = Counter()
    for run in runs:
        key = json.dumps(run.telling, sort_keys=True, default=str)
        seen[key, run.seed] += 1
        places.setdefault((key, seen[key, run.seed]), []).append(run)
    members = [tuple(sorted(alike, key=lambda run: run.seed)) for alike in places.values()]
    differing = differences([alike[0] for alike in members], seed=False)
    groups = [
        Group("", alike, differs | ({"repeat": repeat} if repeat > 1 else {}), repeat)
        for alike, differs, (_, repeat) in zip(members, differing, places, strict=True)
    ]
    names = []
    for group in groups:
        name = group.first.name
        if len(group.members) > 1:  # that of its runs without the seed
            name = re.sub(r"-s\d+(-\d+)?$|\s*\bseed=\d+", "", name).strip()
        settings = group.first.settings
        names.append(name or f"{settings['model.name']}-{settings['mode.name']}-w{group.first.world}")
    counts = Counter(names)
    return [
        replace(group, name=name if counts[name] == 1 else f"{name} ({group.label})")
        for group, name in zip(groups, names, strict=True)
    ]


TOLERANCES = {"fp64": 1e-8, "fp32": 1e-4, "mixed": 1e-3, "bf16": 2e-2}
"""The exactness contract, by precision: fp64 relative to each epoch's loss, others to the first epoch's. Where messages are
rounded, it is that of what they are rounded to."""


@dataclass(frozen=True)
class Deviation:
    """How far a loss curve is from another one.

    Attributes:
        epochs: how many both have.
        bits_equal: whether those are the same to the last bit.
        relative: the largest |difference|, fp64 as a fraction of that epoch's loss, else of the first epoch's.
        epoch: where that is, from 1.
        tolerance: what the contract allows.
    """

    epochs: int
    bits_equal: bool
    relative: float
    epoch: int
    tolerance: float

    @property
    def within(self) -> bool:
        return self.relative <= self.tolerance


def deviation(losses: Sequence[float], wanted: Sequence[float], precision: str) -> Deviation:
    """How far ``losses`` are from ``wanted``, over the epochs that both have. Raises ``ConfigError``: they have no epoch in
    common, or the contract says nothing of this precision."""
    if precision not in TOLERANCES:
        raise ConfigError("The exactness contract has no tolerance for this precision.", given=precision, allowed=TOLERANCES)
    pairs = list(zip(losses, wanted, strict=False))
    if not pairs:
        raise ConfigError("The loss curves have no epoch in common.")
    scales = [abs(want) if precision == "fp64" else abs(wanted[0]) for _, want in pairs]
    each = [_relative(loss, want, scale) for (loss, want), scale in zip(pairs, scales, strict=True)]
    largest = max(each)
    return Deviation(
        len(pairs), all(loss == want for loss, want in pairs), largest, each.index(largest) + 1, TOLERANCES[precision]
    )


def _relative(loss: float, want: float, scale: float) -> float:
    """|loss - want| / scale; infinite where one of them is not finite."""
    if not (math.isfinite(loss) and math.isfinite(want)):
        return math.inf
    return 0.0 if loss == want else abs(loss - want) / scale if scale else math.inf


def loss_notes(runs: Sequence[Run]) -> list[str]:
    """A line for each setting that changed the losses of runs although nothing else was asked for, with their names."""
    names: dict[str, list[str]] = {}
    for run in runs:
        for setting in run.result.losses_depend_on or ():
            names.setdefault(describe(setting), []).append(run.name)
    return [f"{'all runs' if len(named) == len(runs) > 1 else ', '.join(named)}: {line}" for line, named in names.items()]


DECIDES_NO_CURVE = ("epochs:", "model.order:")


def losses_equal(runs: Sequence[Run]) -> tuple[bool, list[str]]:
    """Whether each run's losses are within the exactness contract of the first one's, and what to say of each. Raises
    ``ConfigError``: fewer than two runs, or runs whose settings that decide losses differ."""
    if len(runs) < 2:
        raise ConfigError("Losses are compared between finished runs.", given=f"{len(runs)}", allowed="at least 2")
    wanted = runs[0]
    first = load(wanted.folder / CONFIG)
    fine, lines = True, []
    for run in runs[1:]:
        changed = [change for change in differing(first, load(run.folder / CONFIG)) if not change.startswith(DECIDES_NO_CURVE)]
        if changed:
            raise ConfigError(
                "Runs differ in what decides their losses.",
                given=f"{run.folder}: {'; '.join(changed)}",
                hint=f"compare it with runs of the settings of {wanted.folder}",
            )
        rounded = first.comm.wire != "exact" and first.precision != "fp64"
        distance = deviation(run.result.losses, wanted.result.losses, first.comm.wire if rounded else first.precision)
        fine &= distance.within
        how = "the same to the last bit"
        if not distance.bits_equal:
            of = "its" if first.precision == "fp64" else "the first"
            within = f"{'within' if distance.within else 'BEYOND'} {distance.tolerance:.0e}"
            how = f"largest difference {distance.relative:.2e} of {of} loss, in epoch {distance.epoch}, {within}"
        lines.append(f"{_named(run)}: {distance.epochs} epochs, {how}")
    lines.append(f"losses set against {_named(wanted)}: {'equal' if fine else 'NOT equal'}")
    return fine, lines


def _named(run: Run) -> str:
    return f"{run.name} ({run.settings['mode.name']}, world {run.world})"
