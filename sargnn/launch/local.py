"""Local launching: prepare the stores, start one process per worker, watch them, report.

Workers are started from a fork server that has torch and numba imported already (``processes``). The launching process reads
the growing ``metrics.jsonl``, shows progress and sends figures to MLflow, so that no worker has to.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from sargnn.config import CommConfig, RunConfig
from sargnn.errors import ConfigError, SargnnError, WorkerError, nearest
from sargnn.launch.compile import warm_up
from sargnn.launch.env import default_threads, worker_environment
from sargnn.launch.processes import Failure, Workers, start_fork_server
from sargnn.launch.run_folder import Prepared, begin, choose_checkpoint, hold, make_run_dir, report_failure, reported
from sargnn.tracking import files
from sargnn.tracking.follow import Follower
from sargnn.tracking.progress import Steps, graph_lines, partition_lines, say
from sargnn.tracking.sender import Sender

_LOG_LINES = 12
_GRACE_S = 12.0


class Interrupted(SargnnError):
    """The run was ended by a signal.

    Attributes:
        signal_number: which one.
    """

    def __init__(self, signal_number: int, run_dir: Path, hint: str | None = None) -> None:
        super().__init__(
            f"Interrupted by {signal.Signals(signal_number).name}; figures so far are in '{run_dir}'.",
            hint=hint or f"sargnn train resume={run_dir} goes on from the newest checkpoint",
        )
        self.signal_number = signal_number


def train(config: RunConfig, *, resume: Path | None = None) -> tuple[dict[str, Any], Path]:
    """Run a training from start to end.

    Args:
        resume: a run folder, whose newest whole checkpoint is gone on from, in the same folder and MLflow run.

    Returns:
        The summary and the run folder.

    Raises:
        SargnnError: anything a user can cause; a failed worker as ``WorkerError`` with its rank and last lines.
        Interrupted: SIGINT, SIGTERM or SIGHUP.
    """
    started_at = time.time()
    config = made_ready(config)
    prepared = prepare_run(config)

    run_dir = resume.resolve() if resume else make_run_dir(config)
    config = dataclasses.replace(config, run_dir=str(run_dir))
    lock = hold(run_dir)
    inputs, first_epoch = begin(config, run_dir, prepared, started_at=started_at, going_on=resume is not None)
    say(f"training {config.name}: {config.world} workers with {config.threads} threads each, {config.epochs} epochs")

    sender = Sender(config, run_dir, inputs["partition_stats"], same_run=resume is not None)
    follower = Follower(config, run_dir, sender, first_epoch)
    follower.start()
    error: SargnnError | None = None
    try:
        _run_and_restart(config, run_dir, inputs, prepared.dataset_hash)
    except SargnnError as caught:
        error = caught
    except KeyboardInterrupt:
        error = Interrupted(signal.SIGINT, run_dir)
    finally:
        follower.stop()
    summary = reported(run_dir)
    if error is None and summary.get("status") == "interrupted":
        error = Interrupted(signal.SIGTERM, run_dir)  # which a worker was sent by someone else
    if error is None and not summary:
        error = WorkerError("The workers ended without a result.", hint=f"their logs: {run_dir / 'logs'}")
    if isinstance(error, Interrupted) and summary.get("status") == "finished":
        error = None  # the signal came too late
    # Of an interrupted run the workers wrote a summary with its checkpoint.
    if error is not None and not (isinstance(error, Interrupted) and summary):
        summary = report_failure(config, run_dir, str(error), interrupted=isinstance(error, Interrupted))
    sender.finish(summary)
    lock.close()
    if error is not None:
        raise error
    return summary, run_dir


def made_ready(config: RunConfig, *, fork_server: bool = True) -> RunConfig:
    """Everything that comes before torch and numba are imported here, and before the fork server starts; threads filled in."""
    config = dataclasses.replace(config, threads=config.threads or default_threads(config.world))
    assert config.threads is not None
    os.environ.update(worker_environment(config.threads))
    check_network(config.comm)
    if fork_server:
        start_fork_server()
    check_strategies(config)
    return config


def check_strategies(config: RunConfig) -> None:
    """Mode, kernel and partitioner exist and go together, before anything long is begun."""
    import torch

    from sargnn.comm.group import Group
    from sargnn.engine.aggregate import Engine
    from sargnn.launch.worker import DTYPES
    from sargnn.partition import PARTITIONERS
    from sargnn.resolve import resolve

    resolve("partitioner", PARTITIONERS, config.partitioner.choice)
    engine = Engine(
        Group.single(),
        mode=config.mode.choice,
        kernel=config.kernel.choice,
        device=torch.device(config.device),
        dtype=DTYPES[config.precision],
    )
    for operation in config.model.operations:
        engine.kernel(operation)
    if config.smooth.name != "none":
        engine.kernel("sum")


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


def prepare_run(config: RunConfig) -> Prepared:
    """The stores, made if needed; also compiles the kernels once."""
    from sargnn.data.prepare import prepare_dataset
    from sargnn.partition.prepare import prepare_partition

    say(f"dataset {config.dataset.name}")
    with Steps():
        dataset_path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
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
    return Prepared(info.path.resolve(), stats, info.dataset_hash)


def _check_graph(config: RunConfig, dataset_path: Path) -> None:
    """The model can work on the graph, before it is partitioned."""
    import numpy as np

    from sargnn.data.dataset import SPLITS, open_dataset
    from sargnn.launch.worker import make_model
    from sargnn.models.inputs import GraphShape

    dataset = open_dataset(dataset_path, verify=False)
    schema = dataset.schema
    make_model(config, GraphShape(schema, dataset.feature_widths, dataset.num_classes))
    if config.early_stopping is not None and not (np.asarray(dataset.split) == SPLITS["valid"]).any():
        raise ConfigError("Early stopping needs validation nodes, and the dataset has none.", hint="early_stopping=null")
    if config.smooth.name != "none" and schema.typed:
        labelled = int(schema.types_of(np.argmax(np.asarray(dataset.split) > 0, keepdims=True))[0])
        if not any(one.source == one.destination == labelled for one in schema.relations):
            raise ConfigError(
                "Correct & Smooth needs edges between nodes that have labels, and this graph's relations have none.",
                given=f"smooth={config.smooth.name}, labels on '{schema.node_types[labelled]}'", hint="smooth=none",
            )  # fmt: skip


def _run_and_restart(config: RunConfig, run_dir: Path, inputs: dict[str, Any], dataset_hash: str) -> None:
    """``_run_workers``, and after a failure again from the newest checkpoint, ``comm.max_restarts`` times."""
    for restarts_left in reversed(range(config.comm.max_restarts + 1)):
        try:
            return run_workers(config, run_dir)
        except WorkerError as error:
            if not restarts_left:
                raise
            epoch = choose_checkpoint(config, run_dir, inputs, dataset_hash)
            files.keep_metrics(run_dir, epoch)
            say(f"{str(error).splitlines()[0]}\nstarting again after epoch {epoch}; restarts left: {restarts_left - 1}")
            files.write_json(run_dir / files.INPUTS, inputs)


def run_workers(config: RunConfig, run_dir: Path, hint: str | None = None) -> None:
    """Start the workers and wait for them. Raises ``WorkerError``, or ``Interrupted`` with ``hint``, if given."""
    from sargnn.launch.worker import entry

    comm = config.comm
    path = str(run_dir / files.CONFIG)
    workers = Workers(entry, path, config.world, port=comm.port, timeout_s=comm.timeout_s, grace_s=_GRACE_S)
    failure = workers.watch()
    if workers.asked is not None:
        raise Interrupted(workers.asked, run_dir, hint)
    if failure is not None:
        raise _worker_error(config, run_dir, failure)


def _worker_error(config: RunConfig, run_dir: Path, failure: Failure) -> WorkerError:
    rank, code = failure.rank, failure.exitcode
    path = files.log_path(run_dir, rank)
    lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES:] if path.exists() else []
    hint = f"the whole log: {path}"
    if code is None:
        how = f"hangs: others waited {config.comm.timeout_s:g} s for it"
        how += f" (it has begun {failure.begun} exchanges and sums, they {failure.others_begun})"
        hint += "; if it only is slow, set a larger comm.timeout_s"
    elif code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            hint += f"; if nobody did that, memory ran out: more workers (world={2 * config.world}) or mode=sar need less each"
    else:
        how = f"failed with exit code {code}"
    tail = "\n".join(f"    {line}" for line in lines)
    return WorkerError(f"Worker rank {rank} {how}. The last lines of its log:\n{tail}", hint=hint)
