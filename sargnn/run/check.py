"""What comes before a run's workers start: its choices, the network and the model on its graph are checked, and the stores that
are missing are made.
"""

from __future__ import annotations

import dataclasses
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.config.groups import CommConfig
from sargnn.config.run import RunConfig
from sargnn.config.verbs import PartitionConfig
from sargnn.errors import ConfigError, nearest
from sargnn.tracking.progress import Steps, graph_lines, partition_lines, say
from sargnn.tracking.tracker import check_tracker

if TYPE_CHECKING:
    from sargnn.graph.dataset import Dataset
    from sargnn.models.base import Model


def check_strategies(config: RunConfig) -> None:
    """Check that mode, kernel and partitioner exist and go together, and the partitioner's file and a module of the user's.
    Raises ``ConfigError`` or ``KernelError``.
    """
    from sargnn.engine.serving import check_serves, engine_alone
    from sargnn.partition import PARTITIONERS
    from sargnn.partition.simple import check_file
    from sargnn.resolve import resolve
    from sargnn.tasks.base import load_task

    resolve("partitioner", PARTITIONERS, config.partitioner.choice)
    if config.partitioner.file is not None and config.partitioner.target is None:
        check_file(config.partitioner.file)
    engine = engine_alone(config)
    # What comes from outside may aggregate otherwise than its settings know; a user's module shows it when it is tried out.
    whole = f"model={config.model.name}" if config.model.target is None else None
    check_serves(engine, config.model.operations, whole)
    if config.smooth.name != "none":
        engine.kernel("sum")
    config.model.check_target()
    if config.optim.target is not None:
        from sargnn.training.optim import check_optimizer

        check_optimizer(config.optim)
    load_task(config.task)
    check_tracker(config.tracking)
    check_backend(config.comm)


def check_backend(comm: CommConfig) -> None:
    """Raises ``ConfigError`` where PyTorch lacks what is to carry rows."""
    import torch.distributed as dist

    if comm.backend == "mpi" and not dist.is_mpi_available():
        raise ConfigError(
            "This PyTorch was built without MPI.",
            given="comm.backend=mpi",
            allowed="comm.backend=gloo",
            hint="PyTorch has MPI only where it was built from source beside an MPI library",
        )


def check_network(comm: CommConfig) -> None:
    """Raises ``ConfigError`` where the interface does not exist, or the port is not free, for workers on this machine."""
    if comm.backend == "mpi":
        check_backend(comm)
        raise ConfigError(
            "Workers that exchange rows by MPI are started by mpirun.",
            given="comm.backend=mpi",
            allowed="comm.backend=gloo",
            hint="sargnn slurm writes the run, python -m sargnn.run.job begin prepares it, and mpirun starts "
            "python -m sargnn.run.task RUN_DIR",
        )
    if comm.interface is not None:
        import psutil

        known = psutil.net_if_addrs()
        if comm.interface not in known:
            raise ConfigError(
                "There is no network interface of this name.", given=comm.interface, allowed=nearest(comm.interface, known)
            )
    if comm.port is not None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", comm.port))
            except OSError as error:
                raise ConfigError(
                    f"The port cannot be used: {error.strerror}.",
                    given=f"comm.port={comm.port}",
                    hint="choose another, or comm.port=null for a free one",
                ) from error


def check_graph(config: RunConfig, dataset_path: Path, *, begins: bool = False, trained: Dataset | None = None) -> Model:
    """The run's model, once it is sure that it, the metric, early stopping and Correct & Smooth can work on the graph and its
    edge weights. Raises ``ConfigError`` where one of them cannot.

    Args:
        begins: the run has no checkpoint of its own; then the parameters that ``init_from`` names fit, too.
        trained: what the model was trained on, where that is another graph; then labels and a split may be missing.
    """
    import numpy as np

    from sargnn.graph.check import weight_range
    from sargnn.graph.dataset import open_dataset
    from sargnn.graph.edge_columns import ATTR
    from sargnn.graph.examine_edges import nodes_without_edges
    from sargnn.models.inputs import EVERY_TYPE
    from sargnn.run.other_graph import check_alike, labelled_of
    from sargnn.tasks.base import load_task
    from sargnn.training.build import check_edge_weights, make_model, shape_of, used_columns
    from sargnn.training.checkpoint import check_start

    dataset = open_dataset(dataset_path, verify=False)
    schema = dataset.schema
    if trained is None:
        load_task(config.task).check(config, dataset)
    else:
        check_alike(trained, dataset, config)
        dataset = dataclasses.replace(dataset, num_classes=trained.num_classes, labels=trained.labels, split=trained.split)
    check_edge_weights(config, weight_range(dataset))
    labelled = labelled_of(trained or dataset) if schema.typed else 0
    if config.predicts_pairs and schema.typed:
        labelled = EVERY_TYPE
    shape = shape_of(config, dataset, labelled)
    model = make_model(config, shape)
    if not config.add_self_loops:  # then nodes may lack edges: among those that the run surely computes
        computed = np.asarray(dataset.split) > 0 if trained is None and (config.mfg or config.eval == "sampled") else None
        model.try_without_edges(config, shape, lambda: nodes_without_edges(dataset, computed))
    for line in model.remarks():
        say(f"model: {line}")
    if ATTR in dataset.columns and ATTR not in used_columns(config):
        say(f"model: it leaves out the edges' {dataset.columns.width} features: docs/howto/edge-features.md has those that do")
    if begins and config.init_from is not None:
        check_start(config, model, schema)
    if config.smooth.name != "none" and schema.typed:
        if not any(relation.source == relation.destination == labelled for relation in schema.relations):
            raise ConfigError(
                "Correct & Smooth needs edges between nodes that have labels, and this graph's relations have none.",
                given=f"smooth={config.smooth.name}, labels on '{schema.node_types[labelled]}'",
                hint="smooth=none",
            )
    return model


@dataclass(frozen=True)
class Stores:
    """What a run's workers open: the stores' folders, also of parts that hold what servers preload, where they do; the
    partition's quality; the hash of the dataset that it was cut from. ``norms_over_rows``: the model has norms over rows
    that are computed together.
    """

    dataset: Path
    partition: Path
    stats: dict[str, Any]
    dataset_hash: str
    norms_over_rows: bool
    preloaded: Path | None = None


def partition_of(config: RunConfig) -> PartitionConfig:
    where = config.store_dir, config.prepare, config.servers, config.joined
    return PartitionConfig(config.dataset, config.partitioner, config.world, *where)


def prepare_stores(config: RunConfig, *, begins: bool = False, trained: Dataset | None = None) -> Stores:
    """Make the dataset store, the partition store and what servers preload, if needed; also compiles the kernels once. The
    graph is checked before it is partitioned, with ``begins`` and ``trained`` as of ``check_graph``.
    """
    from sargnn.graph.dataset import open_dataset
    from sargnn.partition.preload import Bounds
    from sargnn.partition.prepare import prepare_partition, prepare_preloaded
    from sargnn.sources.prepare import prepare_dataset

    wanted = partition_of(config)
    say(f"dataset {wanted.dataset.title}")
    with Steps():
        dataset_path = prepare_dataset(wanted.dataset, wanted.store_dir, wanted.prepare.bytes)
        model = check_graph(config.stand_in, dataset_path, begins=begins, trained=trained)
        aggregations, norms_over_rows = sum(model.uses_edges), model.norms_over_rows
        del model  # its parameters may be large, and cutting needs memory
        info = prepare_partition(wanted, dataset_path)
        preloaded = None
        if config.may_preload:
            bounds = Bounds(aggregations, config.preload.max_hop, config.preload.fanout, config.seed)
            preloaded = prepare_preloaded(wanted, dataset_path, info, bounds)
    stats = dataclasses.asdict(info.stats)
    size = info.num_edges, info.schema, info.feature_widths, info.num_classes, info.task
    edge_width = open_dataset(dataset_path, verify=False).columns.width
    for line in graph_lines(*size, weighted=info.weights is not None, edge_width=edge_width, pairs=info.pairs):
        say(f"  {line}")
    if info.weights is not None and not wanted.dataset.edge_weights:
        say("  its edge weights are not used: dataset.edge_weights=false")
    into = f"{wanted.num_servers} servers of {wanted.world // wanted.num_servers}" if wanted.num_servers > 1 else wanted.world
    whose = "worker" if wanted.joined is None else "process"
    together = f", which lie in {wanted.joined} {'process' if wanted.joined == 1 else 'processes'}" if wanted.joined else ""
    say(f"partition by {info.partitioner} into {into}{together}")
    for line in partition_lines(stats, whose) if wanted.joined != 1 else ():
        say(line)
    if preloaded is not None and preloaded.preload is not None:
        for server, held in enumerate(preloaded.preload["servers"]):
            inner, *copies = held["nodes"]
            hops = [f"{count} at {hop} hop{'s' * (hop > 1)}" for hop, count in enumerate(copies, start=1) if count]
            say(f"  server {server}: {inner} nodes and copies of {sum(copies)} ({', '.join(hops) or 'none'})")
    preloaded_path = None if preloaded is None else preloaded.path.resolve()
    return Stores(dataset_path.resolve(), info.path.resolve(), stats, info.dataset_hash, norms_over_rows, preloaded_path)
