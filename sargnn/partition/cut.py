"""Cutting a dataset into parts.

Letters: N own nodes, F features.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sargnn.graph.check import index_dtype
from sargnn.graph.dataset import Dataset, group_by
from sargnn.graph.edge_columns import NO_COLUMNS, WEIGHT, EdgeColumns
from sargnn.native import Entry
from sargnn.partition.ground import Ground, lay_ground
from sargnn.partition.pairs import PairCutter
from sargnn.partition.part import Part, WeightedDegrees, offsets_of, weight_sums
from sargnn.partition.sort_edges import Report, Wanted, sort_edges

_CHUNK_EDGES, _PIECE_BYTES = 1 << 22, 1 << 26
_find_loops = Entry("find_loops", "indptr l N+1, indices *, looped b N")
_sum_weights = Entry("sum_weights", "indptr l, weights *, rows l M, totals d M")
_number = Entry("number_present", "edge_src i, numbers i")


@dataclass(frozen=True)
class PartEdges:
    """The in-edges of one part, as in ``Part``, and the halo that they read.

    ``halos``: per owner, which of its rows are needed: int32, ascending; empty for the own part.
    """

    edge_src: np.ndarray
    edge_dst: np.ndarray
    edge_offsets: np.ndarray
    halos: list[np.ndarray]
    columns: EdgeColumns = NO_COLUMNS


class Cutter:
    """Cuts a dataset into parts, one at a time, each of which is held while it is cut (``partition.sort_edges``)."""

    def __init__(self, dataset: Dataset, ground: Ground) -> None:
        self.dataset, self.offsets, self.nodes, self.place = dataset, ground.offsets, ground.nodes, ground.place
        self._out_degrees, self._out_weights = ground.out_degrees, ground.out_weights
        self._read: np.ndarray | None = None
        self._looped: np.ndarray | None = None
        self._open = False
        self.world, self.relations = len(ground.offsets) - 1, len(dataset.schema.relations)
        self._indptr = np.asarray(dataset.indptr)

    def among(self, offsets: np.ndarray, nodes: np.ndarray, read: np.ndarray, *, open_ended: bool) -> Cutter:
        """One that cuts some of the nodes only.

        Args:
            offsets, nodes: as of ``Ground``, of these nodes.
            read: bool [N of the graph], whose in-edges are wanted. Others have none, but in a homogeneous graph their loops,
                which an added one takes the place of (``plan.load.with_self_loops``).
            open_ended: edges from other nodes are left out, and neither in-degrees nor in-weights count them; else there are
                none.
        """
        other = copy.copy(self)
        other.offsets, other.nodes, other.world = offsets, nodes, len(offsets) - 1
        other.place = np.full(self.dataset.num_nodes, -1, index_dtype(self.dataset.num_nodes))
        other.place[nodes] = np.arange(len(nodes))
        if self._looped is None:
            self._looped = np.zeros(self.dataset.num_nodes, bool)
            if not self.dataset.schema.typed:
                _find_loops(self._indptr, np.asarray(self.dataset.indices), self._looped)
            other._looped = self._looped
        other._read, other._open = read, open_ended
        return other

    def own(self, p: int) -> np.ndarray:
        return self.nodes[self.offsets[p] : self.offsets[p + 1]]

    def edges(self, p: int, report: Report = lambda _: None) -> PartEdges:
        """Part p's edges, sorted by (source part, relation, destination, source)."""
        own = self.own(p)
        rows = np.arange(len(own))
        if self._read is not None and self._looped is not None:
            rows = np.flatnonzero(self._read[own] | self._looped[own])
        wanted = Wanted(own, rows, self.place, self.offsets, self._read)
        edge_src, edge_dst, edge_offsets, columns = sort_edges(self.dataset, wanted, _CHUNK_EDGES, report)
        halos = []
        for q in range(self.world):
            block = edge_src[edge_offsets[q * self.relations] : edge_offsets[(q + 1) * self.relations]]
            halos.append(np.zeros(0, np.int32) if q == p else _number_read(block, self.offsets[q + 1] - self.offsets[q]))
        return PartEdges(edge_src, edge_dst, edge_offsets, halos, columns)

    def rows_of(self, p: int, nodes: np.ndarray) -> np.ndarray:
        """The rows of some of part p's nodes in it, int32."""
        return (self.place[nodes] - self.offsets[p]).astype(np.int32)

    def part(self, p: int, edges: PartEdges, send: list[np.ndarray]) -> Part:
        """Part p without features. ``send``: per peer, the own rows that it needs, int32."""
        own = self.own(p)
        if self._open:
            in_degrees = np.bincount(edges.edge_dst, minlength=len(own))
        else:
            in_degrees = self._indptr[own + 1] - self._indptr[own]
        return Part(
            schema=self.dataset.schema,
            features=(),
            node_ids=own,
            labels=np.asarray(self.dataset.labels[own]),
            split=np.asarray(self.dataset.split[own]),
            in_degrees=in_degrees,
            out_degrees=self._out_degrees[own],
            edge_src=edges.edge_src,
            edge_dst=edges.edge_dst,
            edge_offsets=edges.edge_offsets,
            halo_ids=self.nodes[np.concatenate([rows + self.offsets[q] for q, rows in enumerate(edges.halos)])],
            halo_offsets=offsets_of(edges.halos),
            send_rows=np.concatenate(send),
            send_offsets=offsets_of(send),
            columns=edges.columns,
            weights=self._weighted_degrees(own, edges),
        )

    def _weighted_degrees(self, own: np.ndarray, edges: PartEdges) -> WeightedDegrees | None:
        if self._out_weights is None:
            return None
        if self._open:
            inward = weight_sums(edges.edge_dst, np.asarray(edges.columns[WEIGHT]), len(own))
        else:
            inward = np.empty(len(own))
            _sum_weights(self._indptr, np.asarray(self.dataset.columns[WEIGHT]), own, inward)
        return WeightedDegrees(inward, self._out_weights[own])

    def features(self, p: int, node_type: int) -> Iterator[np.ndarray]:
        """Part p's features of one type, float32 [rows, F], piece by piece."""
        own, schema, rows = self.own(p), self.dataset.schema, self.dataset.features[node_type]
        a, b = schema.bounds(own)[node_type : node_type + 2]
        size = max(1, _PIECE_BYTES // (4 * max(1, rows.shape[1])))
        for first in range(a, b, size):
            yield np.asarray(rows[own[first : min(b, first + size)] - schema.offsets[node_type]], dtype=np.float32)


def cut(dataset: Dataset, offsets: np.ndarray, nodes: np.ndarray) -> Iterator[Part]:
    """Cut a dataset into parts in memory, in rank order. ``offsets``, ``nodes``: as of ``Ground``."""
    cutter = Cutter(dataset, lay_ground(dataset, offsets, nodes))
    edges = [cutter.edges(p) for p in range(cutter.world)]
    pairs = None if dataset.pairs is None else PairCutter(dataset.pairs, offsets, nodes)
    for p, own in enumerate(edges):
        features = tuple(
            np.concatenate([np.zeros((0, rows.shape[1]), np.float32), *cutter.features(p, t)])
            for t, rows in enumerate(dataset.features)
        )
        part = cutter.part(p, own, [peer.halos[p] for peer in edges])
        yield replace(part, features=features, pairs=None if pairs is None else pairs.part(p))


def _number_read(edge_src: np.ndarray, count: int) -> np.ndarray:
    """Which of an owner's rows are read, int32, ascending; sources are numbered among these from now on."""
    numbers = np.empty(count, np.int32)
    _number(edge_src, numbers)
    return np.flatnonzero(numbers).astype(np.int32)


def parts_of(dataset: Dataset, assignment: np.ndarray, world: int) -> Iterator[Part]:
    """Cut by an assignment (int32 [N]), original order inside each part."""
    return cut(dataset, *group_by(assignment, world))
