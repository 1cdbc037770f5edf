"""What tests of partitioners cut, with which settings, and how much of it is cut."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy import sparse

from sargnn.config.partitioner import PartitionerConfig
from sargnn.graph.dataset import Dataset, by_destination
from sargnn.graph.store import StoreWriter
from sargnn.partition.cut import Cutter
from sargnn.partition.ground import lay_ground
from sargnn.partition.metis import symmetric
from sargnn.partition.quality import partition_stats
from sargnn.partition.store import PartitionStats
from sargnn.partition.write import put_send_lists, write_part
from tests.graphs import nasty_graph


def config(name: str, **settings: Any) -> PartitionerConfig:
    """A partitioner's settings."""
    return PartitionerConfig(name=name, seed=0, order="original", threads=1, **settings)


def two_ways(*, whole: bool = True) -> Dataset:
    """Every edge in both directions, some twice; but for one edge where not ``whole``."""
    rng = np.random.default_rng(3)
    a, b = rng.integers(200, size=(2, 900))
    a, b = np.concatenate([a, a[:50]]), np.concatenate([b, b[:50]])
    source, destination = np.concatenate([a, b]), np.concatenate([b, a])
    keep = np.ones(len(source), bool)
    if not whole:
        keep[np.flatnonzero(source != destination)[7]] = False
    indptr, indices = by_destination(source[keep], destination[keep], 220)
    graph = nasty_graph(220)
    return dataclasses.replace(graph, indptr=indptr, indices=indices)


def write_parts(writer: StoreWriter, dataset: Dataset, offsets: np.ndarray, nodes: np.ndarray) -> PartitionStats:
    """Cut a dataset into a partition store, part after part. ``offsets``, ``nodes``: as of ``Ground``."""
    cutter = Cutter(dataset, lay_ground(dataset, offsets, nodes))
    figures = [write_part(writer, cutter, p) for p in range(cutter.world)]
    put_send_lists(writer, cutter, 0)
    return partition_stats(figures)


def matrix(graph: Dataset) -> sparse.csr_array:
    """A + A^T, as METIS reads a graph."""
    ones = np.ones(graph.num_edges, np.int32)
    return symmetric(sparse.csr_array((ones, graph.indices, graph.indptr), shape=(graph.num_nodes, graph.num_nodes)))


def cut_of(graph: Dataset, part: np.ndarray) -> float:
    """The share of the edges whose ends are in different parts."""
    destination = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    return float((part[graph.indices] != part[destination]).mean())
