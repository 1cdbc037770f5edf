"""Cutting a dataset into parts: for each worker its own rows, its in-edges by source part, its halo and send lists.

Letters: N own nodes, H halo rows, E in-edges, F features, P parts, T node types, R relations.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from sargnn.graph.check import index_dtype
from sargnn.graph.dataset import Dataset, group_by
from sargnn.graph.edge_columns import NO_COLUMNS, WEIGHT, EdgeColumns
from sargnn.graph.schema import Schema
from sargnn.native import Entry
from sargnn.partition.ground import Ground, lay_ground
from sargnn.partition.pairs import PairCutter, PartPairs
from sargnn.partition.sort_edges import Report, Wanted, sort_edges

_CHUNK_EDGES, _PIECE_BYTES = 1 << 22, 1 << 26
_find_loops = Entry("find_loops", "indptr l N+1, indices *, looped b N")
_sum_weights = Entry("sum_weights", "indptr l, weights *, rows l M, totals d M")
_number = Entry("number_present", "edge_src i, numbers i")


@dataclass(frozen=True)
class WeightedDegrees:
    """Sums of the weights of the edges that a part's degrees count: of each own row's in-edges and out-edges, fp64 [N]."""

    inward: np.ndarray
    outward: np.ndarray

    def at(self, rows: np.ndarray) -> WeightedDegrees:
        return WeightedDegrees(np.asarray(self.inward)[rows], np.asarray(self.outward)[rows])


@dataclass(frozen=True)
class CopyLists:
    """Which rows are copies of other servers' nodes (``partition.preload``), and which other servers have copies of.

    Attributes:
        rows: int32 [K], own rows that are copies, by owner, ascending; they stand behind the others of their type.
        offsets: int64, per rank of all servers: where the copies begin whose nodes it owns.
        copied_rows: int32, own rows that other servers have copies of, by the rank that has them, in the order of its copies.
        copied_offsets: int64, per rank of all servers.
    """

    rows: np.ndarray
    offsets: np.ndarray
    copied_rows: np.ndarray
    copied_offsets: np.ndarray


@dataclass(frozen=True)
class Part:
    """What one worker owns and needs. Arrays may be memory-mapped.

    Attributes:
        schema: node types and relations of the whole graph.
        features: per node type float32 [own nodes of the type, F].
        node_ids: int64 [N], original ids of the own nodes in local order: type by type.
        labels: int64 [N], or of another task than classes [N, C] (``graph.schema``).
        split: uint8 [N].
        in_degrees, out_degrees: int64 [N], in the whole graph, self-loops and parallel edges counted.
        edge_src: int32 [E], row in the halo of the source part (own row for the own part).
        edge_dst: int32 [E], own row. Edges are sorted by (source part, relation, destination, source).
        edge_offsets: int64 [P R + 1]: the edges of relation r from part q start at ``edge_offsets[q R + r]``.
        halo_ids: int64 [H], original ids of the remote rows that are needed, by owner, ascending in the owner's order.
        halo_offsets: int64 [P + 1], per owner.
        send_rows: int32, own rows that each peer needs, by peer, ascending; the peer's halo has the same order.
        send_offsets: int64 [P + 1], per peer.
        columns: what edges carry, weights among it, in the order of ``edge_src``.
        weights: sums of edge weights; None: edges have none.
        copies: of a server's part that preloads; None: each node is in one part.
        pairs: links whose heads are own nodes; None: the graph has none.
    """

    schema: Schema
    features: tuple[np.ndarray, ...]
    node_ids: np.ndarray
    labels: np.ndarray
    split: np.ndarray
    in_degrees: np.ndarray
    out_degrees: np.ndarray
    edge_src: np.ndarray
    edge_dst: np.ndarray
    edge_offsets: np.ndarray
    halo_ids: np.ndarray
    halo_offsets: np.ndarray
    send_rows: np.ndarray
    send_offsets: np.ndarray
    columns: EdgeColumns = NO_COLUMNS
    weights: WeightedDegrees | None = None
    copies: CopyLists | None = None
    pairs: PartPairs | None = None

    @property
    def inner(self) -> np.ndarray:
        """bool [N], the rows that are no copies."""
        inner = np.ones(len(self.node_ids), bool)
        if self.copies is not None:
            inner[self.copies.rows] = False
        return inner

    @property
    def weighted(self) -> bool:
        return self.weights is not None

    @property
    def row_bounds(self) -> tuple[int, ...]:
        """T + 1: the own rows of type t are ``[row_bounds[t], row_bounds[t + 1])``."""
        return self.schema.bounds(self.node_ids)

    def edges(self, peer: int, relation: int) -> tuple[np.ndarray, np.ndarray]:
        span = self.edge_span(peer, relation)
        return self.edge_src[span], self.edge_dst[span]

    def columns_of(self, peer: int, relation: int) -> EdgeColumns:
        return self.columns.run(self.edge_span(peer, relation))

    def edge_span(self, peer: int, relation: int) -> slice:
        """Where one relation's edges from part ``peer`` stand."""
        first = peer * len(self.schema.relations) + relation
        return slice(int(self.edge_offsets[first]), int(self.edge_offsets[first + 1]))


PART_ARRAYS = tuple(
    f.name for f in fields(Part) if f.name not in ("schema", "features", "columns", "weights", "copies", "pairs")
)


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


def one_type(part: Part, rank: int, node_type: int) -> Part:
    """The nodes of one type with all relations between them, as a homogeneous graph; its out-degrees are not known: 0."""
    a, b = part.row_bounds[node_type : node_type + 2]
    world = len(part.halo_offsets) - 1
    relations = [r for r, relation in enumerate(part.schema.relations) if relation.source == relation.destination == node_type]
    sources, destinations, halos, send = [], [], [], []
    positions = [np.zeros(0, np.int64)]
    for q in range(world):
        halo = part.halo_ids[part.halo_offsets[q] : part.halo_offsets[q + 1]]
        first, last = part.schema.bounds(halo)[node_type : node_type + 2]
        edges = [part.edges(q, r) for r in relations]
        nothing = np.zeros(0, np.int32)
        src = np.concatenate([nothing, *(source for source, _ in edges)]) - np.int32(a if q == rank else first)
        dst = np.concatenate([nothing, *(destination for _, destination in edges)]) - np.int32(a)
        order = np.lexsort((src, dst))
        sources.append(src[order])
        destinations.append(dst[order])
        spans = [part.edge_span(q, r) for r in relations]
        positions.append(np.concatenate([positions[0], *(np.arange(span.start, span.stop) for span in spans)])[order])
        halos.append(halo[first:last])
        rows = part.send_rows[part.send_offsets[q] : part.send_offsets[q + 1]]
        send.append(rows[(rows >= a) & (rows < b)] - np.int32(a))
    all_destinations = np.concatenate(destinations)
    columns = part.columns.take(np.concatenate(positions)) if part.columns else part.columns
    sums = None
    if part.weighted:
        sums = WeightedDegrees(weight_sums(all_destinations, np.asarray(columns[WEIGHT]), b - a), np.zeros(b - a))
    return Part(
        schema=Schema.homogeneous(part.schema.num_nodes),
        features=(part.features[node_type],),
        node_ids=part.node_ids[a:b],
        labels=part.labels[a:b],
        split=part.split[a:b],
        in_degrees=np.bincount(all_destinations, minlength=b - a),
        out_degrees=np.zeros(b - a, np.int64),
        edge_src=np.concatenate(sources),
        edge_dst=all_destinations,
        edge_offsets=offsets_of(sources),
        halo_ids=np.concatenate(halos),
        halo_offsets=offsets_of(halos),
        send_rows=np.concatenate(send),
        send_offsets=offsets_of(send),
        columns=columns,
        weights=sums,
    )


def weight_sums(places: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    """fp64 [count], the sums of weights by place; those of NumPy are whole numbers where there is nothing to sum."""
    return np.bincount(places, weights=weights, minlength=count).astype(np.float64)


def with_columns(part: Part, names: Sequence[str]) -> Part:
    """The part as that of a graph whose edges carry only what is named."""
    return replace(part, columns=part.columns.only(names), weights=part.weights if WEIGHT in names else None)


def parts_of(dataset: Dataset, assignment: np.ndarray, world: int) -> Iterator[Part]:
    """Cut by an assignment (int32 [N]), original order inside each part."""
    return cut(dataset, *group_by(assignment, world))


def offsets_of(lists: list[np.ndarray]) -> np.ndarray:
    """int64, where each list begins when they stand one behind the other, and where the last one ends."""
    return np.concatenate([[0], np.cumsum([len(array) for array in lists])]).astype(np.int64)
