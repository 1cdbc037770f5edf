"""How fast workers of a run's kind talk: ``python -m benchmarks.network world=4 servers=2``."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.command import call
from sargnn.cli.bench import composed_run
from sargnn.cli.command_line import CommandLine
from sargnn.cli.verb import Verb
from sargnn.config.run import RunConfig, save
from sargnn.errors import ConfigError
from sargnn.report.bench.settings import machine
from sargnn.run.check import check_network
from sargnn.run.env import prepare_process
from sargnn.tracking import files
from sargnn.tracking.memory import human_bytes
from sargnn.tracking.progress import say
from sargnn.tracking.tables import show_table

VERB = Verb(
    "benchmarks.network",
    "how fast workers talk, inside a server and between servers",
    usage="[world=P] [servers=S] [comm.KEY=VALUE ...]",
    text="Starts workers that send each other bytes, all at once: what each sends in a second to another worker "
    "of its server and to another server, and how long a sum over all takes. preload=auto measures the same between "
    "a run's own workers when it starts, wherever they run.",
    entry="benchmarks.network:main",
    examples=(("benchmarks.network world=4 servers=2", ""),),
    config="bench_network",
    program="python -m",
)


def main(line: CommandLine) -> int:
    """Measure; prints the table."""
    config, bench_dir, *_ = composed_run("bench_network", line)
    if config.world == 1:
        raise ConfigError("One worker talks to nobody.", given="world=1", allowed="world=2 and more")
    measured = measure_network(config, Path(bench_dir))
    places = (("inside", "a worker to another of its server"), ("between", "a worker to another server"))
    rows = [(what, f"{human_bytes(rate)} in a second") for key, what in places if (rate := measured[key]) is not None]
    show_table((), [*rows, ("a sum over all workers", f"{1000 * (measured['sum_s'] or 0):.2f} ms")])
    say(f"figures: {bench_dir}/{files.NETWORK}")
    return 0


def measure_network(config: RunConfig, bench_dir: Path) -> dict[str, float | None]:
    """Bytes in a second that workers of a run's kind send each other, doing nothing else; writes ``network.json``.

    Returns:
        The fields of ``comm.rates.Rates``.
    """
    from sargnn.run.local import run_workers
    from sargnn.run.processes import start_fork_server

    config = prepare_process(config)
    check_network(config.comm)
    start_fork_server()
    with tempfile.TemporaryDirectory(prefix="sargnn-network-") as name:
        folder = Path(name)
        files.write_inputs(folder, files.Inputs("", time.time(), measures_network=True))
        save(config, folder / files.CONFIG)
        run_workers(folder, config, hint="the same command again starts anew")
        rates: dict[str, float | None] = files.read_json(folder / files.NETWORK)
    what = {"world": config.world, "servers": config.num_servers, "backend": config.comm.backend, "machine": machine()}
    bench_dir.mkdir(parents=True, exist_ok=True)
    files.write_json(bench_dir / files.NETWORK, what | rates)
    return rates


if __name__ == "__main__":
    sys.exit(call(VERB, sys.argv[1:]))
