"""Local launching: prepare the stores, start one process per worker, watch them, report.

Workers are started by torch elastic from a fork server that has torch and numba imported already. The launching process
reads the growing ``metrics.jsonl``, shows progress and sends figures to MLflow, so that no worker has to.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from sargnn.config import CommConfig, GatConfig, RgcnConfig, RunConfig, save
from sargnn.errors import ConfigError, SargnnError, WorkerError, nearest
from sargnn.launch.compile import warm_up
from sargnn.launch.env import default_threads, worker_environment
from sargnn.tracking import files
from sargnn.tracking.progress import EpochProgress, Steps, graph_lines, partition_lines, say
from sargnn.tracking.sender import Sender

_LOG_LINES = 12
_SHUTDOWN_S = 5


class Interrupted(SargnnError):
    """The run was ended by a signal.

    Attributes:
        signal_number: which one.
    """

    def __init__(self, signal_number: int, run_dir: Path) -> None:
        super().__init__(f"Interrupted by {signal.Signals(signal_number).name}; figures so far are in '{run_dir}'.")
        self.signal_number = signal_number


def train(config: RunConfig) -> tuple[dict[str, Any], Path]:
    """Run a training from start to end.

    Returns:
        The summary and the run folder.

    Raises:
        SargnnError: anything a user can cause; a failed worker as ``WorkerError`` with its rank and last lines.
        Interrupted: SIGINT or SIGTERM.
    """
    started_at = time.time()
    config = dataclasses.replace(config, threads=config.threads or default_threads(config.world))
    assert config.threads is not None
    # Before torch and numba are imported, and before the fork server starts.
    os.environ.update(worker_environment(config.threads))
    check_network(config.comm)
    _start_fork_server()
    check_strategies(config)
    partition_path, stats = _prepare(config)

    run_dir = _make_run_dir(config)
    config = dataclasses.replace(config, run_dir=str(run_dir))
    from sargnn.tracking.provenance import git_sha

    save(config, run_dir / files.CONFIG)
    stats_params = {f"partition.{key}": value for key, value in stats.items()}
    inputs = {
        "partition": str(partition_path), "started_at": started_at, "git_sha": git_sha(), "partition_stats": stats_params,
    }  # fmt: skip
    files.write_json(run_dir / files.INPUTS, inputs)
    say(f"training {config.name}: {config.world} workers with {config.threads} threads each, {config.epochs} epochs")

    sender = Sender(config, run_dir, stats_params)
    follower = _Follower(config, run_dir, sender)
    follower.start()
    error: SargnnError | None = None
    try:
        _run_workers(config, run_dir)
    except SargnnError as caught:
        error = caught
    finally:
        follower.stop()
    if error is None:
        summary = files.read_json(run_dir / files.SUMMARY)
    else:
        status = "interrupted" if isinstance(error, Interrupted) else "failed"
        losses = [row["loss"] for row in files.MetricsTail(run_dir).new_rows()]
        summary = {"status": status, "error": str(error), "losses": losses, "world": config.world}
        summary |= {"mode": config.mode.name, "model": config.model.name, "config_hash": config.config_hash}
        files.write_json(run_dir / files.SUMMARY, summary)
    sender.finish(summary)
    if error is not None:
        raise error
    return summary, run_dir


def check_strategies(config: RunConfig) -> None:
    """Mode, kernel and partitioner exist and go together, before anything long is begun."""
    import torch

    from sargnn.comm.group import Group
    from sargnn.engine.aggregate import Engine
    from sargnn.engine.reducers import REDUCERS
    from sargnn.launch.worker import DTYPES
    from sargnn.partition import PARTITIONERS
    from sargnn.resolve import resolve

    resolve("partitioner", PARTITIONERS, config.partitioner.name)
    engine = Engine(
        Group.single(),
        mode=config.mode.name,
        kernel=config.kernel.name,
        device=torch.device(config.device),
        dtype=DTYPES[config.precision],
    )
    model = config.model
    if isinstance(model, GatConfig):
        aggregator = "gatv2" if model.v2 else "gat"
    elif isinstance(model, RgcnConfig):
        aggregator = "rgcn"
    else:
        aggregator = getattr(model, "aggregator", "sum")
    engine.kernel_for(resolve("aggregator", REDUCERS, aggregator).operation)


def check_network(comm: CommConfig) -> None:
    """The interface exists and the port is free; also tells gloo the interface. Raises ``ConfigError``."""
    if comm.interface is not None:
        import psutil

        known = psutil.net_if_addrs()
        if comm.interface not in known:
            raise ConfigError(
                "There is no network interface of this name.", given=comm.interface, allowed=nearest(comm.interface, known)
            )
        os.environ["GLOO_SOCKET_IFNAME"] = comm.interface
    if comm.port is not None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", comm.port))
            except OSError as error:
                raise ConfigError(
                    f"The port cannot be used: {error.strerror}.",
                    given=f"comm.port={comm.port}",
                    hint="choose another, or comm.port=null for a free one",
                ) from error


def _prepare(config: RunConfig) -> tuple[Path, dict[str, Any]]:
    """The partition store, made if needed, and its statistics; also compiles the kernels once."""
    from sargnn.data.prepare import prepare_dataset
    from sargnn.partition.prepare import prepare_partition

    say(f"dataset {config.dataset.name}")
    with Steps():
        dataset_path = prepare_dataset(config.dataset, config.store_dir)
        _check_graph(config, dataset_path)
        info = prepare_partition(config, dataset_path)
    stats = dataclasses.asdict(info.stats)
    for line in graph_lines(info.num_edges, info.schema, info.feature_widths, info.num_classes):
        say(f"  {line}")
    say(f"partition by {config.partitioner.name} into {config.world}")
    for line in partition_lines(stats):
        say(line)
    if os.environ["NUMBA_THREADING_LAYER"] != "workqueue":  # else the fork server does it
        warm_up()
    return info.path.resolve(), stats


def _check_graph(config: RunConfig, dataset_path: Path) -> None:
    """The model can work on the graph, before it is partitioned."""
    from sargnn.data.dataset import open_dataset
    from sargnn.launch.worker import make_model
    from sargnn.models.inputs import GraphShape

    dataset = open_dataset(dataset_path, verify=False)
    make_model(config, GraphShape(dataset.schema, dataset.feature_widths, dataset.num_classes))


def _make_run_dir(config: RunConfig) -> Path:
    """A new folder: ``run_dir`` as given, or ``runs/NAME``, with a number behind where that exists."""
    if config.run_dir is not None:
        run_dir = Path(config.run_dir).resolve()
        if (run_dir / files.CONFIG).exists():
            raise ConfigError(
                "The run folder already holds a run.", given=str(run_dir), hint="choose another run_dir or remove it"
            )
        if run_dir.exists() and not run_dir.is_dir():
            raise ConfigError("The run folder is a file.", given=str(run_dir), hint="choose another run_dir")
        _mkdir(run_dir, exist_ok=True)
        return run_dir
    base = Path("runs").resolve() / config.name
    if base.parent.exists() and not base.parent.is_dir():
        raise ConfigError("'runs' is a file, where run folders should go.", given=str(base.parent), hint="choose a run_dir")
    candidate, number = base, 1
    while True:
        try:
            _mkdir(candidate, exist_ok=False)
            return candidate
        except FileExistsError:
            number += 1
            candidate = base.with_name(f"{base.name}-{number}")


def _mkdir(path: Path, *, exist_ok: bool) -> None:
    try:
        path.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError:
        raise
    except OSError as error:
        raise ConfigError(
            f"The run folder cannot be written: {error.strerror}.", given=str(path), hint="choose another run_dir"
        ) from error


def _start_fork_server() -> None:
    """Let the fork server import and compile what workers need while the stores are prepared."""
    import multiprocessing
    from multiprocessing import forkserver

    multiprocessing.set_forkserver_preload(["sargnn.launch.preload"])
    forkserver.ensure_running()


def _run_workers(config: RunConfig, run_dir: Path) -> None:
    """Start the workers and wait for them. Raises ``WorkerError`` or ``Interrupted``."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from sargnn.launch.worker import entry

    if not os.environ.get("SARGNN_FULL_ERROR"):
        logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(_SHUTDOWN_S)
    with tempfile.TemporaryDirectory(prefix="sargnn-elastic-") as scratch:
        launch = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=config.world,
            run_id=run_dir.name,
            rdzv_backend="c10d",
            rdzv_endpoint=f"localhost:{config.comm.port or 0}",
            local_addr="localhost",
            max_restarts=0,
            monitor_interval=0.1,
            start_method="forkserver",
            logs_specs=DefaultLogsSpecs(log_dir=scratch),
        )
        try:
            elastic_launch(launch, entry)(str(run_dir / files.CONFIG))
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            raise _worker_error(run_dir, rank, failure.exitcode) from error
        except SignalException as error:
            raise Interrupted(int(error.sigval), run_dir) from error
        except KeyboardInterrupt as error:
            raise Interrupted(signal.SIGINT, run_dir) from error


def _worker_error(run_dir: Path, rank: int, exitcode: int) -> WorkerError:
    path = files.log_path(run_dir, rank)
    lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES:] if path.exists() else []
    how = f"was killed by {signal.Signals(-exitcode).name}" if exitcode < 0 else f"failed with exit code {exitcode}"
    tail = "\n".join(f"    {line}" for line in lines)
    return WorkerError(f"Worker rank {rank} {how}. The last lines of its log:\n{tail}", hint=f"the whole log: {path}")


class _Follower(threading.Thread):
    """Reads ``metrics.jsonl`` as it grows: progress for the person, figures for MLflow, off the launching thread."""

    def __init__(self, config: RunConfig, run_dir: Path, sender: Sender) -> None:
        super().__init__(name="follower", daemon=True)
        self._config, self._sender = config, sender
        self._tail = files.MetricsTail(run_dir)
        self._ended = threading.Event()

    def run(self) -> None:
        with EpochProgress(self._config.epochs) as progress:
            while True:
                ended = self._ended.is_set()
                for row in self._tail.new_rows():
                    progress.update(row)
                    self._sender.put(row)
                if ended:
                    break
                self._ended.wait(0.1)

    def stop(self) -> None:
        """Read what is left and end the display."""
        self._ended.set()
        self.join()
