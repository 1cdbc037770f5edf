"""A table in many files, in the order of their names, as one long table that is read batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sargnn.errors import DataError, nearest
from sargnn.sources.scan import Scan, files_of

_ROW_BYTES = 16
"""Of a row of another file at least, as a guess."""


class Table:
    """The files of one table, as one long table.

    Args:
        name: what messages call the table ("nodes of type 'user'").
        patterns: paths, folders, patterns and addresses.
        folder: what relative ones start from.
        texts: columns that a CSV file is read as texts, such as ids.

    Attributes:
        columns: name -> Arrow type, of the first file that knows it.

    Raises:
        DataError: a pattern names nothing, a file is of another form or cannot be read.
    """

    def __init__(self, name: str, patterns: Sequence[str], folder: Path, texts: Sequence[str] = ()) -> None:
        self.name = name
        files = {file.name: file for pattern in patterns for file in files_of(pattern, folder, name)}
        self._scans = [Scan(file, texts=texts) for file in files.values()]
        self._starts: dict[int, int] = {}  # number of a file -> rows before it, of those that were read
        self.columns: dict[str, pa.DataType] = {}
        for scan in self._scans:
            if twice := [column for column in scan.schema.names if scan.schema.names.count(column) > 1]:
                raise DataError(f"'{scan.file.name}' has several columns '{twice[0]}'.", hint="rename one of them")
            for field in scan.schema:
                if self.columns.get(field.name, pa.null()) == pa.null():
                    self.columns[field.name] = field.type

    def identity(self) -> dict[str, Any]:
        """What tells the files from others, JSON-able."""
        return {scan.file.name: scan.file.identity() for scan in self._scans}

    @cached_property
    def about_rows(self) -> int:
        """How many rows there are, about; exactly of Parquet."""
        exact = {scan for scan in self._scans if scan.file.name.endswith(".parquet")}
        return sum(scan.count if scan in exact else scan.file.size() // _ROW_BYTES for scan in self._scans)

    def check(self, column: str, allowed: Callable[[pa.DataType], bool], what: str, *, of: str) -> None:
        """Every file has the column, of an allowed type. Raises ``DataError`` naming the file.

        Args:
            what: which types are allowed, for the message.
            of: what names the column ("id").
        """
        for scan in self._scans:
            schema = scan.schema
            if column not in schema.names:
                raise DataError(
                    f"'{scan.file.name}' has no column '{column}', which '{of}' names.",
                    given=", ".join(schema.names[:12]),
                    allowed=nearest(column, schema.names),
                )
            kind = plain_type(schema.field(column).type)
            if kind != pa.null() and not allowed(kind):
                raise DataError(
                    f"The column '{column}' cannot be '{of}'.", given=f"{kind}, in '{scan.file.name}'", allowed=what
                )

    def kinds(self, column: str) -> list[pa.DataType]:
        """The types that a column has in the files."""
        return [plain_type(scan.schema.field(column).type) for scan in self._scans]

    def check_alike(self, column: str, family: Callable[[pa.DataType], str]) -> None:
        """A column has values of one family in all files. Raises ``DataError`` naming the two."""
        seen: dict[str, str] = {}
        for scan, kind in zip(self._scans, self.kinds(column), strict=True):
            if kind != pa.null():
                seen.setdefault(family(kind), scan.file.name)
        if len(seen) > 1:
            given = "; ".join(f"{name} in '{file}'" for name, file in list(seen.items())[:2])
            raise DataError(f"The column '{column}' of {self.name} is not the same in all files.", given=given)

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Some columns of all rows, at most ``rows`` at a time, each with the number of its first row."""
        # What later rows of a text hold is not known from the first ones.
        known = {name: self.columns[name] for name in columns if self.columns[name] != pa.null()}
        types = {name: pa.float64() if pa.types.is_integer(kind) else kind for name, kind in known.items()}
        first = 0
        for number, scan in enumerate(self._scans):
            self._starts[number] = first
            for batch in scan.batches(columns, rows, types):
                yield first, _plain(batch, texts_of_csv=scan.file.is_csv)
                first += len(batch)

    def place(self, row: int) -> str:
        """Where a row is that has been read, for messages."""
        number = max(number for number, first in self._starts.items() if first <= row)
        return f"{self._scans[number].place(row - self._starts[number])} of '{self._scans[number].file.name}'"


def _plain(batch: pa.RecordBatch, *, texts_of_csv: bool) -> pa.RecordBatch:
    """With texts of a type that everything works on; of CSV an empty one is null, and no other one."""
    columns = []
    for column in batch.columns:
        if str(column.type) == "string_view":
            column = pc.cast(column, pa.large_string())
        if texts_of_csv and pa.types.is_string(column.type):
            column = pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values, of a dictionary those of its entries."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.large_string() if str(kind) == "string_view" else kind
