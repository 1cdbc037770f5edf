"""``sargnn bench WHAT``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sargnn.cli.help import Help, help_text, refuse_sweep, wanted, words_of
from sargnn.errors import ConfigError, nearest

if TYPE_CHECKING:
    from sargnn.bench.settings import BenchTableConfig
    from sargnn.config import RunConfig

BENCHMARKS = {
    "kernels": "compiled sums and attention against DGL's operators",
    "epoch": "where an epoch's time goes, and how near each part is to the machine's limit",
    "table": "models, modes and worlds beside stock DGL in one process",
}
HELP = Help(
    usage="bench kernels|epoch|table [key=value ...] [dataset=option]",
    text="kernels: compiled sums, means and attention against DGL's operators, interleaved in one process: medians with "
    "quartiles, JSON, a table, plots. epoch: a training run, which takes what train takes, profiled, each part set against "
    "what this machine can do, measured in the same run. table: runs of this project beside stock DGL in one process, in "
    "rounds. The settings below are those of kernels; bench epoch --help and bench table --help list the others.",
    examples=(
        ("bench kernels", ""),
        ("bench kernels 'operations=[sum]' 'widths=[64,256]'", ""),
        ("bench kernels 'operations=[gat]' dataset.scale=0.04", ""),
        ("bench epoch model=gat world=4 model.dropout=0", ""),
        ("bench table 'models=[sage]' 'worlds=[4,8]'", ""),
    ),
    config="bench_kernels",
)
EPOCH_HELP = Help(
    usage="bench epoch [key=value ...] [group=option ...]",
    text="A training run, profiled: of every part of an epoch the seconds, the work, and how near it is to what all cores of "
    "this machine can do (matrix products, gathered rows, copies, loopback), measured before and after in the same run.",
    examples=(("bench epoch", ""), ("bench epoch model=gat world=4 model.dropout=0", "")),
    config="bench_epoch",
)
TABLE_HELP = Help(
    usage="bench table [key=value ...] [group=option ...]",
    text="Runs of this project beside stock DGL in one process: for each model, rounds of stock DGL as it comes, the modes on "
    "the worlds, stock DGL with huge pages on. Epochs (median, smallest, largest), ratios, each worker's peak, waiting, as a "
    "table and JSON. What is measured already is kept: the same command goes on where it was interrupted. Other settings and "
    "groups are those of train and hold for all rows.",
    examples=(
        ("bench table", "SAGE, GAT and R-GCN on four workers"),
        ("bench table 'models=[gat]' 'worlds=[2,4,8]' 'modes=[sar,one_shot]'", ""),
        ("bench table dataset=ogb_dir dataset.root=FOLDER 'models=[sage,gat]'", ""),
        ("bench table stock=false limits=false rounds=1", ""),
    ),
    config="bench_table",
)


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark; prints its table."""
    if arguments and arguments[0] == "epoch":
        return _epoch(arguments[1:])
    if arguments and arguments[0] == "table":
        return _table(arguments[1:])
    if not arguments or wanted(arguments):
        print(help_text(HELP))
        return 0
    if arguments[0] not in BENCHMARKS:
        raise ConfigError(f"There is no benchmark '{arguments[0]}'.", allowed=nearest(arguments[0], BENCHMARKS))
    if (words := words_of(HELP, arguments[1:])) is None:
        return 0
    from sargnn.bench.settings import parse_bench_kernels
    from sargnn.cli.compose import compose_verb
    from sargnn.launch.env import default_threads, worker_environment

    config = parse_bench_kernels(compose_verb("bench_kernels", words.overrides, keep=("bench_dir",)))
    # As workers have it; before torch and numba are imported.
    os.environ.update(worker_environment(config.threads or default_threads(1)))
    from sargnn.bench.kernels import run
    from sargnn.tracking.progress import attention_table, kernels_table, say

    results = run(config)
    if results.sums:
        kernels_table(results.sums)
    if results.attention:
        attention_table(results.attention)
    say(f"figures and plots: {results.folder}")
    return 0


def _epoch(arguments: Sequence[str]) -> int:
    if (words := words_of(EPOCH_HELP, arguments)) is None:
        return 0
    refuse_sweep(words)
    from pathlib import Path

    from sargnn.cli.compose import compose_verb, sweep_points
    from sargnn.config import parse

    if sweep_points("bench_epoch", words.overrides, multirun=False) is not None:
        raise ConfigError("This verb has no sweeps, and the experiment is one.", hint="choose another experiment")
    mapping = compose_verb("bench_epoch", words.overrides, keep=("bench_dir", "resume", "skip_finished"))
    bench_dir, resume, skip = (mapping.pop(name) for name in ("bench_dir", "resume", "skip_finished"))
    if not isinstance(bench_dir, str) or not bench_dir:
        raise ConfigError("'bench_dir' must be a folder.", given=repr(bench_dir))
    config = parse(mapping)
    if resume is not None or skip != "ask" or not config.profile:
        raise ConfigError("A benchmark is a run of its own, profiled.", hint="leave resume, skip_finished, profile as they are")
    if config.comm.max_restarts:
        raise ConfigError("What a second start trains cannot be set beside the first.", given="comm.max_restarts", allowed="0")
    if config.epochs < 2:
        raise ConfigError("The first epoch is left out.", given=f"epochs={config.epochs}", allowed="at least 2")
    from sargnn.bench.epoch import run
    from sargnn.tracking.progress import epoch_table, say

    report = run(config, Path(bench_dir))
    epoch_table(report.heads, report.rows)
    say(report.limits)
    say(f"figures: {bench_dir}/epoch.json, {bench_dir}/epoch.md; the run: {report.run_dir}")
    return 0


_CHOSEN_BY = {
    "model": "models=[A,B]",
    "mode": "modes=[A,B]",
    "world": "worlds=[4,8]",
    "experiment": "dataset=NAME, models=[A,B]",
}
"""What the table varies: a run's setting -> how the table names it."""
_OF_ALL_ROWS = ("epochs", "eval_every", "threads")
"""Settings of a run that stand in the table's file, which an experiment of one case does not change."""


def _table(arguments: Sequence[str]) -> int:
    if (words := words_of(TABLE_HELP, arguments)) is None:
        return 0
    refuse_sweep(words)
    from dataclasses import fields

    from sargnn.bench.settings import BenchTableConfig, parse_bench_table
    from sargnn.cli.compose import compose_verb
    from sargnn.cli.signals import as_interrupts
    from sargnn.launch.env import numba_cache_dir

    keys = [one.name for one in fields(BenchTableConfig)]
    of_table: list[str] = []
    of_runs: list[str] = []
    for word in words.overrides:
        key = word.partition("=")[0].lstrip("+~").partition(".")[0]
        if word.partition("=")[0].lstrip("+~") in _CHOSEN_BY:
            raise ConfigError("A table's rows vary this.", given=word, allowed=_CHOSEN_BY[key])
        (of_table if key in (*keys, *_OF_ALL_ROWS) else of_runs).append(word)
    mapping = compose_verb("bench_table", of_table, keep=("bench_dir",))
    table = parse_bench_table({key: mapping[key] for key in keys})
    of_all = [f"{key}={'null' if mapping[key] is None else mapping[key]}" for key in _OF_ALL_ROWS]
    configs = {name: _run_of(table, name, of_all, of_runs) for name in table.models}
    os.environ["NUMBA_CACHE_DIR"] = str(numba_cache_dir())
    from sargnn.bench.table.entries import Case
    from sargnn.bench.table.report import show
    from sargnn.bench.table.run import run
    from sargnn.tracking.progress import say

    as_interrupts()
    show(run(table, [Case(name, config) for name, config in configs.items()]))
    say(f"figures: {table.bench_dir}/table.md, {table.bench_dir}/table.json; the runs: {table.bench_dir}/runs")
    return 0


def _run_of(table: BenchTableConfig, name: str, of_all: list[str], of_runs: Sequence[str]) -> RunConfig:
    """The run that a case's rows vary: the case's overrides, below those of the command line."""
    from dataclasses import fields

    from sargnn.cli.compose import compose_verb, sweep_points
    from sargnn.config import RunConfig, parse

    given = {word.partition("=")[0] for word in of_runs}
    case = [word for word in table.cases.get(name, [f"model={name}"]) if word.partition("=")[0] not in given]
    if "dataset" in given:  # another one than the case's
        case = [word for word in case if not word.startswith("dataset.")]
    overrides = [*case, *of_all, *of_runs]
    try:
        if sweep_points("bench_table", overrides, multirun=False) is not None:
            raise ConfigError("This verb has no sweeps.", hint="call it once for each value")
        mapping: dict[str, Any] = compose_verb("bench_table", overrides, keep=("bench_dir", "resume", "skip_finished"))
        resume, skip = mapping["resume"], mapping["skip_finished"]
        config = parse({one.name: mapping[one.name] for one in fields(RunConfig) if one.name in mapping})
    except ConfigError as error:
        raise ConfigError(f"The case '{name}' of the table cannot run.\n  {error}") from error
    if resume is not None or skip != "ask" or config.profile or config.run_dir is not None or config.run_name is not None:
        hint = "leave resume, skip_finished, profile, run_dir and run_name as they are"
        raise ConfigError("A table's runs are its own.", hint=hint)
    if config.comm.max_restarts:
        raise ConfigError("What a second start trains cannot be set beside the first.", given="comm.max_restarts", allowed="0")
    if config.epochs < 2:
        raise ConfigError("The first epoch is left out.", given=f"epochs={config.epochs}", allowed="at least 2")
    return config
