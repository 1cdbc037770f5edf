"""Pairs that come with a graph: the held ones are no messages, each is there once, and all are known. And labels of its edges.

Letters: N nodes, E directed edges, P pairs, Q negatives, K negatives of a pair, R relations, C outputs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.check import count_classes
from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import ATTR
from sargnn.graph.pairs import MEASURED, Known, Pairs
from sargnn.graph.schema import SPLITS, Relation, Schema, has_label, relation_dtype
from sargnn.graph.typed import Edges

_CANDIDATES = ("candidates", "head_candidates")


@dataclass(frozen=True)
class SplitPairs:
    """Pairs of a split, a name of ``SPLITS``, and a relation. Ends are original ids of nodes that exist.

    Attributes:
        heads, tails: int64 [P], in any order; repeats count once.
        weights: float32 [P], of the training loss; those of repeats are added up. None: all are 1.
        negatives: int64 [Q, 2], heads and tails; None: there are none.
        candidates, head_candidates: int64 [P, K], tails and heads; None: there are none.
    """

    split: str
    relation: int
    heads: np.ndarray
    tails: np.ndarray
    weights: np.ndarray | None = None
    negatives: np.ndarray | None = None
    candidates: np.ndarray | None = None
    head_candidates: np.ndarray | None = None

    def keys(self, num_nodes: int, *, both_ways: bool) -> np.ndarray:
        """int64 [P], the same for the same pair alone; ``both_ways``: also for its inverse."""
        return _keys(self.heads, self.tails, num_nodes, both_ways=both_ways)

    def once(self, num_nodes: int, *, both_ways: bool) -> SplitPairs:
        """Without repeats, each where it is first; ``both_ways``: an inverse is a repeat."""
        _, first, which = np.unique(self.keys(num_nodes, both_ways=both_ways), return_index=True, return_inverse=True)
        order = np.argsort(first)
        rows = first[order]
        weights = None if self.weights is None else np.bincount(which, self.weights)[order].astype(np.float32)
        given: dict[str, Any] = {
            name: None if ids is None else ids[rows] for name in _CANDIDATES for ids in [getattr(self, name)]
        }
        return replace(self, heads=self.heads[rows], tails=self.tails[rows], weights=weights, **given)


def give_pairs(
    dataset: Dataset, given: Sequence[SplitPairs], *, messages: bool = True, undirected: bool | None = None
) -> Dataset:
    """The graph with these pairs.

    Edges between the two ends of a validation or test pair leave it, those of its relation and of the inverse one, in both
    directions. Where a relation has no training pairs, these are the edges that it keeps, without loops. Known are all pairs
    and all edges of their relations.

    Args:
        given: at most one for each split and relation; of a split all have candidates or none has, K of each.
        messages: training pairs that are edges stay so.
        undirected: of a graph that is published with its split: whether a pair is the same as its inverse. Its edges are its
            training pairs, and all stay, as others have measured it. None: edges tell (``same_both_ways``).
    """
    n, schema = dataset.num_nodes, dataset.schema
    edges = _GraphEdges(dataset)
    sources, destinations, relation, leaves = edges.sources, edges.destinations, edges.relation, edges.leaves
    having = sorted({pairs.relation for pairs in given})

    def take_out(split_pairs: Iterable[SplitPairs]) -> None:
        for pairs in split_pairs:
            edges.take_out(pairs.relation, pairs.heads, pairs.tails)

    is_link = np.isin(relation, having) & (sources != destinations)
    if undirected is None:
        take_out(pairs for pairs in given if pairs.split in MEASURED)
        both_ways = not schema.typed and same_both_ways(sources[is_link & ~leaves], destinations[is_link & ~leaves])
        trained = {pairs.relation for pairs in given if pairs.split == "train"}
        for r in having:
            if r not in trained:
                kept = is_link & ~leaves & (relation == r) & (not both_ways or sources < destinations)
                given = [*given, SplitPairs("train", r, sources[kept], destinations[kept])]
    else:
        both_ways, is_link = undirected, np.zeros(len(sources), bool)
    given = sorted((pairs.once(n, both_ways=both_ways) for pairs in given), key=lambda p: (SPLITS[p.split], p.relation))
    if undirected is None:
        _warn_of_answers(dataset.name, given, n, both_ways=both_ways)
    if not messages:
        take_out(pairs for pairs in given if pairs.split == "train")
    heads, tails = (np.concatenate([getattr(pairs, end) for pairs in given]) for end in ("heads", "tails"))
    linked, to = np.concatenate([heads, sources[is_link]]), np.concatenate([tails, destinations[is_link]])
    counts = [len(pairs.heads) for pairs in given]
    of = np.repeat(np.array([pairs.relation for pairs in given], relation_dtype(len(schema.relations))), counts)
    every = np.concatenate([of, relation[is_link]])
    if both_ways:
        linked, to, every = np.concatenate([linked, to]), np.concatenate([to, linked]), np.concatenate([every, every])
    related = len(schema.relations) > 1
    weighted = any(pairs.weights is not None for pairs in given)
    weights = [np.ones(len(p.heads), np.float32) if p.weights is None else p.weights for p in given]
    pairs = Pairs(
        heads,
        tails,
        np.repeat(np.array([SPLITS[pairs.split] for pairs in given], np.uint8), counts),
        Known.of(linked, to, every if related else None, n),
        both_ways,
        of if related else None,
        np.concatenate(weights) if weighted else None,
        **_compared(given),
    )
    return with_links(dataset, destinations, leaves, pairs)


class _GraphEdges:
    """Edges of a graph, some of which leave it: int64 [E] twice, relations [E], bool [E]."""

    def __init__(self, dataset: Dataset) -> None:
        self._n = n = dataset.num_nodes
        self.sources = np.asarray(dataset.indices, np.int64)
        self.destinations = np.repeat(np.arange(n), np.diff(np.asarray(dataset.indptr)))
        nothing = np.zeros(len(self.sources), np.uint8)
        self.relation = nothing if dataset.relation is None else np.asarray(dataset.relation)
        self.leaves = np.zeros(len(self.sources), bool)
        self._inverses = inverse_relations(dataset.schema)
        self._inverses |= {r: inverse for inverse, r in self._inverses.items()}

    def take_out(self, relation: int, heads: np.ndarray, tails: np.ndarray) -> None:
        """Edges between the two ends of pairs (int64 [P]) leave, those of the relation and of the inverse one, both ways."""
        edges = np.flatnonzero((self.relation == relation) | (self.relation == self._inverses.get(relation, -1)))
        gone = np.unique(_keys(heads, tails, self._n, both_ways=True))
        self.leaves[edges] |= np.isin(_keys(self.sources[edges], self.destinations[edges], self._n, both_ways=True), gone)


@dataclass(frozen=True)
class EdgeLabels:
    """Labels of a relation's edges, as they were given with their features.

    Attributes:
        labels: [E] or [E, C] (``graph.schema``).
        split: uint8 [E]; all 0: it is still to be drawn.
    """

    edges: Edges
    relation: int
    labels: np.ndarray
    split: np.ndarray


def label_edges(dataset: Dataset, given: Sequence[EdgeLabels], *, messages: bool = True) -> Dataset:
    """The graph, without pairs, with labelled edges, relation after relation, as they were given; also those whose labels are
    not known.

    With ``messages`` those that have labels stay edges; else they leave the graph, in both directions. Raises ``DataError``: a
    label that is none, or no edge to train on.
    """
    schema = dataset.schema
    heads, tails, features = [], [], []
    width = max(labelled.edges.columns.width for labelled in given)
    for labelled in given:
        of = labelled.edges
        relation, columns = schema.relations[labelled.relation], of.columns
        heads.append(of.sources + schema.offsets[relation.source])
        tails.append(of.destinations + schema.offsets[relation.destination])
        features.append(np.asarray(columns[ATTR]) if ATTR in columns else np.zeros((len(of.sources), width), np.float32))
    labels = joined([labelled.labels for labelled in given])
    form = relation_dtype(len(schema.relations))
    numbers = np.repeat(np.array([labelled.relation for labelled in given], form), [len(ends) for ends in heads])
    pairs = Pairs(
        joined(heads),
        joined(tails),
        joined([labelled.split for labelled in given]),
        Known.none(dataset.num_nodes),
        relation=numbers if len(schema.relations) > 1 else None,
        labels=labels,
        outputs=count_classes(labels, "labels of edges"),
        features=joined(features) if width else None,
    )
    return replace(dataset, pairs=pairs) if messages else without_labelled(dataset, pairs)


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """One behind the other; of a single one no copy, which may be mapped."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def without_labelled(dataset: Dataset, pairs: Pairs) -> Dataset:
    """The graph with labelled edges, and without the edges that have labels, in both directions. Raises ``DataError``."""
    edges, known = _GraphEdges(dataset), has_label(np.asarray(pairs.labels))
    relations = np.zeros(len(known), np.uint8) if pairs.relation is None else np.asarray(pairs.relation)
    for relation in np.unique(relations).tolist():
        of = known & (relations == relation)
        edges.take_out(relation, np.asarray(pairs.heads)[of], np.asarray(pairs.tails)[of])
    if edges.leaves.all():
        raise DataError(
            f"No edge of '{dataset.name}' is left as a message.",
            given="dataset.link_messages=false, and all edges have labels",
            hint="dataset.link_messages=true",
        )
    return with_links(dataset, edges.destinations, edges.leaves, pairs)


def with_links(dataset: Dataset, destinations: np.ndarray, leaves: np.ndarray, pairs: Pairs) -> Dataset:
    """The graph with pairs, and without the edges that leave it. Of edges: ``destinations`` int64 [E], ``leaves`` bool [E]."""
    kept = np.flatnonzero(~leaves)
    counts = np.bincount(destinations[kept], minlength=dataset.num_nodes)
    return replace(
        dataset,
        indptr=np.concatenate([[0], np.cumsum(counts)]),
        indices=np.asarray(dataset.indices)[kept],
        relation=None if dataset.relation is None else np.asarray(dataset.relation)[kept],
        columns=dataset.columns.take(kept),
        content_hash="",
        stored_weights=None,
        pairs=pairs,
    )


def same_both_ways(heads: np.ndarray, tails: np.ndarray) -> bool:
    """Whether each edge has its inverse, repeats left out of account."""
    count = int(max(heads.max(initial=0), tails.max(initial=0))) + 1
    up, down = heads < tails, heads > tails
    return np.array_equal(np.unique(heads[up] * count + tails[up]), np.unique(tails[down] * count + heads[down]))


def inverse_relations(schema: Schema) -> dict[int, int]:
    """Relation called ``rev_NAME`` -> the one called NAME that joins the same types the other way round."""
    numbers = {relation: r for r, relation in enumerate(schema.relations)}
    turned = {r: Relation(to, name.removeprefix("rev_"), of) for (of, name, to), r in numbers.items() if name[:4] == "rev_"}
    return {r: numbers[relation] for r, relation in turned.items() if relation in numbers}


def _compared(given: Sequence[SplitPairs]) -> dict[str, Any]:
    """Negatives and candidates by split, by their names in ``Pairs``."""

    def joined(name: str, split: str) -> list[np.ndarray]:
        return [array for pairs in given if pairs.split == split and (array := getattr(pairs, name)) is not None]

    names = ("negatives", *_CANDIDATES)
    return {name: {s: np.concatenate(arrays) for s in MEASURED if (arrays := joined(name, s))} for name in names}


def _keys(heads: np.ndarray, tails: np.ndarray, num_nodes: int, *, both_ways: bool) -> np.ndarray:
    first, second = (np.minimum(heads, tails), np.maximum(heads, tails)) if both_ways else (heads, tails)
    return first * num_nodes + second


def _warn_of_answers(name: str, given: Sequence[SplitPairs], num_nodes: int, *, both_ways: bool) -> None:
    """Say how many training pairs are measured by, too."""
    count = 0
    for pairs in given:
        if pairs.split == "train":
            held = [p.keys(num_nodes, both_ways=both_ways) for p in given if p.relation == pairs.relation and p is not pairs]
            count += int(
                np.isin(pairs.keys(num_nodes, both_ways=both_ways), np.concatenate([np.zeros(0, np.int64), *held])).sum()
            )
    if count:
        logging.getLogger(__name__).warning(
            f"{count} training pairs of '{name}' are validation or test pairs, too: what is measured is trained on."
        )
