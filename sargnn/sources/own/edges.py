"""Edges of an own graph and what they carry, in arrays or files, read piece by piece.

Letters: E edges, D features of edges.
"""

from __future__ import annotations

import csv
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from sargnn.errors import DataError
from sargnn.graph.check import edge_place, expect_held
from sargnn.graph.edge_columns import ATTR, NO_COLUMNS, WEIGHT, WEIGHT_FORM, EdgeColumns, EdgePiece, attr_form
from sargnn.graph.store import sha256_of
from sargnn.sources.own.given import ALIASES, EDGE_FEATURES, EDGE_LABELS, EDGE_MASKS, NAMES, WEIGHTS, GivenArray, PlainArray
from sargnn.sources.scan import File, Scan, holds_number, lines_of

_SOURCE = ("source", "src", "from", "u", "head")
_DESTINATION = ("destination", "dst", "target", "to", "v", "tail")
_NAMED = 8

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
    """Edges in memory, mapped, or in an archive. Raises ``DataError``: they are no integers, or of different lengths."""

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

    def place(self, position: int) -> str:
        return self.sources.place(position, "edge")

    def digest(self) -> str:
        return self.sources.digest() + self.destinations.digest()


class EdgeTable(EdgeList):
    """A file with a row for each edge: ``.parquet``, or ``.csv`` and ``.csv.gz`` with fields by comma, semicolon, tab, blanks.

    The columns called source and destination, or the like, count, one called weight, and those whose names begin with
    edge_attr, in the order of the file; beside them labels of edges, whose names begin with edge_y, and masks
    (``edge_train_mask``). A CSV file may have a header: its first line, where no field of it is a number. Without names the
    first two columns count, since a third may be anything.

    Raises ``DataError`` with the line: it cannot be read, or a row holds no edge. ``of_pairs``: pairs to predict have neither
    labels nor masks.
    """

    def __init__(self, path: Path, *, of_pairs: bool = False) -> None:
        self.path, self.name, self._of_pairs = path, f"'{path}'", of_pairs
        self._beside: dict[str, list[int]] = {}  # name of an array -> its columns
        file = File.of_path(path)
        if file.is_csv:
            self._scan, names = self._scan_text(file)
        else:
            self._scan = _EdgeScan(file)
            names = self._scan.schema.names
        chosen = self._columns(names) if names else (0, 1)
        self.columns = [self._scan.schema.names[k] for k in chosen]
        self._scan.whole = self.columns[:2]
        carried, what = len(chosen) - 2 - (WEIGHT in self.forms), "two whole numbers"
        what += " and a weight, a number" if self.weights_name else ""
        self._scan.expects = what + (f", and {carried} numbers, features" if self.features_name else "")
        for name in self.columns if not file.is_csv else ():
            kind = self._scan.schema.field(name).type
            if name in self.columns[:2] and not pa.types.is_integer(kind):
                given = f"column '{name}': {kind}"
                raise DataError(f"{self.name} does not hold whole numbers, which an edge's two nodes are.", given=given)
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
                of = "weights" if WEIGHT in self.forms and name == self.columns[2] else "edge features"
                raise DataError(f"{self.name} holds {of} that are no numbers.", given=f"column '{name}': {kind}")

    @property
    def count(self) -> int:  # type: ignore[override]
        return self._scan.count

    def _scan_text(self, file: File) -> tuple[Scan, list[str]]:
        """What reads a text, and the names of its columns; none where its first line has none."""
        lines = list(islice(lines_of(file), 2))
        number, first = lines[0] if lines else (0, "")
        delimiter = next((delimiter for delimiter in ",;\t" if delimiter in first), " ")
        if not first:
            raise DataError(f"{self.name} is empty.")
        fields = next(csv.reader([first], delimiter=delimiter, skipinitialspace=True)) if delimiter != " " else first.split()
        if len(fields) == 1:
            raise DataError(f"{self.name} has one column; an edge has two nodes.", given=f"line {number}: {first[:60]}")
        # A line without any number names the columns; one with a number that is broken is an edge that is.
        header = not any(field == "" or holds_number(field) for field in fields)
        if not header and len(fields) > 2:
            names = f"source,target,weight,{EDGE_FEATURES}_0,..."
            self.unread = f"columns of {self.name} after the second (a first line {names} names weights and features)"
        skip, tidy = number if header else 0, delimiter == " " or any(f'{delimiter} "' in line for _, line in lines)
        scan = _EdgeScan(file, delimiter=delimiter, columns=len(fields), skip=skip, tidy=tidy)
        return scan, fields if header else []

    def beside(self) -> dict[str, GivenArray]:
        """Labels and masks of edges, by the names that ``own.given`` has. Raises ``DataError`` where they are no numbers."""
        arrays: dict[str, GivenArray] = {}
        for used, columns in self._beside.items():
            name, table = f"{self.name}, {used},", self._scan.table([self._scan.schema.names[k] for k in columns])
            given = [column.to_numpy() for column in table.columns]
            if wrong := [values for values, array in zip(table.columns, given, strict=True) if array.dtype.kind not in "fiub"]:
                known = wrong[0].drop_null()
                raise DataError(
                    f"{name} holds no numbers.",
                    given=repr(known[0].as_py())[:60] if len(known) else "nothing",
                    hint="number texts first: np.unique(texts, return_inverse=True)[1]",
                )
            arrays[used] = PlainArray(name, given[0] if len(columns) == 1 else np.stack(given, 1))
        return arrays

    def _columns(self, names: list[str]) -> tuple[int, ...]:
        """Of sources, destinations and, if any, weights and features, by name. Raises ``DataError``: they cannot be told."""
        lower = [name.strip().strip("\"'").lower() for name in names]
        weight = [k for k, name in enumerate(lower) if NAMES.get(name) == WEIGHTS]
        features = [k for k, name in enumerate(lower) if name.startswith(ALIASES[EDGE_FEATURES])]
        if len(weight) > 1:
            given = ", ".join(names[k] for k in weight)
            raise DataError(f"{self.name} has several columns of weights.", given=given, hint="name one of them weight")
        if weight:
            self.forms = {WEIGHT: WEIGHT_FORM}
            self.weights_name = f"{self.name}, column '{lower[weight[0]]}',"
        if features:
            self.forms = {**self.forms, ATTR: attr_form(len(features))}
            self.features_name = self.name
        known = [*weight, *features]
        for k, column in enumerate(lower) if not self._of_pairs else ():
            if re.fullmatch(rf"({'|'.join(ALIASES[EDGE_LABELS])})(_\d+)?", column):
                self._beside.setdefault(EDGE_LABELS, []).append(k)
            elif column in EDGE_MASKS:
                self._beside.setdefault(column, []).append(k)
        beside = [k for columns in self._beside.values() for k in columns]
        others = [k for k in range(len(names)) if k not in known and k not in beside]
        ends = [next((k for k, name in enumerate(lower) if name in words), None) for words in (_SOURCE, _DESTINATION)]
        if ends[0] is None or ends[1] is None:
            if len(others) != 2:
                raise DataError(
                    f"{self.name} does not say which columns are an edge's two nodes.",
                    given=", ".join(names[:8]),
                    hint="two columns; or name them source and destination",
                )
            return others[0], others[1], *known
        if unread := [names[k] for k in others if k not in ends]:
            more = f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
            hint = f"{EDGE_FEATURES}_{unread[0]}, or {EDGE_LABELS}, as a name would make it a feature, or a label, of edges"
            self.unread = f"columns of {self.name}: {', '.join(unread[:_NAMED])}{more} ({hint})"
        return ends[0], ends[1], *known

    def _carried(self, columns: list[np.ndarray]) -> EdgeColumns:
        weights = columns[:1] if WEIGHT in self.forms else []
        features = columns[len(weights) :]
        return EdgeColumns.of({WEIGHT: weights[0] if weights else None, ATTR: np.stack(features, 1) if features else None})

    def pieces(self, rows: int) -> Iterator[EdgePiece]:
        first = 0
        for source, destination, *others in self._scan.arrays(self.columns, rows):
            features = self.columns[2 + (WEIGHT in self.forms) :]
            for name, column in zip(features[::-1], others[::-1], strict=False):  # beside fractions all would be some
                expect_held(str(self.path), column[:, None], lambda row, _: f"{self.place(first + row)}, '{name}'")  # noqa: B023
            yield source, destination, self._carried(others)
            first += len(source)

    def place(self, position: int) -> str:
        return self._scan.place(position)

    def digest(self) -> str:
        return sha256_of(self.path)


class _EdgeScan(Scan):
    def place(self, row: int) -> str:
        return f"line {self.line(row)[0]}" if self.file.is_csv else edge_place(row)


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
    """Their weights are an array of their own, [E] or [E, 1]. Raises ``DataError``: it is not, or they have weights already."""

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
    """Their features are an array of their own, [E, D], or [E] for one feature.

    Raises ``DataError``: it has another shape, or no column; or they have features already.
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
