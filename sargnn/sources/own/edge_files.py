"""Edges in files: ``.npy``, ``.csv`` (also ``.csv.gz``) and ``.parquet``, read piece by piece.

A CSV file may have a header: its first line, where no field of it is a number. The columns called source and destination, or
the like, count, one called weight, and those whose names begin with edge_attr, in the order of the file; beside them labels of
edges, whose names begin with edge_y, and masks (``edge_train_mask``). Without names the first two count, since a third may be
anything.

Letters: E edges, D features of edges.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sargnn.errors import DataError
from sargnn.graph.check import expect_held
from sargnn.graph.edge_columns import ATTR, WEIGHT, WEIGHT_FORM, EdgeColumns, EdgePiece, attr_form
from sargnn.sources.own.edges import EdgeList
from sargnn.sources.own.given import GivenArray, PlainArray
from sargnn.sources.own.names import ALIASES, EDGE_FEATURES, EDGE_LABELS, EDGE_MASKS, NAMES, WEIGHTS

SUFFIXES = (".csv", ".csv.gz", ".parquet")
_SOURCE = ("source", "src", "from", "u", "head")
_NAMED = 8
_DESTINATION = ("destination", "dst", "target", "to", "v", "tail")
_BROKEN = (OSError, EOFError, zlib.error, UnicodeDecodeError)


class EdgeTable(EdgeList):
    """A file with a row for each edge.

    Args:
        path: the file.
        of_pairs: they are pairs to predict, which have neither labels nor masks.
    """

    def __init__(self, path: Path, *, of_pairs: bool = False) -> None:
        self.path, self.name, self._of_pairs = path, f"'{path}'", of_pairs
        self._beside: dict[str, list[int]] = {}  # name of an array -> its columns

    @abstractmethod
    def _read(self, columns: list[int]) -> pd.DataFrame:
        """Some columns, whole."""

    def beside(self) -> dict[str, GivenArray]:
        """Labels and masks of edges, by the names that ``own.names`` has. Raises ``DataError`` where they are no numbers."""
        arrays: dict[str, GivenArray] = {}
        for used, columns in self._beside.items():
            name, frame = f"{self.name}, {used},", self._read(columns)
            if wrong := [column for column in frame if frame[column].dtype.kind not in "fiub"]:
                values = frame[wrong[0]].dropna()
                raise DataError(
                    f"{name} holds no numbers.",
                    given=repr(values.iloc[0])[:60] if len(values) else "nothing",
                    hint="number texts first: np.unique(texts, return_inverse=True)[1]",
                )
            table = frame.to_numpy()
            arrays[used] = PlainArray(name, table[:, 0] if len(columns) == 1 else table)
        return arrays

    def _columns(self, names: list[str]) -> tuple[int, ...]:
        """Which columns hold sources, destinations and, if there are some, weights and features, by their names.

        Raises:
            DataError: they cannot be told.
        """
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
        """What edges carry, from the columns behind their ends."""
        weights = columns[:1] if WEIGHT in self.forms else []
        features = columns[len(weights) :]
        return EdgeColumns.of({WEIGHT: weights[0] if weights else None, ATTR: np.stack(features, 1) if features else None})

    def digest(self) -> str:
        hasher = hashlib.sha256()
        for *ends, columns in self.pieces(1 << 20):
            for column in ends:
                hasher.update(column.astype(np.int64).data)
            for name in self.forms:
                hasher.update(np.ascontiguousarray(columns[name], np.float64).data)
        return hasher.hexdigest()


class CsvEdges(EdgeTable):
    """A text file with an edge in each line; columns are parted by comma, semicolon, tab or blank.

    Raises:
        DataError: it cannot be read, or a line holds no edge; the line is named.
    """

    def __init__(self, path: Path, *, of_pairs: bool = False) -> None:
        super().__init__(path, of_pairs=of_pairs)
        number, first = next(((number, line) for number, line in enumerate(self._lines(), start=1) if line), (0, ""))
        self.separator = next((separator for separator in ",;\t" if separator in first), r"\s+")
        if not first:
            raise DataError(f"{self.name} is empty.")
        fields = self._fields(first)
        # A line without any number names the columns; one with a number that is broken is an edge that is.
        self.header = number if fields and not any(field == "" or _is_number(field) for field in fields) else 0
        if len(fields) == 1:
            raise DataError(f"{self.name} has one column; an edge has two nodes.", given=f"line {number}: {first[:60]}")
        self.columns = self._columns(fields) if self.header else (0, 1)
        if not self.header and len(fields) > 2:
            names = f"source,target,weight,{EDGE_FEATURES}_0,..."
            self.unread = f"columns of {self.name} after the second (a first line {names} names weights and features)"

    @cached_property
    def count(self) -> int:  # type: ignore[override]
        return sum(1 for line in self._lines() if line) - bool(self.header)

    def _fields(self, line: str) -> list[str]:
        return [field.strip().strip("\"'") for field in re.split(self.separator, line)] if line else []

    def _options(self, columns: Iterable[int]) -> dict[str, Any]:
        return {
            "sep": self.separator,
            "usecols": sorted(columns),
            "header": None,
            "encoding": "utf-8-sig",
            "skipinitialspace": True,
            "skiprows": self.header,
        }

    def _read(self, columns: list[int]) -> pd.DataFrame:
        try:
            return pd.read_csv(self.path, **self._options(columns))
        except (*_BROKEN, ValueError) as error:
            raise DataError(f"{self.name} cannot be read: {error}") from error

    def pieces(self, rows: int) -> Iterator[EdgePiece]:
        if not self.count:
            return
        options: dict[str, Any] = {
            "chunksize": rows,
            "dtype": dict.fromkeys(self.columns[2:], np.float64) | dict.fromkeys(self.columns[:2], np.int64),
        }
        try:
            with pd.read_csv(self.path, **self._options(self.columns), **options) as reader:
                for frame in reader:
                    source, destination, *others = (np.array(frame[column].to_numpy()) for column in self.columns)
                    yield source, destination, self._carried(others)
        except _BROKEN as error:
            raise DataError(f"{self.name} cannot be read: {error}") from error
        except (ValueError, OverflowError) as error:
            raise self._wrong_line() or DataError(f"{self.name} cannot be read: {error}") from error

    def place(self, position: int) -> str:
        numbers = (number for number, line in enumerate(self._lines(), start=1) if line)
        return f"line {next(islice(numbers, position + bool(self.header), None))}"

    def _wrong_line(self) -> DataError | None:
        """What is wrong with the first line that holds no edge, found by reading the file again, slowly."""
        for number, line in enumerate(self._lines(), start=1):
            if not line or number == self.header:
                continue
            fields = self._fields(line)
            whole = len(fields) > max(self.columns) and all(_is_number(fields[k], whole=True) for k in self.columns[:2])
            if not whole or not all(_is_number(fields[k]) for k in self.columns[2:]):
                allowed = "two whole numbers" + (" and a weight, a number" if self.weights_name else "")
                allowed += (
                    f", and {len(self.columns) - 2 - (WEIGHT in self.forms)} numbers, features" if self.features_name else ""
                )
                return DataError(f"{self.name} holds no edge in line {number}.", given=line[:60], allowed=allowed)
        return None

    def _lines(self) -> Iterator[str]:
        """The lines as they stand in the file, without blanks around them."""
        opened: Any = gzip.open if self.path.name.endswith(".gz") else open
        try:
            with opened(self.path, "rt", encoding="utf-8-sig") as file:  # a byte-order mark is no part of the first number
                yield from (line.strip() for line in file)
        except _BROKEN as error:
            raise DataError(f"{self.name} cannot be read: {error}") from error


class ParquetEdges(EdgeTable):
    """A Parquet file. Raises ``DataError`` where it cannot be read, or its columns hold no whole numbers."""

    def __init__(self, path: Path, *, of_pairs: bool = False) -> None:
        super().__init__(path, of_pairs=of_pairs)
        try:
            from pyarrow import ArrowException, parquet, types
        except ImportError as error:
            raise DataError(f"{self.name} cannot be read: pyarrow is not installed.", hint="pip install pyarrow") from error
        try:
            self._file = parquet.ParquetFile(path)
        except (ArrowException, OSError) as error:
            raise DataError(f"{self.name} cannot be read: {error}") from error
        schema = self._file.schema_arrow
        self._names = schema.names
        self.columns = [schema.names[k] for k in self._columns(schema.names)]
        for name in self.columns[:2]:
            if not types.is_integer(schema.field(name).type):
                given = f"column '{name}': {schema.field(name).type}"
                raise DataError(f"{self.name} does not hold whole numbers, which an edge's two nodes are.", given=given)
        for name in self.columns[2:]:
            kind = schema.field(name).type
            if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
                what = "weights" if WEIGHT in self.forms and name == self.columns[2] else "edge features"
                raise DataError(f"{self.name} holds {what} that are no numbers.", given=f"column '{name}': {kind}")
        self.count = self._file.metadata.num_rows

    def _read(self, columns: list[int]) -> pd.DataFrame:
        from pyarrow import ArrowException

        try:
            frame: pd.DataFrame = self._file.read(columns=[self._names[k] for k in columns]).to_pandas()
        except (ArrowException, OSError) as error:
            raise DataError(f"{self.name} cannot be read: {error}") from error
        return frame

    def pieces(self, rows: int) -> Iterator[EdgePiece]:
        from pyarrow import ArrowException

        first = 0
        try:
            for batch in self._file.iter_batches(rows, columns=self.columns):
                columns = [batch.column(name) for name in self.columns]
                for name, column in zip(self.columns, columns, strict=True):
                    if column.null_count:
                        row = first + int(np.asarray(column.is_null()).argmax())
                        raise DataError(f"{self.name} holds no edge in {self.place(row)}.", given=f"column '{name}' is null")
                source, destination, *others = (column.to_numpy(zero_copy_only=False) for column in columns)
                features = self.columns[2 + (WEIGHT in self.forms) :]
                for name, column in zip(features[::-1], others[::-1], strict=False):  # beside fractions all would be some
                    expect_held(str(self.path), column[:, None], lambda row, _: f"{self.place(first + row)}, '{name}'")  # noqa: B023
                yield source, destination, self._carried(others)
                first += batch.num_rows
        except (ArrowException, OSError) as error:
            raise DataError(f"{self.name} cannot be read: {error}") from error


def _is_number(text: str, *, whole: bool = False) -> bool:
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        return False
    return not whole or abs(number) < 2**63
