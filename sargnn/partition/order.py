"""The order of nodes inside a part. Neighbours with near row numbers share caches and pages.

Letters: N nodes, P parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from sargnn.errors import ConfigError
from sargnn.graph.claim import scratch_folder
from sargnn.graph.dataset import Dataset
from sargnn.interop.kaminpar import cut, write_graph
from sargnn.partition.both_ways import Rows
from sargnn.partition.metis import kway
from sargnn.partition.within import Members, graph_within, group_members
from sargnn.steps import step

VERSION = 2
"""Of the orders; part of a partition store's key."""
_CLUSTER_ROWS, _IMBALANCE = 1000, 0.1
_HINT = "partitioner.order=original keeps the nodes of a part in the original order"


@dataclass(frozen=True)
class KaMinPar:
    """What it needs to find clusters. Attributes: folder: for its files. threads: of it."""

    folder: Path
    threads: int

    def cut_graph(self, graph: sparse.csr_array, parts: int) -> np.ndarray:
        """The cluster of each row of a symmetric graph, int32 [N]. graph: from ``metis.symmetric``."""
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
    """The nodes of all parts, part by part.

    Args:
        assignment: int32 [N], the part of each node.
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
