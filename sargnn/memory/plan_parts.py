"""What each worker owns and reads: counted in its part; estimated from sizes of graphs that everyone knows. And what the SAR
paper measured on one of these.

Published nodes, edges, features, classes and splits are those of OGB (Hu et al., 2020), and of the older datasets those that
PyTorch Geometric and DGL document, edges in both directions. Rows of others depend on the cut (``halo_of``).

Letters: N nodes, T node types, R relations, P workers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from sargnn.config.choices import DatasetSettings
from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import Relation, Schema
from sargnn.partition.cut import Cutter
from sargnn.partition.ground import lay_ground
from sargnn.partition.part import Part, with_columns
from sargnn.partition.preload import Bounds, cut_server
from sargnn.partition.store import open_part
from sargnn.plan.drawn import InEdges, Sample
from sargnn.plan.load import with_self_loops
from sargnn.plan.mfg import by_type, mark_all
from sargnn.plan.sizes import Sizes
from sargnn.tasks.kinds import in_split

Sized = tuple[str, int, int]
"""A node type: its name, how many nodes, how many features (0: none)."""


@dataclass(frozen=True)
class PartSizes:
    """One worker's part.

    Attributes:
        rows: own rows of each type [T].
        edges: into them by relation [R].
        halo: rows of others that they read.
        sent: own rows that others read.
        targets: training rows.
        split: rows of any split.
        inner: own rows of each type that are no copies [T]; None: all.
    """

    rows: tuple[int, ...]
    edges: tuple[int, ...]
    halo: int
    sent: int
    targets: int
    split: int
    inner: tuple[int, ...] | None = None

    def view(
        self, schema: Schema, layers: int, labelled: int, *, loops: bool, halo: tuple[int, ...], results: tuple[int, ...] = ()
    ) -> Sizes:
        """The sizes of a view of all rows, whose last layer computes those of the labelled type.

        Args:
            labelled: the node type that has labels; below 0: all rows are computed.
            loops: whether the model adds a loop to each node.
            halo: rows of others that each layer reads [L].
            results: partial results of each layer [L], as of ``Sizes``.
        """
        total = sum(self.rows)
        out, edges = [self.rows] * layers, [sum(self.edges)] * layers
        if schema.typed and labelled >= 0:
            out[-1] = tuple(rows if t == labelled else 0 for t, rows in enumerate(self.rows))
            edges[-1] = self.edges_into(schema, labelled)
        edges = [count + total * loops for count in edges]
        return dataclasses.replace(Sizes.of(total, self.targets, [self.rows] * layers, out, edges, halo), results=results)

    def edges_into(self, schema: Schema, node_type: int) -> int:
        pairs = zip(self.edges, schema.relations, strict=True)
        return sum(count for count, relation in pairs if relation.destination == node_type)


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

    @property
    def own_ids(self) -> np.ndarray:
        return self.read_ids[: len(self.inner)]

    @cached_property
    def types(self) -> np.ndarray:
        """int [N], of own rows."""
        return self.part.schema.types_of(np.asarray(self.part.node_ids))

    @property
    def bytes(self) -> int:
        return 8 * len(self.part.edge_src) + 60 * len(self.part.node_ids)

    def mark(self, outputs: np.ndarray, layer: int, sample: Sample | None) -> tuple[np.ndarray, int]:
        """The rows that a layer reads as sources, bool [N + H], and how many edges it has.

        Args:
            outputs: bool [N], own rows that it computes.
            layer: from 0.
            sample: which edges are kept; None: all.
        """
        marks = np.zeros(len(self.read_ids), np.uint8)
        if sample is not None:
            chosen = self.in_edges.keep(by_type(np.flatnonzero(outputs), self.part.row_bounds), layer, sample, marks)
            return marks.astype(bool), sum(len(kept.sources) for kept in chosen)
        edges = mark_all(self.part, self.place, outputs, marks)
        if self.loops:  # one each, in place of the data's own
            edges += int(outputs.sum()) - int(self._own_loops[outputs].sum())
        return marks.astype(bool), edges

    @cached_property
    def in_edges(self) -> InEdges:
        part = with_self_loops(self.part, self.place) if self.loops else self.part
        return InEdges(part, self.place, own_loops=self.loops)

    @property
    def drawer_bytes(self) -> int:
        """Of what flows are drawn from (``plan.drawn``). A part with self-loops is none that is mapped from the store."""
        looped = 8 * (len(self.part.edge_src) + len(self.inner)) if self.loops else 0
        return self.in_edges.bytes + looped + 4 * len(self.read_ids) + 4 * len(self.part.halo_ids)

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
        verify: as of ``open_part``.

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
        verify: bool = True,
    ) -> None:
        self._config, self._part, self._store, self._bounds = config, part, store, bounds
        self._dataset = dataclasses.replace(dataset, columns=dataset.columns.only(columns))
        self._columns, self._verify = columns, verify
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
            part = with_columns(open_part(self._store, rank, with_features=False, verify=self._verify), self._columns)
        else:
            part = self._cutter.part(rank, self._cutter.edges(rank), nothing)
        inner = np.ones(len(part.node_ids), bool) if inner is None else inner
        return Opened(part, place, self._config.add_self_loops, inner)

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


def count_parts(parts: OpenParts) -> list[PartSizes]:
    """By worker."""
    sizes, sent = [], np.zeros(parts.world, np.int64)
    for ranks in parts.servers:
        for rank in ranks:
            opened = parts[rank]
            part, inner, types = opened.part, opened.inner, len(opened.part.schema.node_types)
            sent[ranks.start : ranks.stop] += np.diff(part.halo_offsets)
            split = np.asarray(part.split) * inner
            edges = np.diff(part.edge_offsets).reshape(len(ranks), -1).sum(0)
            rows, own = (np.bincount(opened.types[kept], minlength=types) for kept in (slice(None), inner))
            targets, in_any = int(in_split(split, "train").sum()), int((split > 0).sum())
            counted = tuple(rows.tolist()), tuple(edges.tolist()), len(part.halo_ids), 0, targets, in_any
            sizes.append(PartSizes(*counted, inner=tuple(own.tolist())))
    return [dataclasses.replace(part_sizes, sent=int(rows)) for part_sizes, rows in zip(sizes, sent, strict=True)]


@dataclass(frozen=True)
class Published:
    """A graph's published sizes.

    Attributes:
        nodes: by type; the first one has the labels.
        edges: relations: type, name, type, how many.
        train: labelled nodes that train.
        split: labelled nodes of all three splits.
        halo: rows of others for each own row, by numbers of workers P, where they are known.
        source: how these are known.
    """

    nodes: tuple[Sized, ...]
    edges: tuple[tuple[int, str, int, int], ...]
    classes: int
    train: int
    split: int
    halo: tuple[tuple[int, float], ...] = ()
    source: str = ""

    @property
    def num_nodes(self) -> int:
        return sum(count for _, count, _ in self.nodes)

    @property
    def num_edges(self) -> int:
        return sum(count for *_, count in self.edges)

    def as_configured(self, config: DatasetSettings) -> Published:
        """With inverse edges, and without types, as the dataset's settings have it."""
        edges, nodes = self.edges, self.nodes
        if getattr(config, "homogenize", False):
            nodes = (("node", self.num_nodes, max(width for _, _, width in nodes)),)
            edges = ((0, "edge", 0, self.num_edges),)
        if getattr(config, "add_inverse_edges", False):
            if len(nodes) == 1:
                edges = tuple((s, name, d, 2 * count) for s, name, d, count in edges)
            else:
                edges += tuple((d, f"rev_{name}", s, count) for s, name, d, count in edges)
        return dataclasses.replace(self, nodes=nodes, edges=edges)

    @property
    def schema(self) -> Schema:
        offsets = [0]
        for _, count, _ in self.nodes:
            offsets.append(offsets[-1] + count)
        relations = tuple(Relation(s, name, d) for s, name, d, _ in self.edges)
        return Schema(tuple(name for name, *_ in self.nodes), tuple(offsets), relations)

    def part(self, world: int, halo: float) -> PartSizes:
        """One of P equal parts. ``halo``: rows of others for each own row."""
        rows = tuple(-(-count // world) for _, count, _ in self.nodes)
        others = min(round(halo * sum(rows)), self.num_nodes - sum(rows))
        edges = tuple(-(-count // world) for *_, count in self.edges)
        return PartSizes(rows, edges, others, others, -(-self.train // world), -(-self.split // world))


PUBLISHED = {
    "ogbn-arxiv": Published((("paper", 169_343, 128),), ((0, "cites", 0, 1_166_243),), 40, 90_941, 169_343),
    "ogbn-products": Published(
        (("product", 2_449_029, 100),),
        ((0, "bought_with", 0, 61_859_140),),
        47,
        196_615,
        2_449_029,
        ((8, 2.3),),
        "that of products_like, cut into 8 by METIS",
    ),
    "ogbn-papers100M": Published(
        (("paper", 111_059_956, 128),),
        ((0, "cites", 0, 1_615_685_872),),
        172,
        1_207_179,
        1_546_782,
        ((32, 6.2), (64, 8.1), (128, 11.3)),
        "read off the SAR paper's figure",
    ),
    "ogbn-mag": Published(
        (("paper", 736_389, 128), ("author", 1_134_649, 0), ("field_of_study", 59_965, 0), ("institution", 8_740, 0)),
        (
            (1, "affiliated_with", 3, 1_043_998),
            (1, "writes", 0, 7_145_660),
            (0, "cites", 0, 5_416_271),
            (0, "has_topic", 2, 7_505_078),
        ),
        349,
        629_571,
        736_389,
    ),
    "cora": Published((("paper", 2_708, 1_433),), ((0, "cites", 0, 10_556),), 7, 140, 1_640),
    "citeseer": Published((("paper", 3_327, 3_703),), ((0, "cites", 0, 9_104),), 6, 120, 1_620),
    "pubmed": Published((("paper", 19_717, 500),), ((0, "cites", 0, 88_648),), 3, 60, 1_560),
    "reddit": Published((("post", 232_965, 602),), ((0, "shares_a_user", 0, 114_615_892),), 41, 153_431, 232_965),
}
"""papers100M's halo is what makes the paper's vanilla bars of GraphSage higher than those of SAR: vanilla training holds what
the three layers read of others, (128 + 256 + 256) numbers of 4 bytes a row, until backward; SAR holds none of it. With N / P
own rows

    halo = (vanilla - SAR) / (2560 B x N / P) = (150 - 95) GB / (2560 B x 3.47 M) = 6.2 for P = 32; 8.1 for 64; 11.3 for 128.
"""

PAPER_BARS: dict[str, dict[str, dict[int, float | None]]] = {
    "sage": {"sar": {32: 95, 64: 47, 128: 25}, "domain_parallel": {32: 150, 64: 83, 128: 50}},
    "gat": {"sar": {32: 67, 64: 35, 128: 19}, "domain_parallel": {32: None, 64: 126, 128: 75}},
}
"""GB of a worker on papers100M in the SAR paper's figures, by model, mode and number of workers; None: out of memory."""


def halo_of(graph: Published, world: int) -> float | None:
    """Rows of others for each own row, linear in log2 P between what is known, 0 with one worker; None: nothing is known."""
    if world == 1:
        return 0.0
    if not graph.halo:
        return None
    points = [(1, 0.0), *graph.halo]
    after = next((i for i, (workers, _) in enumerate(points) if workers >= world), len(points) - 1)
    (w0, h0), (w1, h1) = points[after - 1], points[after]
    return h0 + (h1 - h0) * (math.log2(world) - math.log2(w0)) / (math.log2(w1) - math.log2(w0))
