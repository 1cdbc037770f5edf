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


@dataclass(frozen=True)
class PartFigures:
    """Of one part: own nodes, in-edges, halo rows, nodes of each type, and in-edges from other parts."""

    nodes: int
    edges: int
    halo: int
    types: list[int]
    cut: int

    @classmethod
    def of(cls, rank: int, part: Part) -> PartFigures:
        """Counted in a part. ``rank``: its place among its peers."""
        stride = len(part.schema.relations)
        inside = int(part.edge_offsets[(rank + 1) * stride] - part.edge_offsets[rank * stride])
        edges = len(part.edge_src)
        return cls(len(part.node_ids), edges, len(part.halo_ids), np.diff(part.row_bounds).tolist(), edges - inside)


class StatsCollector:
    """Collects the statistics part by part, in rank order, so that no more than one part is held."""

    def __init__(self) -> None:
        self._parts: list[PartFigures] = []

    def add(self, rank: int, part: Part) -> None:
        """Count one part."""
        self.add_figures(PartFigures.of(rank, part))

    def add_figures(self, figures: PartFigures) -> None:
        """Take one part's."""
        self._parts.append(figures)

    def finish(self) -> PartitionStats:
        """The figures over all parts counted."""
        nodes, edges, halo = ([getattr(part, name) for part in self._parts] for name in ("nodes", "edges", "halo"))
        cut = sum(part.cut for part in self._parts)
        return PartitionStats(
            edge_cut=cut / max(sum(edges), 1),
            cut_edges=cut,
            halo_rows=halo,
            nodes=nodes,
            edges=edges,
            node_balance=_balance(nodes),
            edge_balance=_balance(edges),
            type_balance=[_balance(sizes.tolist()) for sizes in np.array([part.types for part in self._parts]).T],
            volume_rows=sum(halo),
        )


def _balance(sizes: list[int]) -> float:
    mean = float(np.mean(sizes))
    return max(sizes) / mean if mean else 1.0
