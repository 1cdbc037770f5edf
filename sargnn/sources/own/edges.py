"""Edges of an own graph and what they carry, read piece by piece.

Letters: E edges, D features of edges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.check import edge_place
from sargnn.graph.edge_columns import ATTR, NO_COLUMNS, WEIGHT, WEIGHT_FORM, EdgePiece, attr_form
from sargnn.sources.own.given import GivenArray
from sargnn.sources.own.names import EDGE_FEATURES

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


def checked_edges(edges: EdgeList, rows: int, sources: int, destinations: int) -> Iterator[EdgePiece]:
    """The pieces of an edge list between so many sources and destinations. Raises ``DataError`` naming the edge."""
    first = 0
    for piece in edges.pieces(rows):
        for what, column, count in (("source", piece[0], sources), ("destination", piece[1], destinations)):
            if not len(column) or (column.min() >= 0 and column.max() < count):
                continue
            row = int(((column < 0) | (column >= count)).argmax())
            hint = "nodes are counted from 0; are these counted from 1?" if column[row] == count else None
            raise DataError(
                f"{edges.name} names a {what} that does not exist, in {edges.place(first + row)}.",
                given=column[row],
                allowed=f"0 to {count - 1}; there are {count} nodes",
                hint=hint,
            )
        yield piece
        first += len(piece[0])
