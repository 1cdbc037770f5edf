"""The one form that every own graph takes on its way into a store, and how a tree of named arrays becomes it.

A tree says for each of the names below what there is; of a typed graph an entry is a mapping from node type, or from (source
type, relation, destination type), to arrays.

| name | | also called |
|---|---|---|
| ``edge_index`` | integers [2, E]: sources, destinations | ``edges`` |
| ``edge_weight`` | numbers [E], in the order of the edges | ``edge_weights``, ``weight``, ``w`` |
| ``edge_attr`` | numbers [E, D] or [E], features of edges | ``edge_attributes``, and those of ``x`` behind ``edge_`` |
| ``x`` | numbers [N, F], features | ``feat``, ``feats``, ``feature``, ``features``, also behind ``node_`` |
| ``y`` | [N] or [N, C], what is to be predicted | ``label``, ``labels``, also behind ``node_`` |
| ``train_mask``, ``val_mask``, ``test_mask`` | bool [N], or [N, k]: k splits | ``valid_mask`` |
| ``train_idx``, ``val_idx``, ``test_idx`` | node numbers | ``..._index``, ``..._nodes``, ``valid_...`` |
| ``num_nodes`` | N, where nothing else says it | |

Letters: N nodes, E edges, F features, D features of edges, C columns of labels.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.check import check_widths, edge_place
from sargnn.graph.edge_columns import ATTR, NO_COLUMNS, WEIGHT, WEIGHT_FORM, EdgePiece, attr_form
from sargnn.sources.own.given import GivenArray

EDGES, WEIGHTS, EDGE_FEATURES, FEATURES, LABELS, COUNT = "edge_index", "edge_weight", "edge_attr", "x", "y", "num_nodes"
_SPLIT_WORDS = {"train": ("train",), "valid": ("val", "valid"), "test": ("test",)}
MASKS = {f"{word}_mask": name for name, words in _SPLIT_WORDS.items() for word in words}
"""Name of a mask -> name of the split."""
NUMBERS = {
    f"{word}_{kind}": name for name, words in _SPLIT_WORDS.items() for word in words for kind in ("idx", "index", "nodes")
}
"""Name of an array of node numbers -> name of the split."""


_OF_NODES = {FEATURES: ("feat", "feats", "feature", "features"), LABELS: ("label", "labels")}
ALIASES = {
    EDGES: (EDGES, "edges"),
    WEIGHTS: (WEIGHTS, "edge_weights", "weight", "w"),
    EDGE_FEATURES: (EDGE_FEATURES, "edge_attributes", "edge_attr_dict", *(f"edge_{name}" for name in _OF_NODES[FEATURES])),
    **{used: (used, *names, *(f"node_{name}" for name in names)) for used, names in _OF_NODES.items()},
    COUNT: (COUNT,),
} | {name: (name,) for name in (*MASKS, *NUMBERS)}
NAMES = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
"""Every name that is known -> the one that is used here."""
OF_EDGES = (EDGES, WEIGHTS, EDGE_FEATURES)
"""What a typed graph has by relation; the rest by node type."""
ON_EDGES = {WEIGHTS: ALIASES[WEIGHTS], EDGE_FEATURES: (*ALIASES[EDGE_FEATURES], *_OF_NODES[FEATURES], "attr")}
"""What edges carry -> what it is called among data of edges."""
_ALIKE = 0.8

Triplet = tuple[str, str, str]
"""Source type, relation, destination type."""


class EdgeList(ABC):
    """Edges that are read from the first to the last.

    Attributes:
        name: what messages call it.
        count: E.
        forms: what edges carry in a store: name -> dtype, with a shape where it is several numbers.
        weights_name, features_name: what messages call the edges' weights and features; empty: they have none.
        unread: what stands beside the edges and is not read, and what to do; empty: nothing.
    """

    name: str
    count: int
    forms: Mapping[str, np.dtype] = MappingProxyType({})
    weights_name: str = ""
    features_name: str = ""
    unread: str = ""

    @abstractmethod
    def pieces(self, rows: int) -> Iterator[EdgePiece]:
        """Sources and destinations, integers [at most ``rows``] each, of any value, and columns."""

    def place(self, position: int) -> str:
        """What an edge's place is called, for messages."""
        return edge_place(position)

    @abstractmethod
    def digest(self) -> str:
        """Hex digits that other edges do not have."""


class EdgeArrays(EdgeList):
    """Edges in memory, mapped, or in an archive.

    Raises:
        DataError: the arrays are no integers, or of different lengths.
    """

    def __init__(self, name: str, sources: GivenArray, destinations: GivenArray) -> None:
        self.name, self.sources, self.destinations = name, sources, destinations
        for ends in (sources, destinations):
            if ends.dtype.kind not in "iu":
                hint = "edge_index.astype(np.int64), if these are node numbers"
                raise DataError(
                    f"{name} does not hold whole numbers, which an edge's two nodes are.", given=ends.dtype.name, hint=hint
                )
        if len(sources.shape) != 1 or sources.shape != destinations.shape:
            shapes = f"{list(sources.shape)} sources, {list(destinations.shape)} destinations"
            raise DataError(f"{name} needs a source and a destination for each edge.", given=shapes)
        self.count = sources.shape[0]

    @classmethod
    def of_index(cls, given: GivenArray) -> EdgeArrays:
        """From an array [2, E]. Raises ``DataError`` for one of another shape."""
        if len(given.shape) != 2 or given.shape[0] != 2:
            hint = "edge_index.T" if len(given.shape) == 2 and given.shape[1] == 2 else None
            if len(given.shape) == 2 and given.shape[0] == given.shape[1]:
                hint = "of an adjacency matrix: np.stack(np.nonzero(matrix))"
            raise DataError(
                f"{given.name} must have two rows, sources and destinations.",
                given=f"shape {list(given.shape)}",
                allowed="[2, number of edges]",
                hint=hint,
            )
        return cls(given.name, given.row(0), given.row(1))

    def pieces(self, rows: int) -> Iterator[EdgePiece]:
        for pair in zip(self.sources.pieces(rows), self.destinations.pieces(rows), strict=True):
            yield *pair, NO_COLUMNS

    def digest(self) -> str:
        return self.sources.digest() + self.destinations.digest()


class _EdgesWith(EdgeList):
    """Edges with a column more, an array of its own with a row for each edge."""

    def __init__(self, edges: EdgeList, given: GivenArray, column: str, form: np.dtype, what: str) -> None:
        self.edges, self.given, self.column, self.shape = edges, given, column, form.shape
        self.name, self.count, self.unread = edges.name, edges.count, edges.unread
        self.weights_name, self.features_name = edges.weights_name, edges.features_name
        self.forms = {**edges.forms, column: form}
        rows = given.shape[0] if given.shape else 1
        if column in edges.forms:
            other = edges.weights_name if column == WEIGHT else edges.features_name
            raise DataError(f"{other} and {given.name} both say what the edges' {what}s are.", hint="leave one out")
        if rows != self.count:
            raise DataError(
                f"{given.name} does not have a {what} for each edge.",
                given=f"{rows} {what}s, {self.count} edges in {edges.name}",
                allowed=f"[{', '.join(map(str, (self.count, *form.shape)))}], in the order of the edges",
            )

    def pieces(self, rows: int) -> Iterator[EdgePiece]:
        given, waiting = self.given.pieces(rows), np.zeros((0, *self.shape), self.given.dtype)
        for source, destination, columns in self.edges.pieces(rows):
            while len(waiting) < len(source):
                piece = next(given)
                waiting = np.concatenate([waiting, piece.reshape(len(piece), *self.shape)])
            yield source, destination, columns.put(self.column, waiting[: len(source)])
            waiting = waiting[len(source) :]

    def place(self, position: int) -> str:
        return self.edges.place(position)

    def digest(self) -> str:
        return self.edges.digest() + ("" if self.column == WEIGHT else self.column) + self.given.digest()


class WeightedEdges(_EdgesWith):
    """Edges whose weights are an array of their own, [E] or [E, 1].

    Raises:
        DataError: it has another shape; or the edges have weights already.
    """

    def __init__(self, edges: EdgeList, weights: GivenArray) -> None:
        if len(weights.shape) > 1 and weights.shape[1:] != (1,):
            raise DataError(
                f"{weights.name} must hold one number for each edge.",
                given=f"shape {list(weights.shape)}",
                allowed=f"[{edges.count}]",
                hint=f"give one of its columns, such as edge_weight[:, 0]; several are features: name it {EDGE_FEATURES}",
            )
        super().__init__(edges, weights, WEIGHT, WEIGHT_FORM, "weight")
        self.weights_name = weights.name


class FeaturedEdges(_EdgesWith):
    """Edges whose features are an array of their own, [E, D], or [E] for one feature.

    Raises:
        DataError: it has another shape, or no column; or the edges have features already.
    """

    def __init__(self, edges: EdgeList, features: GivenArray) -> None:
        if len(features.shape) not in (1, 2) or features.shape[1:] == (0,):
            raise DataError(
                f"{features.name} must be a table of features, with a row for each edge.",
                given=f"shape {list(features.shape)}",
                allowed=f"[{edges.count}, 1 or more]",
                hint="leave it out" if 0 in features.shape[1:] else f"edge_attr.reshape({edges.count}, -1)",
            )
        super().__init__(edges, features, ATTR, attr_form(features.shape[1] if features.shape[1:] else 1), "feature")
        self.features_name = features.name


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
    """What was given under names that mean nothing here, as messages call it.

    Attributes:
        of_graph: of nodes, or of the whole.
        of_edges: of edges.
    """

    of_graph: list[str] = field(default_factory=list)
    of_edges: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class OwnGraph:
    """A graph as it was given.

    Attributes:
        name: of the dataset.
        whole: what messages call the graph.
        nodes: by type, sorted by name.
        edges: by triplet, sorted.
        unread: what was given and is not read.
    """

    name: str
    whole: str
    nodes: Mapping[str, Nodes]
    edges: Mapping[Triplet, EdgeList]
    unread: Unread

    def remarks(self) -> Iterator[str]:
        """What is not read, and what to do about it, in lines for a person."""
        if of_graph := self.unread.of_graph:
            features, labels = (", ".join(ALIASES[used]) for used in (FEATURES, LABELS))
            what = f"Features are read from {features}, labels from {labels}; all names: docs/howto/own-arrays.md."
            yield f"not read of {self.whole}: {', '.join(of_graph)}. {what}"
        if of_edges := self.unread.of_edges:
            what = f"Of edges weights and features are read: name them {WEIGHTS} (in NetworkX weight) and {EDGE_FEATURES}."
            yield f"not read of {self.whole}: {', '.join(of_edges)}. {what}"
        yield from (f"not read: {edges.unread}" for edges in self.edges.values() if edges.unread)

    @property
    def typed(self) -> bool:
        """Whether there is more than one type or relation."""
        return len(self.nodes) > 1 or len(self.edges) > 1

    def digest(self) -> dict[str, Any]:
        """What decides the content, JSON-able."""
        nodes = {name: type_nodes.digest() for name, type_nodes in self.nodes.items()}
        return {"nodes": nodes, "edges": [[*triplet, edges.digest()] for triplet, edges in self.edges.items()]}


_MAKE: Mapping[str, Callable[[EdgeList, GivenArray], EdgeList]] = {WEIGHTS: WeightedEdges, EDGE_FEATURES: FeaturedEdges}
"""What edges carry -> edges with it."""
Tree = Mapping[str, Any]
"""Name -> ``GivenArray``, ``EdgeList`` or whole number; of a typed graph a mapping from type or triplet to those."""


def known_names(
    names: Mapping[str, str] | list[str], whole: str, unread: list[str], without: Container[str] = ()
) -> dict[str, str]:
    """Used name -> given name, for those that are known.

    Args:
        names: as given; a mapping says for each what messages call it.
        unread: gets what messages call the others.
        without: given names that mean nothing here.

    Raises:
        DataError: one that is nearly known, or two that mean the same.
    """
    called = names if isinstance(names, Mapping) else {name: f"'{name}'" for name in names}
    given_names: dict[str, str] = {}
    for name in called:
        known = None if name in without else NAMES.get(name)
        if known is not None and known in given_names:
            raise DataError(
                f"{whole} has {called[given_names[known]]} and {called[name]}, which mean the same.", hint="leave one out"
            )
        if known is not None:
            given_names[known] = name
    others = [name for name in called if name not in NAMES or name in without]
    for name in others:
        alike = difflib.get_close_matches(
            name, [candidate for candidate in NAMES if candidate[:1] == name[:1]], n=1, cutoff=_ALIKE
        )
        if alike and name not in without and NAMES[alike[0]] not in given_names:
            raise DataError(f"{whole} has {called[name]}, which is not known.", allowed=alike, hint=f"name it {alike[0]}")
    unread += [called[name] for name in others]
    return given_names


def build_graph(name: str, whole: str, tree: Tree, unread: Unread) -> OwnGraph:
    """A graph from its tree, whose keys are the names that are used here.

    Args:
        name, whole, unread: the graph's.

    Raises:
        DataError: no edges, a type that does not exist, or arrays that disagree on how many nodes there are.
    """
    if EDGES not in tree:
        raise DataError(f"{whole} has no edges.", hint="'edge_index', integers [2, number of edges]")
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
                how = "(source, relation, destination)" if key in _MAKE else "node type"
                raise DataError(f"{whole} has types, but '{key}' does not say of which.", hint=f"'{key}' by {how}")
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
                    alike = difflib.get_close_matches(node_type, sorted(joined), n=1, cutoff=_ALIKE)
                    if alike:
                        raise DataError(f"{whole} has a type in '{key}' that no edge joins.", given=node_type, allowed=alike)
                by_type.setdefault(node_type, {})[key] = value
    carry = {" ".join(triplet): edge_list.forms for triplet, edge_list in edges.items()}
    check_widths(whole, {relation: forms[ATTR].shape[0] for relation, forms in carry.items() if ATTR in forms})
    nodes = {type_name: _nodes(type_name, by_type[type_name], edges, whole) for type_name in sorted(by_type)}
    return OwnGraph(name, whole, nodes, edges, unread)


def _nodes(node_type: str, arrays: Mapping[str, Any], edges: Mapping[Triplet, EdgeList], whole: str) -> Nodes:
    """One type's nodes; their number is what the arrays say, or else the largest one in an edge and one more."""
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
        count = max((_largest(triplet, edge_list, node_type) for triplet, edge_list in edges.items()), default=-1) + 1
    return Nodes(count, arrays.get(FEATURES), arrays.get(LABELS), masks, numbers)


def _largest(triplet: Triplet, edges: EdgeList, node_type: str) -> int:
    largest = -1
    for source, destination, _ in edges.pieces(1 << 20):
        for end, column in ((triplet[0], source), (triplet[2], destination)):
            if end == node_type and len(column):
                largest = max(largest, int(column.max()))
    return largest
