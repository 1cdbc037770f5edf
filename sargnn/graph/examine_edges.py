"""A graph's edges looked over, in pieces of memory-mapped arrays: degrees, loops, repeats, inverses, the classes they join.

Beside a piece there are 4 bytes a node for out-degrees (8 from 2**32 edges on).

Letters: N nodes, E directed edges, R relations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sargnn.graph.dataset import Dataset, row_runs
from sargnn.native import Entry
from sargnn.steps import step

ALL_RELATIONS = -1
"""Stands for all relations into a node together."""
_PIECE = 1 << 22
_SAMPLE = 1 << 20
_CHUNK_EDGES = 1 << 24
_LOOPS, _REPEATS = 1, 2
_scan = Entry(
    "scan_edges",
    "row int, starts l, sources *, relation *, labels l, out_degree * N, totals l R 3, ends l 2 C, inside l 1",
)
_look_up = Entry(
    "look_up_inverses",
    "sources * E, destinations l E, relation *, indptr l N+1, indices *, asked l R, inverses l R",
)


@dataclass(frozen=True)
class NodeFindings:
    """The nodes of a type: degrees, and how many have no edge in either direction, none in, and are of a split with none in."""

    count: int
    in_median: float
    in_max: int
    out_median: float
    out_max: int
    without_edges: int
    without_in_edges: int
    split_without_in_edges: int


@dataclass(frozen=True)
class EdgeFindings:
    """The edges of a relation: how many, from a node to itself, and with the ends of another one, beyond the first.

    ``with_inverse``: share of the edges without loops whose inverse is there, in any relation; None where there are none.
    ``about``: that is of a sample.
    """

    source: str
    name: str
    destination: str
    count: int
    loops: int
    repeats: int
    with_inverse: float | None
    about: bool


@dataclass(frozen=True)
class Homophily:
    """Edges without loops between labelled nodes. ``same``: share of them inside a class; ``chance``: what it would be if the
    classes of an edge's ends had nothing to do with each other."""

    edges: int
    same: float
    chance: float


def examine_edges(dataset: Dataset, buffer_bytes: int) -> tuple[dict[str, NodeFindings], list[EdgeFindings], Homophily | None]:
    """One pass over all edges, and one for inverses; over a sample where the graph is larger than ``buffer_bytes``. Findings by
    type, by relation, and for a classification with edges between labelled nodes.
    """
    schema, e = dataset.schema, dataset.num_edges
    out_degree = np.zeros(dataset.num_nodes, np.uint32 if e < 2**32 else np.int64)
    totals = np.zeros((len(schema.relations), 3), np.int64)
    classes = dataset.num_classes if dataset.task == "classes" else 0
    labels = np.asarray(dataset.labels) if classes else np.zeros(0, np.int64)
    inside, ends = np.zeros(1, np.int64), np.zeros((2, classes), np.int64)
    for row, last, sources, relation in _pieces(dataset):
        starts = np.asarray(dataset.indptr[row : last + 1])
        _scan(row, starts - starts[0], sources, relation, labels, out_degree, totals, ends, inside)
    bounds = zip(schema.node_types, schema.offsets, schema.offsets[1:], strict=False)
    nodes = {name: _examine_nodes(dataset, out_degree, begin, end) for name, begin, end in bounds}
    asked, inverses, about = _count_inverses(dataset, buffer_bytes)
    relations = [
        EdgeFindings(
            source=schema.node_types[edge_type.source],
            name=edge_type.name,
            destination=schema.node_types[edge_type.destination],
            count=int(totals[r, 0]),
            loops=int(totals[r, _LOOPS]),
            repeats=int(totals[r, _REPEATS]),
            with_inverse=float(inverses[r] / asked[r]) if asked[r] else None,
            about=about,
        )
        for r, edge_type in enumerate(schema.relations)
    ]
    between = int(ends[0].sum())
    chance = float(ends[0] @ (ends[1] / between)) / between if between else 0.0
    return nodes, relations, Homophily(between, int(inside[0]) / between, chance) if between else None


def _pieces(dataset: Dataset) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """Destinations [row, last) with their edges' sources and relations (one 0 where there is one relation only)."""
    for row, last in row_runs(dataset.indptr, _PIECE):
        own = slice(int(dataset.indptr[row]), int(dataset.indptr[last]))
        step("looking at edges", own.start, dataset.num_edges)
        relation = np.zeros(1, np.uint8) if dataset.relation is None else np.asarray(dataset.relation[own])
        yield row, last, np.asarray(dataset.indices[own]), relation


def _examine_nodes(dataset: Dataset, out_degree: np.ndarray, begin: int, end: int) -> NodeFindings:
    """The nodes [begin, end), which are those of a type."""
    in_degrees: Counter[int] = Counter()
    out_degrees: Counter[int] = Counter()
    without = without_in = of_split = 0
    for first in range(begin, end, _PIECE):
        last = min(first + _PIECE, end)
        inward, outward = np.diff(dataset.indptr[first : last + 1]), out_degree[first:last]
        for degrees, counts in ((inward, in_degrees), (outward, out_degrees)):
            values, numbers = np.unique(degrees, return_counts=True)
            counts.update(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
        none = inward == 0
        without_in += int(none.sum())
        without += int((none & (outward == 0)).sum())
        of_split += int((none & (np.asarray(dataset.split[first:last]) > 0)).sum())
    return NodeFindings(
        count=end - begin,
        in_median=_median(in_degrees),
        in_max=max(in_degrees, default=0),
        out_median=_median(out_degrees),
        out_max=max(out_degrees, default=0),
        without_edges=without,
        without_in_edges=without_in,
        split_without_in_edges=of_split,
    )


def _median(counts: Counter[int]) -> float:
    """Of values, each as often as it is counted."""
    values = np.array(sorted(counts))
    if not len(values):
        return 0.0
    below = np.cumsum([counts[value] for value in values.tolist()])
    middle = np.searchsorted(below, [(below[-1] - 1) // 2, below[-1] // 2], side="right")
    return float(values[middle].mean())


def _count_inverses(dataset: Dataset, buffer_bytes: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """By relation: edges that were asked for and are no loops, those whose inverse is there, and whether it is a sample.

    Looking an inverse up reads the graph here and there, which takes a disk too long for every edge.
    """
    indptr, indices = np.asarray(dataset.indptr), np.asarray(dataset.indices)
    asked, inverses = (np.zeros(len(dataset.schema.relations), np.int64) for _ in range(2))
    about = indptr.nbytes + indices.nbytes > buffer_bytes and dataset.num_edges > _SAMPLE
    if about:
        step("looking at inverse edges")
        positions = np.arange(_SAMPLE, dtype=np.int64) * dataset.num_edges // _SAMPLE
        relation = np.zeros(1, np.uint8) if dataset.relation is None else np.asarray(dataset.relation)[positions]
        destinations = np.searchsorted(indptr, positions, side="right") - 1
        _look_up(indices[positions], destinations, relation, indptr, indices, asked, inverses)
        return asked, inverses, about
    for row, last, sources, relation in _pieces(dataset):
        destinations = np.repeat(np.arange(row, last), np.diff(indptr[row : last + 1]))
        _look_up(sources, destinations, relation, indptr, indices, asked, inverses)
    return asked, inverses, about


def nodes_without_edges(dataset: Dataset, wanted: np.ndarray | None = None) -> dict[int, int]:
    """Of each relation that nodes of its destination type have no edge of, how many of the ``wanted`` ones, bool [N], or all;
    of ``ALL_RELATIONS``, how many no relation into their type reaches.

    Edges of a typed graph are read in runs of whole nodes; of others only ``indptr`` is.
    """
    schema = dataset.schema
    nodes_without: Counter[int] = Counter()
    asked = [(number, relation.destination) for number, relation in enumerate(schema.relations)]
    asked += [(ALL_RELATIONS, destination) for destination in {relation.destination for relation in schema.relations}]
    for number, destination in asked:
        first, last = schema.offsets[destination], schema.offsets[destination + 1]
        lacks = _in_degrees(dataset, number, first, last) == 0
        nodes_without[number] += int((lacks if wanted is None else lacks & wanted[first:last]).sum())
    return {relation: nodes for relation, nodes in nodes_without.items() if nodes}


def _in_degrees(dataset: Dataset, relation: int, first: int, last: int) -> np.ndarray:
    """Edges of a relation into the nodes from ``first`` up to ``last``."""
    indptr = np.asarray(dataset.indptr[first : last + 1])
    if dataset.relation is None or relation == ALL_RELATIONS:
        return np.diff(indptr)
    degrees = np.zeros(last - first, np.int64)
    for at, end in row_runs(indptr, _CHUNK_EDGES):
        own = np.asarray(dataset.relation[indptr[at] : indptr[end]]) == relation
        sums = np.concatenate([[0], np.cumsum(own)])
        degrees[at:end] = np.diff(sums[indptr[at : end + 1] - indptr[at]])
    return degrees
