"""``sargnn bench WHAT``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sargnn.cli.command_line import CommandLine
from sargnn.cli.conf import ConfFolders
from sargnn.errors import ConfigError

if TYPE_CHECKING:
    from sargnn.config.run import RunConfig

T = TypeVar("T")
_KEPT = ("bench_dir", "resume", "skip_finished")
"""What is composed beside a run's settings."""


def kernels(line: CommandLine) -> int:
    """``sargnn bench kernels``; prints its tables."""
    from pathlib import Path

    from sargnn.cli.compose import compose_verb
    from sargnn.report.bench.settings import parse_bench_kernels
    from sargnn.run.env import default_threads, worker_environment

    config = parse_bench_kernels(compose_verb("bench_kernels", line.overrides, keep=("bench_dir",), folders=line.folders))
    # As workers have it; before torch and numba are imported.
    os.environ.update(worker_environment(config.threads or default_threads(1)))
    from sargnn.report.bench.kernels import run
    from sargnn.tracking.progress import say
    from sargnn.tracking.tables import attention_table, kernels_table, norms_table, weighted_table

    results = run(config)
    tables = {"rows": kernels_table, "weighted": weighted_table, "attention": attention_table, "norms": norms_table}
    for name, table in tables.items():
        if results[name]:
            table(results[name])
    say(f"figures and plots: {Path(config.bench_dir)}")
    return 0


def epoch(line: CommandLine) -> int:
    """``sargnn bench epoch``; prints its table."""
    from pathlib import Path

    from sargnn.cli.compose import compose_verb, sweep_points
    from sargnn.config.run import parse

    if sweep_points("bench_epoch", line.overrides, multirun=False, folders=line.folders) is not None:
        raise ConfigError("This verb has no sweeps, and the experiment is one.", hint="choose another experiment")
    mapping = compose_verb("bench_epoch", line.overrides, keep=_KEPT, folders=line.folders)
    bench_dir, resume, skip = (mapping.pop(name) for name in _KEPT)
    if not isinstance(bench_dir, str) or not bench_dir:
        raise ConfigError("'bench_dir' must be a folder.", given=repr(bench_dir))
    config = parse(mapping)
    if resume is not None or skip != "ask" or not config.profile:
        raise ConfigError("A benchmark is a run of its own, profiled.", hint="leave resume, skip_finished, profile as they are")
    _check_measured(config)
    from sargnn.report.bench.epoch import HEADS, run
    from sargnn.tracking.progress import say
    from sargnn.tracking.tables import epoch_table

    rows, limits, run_dir = run(config, Path(bench_dir))
    epoch_table(HEADS, rows)
    say(limits)
    say(f"figures: {bench_dir}/epoch.json, {bench_dir}/epoch.md; the run: {run_dir}")
    return 0


def network(line: CommandLine) -> int:
    """``sargnn bench network``; prints its table."""
    from pathlib import Path

    from sargnn.cli.compose import compose_verb
    from sargnn.config.run import parse

    mapping = compose_verb("bench_network", line.overrides, keep=_KEPT, folders=line.folders)
    bench_dir, *_ = (mapping.pop(name) for name in _KEPT)
    if not isinstance(bench_dir, str) or not bench_dir:
        raise ConfigError("'bench_dir' must be a folder.", given=repr(bench_dir))
    config = parse(mapping)
    if config.world == 1:
        raise ConfigError("One worker talks to nobody.", given="world=1", allowed="world=2 and more")
    from sargnn.report.bench.roofline import measure_network
    from sargnn.tracking.files import NETWORK
    from sargnn.tracking.memory import human_bytes
    from sargnn.tracking.progress import say
    from sargnn.tracking.tables import info_table

    measured = measure_network(config, Path(bench_dir))
    places = (("inside", "a worker to another of its server"), ("between", "a worker to another server"))
    rows = [(what, f"{human_bytes(rate)} in a second") for key, what in places if (rate := measured[key]) is not None]
    info_table([*rows, ("a sum over all workers", f"{1000 * (measured['sum_s'] or 0):.2f} ms")])
    say(f"figures: {bench_dir}/{NETWORK}")
    return 0


def _check_measured(config: RunConfig) -> None:
    """A run whose epochs are measured. Raises ``ConfigError``."""
    if config.comm.max_restarts:
        raise ConfigError("What a second start trains cannot be set beside the first.", given="comm.max_restarts", allowed="0")
    if config.epochs < 2:
        raise ConfigError("The first epoch is left out.", given=f"epochs={config.epochs}", allowed="at least 2")


_CHOSEN_BY = {
    "model": "models=[A,B]",
    "mode": "modes=[A,B]",
    "world": "worlds=[4,8]",
    "experiment": "dataset=NAME, models=[A,B]",
}
"""What the table varies: a run's setting -> how the table names it."""
_OF_ALL_ROWS = ("epochs", "eval_every", "threads")
"""Settings of a run that stand in the table's file, which an experiment of one case does not change."""


def table(line: CommandLine) -> int:
    """``sargnn bench table``; prints it."""
    from sargnn.cli.sweep import as_interrupts
    from sargnn.report.bench.settings import BenchTableConfig, parse_bench_table

    settings, of_runs = _settings_of("bench_table", line, BenchTableConfig, parse_bench_table)
    cases = {name: settings.cases.get(name, [f"model={name}"]) for name in settings.models}
    configs = {name: _run_of("bench_table", name, case, of_runs, line.folders) for name, case in cases.items()}
    from sargnn.report.bench.table.entries import Case
    from sargnn.report.bench.table.measure import run
    from sargnn.report.bench.table.report import show
    from sargnn.tracking.progress import say

    as_interrupts()
    show(run(settings, [Case(name, config) for name, config in configs.items()]))
    say(f"figures: {settings.bench_dir}/table.md, {settings.bench_dir}/table.json; the runs: {settings.bench_dir}/runs")
    return 0


def plan(line: CommandLine) -> int:
    """``sargnn bench plan``; prints its table. Exit code 1 where a run failed, or the planner did."""
    from sargnn.cli.sweep import as_interrupts
    from sargnn.report.bench.settings import BenchPlanConfig, parse_bench_plan

    settings, of_runs = _settings_of("bench_plan", line, BenchPlanConfig, parse_bench_plan)
    from sargnn.report.bench.plan import find_points, run, summary

    def make(words: Sequence[str]) -> RunConfig:
        name, *more = words
        case = settings.cases.get(name, [f"model={name}"])
        return _run_of("bench_plan", name, [*case, *more], of_runs, line.folders)

    points = find_points(settings, make)
    as_interrupts()
    rows = run(settings, points)
    print()
    for text in summary(rows):
        print(text)
    print(f"figures: {settings.bench_dir}/plan.md, {settings.bench_dir}/plan.json; the runs: {settings.bench_dir}/runs")
    return int(any(row.broken or not row.measured for row in rows))


def _settings_of(verb: str, line: CommandLine, cls: type[T], parse: Callable[[dict[str, Any]], T]) -> tuple[T, list[str]]:
    """A table's own settings, and the overrides that all its runs share; kernels are found where runs have theirs."""
    from dataclasses import fields

    from sargnn.cli.compose import compose_verb
    from sargnn.compiled import numba_cache_dir

    keys = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    own, of_runs = _shared_out(line.overrides, keys)
    mapping = compose_verb(verb, own, keep=("bench_dir",), folders=line.folders)
    settings = parse({key: mapping[key] for key in keys})
    os.environ["NUMBA_CACHE_DIR"] = str(numba_cache_dir())
    of_all = [f"{key}={'null' if mapping[key] is None else mapping[key]}" for key in _OF_ALL_ROWS]
    return settings, [*of_all, *of_runs]


def _shared_out(words: Sequence[str], keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides of a command's own settings, and those of all runs. Raises ``ConfigError`` for what the rows vary."""
    own: list[str] = []
    of_runs: list[str] = []
    for word in words:
        key = word.partition("=")[0].lstrip("+~").partition(".")[0]
        if word.partition("=")[0].lstrip("+~") in _CHOSEN_BY:
            raise ConfigError("A table's rows vary this.", given=word, allowed=_CHOSEN_BY[key])
        (own if key in (*keys, *_OF_ALL_ROWS) else of_runs).append(word)
    return own, of_runs


def _is_of_another(word: str, dataset: str) -> bool:
    """Whether it is a setting that this dataset has not, and another one has: ``dataset.scale`` of a graph of fixed size."""
    from dataclasses import fields

    from sargnn.resolve import resolve
    from sargnn.sources import DATASETS

    group, _, setting = word.partition("=")[0].partition(".")
    if group != "dataset" or dataset not in DATASETS:
        return False
    having = [name for name in DATASETS if setting in {field.name for field in fields(resolve("dataset", DATASETS, name))}]
    return bool(having) and dataset not in having


def _run_of(verb: str, name: str, case: Sequence[str], of_runs: Sequence[str], folders: ConfFolders) -> RunConfig:
    """The run of a case: its overrides, below those of the command line, which all runs share."""
    from dataclasses import fields

    from sargnn.cli.compose import compose_verb, sweep_points
    from sargnn.config.run import RunConfig, parse

    given = {word.partition("=")[0] for word in of_runs}
    case = [word for word in case if word.partition("=")[0] not in given]
    if "dataset" in given:  # another one than the case's
        case = [word for word in case if not word.startswith("dataset.")]
    elif own := [word.partition("=")[2] for word in case if word.startswith("dataset=")]:
        of_runs = [word for word in of_runs if not _is_of_another(word, own[-1])]
    overrides = [*case, *of_runs]
    try:
        if sweep_points(verb, overrides, multirun=False, folders=folders) is not None:
            raise ConfigError("This verb has no sweeps.", hint="call it once for each value")
        mapping: dict[str, Any] = compose_verb(verb, overrides, keep=_KEPT, folders=folders)
        resume, skip = mapping["resume"], mapping["skip_finished"]
        config = parse({field.name: mapping[field.name] for field in fields(RunConfig) if field.name in mapping})
    except ConfigError as error:
        raise ConfigError(f"The case '{name}' of the table cannot run.\n  {error}") from error
    if resume is not None or skip != "ask" or config.profile or config.run_dir is not None or config.run_name is not None:
        hint = "leave resume, skip_finished, profile, run_dir and run_name as they are"
        raise ConfigError("A table's runs are its own.", hint=hint)
    _check_measured(config)
    return config
