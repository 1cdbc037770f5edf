"""What is planned of runs beside what they measure: ``python -m benchmarks.plan``. A grid of runs, named ones, and some with
settings drawn at random, so that a plan is not only right where somebody has looked.

Letters: P workers.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from benchmarks.command import call
from sargnn.cli import sweep
from sargnn.cli.bench import run_of, settings_of
from sargnn.cli.command_line import CommandLine
from sargnn.cli.verb import Verb
from sargnn.config.fields import NOT_NEGATIVE, build
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError, SargnnError, nearest
from sargnn.graph.dataset import open_dataset
from sargnn.memory.plan_stores import Plans, cut_key
from sargnn.partition.prepare import prepare_partition
from sargnn.report.bench.entries import Case, Entry, Figures, row_name
from sargnn.report.bench.measure import Kept, measure
from sargnn.report.bench.settings import check_grid, machine, open_folder
from sargnn.run.check import check_strategies
from sargnn.sources.prepare import prepare_dataset
from sargnn.tracking.progress import Steps, say

TRAINING, WHOLE = "training", "whole"
QUANTITIES = (TRAINING, WHOLE)
"""What is compared, in MB: what training held above what was there when it started; all resident memory at its peak."""
NOT_PLANNED, FAILED = "not planned", "failed"
FILES = "plan.md", "plan.json"
_TRIES = 200
"""For each run that is wanted, before the settings that all runs share are blamed."""
_DEEP = {"resgcn": (4, 8, 16), "gcnii": (4, 8, 16)}
"""Layers of models that are made to be deep."""
_HEADS = ("model.heads=1", "model.heads=2", "model.heads=4")
_OF_A_HEAD = {"gat": _HEADS, "gat_weak": _HEADS}
_CHOICES: dict[str, tuple[str | float | None, ...]] = {
    "model.norm": (None, None, "layer", "none"),
    "model.dropout": (0.0, 0.5),
    "precision": (None, None, None, "bf16", "mixed", "fp64"),
    "comm.aggregate": (None, None, "post", "pre", "least", "fastest"),
    "comm.prefetch_depth": (0, 1, 2, 3),
    "labels": (None, None, "masked"),
    "engine.keep_layers": (None, None, "sqrt", 1, 2),
}
"""None: as it is without a word."""
_VIEWS = (
    (),
    (),
    (),
    ("batches.count=2",),
    ("batches.count=4",),
    ("mfg=true",),
    ("mfg=true", "batches.count=2"),
    ("sample.fanouts",),
    ("sample.fanouts", "batches.steps=4"),
)
"""What a step computes: in a third of the draws all rows at once."""


VERB = Verb(
    "benchmarks.plan",
    "planned memory beside measured, of many runs",
    text="What sargnn plan says beside what runs measure: each model in each mode on each number of workers, some "
    "named runs, and some with settings drawn at random. Of each the memory of training, the whole, an epoch's "
    "time, and planned / measured of the worker furthest off, as a table and JSON, with mean and worst error. Runs "
    "that are there are kept and planned anew. Other settings and groups are those of train and hold for all rows.",
    entry="benchmarks.plan:main",
    examples=(
        ("benchmarks.plan dataset.scale=0.03", "all of it: two or three hours"),
        ("benchmarks.plan 'models=[gat]' 'worlds=[4]' 'named=[]' drawn=0", "four runs"),
        ("benchmarks.plan 'models=[]' 'named=[]' drawn=50 draw_seed=1", "drawn ones alone"),
    ),
    config="bench_plan",
    program="python -m",
)


@dataclass(frozen=True)
class BenchPlanConfig:
    """``python -m benchmarks.plan``: planned memory beside measured.

    Attributes:
        cases: name -> overrides of a run.
        models: which of them run in each of ``modes`` on each of ``worlds``; another name is that option of ``model``.
        more: name -> a case, and overrides of it.
        named: which of them run, too; ``all`` of them.
        drawn: so many further runs have settings that are drawn at random from ``draw_seed``.
        bench_dir: where results go; runs that are there are kept.
    """

    cases: dict[str, list[str]]
    models: list[str]
    modes: list[str]
    worlds: list[int]
    more: dict[str, list[str]]
    named: Literal["all"] | list[str]
    drawn: int = field(metadata=NOT_NEGATIVE)
    draw_seed: int = field(metadata=NOT_NEGATIVE)
    bench_dir: str

    @property
    def named_runs(self) -> list[str]:
        """Names of further runs."""
        return list(self.more) if self.named == "all" else list(self.named)


def parse_bench_plan(mapping: dict[str, Any]) -> BenchPlanConfig:
    """Check a resolved mapping. Raises ``ConfigError`` with the name of the first wrong key."""
    config = build(BenchPlanConfig, mapping, "")
    check_grid(config, needed=("modes", "worlds"))
    if len(set(config.named_runs)) < len(config.named_runs):
        raise ConfigError("'named' names one twice.", given=config.named_runs)
    for name in config.named_runs:
        if name not in config.more:
            raise ConfigError("There is no such run.", given=f"named=[{name}]", allowed=nearest(name, config.more))
        if not config.more[name] or config.more[name][0] not in config.cases:
            raise ConfigError(f"'more.{name}' begins with a case.", given=config.more[name], allowed=list(config.cases))
    return config


@dataclass(frozen=True)
class Point:
    """A run of the comparison.

    Attributes:
        case: its model.
        name: of its row, alone in its case.
        more: settings beside model, mode and workers.
        config: its settings.
    """

    case: str
    name: str
    more: str
    config: RunConfig


@dataclass(frozen=True)
class Row:
    """What a run came to.

    Attributes:
        point: the run.
        planned: of each quantity a number for each worker [P], or one for the run; without those that nobody plans, empty
            without a plan.
        measured: likewise; empty after a failure.
        phase: in which the worker that holds most is planned to be largest.
        fault: why there is no plan, or how the run failed.
        broken: whether the planner failed.
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


def find_points(settings: BenchPlanConfig, make: Callable[[Sequence[str]], RunConfig]) -> list[Point]:
    """All of them, in order.

    Args:
        make: of a case with overrides the run.

    Raises:
        ConfigError: a run of the grid or a named one that cannot be.
    """

    def checked(words: Sequence[str]) -> RunConfig:
        config = make(words)
        config = dataclasses.replace(config, processes=config.world)  # plans are of workers with a process of their own
        check_strategies(config)
        return config

    points = []
    for case in settings.models:
        for world in settings.worlds:
            for mode in settings.modes:
                config = checked([case, f"mode={mode}", f"world={world}"])
                points.append(Point(case, row_name(mode, world), "", config))
    for name in settings.named_runs:
        words = settings.more[name]
        points.append(Point(words[0], name, _more(words), checked(words)))
    for number, (words, config) in enumerate(draw_runs(settings, checked)):
        points.append(Point(words[0], f"drawn {settings.draw_seed} {number:02d}", _more(words), config))
    return points


def _more(words: Sequence[str]) -> str:
    """What a row says beside model, mode and workers."""
    return " ".join(word for word in words[1:] if not word.startswith(("mode=", "world=")))


def draw_words(draw: random.Random, settings: BenchPlanConfig) -> list[str]:
    """A case and overrides of it, which may not go together."""
    case, mode, world = draw.choice(sorted(settings.cases)), draw.choice(settings.modes), draw.choice(settings.worlds)
    heads = _OF_A_HEAD.get(case, ())
    layers = draw.choice(_DEEP.get(case, (2, 3, 4, 5)))
    hidden = draw.choice((16, 32, 64) if heads else (16, 32, 64, 96, 128, 256))
    words = [case, f"mode={mode}", f"world={world}", f"model.hidden={hidden}", f"model.num_layers={layers}"]
    words += [draw.choice(heads)] if heads else []
    for key, values in _CHOICES.items():
        value = draw.choice(values)
        words += [] if value is None else [f"{key}={value}"]
    fanout = draw.choice((3, 5, 10))
    for word in draw.choice(_VIEWS):
        words.append(f"{word}=[{','.join([str(fanout)] * layers)}]" if word == "sample.fanouts" else word)
    return words


def draw_runs(settings: BenchPlanConfig, make: Callable[[Sequence[str]], RunConfig]) -> list[tuple[list[str], RunConfig]]:
    """``settings.drawn`` different runs: a case with overrides, and what it comes to. The same seed draws the same.

    Args:
        make: of a case with overrides the run; it raises ``ConfigError`` for what does not go together.

    Raises:
        ConfigError: of the last draw, where hardly any can run.
    """
    draw = random.Random(settings.draw_seed)
    runs: dict[str, tuple[list[str], RunConfig]] = {}
    refused: ConfigError | None = None
    for _ in range(_TRIES * settings.drawn):
        if len(runs) == settings.drawn:
            break
        words = draw_words(draw, settings)
        try:
            runs.setdefault(" ".join(words), (words, make(words)))
        except ConfigError as error:
            refused = error
    if len(runs) < settings.drawn:
        what = f"Of {_TRIES * settings.drawn} draws only {len(runs)} can run."
        raise ConfigError(what, given=f"drawn={settings.drawn}", hint=str(refused).splitlines()[0]) from refused
    return list(runs.values())


def run(settings: BenchPlanConfig, points: Sequence[Point]) -> list[Row]:
    """Compare; prints each row once it is there; writes ``plan.md`` and ``plan.json`` into ``bench_dir``.

    Runs that are there are kept; plans are made anew.

    Raises:
        SargnnError: the folder cannot be written, or holds a run with other settings.
    """
    folder = Path(settings.bench_dir)
    open_folder(folder, FILES)
    places = [
        Kept(folder, Case(wanted.case, wanted.config), Entry("train", wanted.name, wanted.config), 0) for wanted in points
    ]
    if kept := sum(place.read() is not None for place in places):
        say(f"{kept} runs are in {folder} and are kept")
    # The newest cut is kept, which the modes of a model share.
    plans_of = lru_cache(maxsize=1)(lambda store, cut: Plans(open_dataset(store, verify=False), store.name))
    rows: list[Row] = []
    print("\n".join(head()), flush=True)
    for point, place in zip(points, places, strict=True):
        rows.append(_compare(point, place, plans_of))
        print(line(rows[-1]), flush=True)
        _write(folder, settings, rows)
    return rows


def _compare(point: Point, place: Kept, plans_of: Callable[[Path, str], Plans]) -> Row:
    row = Row(point)
    config = point.config
    with Steps():
        store = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
        prepare_partition(config, store)
        try:
            plans = plans_of(store, cut_key(config))
            plan = plans.plan(config)
            figures: Figures = {
                TRAINING: [worker.training for worker in plan.workers],
                WHOLE: [worker.total for worker in plan.workers],
            }
            row = dataclasses.replace(row, planned=figures, phase=plan.largest.phase)
        except SargnnError as error:
            row = dataclasses.replace(row, fault=str(error).splitlines()[0].rstrip("."))
        except Exception as error:  # a defect of the planner's, which the row shows; the other rows go on
            row = dataclasses.replace(row, fault=f"the planner broke: {type(error).__name__}: {error}", broken=True)
    measured = place.read()
    if measured is None:
        say(f"training {point.case}, {point.name}")
        try:
            measured = measure(place, store)
        except SargnnError as error:
            say(str(error))
            printed = [text for text in str(error).splitlines() if not text.startswith("  next:")]
            return Row(point, fault=printed[-1].strip())
        place.write(measured)
    peaks = {TRAINING: measured["peak_train_bytes"], WHOLE: measured["peak_rss_bytes"]}
    return dataclasses.replace(row, measured=peaks)


def _write(folder: Path, settings: BenchPlanConfig, rows: Sequence[Row]) -> None:
    errors: dict[str, Any] = {}
    for name in QUANTITIES:
        of_quantity = errors_of(rows, name)
        if of_quantity is not None:
            worst = {"worst": of_quantity.worst, "of": f"{of_quantity.row.point.case}, {of_quantity.row.point.name}"}
            errors[name] = {"mean": of_quantity.mean, **worst, "runs": of_quantity.count}
    content = {
        "about": machine() | {"plan": dataclasses.asdict(settings)},
        "errors": errors,
        "rows": [
            {
                "case": row.point.case,
                "name": row.point.name,
                "mode": row.point.config.mode.name,
                "world": row.point.config.world,
                "more": row.point.more,
                "planned": row.planned,
                "measured": row.measured,
                "ratios": {name: row.ratio(name) for name in QUANTITIES},
                "phase": row.phase,
                "fault": row.fault,
            }
            for row in rows
        ],
    }
    (folder / "plan.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / "plan.md").write_text("\n".join(markdown(rows)) + "\n")


def errors_of(rows: Sequence[Row], quantity: str) -> Errors | None:
    """Over all rows that have both; None where there are none."""
    errors = [(abs(ratio - 1), row) for row in rows if (ratio := row.ratio(quantity)) is not None]
    if not errors:
        return None
    worst, row = max(errors, key=lambda pair: pair[0])
    return Errors(sum(error for error, _ in errors) / len(errors), worst, len(errors), row)


def head() -> list[str]:
    """The table's first two lines."""
    names = ["model", "mode", "workers", "more"]
    for name in QUANTITIES:
        names += [f"{name}, MB", "planned"]
    names.append("largest in")
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def line(row: Row) -> str:
    """A row: of each quantity what was measured of the worker that has most, and planned / measured of that furthest off."""
    config = row.point.config
    cells = [row.point.case, config.mode.name, str(config.world), row.point.more]
    for name in QUANTITIES:
        measured, ratio = row.measured.get(name), row.ratio(name)
        cells += ["" if measured is None else f"{max(measured) / 1e6:.0f}", "" if ratio is None else f"{ratio:.3f}"]
    cells.append(row.phase or f"{NOT_PLANNED if row.measured else FAILED}: {row.fault.replace('|', '/')}")
    return f"| {' | '.join(cells)} |"


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Lines on the errors of each quantity that is planned, and on rows without one."""
    for name in QUANTITIES:
        errors = errors_of(rows, name)
        if errors is not None:
            worst = f"worst {errors.worst:.1%} ({errors.row.point.case}, {errors.row.point.name})"
            yield f"{name}: mean absolute error {errors.mean:.1%}, {worst}, of {errors.count} runs"
    for what, count in (
        (NOT_PLANNED, sum(1 for row in rows if row.measured and not row.planned)),
        (FAILED, sum(1 for row in rows if not row.measured)),
    ):
        if count:
            yield f"{what}: {count} of {len(rows)} runs"


def markdown(rows: Sequence[Row]) -> list[str]:
    """All of it."""
    return [*head(), *(line(row) for row in rows), "", *(f"- {text}" for text in summary(rows))]


def main(line: CommandLine) -> int:
    """Compare; prints the table. Exit code 1 where a run failed, or the planner did."""
    settings, of_runs = settings_of("bench_plan", line, BenchPlanConfig, parse_bench_plan)

    def make(words: Sequence[str]) -> RunConfig:
        name, *more = words
        case = settings.cases.get(name, [f"model={name}"])
        return run_of("bench_plan", name, [*case, *more], of_runs, line.folders)

    points = find_points(settings, make)
    sweep.as_interrupts()
    rows = run(settings, points)
    print()
    for text in summary(rows):
        print(text)
    print(f"figures: {settings.bench_dir}/plan.md, {settings.bench_dir}/plan.json; the runs: {settings.bench_dir}/runs")
    return int(any(row.broken or not row.measured for row in rows))


if __name__ == "__main__":
    sys.exit(call(VERB, sys.argv[1:]))
