"""``sargnn bench WHAT``."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sargnn.cli.help import Help, help_text, wanted, words_of
from sargnn.errors import ConfigError, nearest

BENCHMARKS = {"kernels": "compiled sums and attention against DGL's operators"}
HELP = Help(
    usage="bench kernels [key=value ...] [dataset=option]",
    text="Compiled sums, means and attention against DGL's operators, interleaved in one process: medians with quartiles, "
    "JSON, a table, plots.",
    examples=(
        ("bench kernels", ""),
        ("bench kernels 'operations=[sum]' 'widths=[64,256]'", ""),
        ("bench kernels 'operations=[gat]' dataset.scale=0.04", ""),
    ),
    config="bench_kernels",
)


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark; prints its table."""
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

    config = parse_bench_kernels(compose_verb("bench_kernels", words.overrides))
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
