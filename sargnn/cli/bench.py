"""``sargnn bench WHAT``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from sargnn.cli import sweep
from sargnn.cli.command_line import CommandLine
from sargnn.cli.compose import compose_verb, sweep_points
from sargnn.cli.conf import ConfFolders
from sargnn.config.fields import written
from sargnn.config.run import RunConfig, parse
from sargnn.errors import ConfigError
from sargnn.report.bench.settings import (
    BenchTableConfig,
    parse_bench_gpu,
    parse_bench_table,
)
from sargnn.resolve import resolve
from sargnn.sources import DATASETS
from sargnn.tracking.progress import say
from sargnn.tracking.tables import show_table

T = TypeVar("T")
_KEPT = ("bench_dir", "resume", "skip_finished")
"""What is composed beside a run's settings."""


def gpu(line: CommandLine) -> int:
    """``sargnn bench gpu``; prints its page."""
    config = parse_bench_gpu(compose_verb("bench_gpu", line.overrides, keep=("bench_dir",), folders=line.folders))
    from sargnn.report.bench.gpu import FILES, run

    for text in run(config):
        print(text)
    say(f"figures: {', '.join(f'{config.bench_dir}/{name}' for name in FILES)}")
    return 0


def epoch(line: CommandLine) -> int:
    """``sargnn bench epoch``; prints its table."""
    if sweep_points("bench_epoch", line.overrides, multirun=False, folders=line.folders) is not None:
        raise ConfigError("This verb has no sweeps, and the experiment is one.", hint="choose another experiment")
    config, bench_dir, resume, skip = composed_run("bench_epoch", line)
    given = _other_than_usual(resume=(resume, None), skip_finished=(skip, "ask"), profile=(config.profile, True))
    if given is not None:
        hint = "leave resume, skip_finished, profile as they are"
        raise ConfigError("A benchmark is a run of its own, profiled.", given=given, hint=hint)
    _check_measured(config)
    from sargnn.report.bench.epoch import HEADS, run

    rows, limits, run_dir = run(config, Path(bench_dir))
    *parts, total = rows
    title = "an epoch, mean over the workers, first epoch left out"
    show_table(HEADS, [*parts, None, total], title=title, words=HEADS[:1])
    say(limits)
    say(f"figures: {bench_dir}/epoch.json, {bench_dir}/epoch.md; the run: {run_dir}")
    return 0


def composed_run(verb: str, line: CommandLine) -> tuple[RunConfig, str, Any, Any]:
    """The run, and ``bench_dir``, ``resume`` and ``skip_finished`` beside it. Raises ``ConfigError``."""
    mapping = compose_verb(verb, line.overrides, keep=_KEPT, folders=line.folders)
    bench_dir, resume, skip = (mapping.pop(name) for name in _KEPT)
    if not isinstance(bench_dir, str) or not bench_dir:
        raise ConfigError("'bench_dir' must be a folder.", given=repr(bench_dir))
    return parse(mapping), bench_dir, resume, skip


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
    settings, of_runs = settings_of("bench_table", line, BenchTableConfig, parse_bench_table)
    cases = {name: settings.cases.get(name, [f"model={name}"]) for name in settings.models}
    configs = {name: run_of("bench_table", name, case, of_runs, line.folders) for name, case in cases.items()}
    from sargnn.report.bench.entries import Case
    from sargnn.report.bench.measure import run
    from sargnn.report.bench.table import show

    sweep.as_interrupts()
    show(run(settings, [Case(name, config) for name, config in configs.items()]))
    say(f"figures: {settings.bench_dir}/table.md, {settings.bench_dir}/table.json; the runs: {settings.bench_dir}/runs")
    return 0


def settings_of(verb: str, line: CommandLine, cls: type[T], parse: Callable[[dict[str, Any]], T]) -> tuple[T, list[str]]:
    """A table's own settings, and the overrides that all its runs share; kernels are found where runs have theirs."""
    keys = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    own: list[str] = []
    of_runs: list[str] = []
    for word in line.overrides:
        key = word.partition("=")[0].lstrip("+~")
        if key in _CHOSEN_BY:
            raise ConfigError("A table's rows vary this.", given=word, allowed=_CHOSEN_BY[key])
        (own if key.partition(".")[0] in (*keys, *_OF_ALL_ROWS) else of_runs).append(word)
    mapping = compose_verb(verb, own, keep=("bench_dir",), folders=line.folders)
    settings = parse({key: mapping[key] for key in keys})
    of_all = [f"{key}={'null' if mapping[key] is None else mapping[key]}" for key in _OF_ALL_ROWS]
    return settings, [*of_all, *of_runs]


def _is_of_another(word: str, dataset: str) -> bool:
    """Whether it is a setting that this dataset has not, and another one has: ``dataset.scale`` of a graph of fixed size."""
    group, _, setting = word.partition("=")[0].partition(".")
    if group != "dataset" or dataset not in DATASETS:
        return False
    having = [name for name in DATASETS if setting in {field.name for field in fields(resolve("dataset", DATASETS, name))}]
    return bool(having) and dataset not in having


def run_of(verb: str, name: str, case: Sequence[str], of_runs: Sequence[str], folders: ConfFolders) -> RunConfig:
    """The run of a case: its overrides, below those of the command line, which all runs share."""
    given = {word.partition("=")[0] for word in of_runs}
    own = [word.partition("=")[2] for word in case if word.startswith("dataset=")]
    case = [word for word in case if word.partition("=")[0] not in given]
    if own and "dataset" in given:  # another one than the case's
        case = [word for word in case if not word.startswith("dataset.")]
    elif own:
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
    its_own = _other_than_usual(
        resume=(resume, None),
        skip_finished=(skip, "ask"),
        profile=(config.profile, False),
        run_dir=(config.run_dir, None),
        run_name=(config.run_name, None),
    )
    if its_own is not None:
        hint = "leave resume, skip_finished, profile, run_dir and run_name as they are"
        raise ConfigError("A table's runs are its own.", given=its_own, hint=hint)
    _check_measured(config)
    return config


def _other_than_usual(**settings: tuple[Any, Any]) -> str | None:
    """The settings whose value is not the usual one, as a command line has them; each: its value and the usual one."""
    return " ".join(f"{key}={written(value)}" for key, (value, usual) in settings.items() if value != usual) or None
