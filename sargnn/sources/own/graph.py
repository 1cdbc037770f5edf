"""The one form that every own graph takes on its way into a store, and how a tree of named arrays becomes it.

A tree says for each of the names of ``own.given`` what there is; of a typed graph an entry is a mapping from node type, or from
(source type, relation, destination type), to arrays.

Letters: N nodes, E edges, F features, C columns of labels, k splits.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.check import check_widths
from sargnn.graph.edge_columns import ATTR
from sargnn.graph.schema import SPLITS
from sargnn.sources.own.edges import EdgeList, FeaturedEdges, Triplet, WeightedEdges
from sargnn.sources.own.given import (
    ALIASES,
    ALIKE,
    COUNT,
    EDGE_FEATURES,
    EDGE_LABELS,
    EDGE_MASKS,
    EDGES,
    FEATURES,
    LABELS,
    MASKS,
    NUMBERS,
    OF_EDGES,
    PAIRS,
    WEIGHTS,
    GivenArray,
)
from sargnn.sources.own.pairs import LabelledEdges, OwnPairs, build_edge_labels, build_pairs


@dataclass(frozen=True)
class Nodes:
    """What is known of the nodes of one type.

    Attributes:
        count: N.
        features: [N, F] or [N].
        labels: [N] or [N, C].
        masks: split name -> [N].
        numbers: split name -> node numbers.
    """

    count: int
    features: GivenArray | None = None
    labels: GivenArray | None = None
    masks: Mapping[str, GivenArray] = field(default_factory=dict)
    numbers: Mapping[str, GivenArray] = field(default_factory=dict)

    def digest(self) -> dict[str, Any]:
        """What decides the content, JSON-able."""
        arrays = {FEATURES: self.features, LABELS: self.labels}
        arrays |= {f"{name} mask": array for name, array in self.masks.items()}
        arrays |= {f"{name} numbers": array for name, array in self.numbers.items()}
        return {"count": self.count} | {what: array.digest() for what, array in arrays.items() if array is not None}


@dataclass(frozen=True)
class Unread:
    """What was given under names that mean nothing here, of nodes or the whole and of edges, as messages call it."""

    of_graph: list[str] = field(default_factory=list)
    of_edges: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class OwnGraph:
    """A graph as it was given; types and triplets are sorted.

    Attributes:
        whole: what messages call the graph.
        pairs: links to predict; empty: it has none.
        edge_labels: of those whose edges have labels.
    """

    name: str
    whole: str
    nodes: Mapping[str, Nodes]
    edges: Mapping[Triplet, EdgeList]
    unread: Unread
    pairs: OwnPairs = field(default_factory=dict)
    edge_labels: Mapping[Triplet, LabelledEdges] = field(default_factory=dict)

    def remarks(self) -> Iterator[str]:
        """What is not read, and what to do about it, in lines for a person."""
        if of_graph := self.unread.of_graph:
            features, labels = (", ".join(ALIASES[used]) for used in (FEATURES, LABELS))
            what = f"Features are read from {features}, labels from {labels}; all names: docs/howto/own-arrays.md."
            yield f"not read of {self.whole}: {', '.join(of_graph)}. {what}"
        if of_edges := self.unread.of_edges:
            names = f"name them {WEIGHTS} (in NetworkX weight), {EDGE_FEATURES}, {EDGE_LABELS}"
            what = f"Of edges weights, features and labels are read: {names}."
            yield f"not read of {self.whole}: {', '.join(of_edges)}. {what}"
        pairs = (ends for by in self.pairs.values() for given in by.values() for ends in given.lists)
        yield from (f"not read: {edges.unread}" for edges in (*self.edges.values(), *pairs) if edges.unread)

    @property
    def typed(self) -> bool:
        return len(self.nodes) > 1 or len(self.edges) > 1

    def digest(self) -> dict[str, Any]:
        """What decides the content, JSON-able."""
        nodes = {name: type_nodes.digest() for name, type_nodes in self.nodes.items()}
        content = {"nodes": nodes, "edges": [[*triplet, edges.digest()] for triplet, edges in self.edges.items()]}
        pairs = [[*triplet, split, *given.digest()] for triplet, by in self.pairs.items() for split, given in by.items()]
        labels = [[*triplet, *labels.digest()] for triplet, labels in self.edge_labels.items()]
        return content | ({"pairs": pairs} if pairs else {}) | ({"edge_labels": labels} if labels else {})


_PIECE_NUMBERS = 1 << 20
_MAKE: Mapping[str, Callable[[EdgeList, GivenArray], EdgeList]] = {WEIGHTS: WeightedEdges, EDGE_FEATURES: FeaturedEdges}
"""What edges carry -> edges with it."""
Tree = Mapping[str, Any]
"""Name -> ``GivenArray``, ``EdgeList`` or whole number; of a typed graph a mapping from type or triplet to those."""


def build_graph(name: str, whole: str, tree: Tree, unread: Unread) -> OwnGraph:
    """A graph from its tree, whose keys are the names that are used here.

    Raises ``DataError``: no edges, a type that does not exist, or arrays that disagree on how many nodes there are.
    """
    if EDGES not in tree:
        raise DataError(f"{whole} has no edges.", hint="'edge_index', integers [2, number of edges]")
    pair_tree = {key: value for key, value in tree.items() if key in PAIRS}
    label_tree = {key: value for key, value in tree.items() if key == EDGE_LABELS or key in EDGE_MASKS}
    if isinstance(tree[EDGES], EdgeList):
        mixed = next((key for key, value in tree.items() if isinstance(value, Mapping)), None)
        if mixed is not None:
            raise DataError(
                f"{whole} has types in '{mixed}' and none in '{EDGES}'.", hint="edges by (source, relation, destination)"
            )
        only = tree[EDGES]
        for key, make in _MAKE.items():
            only = make(only, tree[key]) if key in tree else only
        edges: dict[Triplet, EdgeList] = {("node", "edge", "node"): only}
        by_type: dict[str, dict[str, Any]] = {"node": {key: value for key, value in tree.items() if key not in OF_EDGES}}
    else:
        edges = dict(sorted(tree[EDGES].items()))
        joined = {end for triplet in edges for end in (triplet[0], triplet[2])}
        by_type = {end: {} for end in joined}
        for key, values in tree.items():
            if key == EDGES:
                continue
            if not isinstance(values, Mapping):
                how = "(source, relation, destination)" if key in OF_EDGES else "node type"
                raise DataError(f"{whole} has types, but '{key}' does not say of which.", hint=f"'{key}' by {how}")
            if key in pair_tree or key in label_tree:
                continue
            if key in _MAKE:
                if unknown := [triplet for triplet in values if triplet not in edges]:
                    raise DataError(
                        f"{whole} has {'edge weights' if key == WEIGHTS else 'edge features'} of a relation that has no edges.",
                        given=" ".join(unknown[0]),
                        allowed=[" ".join(relation) for relation in edges],
                    )
                edges |= {triplet: _MAKE[key](edges[triplet], array) for triplet, array in values.items()}
                continue
            for node_type, value in values.items():
                if node_type not in joined:
                    alike = difflib.get_close_matches(node_type, sorted(joined), n=1, cutoff=ALIKE)
                    if alike:
                        raise DataError(f"{whole} has a type in '{key}' that no edge joins.", given=node_type, allowed=alike)
                by_type.setdefault(node_type, {})[key] = value
    carry = {" ".join(triplet): edge_list.forms for triplet, edge_list in edges.items()}
    check_widths(whole, {relation: forms[ATTR].shape[0] for relation, forms in carry.items() if ATTR in forms})
    pairs = build_pairs(pair_tree, list(edges), whole)
    ends = [(triplet, edge_list) for triplet, edge_list in edges.items()]
    ends += [(triplet, ends) for triplet, by in pairs.items() for given in by.values() for ends in given.lists]
    nodes = {type_name: _nodes(type_name, by_type[type_name], ends, whole) for type_name in sorted(by_type)}
    return OwnGraph(name, whole, nodes, edges, unread, pairs, build_edge_labels(label_tree, edges, whole, pairs))


def _nodes(node_type: str, arrays: Mapping[str, Any], edges: Sequence[tuple[Triplet, EdgeList]], whole: str) -> Nodes:
    """One type's nodes; their number is what the arrays say, or else the largest one in an edge or a pair and one more."""
    for table in (MASKS, NUMBERS):
        keys = [key for key in arrays if key in table]
        twice = [key for key in keys if [table[other] for other in keys].count(table[key]) > 1]
        if twice:
            same = ", ".join(arrays[key].name for key in twice if table[key] == table[twice[0]])
            raise DataError(f"{whole} says twice which nodes are in a split.", given=same, hint="leave one out")
    masks = {MASKS[key]: value for key, value in arrays.items() if key in MASKS}
    numbers = {NUMBERS[key]: value for key, value in arrays.items() if key in NUMBERS}
    both = sorted(masks.keys() & numbers.keys())
    if both:
        raise DataError(
            f"{masks[both[0]].name} and {numbers[both[0]].name} both say which nodes are in a split.", hint="leave one out"
        )
    sized = [array for array in (arrays.get(FEATURES), arrays.get(LABELS), *masks.values()) if array is not None]
    for array in sized:
        if not array.shape:
            raise DataError(f"{array.name} is a single number.", allowed="an entry for each node")
    count: int | None = arrays.get(COUNT)
    if count is not None and (isinstance(count, bool) or count < 0):
        raise DataError(f"{whole} has a number of nodes that cannot be.", given=count)
    if sized:
        first = sized[0].shape[0] if count is None else count
        says = f"'{COUNT}' says {count}" if count is not None else f"{sized[0].name} has {first}"
        for array in sized:
            if array.shape[0] != first:
                features = arrays.get(FEATURES)
                turned = features is sized[0] and len(features.shape) == 2 and features.shape[1] == array.shape[0]
                hint = f"{features.name} lies on its side: x.T" if turned and features is not None else None
                raise DataError(
                    f"{array.name} has {array.shape[0]} rows, and {says}.", allowed="one row for each node", hint=hint
                )
        count = first
    if count is None:
        count = max((_largest(triplet, edge_list, node_type) for triplet, edge_list in edges), default=-1) + 1
    return Nodes(count, arrays.get(FEATURES), arrays.get(LABELS), masks, numbers)


def _largest(triplet: Triplet, edges: EdgeList, node_type: str) -> int:
    largest = -1
    for source, destination, _ in edges.pieces(1 << 20):
        for end, column in ((triplet[0], source), (triplet[2], destination)):
            if end == node_type and len(column):
                largest = max(largest, int(column.max()))
    return largest


def check_split_column(nodes: Nodes, column: int | None) -> None:
    """Masks and node numbers that hold several splits side by side have the one that is asked for: ``column``, from 0, or None.

    Raises ``DataError``: they have fewer, or nothing says which one; or one is asked for and none has several.
    """
    given = [of[name] for name in SPLITS for of in (nodes.masks, nodes.numbers) if name in of]
    for array in given:
        if len(array.shape) > 2:
            raise DataError(
                f"{array.name} is neither a mask nor a list of nodes.",
                given=f"shape {list(array.shape)}",
                allowed="[N], or [N, k] for k splits",
            )
    several = [array for array in given if _num_splits(array) > 1]
    if column is None and several:
        last = _num_splits(several[0]) - 1
        raise DataError(
            f"{several[0].name} holds {last + 1} splits side by side, one a column.",
            given=f"shape {list(several[0].shape)}",
            hint=f"dataset.split_column=0 takes the first; up to {last}",
        )
    if column is not None:
        for array in several or given[:1]:
            if column >= _num_splits(array):
                count = _num_splits(array)
                raise DataError(
                    f"{array.name} has no such column: it holds {count} split{'s' * (count > 1)}.",
                    given=f"dataset.split_column={column}, shape {list(array.shape)}",
                    allowed=f"0 to {count - 1}" if count > 1 else "0, or leave it out",
                )


def _num_splits(given: GivenArray) -> int:
    """How many splits a mask, or a list of node numbers, holds side by side. One row alone is one split."""
    return given.shape[1] if len(given.shape) == 2 and given.shape[0] != 1 else 1


def _of_split(given: GivenArray, column: int | None) -> np.ndarray:
    """One split's mask or node numbers, flat, in a copy that has no other split."""
    count = _num_splits(given)
    if count == 1:
        return given.whole().reshape(-1)
    assert column is not None
    pieces = given.pieces(max(1, _PIECE_NUMBERS // count))
    return np.concatenate([np.array(piece[:, column]) for piece in pieces])


def read_split(nodes: Nodes, whole: str, column: int | None = None) -> np.ndarray:
    """uint8 [N] from masks and node numbers. ``column``: of those that hold several splits, from 0.

    Raises ``DataError``: none is given, one has another length or other values, or two overlap; arrays and node are named.
    """
    check_split_column(nodes, column)
    if not {"train"} & {*nodes.masks, *nodes.numbers}:
        raise DataError(
            f"{whole} does not say which nodes to train on.",
            given=", ".join(sorted({*nodes.masks, *nodes.numbers})) or "neither masks nor node numbers",
            hint="'train_mask', 'val_mask', 'test_mask'; or dataset.split=[0.6,0.2,0.2] draws them",
        )
    split = np.zeros(nodes.count, np.uint8)
    owner: dict[int, str] = {}
    for name, value in SPLITS.items():
        if name in nodes.masks:
            given, rows = nodes.masks[name], _mask(nodes.masks[name], column)
        elif name in nodes.numbers:
            given, rows = nodes.numbers[name], _numbers(nodes.numbers[name], nodes.count, column)
        else:
            continue
        taken = split[rows] > 0
        if taken.any():
            row = int((np.flatnonzero(rows) if rows.dtype == bool else rows)[taken.argmax()])
            raise DataError(
                f"{owner[int(split[row])]} and {given.name} overlap.",
                given=f"node {row} (counted from 0), {int(taken.sum())} in all",
                allowed="each node in one split at most",
            )
        split[rows] = value
        owner[value] = given.name
    return split


def _mask(given: GivenArray, column: int | None) -> np.ndarray:
    flat = _of_split(given, column)
    if flat.dtype == bool:
        return flat
    wrong = ~np.isin(flat, (0, 1))
    if wrong.any():
        row = int(wrong.argmax())
        hint = "name node numbers train_idx, val_idx and test_idx" if flat.dtype.kind in "iu" else None
        raise DataError(
            f"{given.name} is no mask: node {row} (counted from 0) has a value that is neither true nor false.",
            given=flat[row],
            allowed="true or false, or 1 and 0",
            hint=hint,
        )
    return flat.astype(bool)


def _numbers(given: GivenArray, count: int, column: int | None) -> np.ndarray:
    raw = _of_split(given, column)
    if raw.dtype.kind not in "iu" and raw.size:
        hint = "name a mask train_mask, val_mask or test_mask" if raw.dtype.kind == "b" else None
        raise DataError(f"{given.name} does not hold node numbers.", given=raw.dtype.name, allowed="whole numbers", hint=hint)
    wrong = (raw < 0) | (raw >= count)
    if wrong.any():
        place = int(wrong.argmax())
        raise DataError(
            f"{given.name} names a node that does not exist, in entry {place} (counted from 0).",
            given=raw[place],
            allowed=f"0 to {count - 1}",
        )
    return np.unique(raw.astype(np.int64))


def check_fractions(fractions: Sequence[float]) -> None:
    """They are shares of training, validation and test nodes. Raises ``DataError``."""
    if len(fractions) != 3 or min(fractions) < 0 or sum(fractions) > 1 + 1e-9 or not fractions[0]:
        raise DataError(
            "'dataset.split' are no shares of training, validation and test nodes.",
            given=list(fractions),
            allowed="three numbers from 0 to 1 that add up to at most 1, the first above 0, such as [0.6,0.2,0.2]",
        )


def draw_split(labelled: np.ndarray, fractions: Sequence[float], seed: int) -> np.ndarray:
    """uint8 [N]: a draw for each node with a label, by its number, so that it does not depend on which other nodes there are.

    The shares ``fractions`` of training, validation and test nodes are met as far as independent draws do. ``labelled``: bool
    [N]. Raises ``DataError``: too many nodes to be drawn for.
    """
    from sargnn.rng import MAX_ID, Purpose, draw_words  # which loads torch

    check_fractions(fractions)
    if len(labelled) > MAX_ID:
        raise DataError("A split cannot be drawn for so many nodes.", given=len(labelled), allowed=f"at most {MAX_ID}")
    split = np.zeros(len(labelled), np.uint8)
    ends = np.round(np.minimum(np.cumsum(fractions), 1.0) * 2.0**32)
    rows = np.flatnonzero(labelled)
    for start in range(0, len(rows), 1 << 20):
        piece = rows[start : start + (1 << 20)]
        words = draw_words(piece, seed, Purpose.SPLIT)
        number = np.searchsorted(ends, words, side="right")
        split[piece] = np.array([*SPLITS.values(), 0], np.uint8)[number]
    return split


def labelled_type(nodes: Mapping[str, Nodes], whole: str, *, for_links: bool = False) -> str:
    """The node type with labels; with ``for_links``, which needs none, the first. Raises ``DataError``: none, or several."""
    labelled = [name for name, type_nodes in nodes.items() if type_nodes.labels is not None]
    if not labelled and for_links:
        return next(iter(nodes))
    if not labelled:
        raise DataError(f"{whole} has no labels.", hint="'y', a class for each node; -1 for a node without one")
    if len(labelled) > 1:
        raise DataError(f"{whole} has labels on several node types.", given=", ".join(labelled), allowed="one type")
    for name, type_nodes in nodes.items():
        if name != labelled[0] and (type_nodes.masks or type_nodes.numbers):
            given = next(iter((type_nodes.masks or type_nodes.numbers).values()))
            raise DataError(
                f"{given.name} splits nodes of type '{name}', and '{labelled[0]}' has the labels.", hint="leave it out"
            )
    return labelled[0]
