"""``sargnn bench WHAT``."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sargnn.cli.help import Help, help_text, refuse_sweep, wanted, words_of
from sargnn.errors import ConfigError, nearest

BENCHMARKS = {
    "kernels": "compiled sums and attention against DGL's operators",
    "epoch": "where an epoch's time goes, and how near each part is to the machine's limit",
}
HELP = Help(
    usage="bench kernels|epoch [key=value ...] [dataset=option]",
    text="kernels: compiled sums, means and attention against DGL's operators, interleaved in one process: medians with "
    "quartiles, JSON, a table, plots. epoch: a training run, which takes what train takes, profiled, each part set against "
    "what this machine can do, measured in the same run. The settings below are those of kernels; bench epoch --help lists "
    "the others.",
    examples=(
        ("bench kernels", ""),
        ("bench kernels 'operations=[sum]' 'widths=[64,256]'", ""),
        ("bench kernels 'operations=[gat]' dataset.scale=0.04", ""),
        ("bench epoch model=gat world=4 model.dropout=0", ""),
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


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark; prints its table."""
    if arguments and arguments[0] == "epoch":
        return _epoch(arguments[1:])
    if not arguments or wanted(arguments):
        print(help_text(HELP))
        return 0
    if arguments[0] not in BENCHMARKS:
        raise ConfigError(f"There is no benchmark '{arguments[0]}'.", allowed=nearest(arguments[0], BENCHMARKS))
    if (words := words_of(HELP, arguments[1:])) is None:
        return 0
    from sargnn.cli.compose import compose_verb
    from sargnn.config import parse_bench_kernels
    from sargnn.launch.env import default_threads, worker_environment

    config = parse_bench_kernels(compose_verb("bench_kernels", words.overrides, keep=("bench_dir",)))
    # As workers have it; before torch and numba are imported.
    os.environ.update(worker_environment(config.threads or default_threads(1)))
    from sargnn.bench.kernels import run
    from sargnn.tracking.progress import say
    from sargnn.tracking.tables import attention_table, kernels_table

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
    from sargnn.tracking.progress import say
    from sargnn.tracking.tables import epoch_table

    report = run(config, Path(bench_dir))
    epoch_table(report.heads, report.rows)
    say(report.limits)
    say(f"figures: {bench_dir}/epoch.json, {bench_dir}/epoch.md; the run: {report.run_dir}")
    return 0
