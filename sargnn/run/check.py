"""What is checked of a run before anything long is begun: its choices, the network, and that the model fits the graph."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sargnn.config.groups import CommConfig
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError, nearest
from sargnn.tracking.progress import say

if TYPE_CHECKING:
    from sargnn.graph.dataset import Dataset


def check_strategies(config: RunConfig) -> None:
    """Mode, kernel and partitioner exist and go together, the partitioner's file and a module of the user's too.

    Raises:
        ConfigError, KernelError: what is wrong.
    """
    from sargnn.engine.serving import check_serves, engine_alone
    from sargnn.partition import PARTITIONERS
    from sargnn.partition.given import check_file
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
    load_task(config.task)
    check_backend(config.comm)


def check_backend(comm: CommConfig) -> None:
    """PyTorch has what is to carry rows. Raises ``ConfigError``."""
    import torch.distributed as dist

    if comm.backend == "mpi" and not dist.is_mpi_available():
        raise ConfigError(
            "This PyTorch was built without MPI.",
            given="comm.backend=mpi",
            allowed="comm.backend=gloo",
            hint="PyTorch has MPI only where it was built from source beside an MPI library",
        )


def check_network(comm: CommConfig) -> None:
    """The interface exists and the port is free, for workers on this machine. Raises ``ConfigError``."""
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


def _count_lacking(config: RunConfig, dataset: Dataset) -> dict[int, int]:
    """``nodes_without_edges`` among those that the run surely computes."""
    import numpy as np

    from sargnn.graph.edges_into import nodes_without_edges

    computed = np.asarray(dataset.split) > 0 if config.mfg or config.eval == "sampled" else None
    return nodes_without_edges(dataset, computed)


@dataclass(frozen=True)
class Built:
    """What is known of the run's model once it is built.

    Attributes:
        aggregations: how many of its layers aggregate.
        norms_over_rows: whether it has norms over rows that are computed together.
    """

    aggregations: int
    norms_over_rows: bool


def check_graph(config: RunConfig, dataset_path: Path, *, begins: bool = False) -> Built:
    """The model, the metric, early stopping and Correct & Smooth can work on the graph and its edge weights.

    Called before it is partitioned.

    Args:
        begins: the run has no checkpoint of its own; then the parameters that ``init_from`` names fit, too.

    Raises:
        ConfigError: one of them cannot.
    """
    import numpy as np

    from sargnn.graph.dataset import open_dataset
    from sargnn.graph.edge_columns import WEIGHT
    from sargnn.graph.weights import weight_range
    from sargnn.models.inputs import GraphShape
    from sargnn.tasks.base import load_task
    from sargnn.training.build import check_edge_weights, label_columns, make_model, uses_edge_weights
    from sargnn.training.checkpoint import check_start

    dataset = open_dataset(dataset_path, verify=False)
    schema = dataset.schema
    load_task(config.task).check(config, dataset)
    check_edge_weights(config, weight_range(dataset))
    weighted = WEIGHT in dataset.columns and uses_edge_weights(config)
    columns = label_columns(config, dataset.num_classes)
    labelled = int(schema.types_of(np.argmax(np.asarray(dataset.split) > 0, keepdims=True))[0]) if schema.typed else 0
    shape = GraphShape(schema, dataset.feature_widths, dataset.num_classes, columns, dataset.task, labelled, weighted)
    model = make_model(config, shape)
    if not config.add_self_loops:
        model.try_without_edges(config, shape, partial(_count_lacking, config, dataset))
    for line in model.remarks():
        say(f"model: {line}")
    if begins and config.init_from is not None:
        check_start(config, model, schema)
    if config.smooth.name != "none" and schema.typed:
        if not any(relation.source == relation.destination == labelled for relation in schema.relations):
            raise ConfigError(
                "Correct & Smooth needs edges between nodes that have labels, and this graph's relations have none.",
                given=f"smooth={config.smooth.name}, labels on '{schema.node_types[labelled]}'",
                hint="smooth=none",
            )
    return Built(sum(model.uses_edges), model.norms_over_rows)
