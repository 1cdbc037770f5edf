"""The order of nodes inside a part. Neighbours with near row numbers share caches and pages.

It follows from clusters of the symmetric graph between the part's nodes, A + A^T without self-loops; an entry counts the
directed edges between two nodes. Rows of A are found in the order of the part's nodes and A^T by counting, so both have
ascending rows, which are merged. Held are at most 24 bytes an in-edge of the part: its source, and of one from the part itself
its inverse and two entries.

Letters: N nodes of the graph, n nodes of the part, P parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from sargnn.errors import ConfigError
from sargnn.graph.claim import scratch_folder
from sargnn.graph.dataset import Dataset, group_by
from sargnn.interop.kaminpar import Rows, cut, write_graph
from sargnn.native import Entry
from sargnn.partition.ground import places_of
from sargnn.partition.metis import kway
from sargnn.partition.sort_edges import gather_sources
from sargnn.steps import step

VERSION = 2
"""Of the orders; part of a partition store's key."""
_CLUSTER_ROWS, _IMBALANCE = 1000, 0.1
_keep_inside = Entry("keep_inside", "degrees l n, source *, first int, last int, ends l n+1, counts l n+1")
_turn_round = Entry("turn_round", "ends l n+1, forward * E, cursor l n, backward i E")
_merge = Entry("merge_rows", "ends l n+1, forward * E, starts l n+1, backward i E, rows l n+1, neighbours i M, weights i M")
_HINT = "partitioner.order=original keeps the nodes of a part in the original order"


@dataclass(frozen=True)
class Members:
    """Whose node is whose: part p has ``nodes[offsets[p]:offsets[p + 1]]``, by original id; ``place`` of each node in
    ``nodes``, int32 [N] (int64 from 2**31 nodes on). Arrays may be memory-mapped.
    """

    offsets: np.ndarray
    nodes: np.ndarray
    place: np.ndarray

    def own(self, p: int) -> np.ndarray:
        return self.nodes[self.offsets[p] : self.offsets[p + 1]]


def group_members(assignment: np.ndarray, world: int) -> Members:
    offsets, nodes = group_by(assignment, world)
    return Members(offsets, nodes, places_of(nodes))


@dataclass(frozen=True)
class KaMinPar:
    folder: Path
    threads: int

    def cut_graph(self, graph: sparse.csr_array, parts: int) -> np.ndarray:
        """The cluster of each row of a graph of ``metis.symmetric``, int32 [N]."""
        with scratch_folder(self.folder, ".kaminpar-") as folder:
            path = folder / "part.parhip"
            rows = Rows(0, np.diff(graph.indptr), graph.indices, graph.data)
            try:
                write_graph(path, graph.shape[0], iter([rows]))
            except OSError as error:
                raise ConfigError("A part's file for KaMinPar could not be written.", given=str(error), hint=_HINT) from error
            return cut(path, parts, seed=0, imbalance=_IMBALANCE, threads=self.threads, preset="large", hint=_HINT)


def order_nodes(
    dataset: Dataset, assignment: np.ndarray, world: int, how: str, kaminpar: KaMinPar | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of all parts, part by part, for an assignment int32 [N].

    Args:
        how: ``original`` keeps the original order inside a part; ``locality`` cuts the part's own subgraph into clusters of
            about a thousand nodes, whose rows fit a core's second-level cache, and goes cluster by cluster. Of a typed graph
            type by type either way.
        kaminpar: finds the clusters in METIS's place.

    Returns:
        offsets int64 [P + 1] and nodes int64 [N]: part p owns ``nodes[offsets[p]:offsets[p + 1]]`` in this order.
    """
    members = group_members(assignment, world)
    if how == "original":
        return members.offsets, members.nodes
    nodes = members.nodes.copy()
    for p in range(world):
        step("ordering nodes", p, world)
        if (order := order_part(dataset, members, p, kaminpar)) is not None:
            nodes[members.offsets[p] : members.offsets[p + 1]] = members.own(p)[order]
    return members.offsets, nodes


def order_part(dataset: Dataset, members: Members, p: int, kaminpar: KaMinPar | None = None) -> np.ndarray | None:
    """Part p's nodes by locality, as places among them by original id, int64; None: they stay as they are."""
    own = members.own(p)
    clusters = -(-len(own) // _CLUSTER_ROWS)
    if clusters < 2:
        return None
    graph = graph_within(dataset, members, p)
    if not graph.nnz:
        return None
    if kaminpar is None:
        cluster = kway(graph, clusters, seed=0, imbalance=_IMBALANCE)
    else:
        cluster = kaminpar.cut_graph(graph, clusters)
    order = np.argsort(cluster, kind="stable")
    return order[np.argsort(dataset.schema.types_of(own[order]), kind="stable")]


def graph_within(dataset: Dataset, members: Members, p: int) -> sparse.csr_array:
    """The symmetric graph between part p's nodes, int32 [n, n]."""
    indptr, own = np.asarray(dataset.indptr), members.own(p)
    degrees = indptr[own + 1] - indptr[own]
    source = np.empty(int(degrees.sum()), members.place.dtype)
    gather_sources(indptr, np.asarray(dataset.indices), own, members.place, source)
    ends, counts = np.zeros(len(own) + 1, np.int64), np.zeros(len(own) + 1, np.int64)
    count = _keep_inside(degrees, source, members.offsets[p], members.offsets[p + 1], ends, counts)
    forward, backward, starts = source[:count], np.empty(count, np.int32), np.cumsum(counts)
    _turn_round(ends, forward, starts[:-1].copy(), backward)
    neighbours, weights, rows = np.empty(2 * count, np.int32), np.empty(2 * count, np.int32), np.zeros(len(own) + 1, np.int64)
    entries = _merge(ends, forward, starts, backward, rows, neighbours, weights)
    return sparse.csr_array((weights[:entries], neighbours[:entries], rows), shape=(len(own), len(own)))
