"""Files of tables, read row after row: Parquet, Arrow IPC and CSV, also behind gzip, here or where fsspec reaches.

A text file's rows are its lines without the blank ones. Whatever is wrong with a file is a ``DataError`` that names it, and the
row where there is one.
"""

from __future__ import annotations

import glob
import io
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, ipc, parquet

from sargnn.errors import DataError
from sargnn.graph.store import sha256_of

SUFFIXES = (".parquet", ".csv", ".csv.gz", ".arrow", ".feather", ".ipc")
_HASHED_BYTES, _BLOCK_BYTES = 1 << 26, 1 << 22
_MOST_ROWS = 1 << 16
_SHOWN = 60
_NULLS = [*csv.ConvertOptions().null_values, "None", "<NA>"]
_BLANKS, _ENDS = re.compile(rb"[ \t]+"), re.compile(rb" ?([\r\n,;]) ?")


def identity_of(paths: list[Path]) -> dict[str, Any]:
    """What tells each file from another in its place, for a store's key, JSON-able.

    A file of at most 64 MiB is known by its SHA-256. Hashing the larger ones, 57 GB of ogbn-papers100M, would take minutes
    before every run: they are known by inode, size, and the times of change of their content and of their inode. No program
    can set the last one, so a copy that keeps size and modification time is still another file.
    """
    files: dict[str, Any] = {}
    for path in paths:
        status = path.stat()
        large = status.st_size > _HASHED_BYTES
        times = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        files[str(path)] = times if large else sha256_of(path)
    return files


@dataclass(frozen=True)
class File:
    """A file, wherever it is; messages call it ``name``. ``identity``, JSON-able, tells it from others; it may be read for
    it."""

    name: str
    open: Callable[[], Any]
    identity: Callable[[], Any]

    @classmethod
    def of_path(cls, path: Path | str) -> File:
        return cls(str(path), lambda: pa.OSFile(str(path)), lambda: identity_of([Path(path)])[str(path)])

    @property
    def is_csv(self) -> bool:
        return self.name.endswith((".csv", ".csv.gz"))

    def size(self) -> int:
        """Bytes."""
        with self.blame(), self.open() as source:
            return int(source.seek(0, os.SEEK_END))

    @contextmanager
    def blame(self) -> Iterator[None]:
        """What keeps it from being read becomes a ``DataError`` that names it."""
        try:
            yield
        except DataError:
            raise
        except Exception as error:  # whatever a file system of fsspec raises, too
            known = pa.ArrowException | OSError | EOFError | UnicodeDecodeError | zlib.error
            if "://" not in self.name and not isinstance(error, known):
                raise
            raise DataError(f"'{self.name}' cannot be read: {' '.join(str(error).split())}") from error


def files_of(pattern: str, folder: Path, table: str) -> list[File]:
    """The files of a table by name.

    Args:
        pattern: a path, a folder, a pattern or an address.
        folder: where a relative one starts.
        table: what messages call the table.

    Raises ``DataError``: there are none.
    """
    if "://" in pattern:
        files = _remote_files(pattern)
        there = bool(files)
    else:
        path = os.path.normpath(folder / os.path.expanduser(pattern))
        there = os.path.exists(path)
        below = f"{glob.escape(path)}/**" if there else os.path.join(glob.escape(str(folder)), os.path.expanduser(pattern))
        names = [path] if os.path.isfile(path) else glob.glob(below, recursive=True)
        files = [File.of_path(name) for name in sorted(names) if os.path.isfile(name)]
    known = [file for file in files if file.name.endswith(SUFFIXES) and not os.path.basename(file.name).startswith(("_", "."))]
    if not known:
        given = f"{pattern}: {len(files)} files, such as '{files[0].name}'" if files else pattern
        what = "names files of other forms" if files else "is empty" if there else "names no file"
        hint = None if "://" in pattern else f"relative names start from {folder}"
        raise DataError(f"What {table} are read from {what}.", given=given, allowed=", ".join(SUFFIXES), hint=hint)
    return known


def _remote_files(pattern: str) -> list[File]:
    def file_of(name: str) -> File:
        return File(str(system.unstrip_protocol(name)), lambda: system.open(name, "rb"), lambda: str(system.ukey(name)))

    try:
        import fsspec

        system, path = fsspec.url_to_fs(pattern)
        return [file_of(name) for name in sorted(system.find(path) if system.isdir(path) else system.glob(path))]
    except Exception as error:
        hint = "fsspec reads it where the package of its kind is installed, such as s3fs for s3://"
        raise DataError(f"'{pattern}' cannot be read: {error}", hint=hint) from error


def lines_of(file: File) -> Iterator[tuple[int, str]]:
    """A text's lines that are not blank: number, counted from 1, and what stands there, without blanks around it."""
    with file.blame(), file.open() as source:
        content = pa.CompressedInputStream(source, "gzip") if file.name.endswith(".gz") else source
        for number, line in enumerate(io.TextIOWrapper(content, "utf-8-sig", errors="replace"), 1):
            if line.strip():
                yield number, line.strip()


def holds_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class Scan:
    """The rows of one file. Raises ``DataError``: it cannot be read.

    Args:
        columns: of a text whose first line does not name them, how many there are: they are called "0", "1", ...
        skip: lines of such a text before its first row.
        texts: columns of a text that are texts.
        tidy: blanks and tabs of a text are first brought to a single blank between two words.

    Attributes:
        schema: names and types of the columns; of a text as its first rows look.
        expects: what a row of a text should hold, for messages.
        whole: columns of whole numbers.
    """

    expects: str | None = None
    whole: Collection[str] = ()

    def __init__(
        self,
        file: File,
        *,
        delimiter: str = ",",
        columns: int | None = None,
        skip: int = 0,
        texts: Sequence[str] = (),
        tidy: bool = False,
    ) -> None:
        self.file, self._texts, self._tidy = file, texts, tidy
        self._delimiter, self._columns, self._skip = delimiter, columns, skip
        with self._open() as source:
            if file.is_csv:
                source = self._csv(csv.open_csv, source, None)
            self.schema: pa.Schema = source.schema_arrow if isinstance(source, parquet.ParquetFile) else source.schema

    @cached_property
    def count(self) -> int:
        """How many rows there are. A text is read for it."""
        with self._open() as source:
            if isinstance(source, parquet.ParquetFile):
                return int(source.metadata.num_rows)
        column = self.schema.names[:1]
        return sum(len(batch) for batch in self.batches(column, _MOST_ROWS, dict.fromkeys(column, pa.string())))

    def place(self, row: int) -> str:
        """What messages call a row, counted from 0."""
        return f"row {row + 1}"

    def line(self, row: int) -> tuple[int, str]:
        """Of a text a row's line, as ``lines_of`` gives it."""
        rows = (line for line in lines_of(self.file) if line[0] > self._skip)
        return next(islice(rows, row + (self._columns is None), None), (0, ""))

    def batches(
        self, columns: Sequence[str], rows: int, types: Mapping[str, pa.DataType] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows, at most ``rows`` at a time; of a text in these types."""
        with self._open() as source:
            if self.file.is_csv:
                read = self._csv(csv.open_csv, source, columns, types or {})
            elif isinstance(source, parquet.ParquetFile):
                read = source.iter_batches(min(rows, _MOST_ROWS), columns=list(columns))
            else:
                numbers = range(source.num_record_batches) if hasattr(source, "num_record_batches") else None
                every = source if numbers is None else (source.get_batch(number) for number in numbers)
                read = (batch.select(list(columns)) for batch in every)
            for batch in read:
                yield from (batch.slice(start, rows) for start in range(0, len(batch), rows))

    def arrays(self, columns: Sequence[str], rows: int) -> Iterator[list[np.ndarray]]:
        """Columns of numbers, ``rows`` at a time, of the last ones what is left. A text's are float64 or, if whole, int64.

        Raises ``DataError``: a number is null, where nan cannot stand for it, or should be whole and is not.
        """
        held: list[list[np.ndarray]] = []
        first = count = 0
        kinds = {name: self.schema.field(name).type for name in columns}
        types = {name: kind if pa.types.is_boolean(kind) else pa.float64() for name, kind in kinds.items()}
        for batch in self.batches(columns, rows, types):
            arrays = [self._numbers(*of, first + count) for of in zip(columns, batch.columns, strict=True)]
            held, count = [*held, arrays], count + len(batch)
            if count >= rows:
                joined = [np.concatenate(parts) for parts in zip(*held, strict=True)]
                yield [array[:rows] for array in joined]
                first, count, held = first + rows, count - rows, [[array[rows:] for array in joined]]
        if count:
            yield [np.concatenate(parts) for parts in zip(*held, strict=True)]

    def _numbers(self, name: str, column: pa.Array, first: int) -> np.ndarray:
        if self.file.is_csv:
            numbers = np.asarray(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False))
            wrong = (numbers != np.floor(numbers)) | (abs(numbers) >= 2.0**63) if name in self.whole else np.zeros(1, bool)
        else:
            numbers = column.to_numpy(zero_copy_only=False)
            wrong = np.asarray(column.is_null()) if not pa.types.is_floating(column.type) else np.zeros(1, bool)
        if wrong.any():
            raise self._wrong(first + int(wrong.argmax()), f"not {self._kind(name)}")
        return numbers.astype(np.int64) if self.file.is_csv and name in self.whole else numbers

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Some columns in memory, of a text in types that all of its rows have."""
        with self._open() as source:
            return self._csv(csv.read_csv, source, columns) if self.file.is_csv else source.read(columns=list(columns))

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """A text's bytes, or what reads another file; what is wrong with it is a ``DataError``."""
        with self.file.blame():
            try:
                with self.file.open() as source:
                    if self.file.is_csv:
                        yield pa.CompressedInputStream(source, "gzip") if self.file.name.endswith(".gz") else source
                    elif self.file.name.endswith(".parquet"):
                        yield parquet.ParquetFile(source, buffer_size=_BLOCK_BYTES)
                    else:
                        yield _open_ipc(source)
            except pa.ArrowInvalid as error:
                if (wrong := self._of_row(error)) is not None:
                    raise wrong from error
                raise

    def _csv(
        self,
        read: Callable[..., Any],
        source: Any,
        columns: Sequence[str] | None,
        types: Mapping[str, pa.DataType] = MappingProxyType({}),
    ) -> Any:
        if self._tidy:
            source = pa.TransformInputStream(source, _Tidied())
        names = None if self._columns is None else [str(number) for number in range(self._columns)]
        # Arrow numbers the rows, which errors name, where one thread reads.
        lines = csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False, column_names=names, skip_rows=self._skip)
        fields = csv.ParseOptions(delimiter=self._delimiter, invalid_row_handler=_skip_blank)
        known = {**types, **dict.fromkeys(self._texts, pa.string())}
        values = csv.ConvertOptions(column_types=known, include_columns=columns, null_values=_NULLS)
        return read(source, lines, fields, values)

    def _of_row(self, error: pa.ArrowInvalid) -> DataError | None:
        """What is wrong with a row of a text, with its place in place of how Arrow counts."""
        pattern = r"(?:#(\d+): )?Row #(\d+): (?:Expected (\d+) columns, got (\d+)|CSV conversion error to (\w+))"
        if (match := re.search(pattern, str(error))) is None:
            return None
        column, row, width, given, kind = match.groups()
        number = int(row) - 1 - (self._skip if self._columns is not None else 1)
        if kind is None:
            return self._wrong(number, f"{given} columns", width)
        what = self._kind(self.schema.names[int(column)]) if kind == "double" else {"string": "UTF8"}.get(kind, kind)
        return self._wrong(number, f"not {what}")

    def _wrong(self, row: int, what: str, allowed: str | None = None) -> DataError:
        given = self.line(row)[1][:_SHOWN] if self.file.is_csv else None
        return DataError(
            f"'{self.file.name}' cannot be read: {what} in {self.place(row)}.", given=given, allowed=allowed or self.expects
        )

    def _kind(self, name: str) -> str:
        return "a whole number" if name in self.whole else "a number"


class _Tidied:
    """Text, as it is read in pieces: blanks and tabs become one blank, and those beside a comma or a line's end go."""

    def __init__(self) -> None:
        self._kept = b"\n"  # the last byte that was given, and blanks and ends of lines behind it

    def __call__(self, piece: Any) -> bytes:
        text = _ENDS.sub(rb"\1", _BLANKS.sub(b" ", self._kept + bytes(piece)))
        end = max(1, len(text.rstrip()))
        self._kept = text[end - 1 :]
        return text[1:end]


def _skip_blank(row: csv.InvalidRow) -> str:
    return "error" if row.text.strip() else "skip"


def _open_ipc(source: Any) -> Any:
    try:
        return ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return ipc.open_stream(source)
