"""``sargnn bench WHAT``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from sargnn.cli.compose import run_verb
from sargnn.config import parse_bench_kernels
from sargnn.errors import ConfigError, nearest
from sargnn.launch.env import default_threads, worker_environment

BENCHMARKS = {"kernels": "compiled sums and attention against DGL's operators"}
_HELP = """\
usage: sargnn bench WHAT [key=value ...] [group=option ...]

{benchmarks}

examples:
  sargnn bench kernels
  sargnn bench kernels 'operations=[sum]' 'widths=[64,256]' dataset.scale=0.02
  sargnn bench kernels 'operations=[gat]' dataset.scale=0.04
  sargnn bench kernels --help           groups, options and keys"""


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark; prints its table."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_HELP.format(benchmarks="\n".join(f"  {name:<10} {text}" for name, text in BENCHMARKS.items())))
        return 0
    if arguments[0] not in BENCHMARKS:
        raise ConfigError(f"There is no benchmark '{arguments[0]}'.", allowed=nearest(arguments[0], BENCHMARKS))
    run_verb("bench_kernels", arguments[1:], _kernels)
    return 0


def _kernels(mapping: dict[str, Any]) -> None:
    config = parse_bench_kernels(mapping)
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
