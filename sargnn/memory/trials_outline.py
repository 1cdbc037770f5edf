"""What decides how fast a graph is trained, in a few figures, and small graphs drawn after them: for trials of its speed.

Nodes of all types lie on a line that is cut into communities of ``COMMUNITY`` nodes, which fit a core's second-level cache as
the clusters of a part's nodes do (``partition.order``). An edge picks its source's community. Its destination lies in the same
one with probability ``inside``, with probability ``far`` anywhere, else anywhere in the same part. Inside a community an end is
``size * u ** skew`` for a uniform u, a power law of popularity; ends of an edge that leads anywhere are skewed by ``far_skew``,
so that as many different rows travel as in the real graph.

Letters: N nodes, E edges, F features, T node types, R relations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sargnn.config.partitioner import PartitionerConfig
from sargnn.config.run import Task
from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import ATTR, WEIGHT, EdgeColumns
from sargnn.graph.schema import Relation, random_labels
from sargnn.graph.typed import Edges, typed_dataset
from sargnn.partition import metis, stream
from sargnn.partition.metis import kway
from sargnn.partition.order import graph_within, group_members
from sargnn.partition.quality import quality_of
from sargnn.tasks.kinds import in_split, make_split

COMMUNITY = 1000
_PASSES, _IMBALANCE = 5, 0.1
"""Of the cut into two that tells how far edges lead."""
_METIS_EDGES = 1_000_000
"""Graphs with so many are cut by METIS in a second; larger ones by streaming, which finds parts better the larger they are."""
_PART_EDGES = 1_500_000
"""Of the part whose clusters are counted."""
_MOST_SKEW, _MOST_FAR_SKEW = 4.0, 16.0
_POPULAR = 0.1


@dataclass(frozen=True)
class Outline:
    """A graph's figures, rounded, so that graphs that are trained alike have the same.

    Attributes:
        shares: of all nodes, by type [T].
        widths: F of each type [T].
        relations: type of the sources, type of the destinations, edges for each node of the graph [R].
        labelled: the type with labels.
        classes: outputs.
        task: what is predicted.
        trained: share of that type's nodes.
        inside: share of edges within a cluster of about ``COMMUNITY`` nodes.
        far: share of edges that lead anywhere, which a cut may cut.
        skew: of popularity.
        far_skew: of popularity, for edges that lead anywhere.
        weighted: whether edges have weights.
        edge_width: features of an edge.
    """

    shares: tuple[float, ...]
    widths: tuple[int, ...]
    relations: tuple[tuple[int, int, float], ...]
    labelled: int
    classes: int
    task: Task
    trained: float
    inside: float
    far: float
    skew: float
    far_skew: float
    weighted: bool = False
    edge_width: int = 0

    @classmethod
    def of(cls, dataset: Dataset) -> Outline:
        """Counted in a few passes over the edges, for a cut into two and for clusters of one part."""
        schema, split = dataset.schema, np.asarray(dataset.split)
        n = dataset.num_nodes
        counts = [schema.count(t) for t in range(len(schema.node_types))]
        edges = [dataset.num_edges]
        if dataset.relation is not None:
            edges = np.bincount(np.asarray(dataset.relation), minlength=len(schema.relations)).tolist()
        labelled = int(np.bincount(schema.types_of(np.flatnonzero(split)), minlength=len(counts)).argmax())
        far, far_skew = _far(dataset)
        return cls(
            shares=tuple(_rounded(count / n) for count in counts),
            widths=dataset.feature_widths,
            relations=tuple(
                (relation.source, relation.destination, _rounded(e / n))
                for relation, e in zip(schema.relations, edges, strict=True)
            ),
            labelled=labelled,
            classes=dataset.num_classes,
            task=dataset.task,
            trained=_rounded(int(in_split(split, "train").sum()) / max(1, counts[labelled])),
            inside=round(min(_inside(dataset), 1 - far), 1),
            far=round(20 * far) / 20,
            skew=round(2 * _skew(np.diff(np.asarray(dataset.indptr)))) / 2,
            far_skew=float(round(far_skew)),
            weighted=WEIGHT in dataset.columns,
            edge_width=dataset.columns.width,
        )

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Outline:
        """The inverse of ``dataclasses.asdict``, lists for tuples. Raises ``KeyError``, ``TypeError``, ``ValueError``."""
        tuples = {name: tuple(content[name]) for name in ("shares", "widths")}
        relations = tuple((source, destination, edges) for source, destination, edges in content["relations"])
        return cls(**(dict(content) | tuples | {"relations": relations}))

    def draw(self, rows: int, world: int, *, crossing: float = 1.0, seed: int = 0) -> tuple[Dataset, np.ndarray]:
        """A graph after these figures, and its parts: runs of communities.

        Args:
            rows: N, about.
            world: P parts.
            crossing: share of the edges that lead anywhere which may leave their part.

        Returns:
            The dataset, and the part of each node, int32 [N].
        """
        rng = np.random.default_rng([seed, rows])
        counts = [max(1, round(share * rows)) for share in self.shares]
        communities = max(world, rows // COMMUNITY)
        cut, relations = _Cut(communities, world, crossing), []
        for number, (source, destination, per_node) in enumerate(self.relations):
            ends = self._ends(rng, counts[source], counts[destination], max(1, round(per_node * rows)), cut)
            weights = rng.random(len(ends[0]), dtype=np.float32) + 0.5 if self.weighted else None
            features = rng.random((len(ends[0]), self.edge_width), dtype=np.float32) if self.edge_width else None
            carried = EdgeColumns.of({WEIGHT: weights, ATTR: features})
            relations.append(Edges(Relation(source, f"relation {number}", destination), *ends, carried))
        of_nodes = [rng.standard_normal((n, width), dtype=np.float32) for n, width in zip(counts, self.widths, strict=True)]
        n = counts[self.labelled]
        train = max(1, min(n, round(self.trained * n)))
        split = make_split(n, rng.permutation(n)[:train], rest="test")
        types = [f"type {t}" for t in range(len(counts))]
        dataset = typed_dataset(
            "outline",
            self.classes,
            types,
            of_nodes,
            relations,
            self.labelled,
            random_labels(self.task, rng, n, self.classes),
            split,
        )
        part = np.concatenate([cut.part(np.arange(n) * communities // n) for n in counts])
        return dataset, part.astype(np.int32)

    def _ends(
        self, rng: np.random.Generator, sources: int, destinations: int, count: int, cut: _Cut
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sources and destinations of a relation's edges, numbers within their types; parallel edges stay."""
        here = rng.integers(cut.communities, size=count)
        kind = rng.random(count)
        leaves = kind < self.far
        there = np.where(leaves, cut.anywhere(rng, here), cut.in_part(rng, here))
        there = np.where(kind >= max(self.far, 1 - self.inside), here, there)
        skew = np.where(leaves, self.far_skew, self.skew)
        return _members(rng, here, sources, cut.communities, skew), _members(rng, there, destinations, cut.communities, skew)


@dataclass(frozen=True)
class _Cut:
    """Communities in parts; of their edges the share ``crossing`` may leave their part."""

    communities: int
    world: int
    crossing: float

    def part(self, community: np.ndarray) -> np.ndarray:
        """The part of each community."""
        return community * self.world // self.communities

    def anywhere(self, rng: np.random.Generator, here: np.ndarray) -> np.ndarray:
        """For each community any, or any of its part."""
        chosen = rng.random(len(here)) < self.crossing
        return np.where(chosen, rng.integers(self.communities, size=len(here)), self.in_part(rng, here))

    def in_part(self, rng: np.random.Generator, here: np.ndarray) -> np.ndarray:
        """For each community any of its part."""
        bounds = -(-np.arange(self.world + 1) * self.communities // self.world)
        first, last = bounds[self.part(here)], bounds[self.part(here) + 1]
        communities: np.ndarray = first + (rng.random(len(here)) * (last - first)).astype(np.int64)
        return communities


def _rounded(value: float) -> float:
    """To two digits that count."""
    return float(f"{value:.2g}")


def _members(rng: np.random.Generator, community: np.ndarray, size: int, communities: int, skew: np.ndarray) -> np.ndarray:
    """A node of each community; a type may have fewer nodes than there are communities."""
    place = (community + rng.random(len(community)) ** skew) / communities
    return np.minimum((place * size).astype(np.int64), size - 1)


def _far(dataset: Dataset) -> tuple[float, float]:
    """The share of edges that lead anywhere, half of which a cut into two cuts, and the skew that gives its halo."""
    n = dataset.num_nodes
    settings = PartitionerConfig("stream", 0, "original", balance="both", passes=_PASSES, imbalance=_IMBALANCE)
    assign = metis.assign if dataset.num_edges <= _METIS_EDGES else stream.assign
    cut = quality_of(dataset, assign(dataset, 2, settings), 2)
    per_row, halo = cut.edge_cut * dataset.num_edges / n, cut.halo_rows / n
    low, high = 1.0, _MOST_FAR_SKEW
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if _reached(per_row, middle) > halo else (low, middle)
    return min(1.0, 2 * cut.edge_cut), (low + high) / 2


def _inside(dataset: Dataset) -> float:
    """Of the edges into a part's nodes, how many stay in the clusters that its nodes are ordered by."""
    n = dataset.num_nodes
    parts = max(1, -(-dataset.num_edges // _PART_EDGES))
    settings = PartitionerConfig("stream", 0, "original", balance="both", passes=_PASSES, imbalance=_IMBALANCE)
    part = np.zeros(n, np.int32) if parts == 1 else stream.assign(dataset, parts, settings)
    members = group_members(part, parts)
    own, clusters = members.own(0), -(-len(members.own(0)) // COMMUNITY)
    graph = graph_within(dataset, members, 0)
    if clusters < 2 or not graph.nnz:
        return 1.0
    cluster = kway(graph, clusters, seed=0, imbalance=_IMBALANCE)
    rows = np.repeat(np.arange(len(own)), np.diff(graph.indptr))
    within = graph.data[cluster[rows] == cluster[graph.indices]].sum() / 2  # each edge is there both ways
    indptr = np.asarray(dataset.indptr)
    return float(within / max(1, (indptr[own + 1] - indptr[own]).sum()))


def _reached(per_row: float, skew: float) -> float:
    """Of the rows of a community, how many the ends of ``per_row`` edges a row meet, on average, skewed so."""
    places = np.linspace(0, 1, COMMUNITY + 1) ** (1 / skew)
    return float((1 - np.exp(-per_row * COMMUNITY * np.diff(places))).mean())


def _skew(degrees: np.ndarray) -> float:
    """s of popularities ``u ** s``: the first share q of the nodes has a share ``q ** (1 / s)`` of the edges."""
    ordered = np.sort(degrees)[::-1]
    share = ordered[: max(1, int(_POPULAR * len(ordered)))].sum() / max(1, ordered.sum())
    return float(np.clip(np.log(_POPULAR) / np.log(np.clip(share, 1e-6, 1 - 1e-6)), 1.0, _MOST_SKEW))
