"""Tables in many files: Parquet, CSV and Arrow IPC, local or remote, read in the order of their names, batch by batch.

Local files are opened by path. What has a ``://`` goes through fsspec, which knows S3, GCS and others where their packages are
installed.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, ipc, parquet

from sargnn.errors import DataError, nearest
from sargnn.sources.ogb.tables import identity_of

_SUFFIXES = (".parquet", ".csv", ".csv.gz", ".arrow", ".feather", ".ipc")
_MOST_ROWS = 1 << 16
_BLOCK_BYTES = 1 << 22
_ROW_BYTES = 16
"""Of a row of another file at least, as a guess."""


@dataclass(frozen=True)
class _File:
    """A file of a table.

    Attributes:
        name: what messages call it.
        open: opens it for reading bytes.
        identity: what tells it from others, JSON-able; its content may be read for it.
    """

    name: str
    open: Callable[[], Any]
    identity: Callable[[], Any]

    @property
    def is_csv(self) -> bool:
        return self.name.endswith((".csv", ".csv.gz"))


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
        self.name, self._texts = name, set(texts)
        self._files = list({file.name: file for pattern in patterns for file in _files(pattern, folder, name)}.values())
        self._starts: dict[int, int] = {}  # number of a file -> rows before it, of those that were read
        self.columns: dict[str, pa.DataType] = {}
        self._schemas = []
        for file in self._files:
            with _blame(file):
                schema = self._schema(file)
            twice = [column for column in schema.names if schema.names.count(column) > 1]
            if twice:
                raise DataError(f"'{file.name}' has several columns '{twice[0]}'.", hint="rename one of them")
            self._schemas.append(schema)
            for field in schema:
                if self.columns.get(field.name, pa.null()) == pa.null():
                    self.columns[field.name] = field.type

    def identity(self) -> dict[str, Any]:
        """What tells the files from others, JSON-able."""
        return {file.name: file.identity() for file in self._files}

    @cached_property
    def about_rows(self) -> int:
        """How many rows there are, about; exactly of Parquet."""
        count = 0
        for file in self._files:
            with _blame(file), file.open() as source:
                if file.name.endswith(".parquet"):
                    count += parquet.ParquetFile(source).metadata.num_rows
                else:
                    count += source.seek(0, os.SEEK_END) // _ROW_BYTES
        return count

    def check(self, column: str, allowed: Callable[[pa.DataType], bool], what: str, *, of: str) -> None:
        """Every file has the column, of an allowed type. Raises ``DataError`` naming the file.

        Args:
            what: which types are allowed, for the message.
            of: what names the column ("id").
        """
        for file, schema in zip(self._files, self._schemas, strict=True):
            if column not in schema.names:
                raise DataError(
                    f"'{file.name}' has no column '{column}', which '{of}' names.",
                    given=", ".join(schema.names[:12]),
                    allowed=nearest(column, schema.names),
                )
            kind = plain_type(schema.field(column).type)
            if kind != pa.null() and not allowed(kind):
                raise DataError(f"The column '{column}' cannot be '{of}'.", given=f"{kind}, in '{file.name}'", allowed=what)

    def kinds(self, column: str) -> list[pa.DataType]:
        """The types that a column has in the files."""
        return [plain_type(schema.field(column).type) for schema in self._schemas]

    def check_alike(self, column: str, family: Callable[[pa.DataType], str]) -> None:
        """A column has values of one family in all files. Raises ``DataError`` naming the two."""
        seen: dict[str, str] = {}
        for file, kind in zip(self._files, self.kinds(column), strict=True):
            if kind != pa.null():
                seen.setdefault(family(kind), file.name)
        if len(seen) > 1:
            given = "; ".join(f"{name} in '{file}'" for name, file in list(seen.items())[:2])
            raise DataError(f"The column '{column}' of {self.name} is not the same in all files.", given=given)

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Some columns of all rows, at most ``rows`` at a time, each with the number of its first row."""
        first = 0
        for number, file in enumerate(self._files):
            self._starts[number] = first
            with _blame(file):
                for batch in self._read(file, columns, max(1, min(rows, _MOST_ROWS))):
                    batch = _plain(batch, texts_of_csv=file.is_csv)
                    for start in range(0, batch.num_rows, rows):
                        piece = batch.slice(start, rows)
                        yield first, piece
                        first += piece.num_rows

    def place(self, row: int) -> str:
        """Where a row is that has been read, for messages."""
        number = max(number for number, first in self._starts.items() if first <= row)
        return f"row {row - self._starts[number] + 1} of '{self._files[number].name}'"

    def _schema(self, file: _File) -> pa.Schema:
        with file.open() as source:
            if file.name.endswith(".parquet"):
                return parquet.ParquetFile(source).schema_arrow
            if file.is_csv:
                with self._open_csv(file, source) as reader:
                    return reader.schema
            with _open_ipc(source) as reader:
                return reader.schema

    def _read(self, file: _File, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        with file.open() as source:
            if file.name.endswith(".parquet"):
                yield from parquet.ParquetFile(source, buffer_size=_BLOCK_BYTES).iter_batches(rows, columns=list(columns))
            elif file.is_csv:
                with self._open_csv(file, source, columns) as reader:
                    yield from reader
            else:
                with _open_ipc(source) as reader:
                    numbers = range(reader.num_record_batches) if hasattr(reader, "num_record_batches") else None
                    every = reader if numbers is None else (reader.get_batch(number) for number in numbers)
                    yield from (batch.select(list(columns)) for batch in every)

    def _open_csv(self, file: _File, source: Any, columns: Sequence[str] | None = None) -> Any:
        if file.name.endswith(".gz"):
            source = pa.CompressedInputStream(source, "gzip")
        types: dict[str, pa.DataType] = dict.fromkeys(self._texts, pa.string())
        if columns is not None:  # what later rows hold is not known from the first ones
            known = {name: self.columns[name] for name in columns if self.columns[name] != pa.null()}
            types |= {name: pa.float64() if pa.types.is_integer(kind) else kind for name, kind in known.items()}
        convert = csv.ConvertOptions(column_types=types, include_columns=columns)
        return csv.open_csv(source, csv.ReadOptions(block_size=_BLOCK_BYTES), convert_options=convert)


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


def _open_ipc(source: Any) -> Any:
    try:
        return ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return ipc.open_stream(source)


@contextmanager
def _blame(file: _File) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # whatever a file system of fsspec raises, too
        if "://" not in file.name and not isinstance(error, pa.ArrowException | OSError | EOFError | UnicodeDecodeError):
            raise
        raise DataError(f"'{file.name}' cannot be read: {' '.join(str(error).split())}") from error


def _files(pattern: str, folder: Path, table: str) -> list[_File]:
    """The files of a pattern by name, at least one."""
    if "://" in pattern:
        files, there = _remote(pattern)
    else:
        path = os.path.normpath(folder / os.path.expanduser(pattern))
        there = os.path.exists(path)
        names = (
            [path]
            if os.path.isfile(path)
            else glob.glob(
                f"{glob.escape(path)}/**" if there else os.path.join(glob.escape(str(folder)), os.path.expanduser(pattern)),
                recursive=True,
            )
        )
        names = sorted(name for name in names if os.path.isfile(name))
        files = [_local(name) for name in names]
    known = [file for file in files if file.name.endswith(_SUFFIXES) and not os.path.basename(file.name).startswith(("_", "."))]
    if not known:
        given = f"{pattern}: {len(files)} files, such as '{files[0].name}'" if files else pattern
        what = "names files of other forms" if files else "is empty" if there else "names no file"
        hint = None if "://" in pattern else f"relative names start from {folder}"
        raise DataError(f"What {table} are read from {what}.", given=given, allowed=", ".join(_SUFFIXES), hint=hint)
    return known


def _local(name: str) -> _File:
    return _File(name, lambda: pa.OSFile(name), lambda: identity_of([Path(name)])[name])


def _remote(pattern: str) -> tuple[list[_File], bool]:
    try:
        import fsspec

        system, path = fsspec.url_to_fs(pattern)
        paths = sorted(system.find(path) if system.isdir(path) else system.glob(path))
        files = [_of_system(system, name) for name in paths]
    except Exception as error:
        hint = "fsspec reads it where the package of its kind is installed, such as s3fs for s3://"
        raise DataError(f"'{pattern}' cannot be read: {error}", hint=hint) from error
    return files, bool(files)


def _of_system(system: Any, name: str) -> _File:
    return _File(str(system.unstrip_protocol(name)), lambda: system.open(name, "rb"), lambda: str(system.ukey(name)))
