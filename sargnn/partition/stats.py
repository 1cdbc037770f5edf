"""How good a partition is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sargnn.partition.cut import Part


@dataclass(frozen=True)
class PartitionStats:
    """Quality of a partition into P parts.

    Attributes:
        edge_cut: edges whose ends lie in different parts / all edges.
        cut_edges: their number, directed.
        halo_rows: per part, the remote rows it needs.
        nodes, edges: per part, own nodes and in-edges.
        node_balance, edge_balance: largest part / mean.
        type_balance: the same for the nodes of each type.
        volume_rows: sum of halo_rows, the rows that travel in one exchange.
    """

    edge_cut: float
    cut_edges: int
    halo_rows: list[int]
    nodes: list[int]
    edges: list[int]
    node_balance: float
    edge_balance: float
    type_balance: list[float]
    volume_rows: int


class StatsCollector:
    """Collects the statistics part by part, so that no more than one part is held."""

    def __init__(self) -> None:
        self._nodes: list[int] = []
        self._edges: list[int] = []
        self._halo: list[int] = []
        self._types: list[np.ndarray] = []
        self._cut = 0

    def add(self, rank: int, part: Part) -> None:
        """Count one part."""
        self._nodes.append(len(part.node_ids))
        self._edges.append(len(part.edge_src))
        self._halo.append(len(part.halo_ids))
        self._types.append(np.diff(part.row_bounds))
        stride = len(part.schema.relations)
        self._cut += len(part.edge_src) - int(part.edge_offsets[(rank + 1) * stride] - part.edge_offsets[rank * stride])

    def finish(self) -> PartitionStats:
        """The figures over all parts counted."""
        return PartitionStats(
            edge_cut=self._cut / max(sum(self._edges), 1),
            cut_edges=self._cut,
            halo_rows=self._halo,
            nodes=self._nodes,
            edges=self._edges,
            node_balance=_balance(self._nodes),
            edge_balance=_balance(self._edges),
            type_balance=[_balance(sizes.tolist()) for sizes in np.array(self._types).T],
            volume_rows=sum(self._halo),
        )


def _balance(sizes: list[int]) -> float:
    mean = float(np.mean(sizes))
    return max(sizes) / mean if mean else 1.0
