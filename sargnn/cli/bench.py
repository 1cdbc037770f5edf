"""``sargnn bench WHAT``."""

from __future__ import annotations

import os

from sargnn.cli.command_line import CommandLine
from sargnn.errors import ConfigError


def kernels(line: CommandLine) -> int:
    """``sargnn bench kernels``; prints its tables."""
    from sargnn.cli.compose import compose_verb
    from sargnn.config import parse_bench_kernels
    from sargnn.launch.env import default_threads, worker_environment

    config = parse_bench_kernels(compose_verb("bench_kernels", line.overrides, keep=("bench_dir",), folders=line.folders))
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


def epoch(line: CommandLine) -> int:
    """``sargnn bench epoch``; prints its table."""
    from pathlib import Path

    from sargnn.cli.compose import compose_verb, sweep_points
    from sargnn.config import parse

    if sweep_points("bench_epoch", line.overrides, multirun=False, folders=line.folders) is not None:
        raise ConfigError("This verb has no sweeps, and the experiment is one.", hint="choose another experiment")
    kept = ("bench_dir", "resume", "skip_finished")
    mapping = compose_verb("bench_epoch", line.overrides, keep=kept, folders=line.folders)
    bench_dir, resume, skip = (mapping.pop(name) for name in kept)
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
