"""How good a partition is: from its parts, or without cutting, counted in one pass over the edges.

Letters: N nodes, E directed edges, P parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sargnn.graph.dataset import Dataset, in_edge_blocks
from sargnn.native import Entry
from sargnn.partition.balance import node_weights
from sargnn.partition.part import Part
from sargnn.partition.store import PartitionStats

_BITS = 64
_mark = Entry("mark_needed", "first int, indptr l, indices *, part i N, needed u N W, totals l 2")


@dataclass(frozen=True)
class PartFigures:
    """Of one part: own nodes, in-edges, halo rows, nodes of each type, and in-edges from other parts."""

    nodes: int
    edges: int
    halo: int
    types: list[int]
    cut: int


def part_figures(rank: int, part: Part) -> PartFigures:
    """Counted in a part. ``rank``: its place among its peers."""
    stride = len(part.schema.relations)
    inside = int(part.edge_offsets[(rank + 1) * stride] - part.edge_offsets[rank * stride])
    edges = len(part.edge_src)
    return PartFigures(len(part.node_ids), edges, len(part.halo_ids), np.diff(part.row_bounds).tolist(), edges - inside)


def partition_stats(parts: Sequence[PartFigures]) -> PartitionStats:
    nodes, edges, halo = ([getattr(part, name) for part in parts] for name in ("nodes", "edges", "halo"))
    cut = sum(part.cut for part in parts)
    return PartitionStats(
        edge_cut=cut / max(sum(edges), 1),
        cut_edges=cut,
        halo_rows=halo,
        nodes=nodes,
        edges=edges,
        node_balance=_balance(nodes),
        edge_balance=_balance(edges),
        type_balance=[_balance(sizes.tolist()) for sizes in np.array([part.types for part in parts]).T],
        volume_rows=sum(halo),
    )


def _balance(sizes: list[int]) -> float:
    mean = float(np.mean(sizes))
    return max(sizes) / mean if mean else 1.0


@dataclass(frozen=True)
class Quality:
    """How good an assignment is: edges between parts / all, rows that parts need of others, all together, and the largest part
    / mean, in nodes, in-edges, and both as the work that they make.
    """

    edge_cut: float
    halo_rows: int
    node_balance: float
    edge_balance: float
    work_balance: float


def quality_of(dataset: Dataset, part: np.ndarray, world: int) -> Quality:
    """Count an assignment, int32 [N]; takes N P / 8 bytes."""
    needed = np.zeros((dataset.num_nodes, -(-world // _BITS)), np.uint64)
    totals = np.zeros(2, np.int64)  # cut edges, halo rows
    for first, indptr, indices in in_edge_blocks(dataset, "counting cut edges"):
        _mark(first, indptr, indices, part, needed, totals)
    balances = []
    for weights in (None, np.diff(np.asarray(dataset.indptr)), node_weights(dataset, "both")):
        loads = np.bincount(part, weights=weights, minlength=world)
        balances.append(float(loads.max() / loads.mean()) if loads.any() else 1.0)
    return Quality(int(totals[0]) / max(1, dataset.num_edges), int(totals[1]), *balances)
