"""Edges in files: ``.npy``, ``.csv`` (also ``.csv.gz``) and ``.parquet``, read piece by piece.

A table's first two columns are sources and destinations, or those whose names say so. A CSV file may have a header.

Letters: E edges.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from sargnn.data.own.graph import EdgeList
from sargnn.errors import DataError

SUFFIXES = (".csv", ".csv.gz", ".parquet")
_SOURCE = ("source", "src", "from", "u", "head")
_DESTINATION = ("destination", "dst", "target", "to", "v", "tail")
_BROKEN = (OSError, EOFError, zlib.error, UnicodeDecodeError)


class EdgeTable(EdgeList):
    """A file with a row for each edge."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, f"'{path}'"

    def _columns(self, names: list[str]) -> tuple[int, int]:
        """Which columns hold sources and destinations, by their names. Raises ``DataError`` where they cannot be told."""
        lower = [name.strip().lower() for name in names]
        found = [next((k for k, name in enumerate(lower) if name in words), None) for words in (_SOURCE, _DESTINATION)]
        if found[0] is not None and found[1] is not None:
            return found[0], found[1]
        if len(names) == 2:
            return 0, 1
        raise DataError(
            f"{self.name} does not say which columns are an edge's two nodes.", given=", ".join(names[:8]),
            hint="two columns; or name them source and destination",
        )  # fmt: skip

    def digest(self) -> str:
        found = hashlib.sha256()
        for pair in self.pieces(1 << 20):
            for column in pair:
                found.update(column.astype(np.int64).data)
        return found.hexdigest()

    @abstractmethod
    def pieces(self, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]: ...


class CsvEdges(EdgeTable):
    """A text file with an edge in each line; columns are parted by comma, semicolon, tab or blank.

    Raises:
        DataError: it cannot be read, or a line holds no edge; the line is named.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        first = next((line for line in self._lines() if line), "")
        self.separator = next((one for one in ",;\t " if one in first), ",")
        names = first.split(self.separator)
        self.header = bool(first) and not all(_is_number(name) for name in names)
        if first and len(names) < 2:
            raise DataError(f"{self.name} has one column; an edge has two nodes.", given=f"line 1: {first[:60]}")
        self.columns = self._columns(names if self.header else [str(k) for k in range(len(names))]) if first else (0, 1)

    @cached_property
    def count(self) -> int:  # type: ignore[override]
        return sum(1 for line in self._lines() if line) - self.header

    def pieces(self, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if not self.count:
            return
        options: dict[str, Any] = {"header": None, "skiprows": int(self.header), "chunksize": rows, "dtype": np.int64}
        try:
            with pd.read_csv(self.path, sep=self.separator, usecols=sorted(self.columns), **options) as reader:
                for frame in reader:
                    source, destination = (np.array(frame[column].to_numpy()) for column in self.columns)
                    yield source, destination
        except _BROKEN as error:
            raise DataError(f"{self.name} cannot be read: {error}") from error
        except (ValueError, OverflowError) as error:
            raise self._wrong_line() or DataError(f"{self.name} cannot be read: {error}") from error

    def place(self, position: int) -> str:
        numbers = (number for number, line in enumerate(self._lines(), start=1) if line)
        return f"line {next(islice(numbers, position + self.header, None))}"

    def _wrong_line(self) -> DataError | None:
        """What is wrong with the first line that holds no edge, found by reading the file again, slowly."""
        seen_header = not self.header
        for number, line in enumerate(self._lines(), start=1):
            if not line or not seen_header:
                seen_header |= bool(line)
                continue
            fields = line.split(self.separator)
            if len(fields) <= max(self.columns) or not all(_is_number(fields[k], whole=True) for k in self.columns):
                return DataError(f"{self.name} holds no edge in line {number}.", given=line[:60], allowed="two whole numbers")
        return None

    def _lines(self) -> Iterator[str]:
        """The lines as they stand in the file, without what ends them."""
        try:
            with self._open() as file:
                yield from (line.strip("\r\n") for line in file)
        except _BROKEN as error:
            raise DataError(f"{self.name} cannot be read: {error}") from error

    def _open(self) -> IO[str]:
        return gzip.open(self.path, "rt") if self.path.name.endswith(".gz") else self.path.open()


class ParquetEdges(EdgeTable):
    """A Parquet file. Raises ``DataError`` where it cannot be read, or its columns hold no whole numbers."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            from pyarrow import ArrowException, parquet
        except ImportError as error:
            raise DataError(f"{self.name} cannot be read: pyarrow is not installed.", hint="pip install pyarrow") from error
        try:
            self._file = parquet.ParquetFile(path)
        except (ArrowException, OSError) as error:
            raise DataError(f"{self.name} cannot be read: {error}") from error
        schema = self._file.schema_arrow
        self.columns = [schema.names[k] for k in self._columns(schema.names)]
        for name in self.columns:
            if np.dtype(schema.field(name).type.to_pandas_dtype()).kind not in "iu":
                given = f"column '{name}': {schema.field(name).type}"
                raise DataError(f"{self.name} does not hold whole numbers, which an edge's two nodes are.", given=given)
        self.count = self._file.metadata.num_rows

    def pieces(self, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        from pyarrow import ArrowException

        first = 0
        try:
            for batch in self._file.iter_batches(rows, columns=self.columns):
                pair = [batch.column(name) for name in self.columns]
                for name, column in zip(self.columns, pair, strict=True):
                    if column.null_count:
                        row = first + int(np.asarray(column.is_null()).argmax())
                        raise DataError(f"{self.name} holds no edge in {self.place(row)}.", given=f"column '{name}' is null")
                yield pair[0].to_numpy(), pair[1].to_numpy()
                first += batch.num_rows
        except (ArrowException, OSError) as error:
            raise DataError(f"{self.name} cannot be read: {error}") from error


def _is_number(text: str, *, whole: bool = False) -> bool:
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        return False
    return not whole or abs(number) < 2**63
