"""KaMinPar: k-way partitioning of a compressed graph, a tenth of METIS's memory (Gottesbüren et al., 2021; TeraPart, 2025).

The graph is streamed into a file (``partition.both_ways``). Where it has communities the graph of its clusters is made from
the file (``partition.clusters``), else it is taken as it is; a process of its own (``interop.kaminpar``) reads it compressed
and cuts it at balanced node weights. Of a typed graph the labelled type and the total are balanced: nodes beyond a part's share
move where most of their neighbours are that have room.

Letters: N nodes, M entries of the symmetric graph, P parts.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from sargnn.config.partitioner import PartitionerConfig
from sargnn.errors import ConfigError
from sargnn.graph.claim import scratch_folder
from sargnn.graph.dataset import Dataset
from sargnn.interop.kaminpar import GraphFile, cut, file_bytes, write_graph
from sargnn.partition.balance import Room, even_out, node_weights, runs_of_nodes, trivial, weight_columns
from sargnn.partition.both_ways import rows_both_ways
from sargnn.partition.clusters import clusters_graph, find_clusters, refine
from sargnn.partition.memory import LEAST_NODES, MOST_LEFT, available_bytes, entries_of, whole_bytes
from sargnn.steps import step

_HINT = "store_dir=FOLDER on a larger disk, or partitioner=stream, which writes none"


def assign(dataset: Dataset, world: int, config: PartitionerConfig, room: Room | None = None) -> np.ndarray:
    """KaMinPar's assignment, int32 [N]; with ``config.threads=1`` the same seed gives the same.

    Raises ``ConfigError`` where the graph's file does not fit the disk, or KaMinPar fails.
    """
    n, room = dataset.num_nodes, room or Room()
    if (uncut := trivial(n, world)) is not None:
        return uncut
    wanted = file_bytes(n, entries_of(dataset)) * (1 if config.coarsen == "never" else 1 + MOST_LEFT)
    if wanted > (free := shutil.disk_usage(room.folder).free):
        raise ConfigError(
            "The graph's file for KaMinPar does not fit the disk.",
            given=f"about {wanted / 1e9:.1f} GB; {free / 1e9:.1f} GB are free",
            hint=_HINT,
        )
    with scratch_folder(room.folder, ".kaminpar-") as folder:
        path = folder / "graph.parhip"
        try:
            weights = node_weights(dataset, config.balance)
            num_edges = write_graph(path, n, rows_both_ways(dataset, folder, room.buffer_bytes), weights)
            del weights
            part = _cut(path, world, config) if num_edges else None
        except OSError as error:
            raise ConfigError("The graph's file for KaMinPar could not be written.", given=str(error), hint=_HINT) from error
    if part is None:
        return runs_of_nodes(n, world)
    if dataset.schema.typed:
        even_out(dataset, part, world, weight_columns(dataset, config.balance), config.imbalance)
    return part


def _cut(path: Path, world: int, config: PartitionerConfig) -> np.ndarray:
    """Cut a file's graph, or the graph of its clusters where that is enough smaller, or what there is room for."""
    smaller = None if config.coarsen == "never" else _coarsen(path, world, config)
    if smaller is None:
        return _cut_whole(path, world, config)
    coarse, cluster = smaller
    if not GraphFile(coarse).entries:  # components that are clusters each
        return pack(GraphFile(coarse).weights_of_nodes(), world)[cluster]
    part = _cut(coarse, world, config)[cluster] if _too_large(coarse) else _cut_whole(coarse, world, config)[cluster]
    refine(GraphFile(path), part, world, config.imbalance)
    return part


def _coarsen(path: Path, world: int, config: PartitionerConfig) -> tuple[Path, np.ndarray] | None:
    """The graph of clusters in a file beside it, and each node's cluster; None where the graph itself is to be cut."""
    graph = GraphFile(path)
    if graph.num_nodes < LEAST_NODES * world:
        return None
    cluster = find_clusters(graph, world, config.seed)
    weights, rows = clusters_graph(graph, cluster)
    coarse = path.with_name(f"coarse-{path.name}")
    left = write_graph(coarse, len(weights), rows, weights)
    if config.coarsen == "auto" and left > MOST_LEFT * graph.entries and not _too_large(path):
        coarse.unlink()
        return None
    return (coarse, cluster) if len(weights) < graph.num_nodes else None


def pack(weights: np.ndarray, parts: int) -> np.ndarray:
    """Parts of clusters without edges between them, int32 [C]: consecutive ones, about as heavy each. weights: [C]."""
    ends = np.cumsum(weights, dtype=np.float64)
    middle = ends - np.asarray(weights, np.float64) / 2
    return np.minimum(parts - 1, middle * parts / ends[-1]).astype(np.int32)


def _too_large(path: Path) -> bool:
    graph = GraphFile(path)
    return whole_bytes(graph.num_nodes, graph.entries) > available_bytes()


def _cut_whole(path: Path, world: int, config: PartitionerConfig) -> np.ndarray:
    step("cutting with KaMinPar")
    return cut(path, world, seed=config.seed, imbalance=config.imbalance, threads=threads_of(config), preset=config.preset)


def threads_of(config: PartitionerConfig) -> int:
    return config.threads or len(os.sched_getaffinity(0))
