"""What views compute on every worker, counted in one process: nodes are marked over the whole graph, layer by layer, on the
parts that workers would open, one at a time: from their store, or cut from the dataset as it would be.

As ``plan.mfg`` and ``plan.drawn`` do with an exchange for each layer, from the last one to the first:

    O_L = wanted nodes        O_(l-1) = I_l = O_l + sources of the (chosen) edges into O_l

Letters: N own rows of a worker, H halo rows, V nodes of the graph, L layers, P workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset
from sargnn.memory.plan_traffic import Messages
from sargnn.partition.cut import Cutter, Part, with_columns
from sargnn.partition.ground import lay_ground
from sargnn.partition.preload import Bounds, cut_server
from sargnn.partition.store import open_part
from sargnn.plan.drawn import InEdges, Sample
from sargnn.plan.layer_plan import RowCounts
from sargnn.plan.load import with_self_loops
from sargnn.plan.loops import mark_sources
from sargnn.plan.sizes import Sizes, rows_by_depth

_NEVER = -1
Travelling = Callable[[np.ndarray, np.ndarray, tuple[RowCounts, ...]], Sequence[Messages] | None]
"""What travels in each layer's exchange, from the last layer that computes each node (int16 [V]), each worker's edges into the
rows of each layer (int64 [P, L]) and the counts of rows; None: every row that is read."""


@dataclass(frozen=True)
class Opened:
    """A worker's part, without features and without what it sends.

    Attributes:
        part: without self-loops that the model adds.
        place: its number among those that it exchanges rows with.
        loops: whether the model adds them.
        inner: bool [N], rows that are no copies.
    """

    part: Part
    place: int
    loops: bool
    inner: np.ndarray

    @cached_property
    def read_ids(self) -> np.ndarray:
        """int64 [N + H], original ids of own rows, then of halo rows."""
        return np.concatenate([self.part.node_ids, self.part.halo_ids]).astype(np.int64)

    @cached_property
    def types(self) -> np.ndarray:
        """int [N], node types of own rows."""
        return self.part.schema.types_of(np.asarray(self.part.node_ids))

    @property
    def bytes(self) -> int:
        """What it takes to keep it."""
        return 8 * len(self.part.edge_src) + 60 * len(self.part.node_ids)

    def sources(self, outputs: np.ndarray, layer: int, sample: Sample | None) -> tuple[np.ndarray, int]:
        """The rows that a layer reads for own rows (bool [N]): bool [N + H], and how many edges it has.

        Args:
            outputs: bool [N].
            layer: from 0.
            sample: which edges are kept; None: all.
        """
        marks = np.zeros(len(self.read_ids), np.uint8)
        if sample is not None:
            return self._drawn(outputs, layer, sample, marks)
        part, relations, edges = self.part, len(self.part.schema.relations), 0
        src, dst = np.asarray(part.edge_src), np.asarray(part.edge_dst)
        rows = len(part.node_ids)
        for group, (a, b) in enumerate(zip(part.edge_offsets, part.edge_offsets[1:], strict=False)):
            peer = group // relations
            first, last = 0, rows
            if peer != self.place:
                first, last = rows + int(part.halo_offsets[peer]), rows + int(part.halo_offsets[peer + 1])
            edges += mark_sources(src[a:b], dst[a:b], outputs, marks[first:last])
        if self.loops:  # one each, in place of the data's own
            edges += int(outputs.sum()) - int(self._own_loops[outputs].sum())
        return marks.astype(bool), edges

    def _drawn(self, outputs: np.ndarray, layer: int, sample: Sample, marks: np.ndarray) -> tuple[np.ndarray, int]:
        edges, bounds = 0, self.part.row_bounds
        for number, relation in enumerate(self.part.schema.relations):
            first, last = bounds[relation.destination : relation.destination + 2]
            rows = (first + np.flatnonzero(outputs[first:last])).astype(np.int32)
            chosen = self._in_edges.choose(rows, number, layer, sample)
            marks[chosen.sources] = 1
            edges += len(chosen.sources)
        return marks.astype(bool), edges

    @cached_property
    def _in_edges(self) -> InEdges:
        part = with_self_loops(self.part, self.place) if self.loops else self.part
        return InEdges(part, self.place, own_loops=self.loops)

    @cached_property
    def _own_loops(self) -> np.ndarray:
        """int [N], the data's self-loops of each row."""
        src, dst = self.part.edges(self.place, 0)
        return np.bincount(dst[src == dst], minlength=len(self.part.node_ids))


class OpenParts:
    """All workers' parts. As many stay open as fit ``prepare.buffer``.

    Args:
        part: int32 [V], each node's owner.
        store: the partition's folder; None: it is cut from the dataset.
        bounds: what servers preload; None: nothing, and all workers exchange rows with each other.
        columns: what edges carry and the model reads.

    Attributes:
        servers: ranks that exchange rows with each other.
    """

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        part: np.ndarray,
        store: Path | None,
        bounds: Bounds | None,
        *,
        columns: Sequence[str],
    ) -> None:
        self._config, self._dataset, self._part, self._store, self._bounds = config, dataset, part, store, bounds
        self._columns = columns
        self.num_nodes, self.world = dataset.num_nodes, config.world
        size = self.world // config.num_servers if bounds is not None else self.world
        self.servers = [range(first, first + size) for first in range(0, self.world, size)]
        self._kept: dict[int, Opened] = {}
        self._cutters: dict[int, tuple[Cutter, np.ndarray]] = {}

    def __getitem__(self, rank: int) -> Opened:
        if rank not in self._kept:
            opened = self._open(rank)
            while self._kept and opened.bytes + sum(kept.bytes for kept in self._kept.values()) > self._config.prepare.bytes:
                self._kept.pop(next(iter(self._kept)))
            self._kept[rank] = opened
        return self._kept[rank]

    def _open(self, rank: int) -> Opened:
        nothing, place, inner = [np.zeros(0, np.int32)], rank, None
        if self._bounds is not None:
            number = next(i for i, ranks in enumerate(self.servers) if rank in ranks)
            ranks = self.servers[number]
            if number not in self._cutters:
                self._cutters = {number: cut_server(self._cutter, self._part, ranks, self._bounds)}
            cutter, hops = self._cutters[number]
            place = rank - ranks.start
            part = cutter.part(place, cutter.edges(place), nothing)
            inner = hops[part.node_ids] == 0
        elif self._store is not None:
            part = open_part(self._store, rank, with_features=False)
        else:
            part = self._cutter.part(rank, self._cutter.edges(rank), nothing)
        inner = np.ones(len(part.node_ids), bool) if inner is None else inner
        return Opened(with_columns(part, self._columns), place, self._config.add_self_loops, inner)

    @cached_property
    def _cutter(self) -> Cutter:
        """Of the whole graph, rows in the store's order where there is one, else by id."""
        if self._store is not None:
            own = [np.asarray(open_part(self._store, rank, with_features=False).node_ids) for rank in range(self.world)]
            nodes = np.concatenate(own)
        else:
            nodes = np.argsort(self._part, kind="stable")
        counts = np.bincount(self._part, minlength=self.world)
        return Cutter(self._dataset, lay_ground(self._dataset, np.concatenate([[0], np.cumsum(counts)]), nodes))


@dataclass(frozen=True)
class Wanted:
    """What a view is for.

    Attributes:
        nodes: int64, whose outputs are wanted.
        sample: which edges are kept; None: all.
        uses_edges: per layer, whether it aggregates.
        hidden: int64, nodes that all layers but the last compute in any case.
    """

    nodes: np.ndarray
    sample: Sample | None
    uses_edges: tuple[bool, ...]
    hidden: np.ndarray | None = None


@dataclass(frozen=True)
class Reached:
    """A view on one worker.

    Attributes:
        sizes: of the view.
        counts: per layer, its rows over all workers that exchange rows with this one.
        messages: per layer, what travels between all of them.
    """

    sizes: Sizes
    counts: tuple[RowCounts, ...]
    messages: tuple[Messages, ...]


def reach(
    parts: OpenParts,
    ranks: range,
    views: Sequence[Wanted],
    weight_bytes: int,
    buffer_bytes: int,
    serving: Travelling | None = None,
) -> list[list[Reached]]:
    """What each of some views has on each of some workers, which exchange rows with each other only.

    Args:
        weight_bytes: of an edge's weight where the parts have any.
        buffer_bytes: of marks; as many views are looked at together as they suffice for.
        serving: what travels where it is not every row that is read.

    Returns:
        By view, by worker.
    """
    at_once = max(1, buffer_bytes // (2 * parts.num_nodes))
    by_view: list[list[Reached]] = []
    for first in range(0, len(views), at_once):
        by_view += _reach(parts, ranks, views[first : first + at_once], weight_bytes, serving)
    return by_view


def _reach(
    parts: OpenParts, ranks: range, views: Sequence[Wanted], weight_bytes: int, serving: Travelling | None
) -> list[list[Reached]]:
    num_layers = len(views[0].uses_edges) if views else 0
    depths = [np.full(parts.num_nodes, _NEVER, np.int16) for _ in views]
    for view, depth in zip(views, depths, strict=True):
        if view.hidden is not None:
            depth[view.hidden] = num_layers - 1
        depth[view.nodes] = num_layers
    edges = np.zeros((len(views), len(ranks), num_layers), np.int64)
    halo = np.zeros_like(edges)
    for layer in range(num_layers, 0, -1):
        for place, rank in enumerate(ranks if any(wanted.uses_edges[layer - 1] for wanted in views) else ()):
            opened = parts[rank]
            for number, (view, depth) in enumerate(zip(views, depths, strict=True)):
                if not view.uses_edges[layer - 1]:
                    continue
                outputs = depth[opened.read_ids[: len(opened.inner)]] >= layer
                read, edges[number, place, layer - 1] = opened.sources(outputs, layer - 1, view.sample)
                halo[number, place, layer - 1] = read[len(opened.inner) :].sum()
                nodes = opened.read_ids[read]
                depth[nodes[depth[nodes] < layer - 1]] = layer - 1
    by_rank = []
    for place, rank in enumerate(ranks):
        opened, own = parts[rank], []
        for number, (view, depth) in enumerate(zip(views, depths, strict=True)):
            own.append(_sizes(opened, depth, view, edges[number, place], halo[number, place], weight_bytes))
        by_rank.append(own)
    return [_joined([own[number] for own in by_rank], depths[number], edges[number], serving) for number in range(len(views))]


def _sizes(opened: Opened, depth: np.ndarray, view: Wanted, edges: np.ndarray, halo: np.ndarray, weight_bytes: int) -> Sizes:
    own, num_layers = depth[np.asarray(opened.part.node_ids)], len(view.uses_edges)
    targets = int((own[opened.inner] == num_layers).sum())
    by_depth = rows_by_depth(opened.types, own, num_layers, len(opened.part.schema.node_types))
    edge_bytes = 8 + (weight_bytes if opened.part.weighted else 0)
    return Sizes.of(len(own), targets, by_depth[:-1], by_depth[1:], edges.tolist(), halo.tolist(), edge_bytes)


def _joined(sizes: list[Sizes], depth: np.ndarray, edges: np.ndarray, serving: Travelling | None) -> list[Reached]:
    counts = tuple(
        RowCounts(
            sum(worker_sizes.counts["rows", layer, -1] for worker_sizes in sizes),
            sum(worker_sizes.counts["out", layer, -1] for worker_sizes in sizes),
            sum(worker_sizes.halo[layer] for worker_sizes in sizes),
        )
        for layer in range(edges.shape[1])
    )
    read = [tuple(worker_sizes.halo[layer] for worker_sizes in sizes) for layer in range(edges.shape[1])]
    messages: Sequence[Messages] | None = None if serving is None else serving(depth, edges, counts)
    if messages is None:
        messages = [Messages(sum(rows), 0, rows) for rows in read]
    return [
        Reached(
            dataclasses.replace(
                worker_sizes,
                halo=tuple(layer.received[place] for layer in messages),
                results=tuple(layer.partials // len(sizes) for layer in messages),
            ),
            counts,
            tuple(messages),
        )
        for place, worker_sizes in enumerate(sizes)
    ]
