"""``sargnn bench network``: workers of a run's kind that send each other bytes and nothing else."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from sargnn.config.run import RunConfig, save
from sargnn.report.bench.report import machine
from sargnn.run.check import check_network
from sargnn.run.env import prepare_process
from sargnn.run.local import worker_settings
from sargnn.run.processes import start_fork_server
from sargnn.run.start import run_workers
from sargnn.tracking import files
from sargnn.tracking.inputs import Inputs, write_inputs

FILE = "network.json"


def run(config: RunConfig, bench_dir: Path) -> dict[str, float | None]:
    """Start ``config.world`` workers in ``config.servers`` servers and measure; writes ``network.json``.

    Returns:
        The fields of ``comm.rates.Rates``.
    """
    config = prepare_process(config)
    check_network(config.comm)
    start_fork_server()
    with tempfile.TemporaryDirectory(prefix="sargnn-network-") as name:
        folder = Path(name)
        write_inputs(folder, Inputs("", time.time(), measures_network=True))
        save(config, folder / files.CONFIG)
        run_workers(folder, worker_settings(config), hint="the same command again starts anew")
        rates: dict[str, float | None] = files.read_json(folder / files.NETWORK)
    what = {"world": config.world, "servers": config.num_servers, "backend": config.comm.backend, "machine": machine()}
    bench_dir.mkdir(parents=True, exist_ok=True)
    files.write_json(bench_dir / FILE, what | rates)
    return rates
