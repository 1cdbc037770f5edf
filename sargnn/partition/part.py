"""What one worker has of a partition: its own rows, its in-edges by source part, its halo and send lists.

Letters: N own nodes, H halo rows, E in-edges, F features, P parts, T node types, R relations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from sargnn.graph.edge_columns import ATTR, NO_COLUMNS, WEIGHT, EdgeColumns, InEdgeMeans
from sargnn.graph.schema import Schema

if TYPE_CHECKING:
    from sargnn.partition.pairs import PartPairs


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


def loop_means(part: Part, rank: int) -> InEdgeMeans | None:
    """Takes the features of a part's edges, and gives what self-loops of its nodes have; None: edges have no features, or the
    graph is typed and gets no self-loops. ``rank``: the part's, among its peers.
    """
    if part.schema.typed or ATTR not in part.columns:
        return None
    own, loops = part.edge_span(rank, 0), np.zeros(len(part.edge_src), bool)
    loops[own] = np.asarray(part.edge_src[own]) == np.asarray(part.edge_dst[own])
    return InEdgeMeans(part.edge_dst, loops, len(part.node_ids), part.columns.width)


def offsets_of(lists: list[np.ndarray]) -> np.ndarray:
    """int64, where each list begins when they stand one behind the other, and where the last one ends."""
    return np.concatenate([[0], np.cumsum([len(array) for array in lists])]).astype(np.int64)
