"""Reading OGB's raw files: gzip CSV tables, with errors that name the file and the row."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sargnn.config.run import Task
from sargnn.errors import DataError
from sargnn.graph.check import FeatureCheck
from sargnn.graph.schema import SPLITS, UNLABELLED
from sargnn.graph.store import sha256_of
from sargnn.sources.own.given import PlainArray
from sargnn.sources.own.targets import read_labels as labels_of_task

_HASHED_BYTES, _PIECE_NUMBERS, _COUNTED_BYTES = 1 << 26, 1 << 22, 1 << 22


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


def read_count(path: Path, low: int, high: int) -> int:
    """The one number that a file holds, in [low, high]."""
    table = read_table(path, np.int64)
    if table.shape != (1, 1):
        raise DataError(
            f"'{path}' must hold one number: a folder holds one graph.",
            given=f"{table.shape[0]} rows, {table.shape[1]} columns",
        )
    expect_range(path, table, low, high + 1, "a count that cannot be")
    return int(table[0, 0])


def count_rows(path: Path, low: int, high: int) -> int:
    """The rows of a CSV as ``read_table`` counts them, without blank lines, in [low, high]; it is decompressed, not parsed."""
    rows, last = 0, b"\n"
    same = bytes.maketrans(b"\r", b"\n")
    try:
        with gzip.open(path, "rb") as file:
            while content := file.read(_COUNTED_BYTES):
                text = last + content.translate(same, b" \t")
                ends = np.frombuffer(text, np.uint8) == ord("\n")
                rows += int(np.count_nonzero(ends[1:] & ~ends[:-1]))
                last = text[-1:]
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read: {error}") from error
    rows += last != b"\n"
    if rows < low:
        raise DataError(f"'{path}' is empty.")
    expect_range(path, np.array([[rows]]), low, high + 1, "more rows than can be")
    return rows


def read_features(path: Path, num_nodes: int, normalize: bool) -> np.ndarray:
    """float32 [num_nodes, F]. Raises ``DataError`` for a number that cannot be trained on."""
    width, check = width_of(path), FeatureCheck(str(path))
    features = np.empty((num_nodes, width), np.float32)
    for first, piece in table_pieces(path, np.float64, max(1, _PIECE_NUMBERS // width), width, num_nodes):
        features[first : first + len(piece)] = check.to_float32(piece, normalize=normalize)
    check.finish()
    return features


def read_labels(path: Path, num_nodes: int, task: Task | None) -> np.ndarray:
    """Labels of a task (``sargnn.graph.schema``), of classes int64 [num_nodes]; the errors of ``expect_one_column``."""
    raw = read_table(path, np.float64)
    expect_one_column(path, raw.shape[1], task)
    return labels_from(path, raw, num_nodes, task)


def expect_one_column(path: Path, columns: int, task: Task | None) -> None:
    """A label file of classes has one column. Raises ``DataError`` where it has several and no task says what they are."""
    if columns > 1 and task is None:
        raise DataError(
            f"'{path}' has several labels for each node, and nothing says what they are.",
            given=f"{columns} columns",
            allowed="one column, the class of each node",
            hint="task=multilabel for labels of 0 and 1, task=regression for numbers",
        )


def labels_from(path: Path, raw: np.ndarray, num_nodes: int, task: Task | None = None) -> np.ndarray:
    """Labels of a task from numbers [num_nodes, 1], nan where there is none; of another task than classes [num_nodes, any]."""
    if task not in (None, "classes"):
        expect_shape(path, raw, (num_nodes, raw.shape[1]))
        return labels_of_task(PlainArray(f"'{path}'", raw), task)
    expect_shape(path, raw, (num_nodes, 1))
    missing = np.isnan(raw)
    known = np.where(missing, UNLABELLED, raw)
    wrong = (known < UNLABELLED) | (known >= 2**31) | (known != np.floor(known))
    if wrong.any():
        row = int(wrong[:, 0].argmax())
        raise DataError(
            f"'{path}' names a label that is not a class in row {row + 1}.",
            given=_line_of(path, row) or raw[row, 0],
            allowed=f"whole numbers from 0 to {2**31 - 1}, or nan for a node without a label",
        )
    return known[:, 0].astype(np.int64)


def read_split(paths: dict[str, Path], num_nodes: int) -> np.ndarray:
    """uint8 [num_nodes], from one file of node numbers per name of ``SPLITS``."""
    split = np.zeros(num_nodes, np.uint8)
    for name, value in SPLITS.items():
        rows = read_table(paths[name], np.int64, may_be_empty=name != "train")
        if rows.shape[1] != 1:
            raise DataError(f"'{paths[name]}' must hold one node number in each row.", given=f"{rows.shape[1]} columns")
        expect_range(paths[name], rows, 0, num_nodes, "a node that does not exist")
        if split[rows[:, 0]].any():
            row = int(np.flatnonzero(split[rows[:, 0]])[0])
            raise DataError(f"'{paths[name]}' holds a node of another split in row {row + 1}.")
        split[rows[:, 0]] = value
    return split


def read_table(path: Path, dtype: type, *, may_be_empty: bool = False, rows: int | None = None) -> np.ndarray:
    """A headerless CSV, or its first ``rows`` rows, as a writable [rows, columns] array."""
    with _blame_table(path, dtype, may_be_empty=may_be_empty):
        return np.array(pd.read_csv(path, header=None, dtype=dtype, nrows=rows).to_numpy())
    return np.zeros((0, 1), dtype)


def table_pieces(path: Path, dtype: type, rows: int, columns: int, total: int) -> Iterator[tuple[int, np.ndarray]]:
    """A headerless CSV of ``total`` rows piece by piece: the first row's number, and a writable [at most ``rows``, columns].

    Raises:
        DataError: a file that cannot be read, or another number of rows or columns than expected.
    """
    rows_read = 0
    with (
        _blame_table(path, dtype, may_be_empty=not total),
        pd.read_csv(path, header=None, dtype=dtype, chunksize=rows) as reader,
    ):
        for frame in reader:
            piece = np.array(frame.to_numpy())
            if piece.shape[1] != columns or rows_read + len(piece) > total:
                expect_shape(path, np.empty((rows_read + len(piece), piece.shape[1]), bool), (total, columns))
            yield rows_read, piece
            rows_read += len(piece)
    if rows_read != total:
        raise DataError(
            f"'{path}' does not have the shape that the counts and the other files give.",
            given=f"{rows_read} rows",
            allowed=f"{total} rows",
        )


@contextmanager
def _blame_table(path: Path, dtype: type, *, may_be_empty: bool) -> Iterator[None]:
    """What keeps a table from being read becomes a ``DataError`` that names the row; but that it is empty, where it may be."""
    try:
        yield
    except pd.errors.EmptyDataError as error:
        if not may_be_empty:
            raise DataError(f"'{path}' is empty.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read: {error}") from error
    except (ValueError, OverflowError) as error:
        raise _malformed(path, dtype) or DataError(f"'{path}' cannot be read: {error}") from error


def width_of(path: Path) -> int:
    """Columns of a CSV, from its first row."""
    return read_table(path, np.float64, rows=1).shape[1]


def _malformed(path: Path, dtype: type) -> DataError | None:
    """What is wrong with the first row that does not fit, found by reading the file again, slowly."""
    number: Any = int if np.issubdtype(dtype, np.integer) else float
    width = 0
    for row, line in enumerate(_lines(path), start=1):
        fields = line.split(",")
        width = width or len(fields)
        if len(fields) != width:
            return DataError(f"'{path}' has {len(fields)} columns in row {row}.", given=line[:60], allowed=f"{width}")
        for field in fields:
            try:
                fits = field == "" or abs(number(field)) < 2**63 or number is float
            except ValueError:
                fits = False
            if not fits or (field == "" and number is int):
                kind = "a whole number" if number is int else "a number"
                return DataError(f"'{path}' does not hold {kind} in row {row}.", given=line[:60])
    return None


def _lines(path: Path) -> Iterator[str]:
    """The rows of a table as they stand in the file, blank lines left out, as far as they can be read."""
    try:
        with gzip.open(path, "rt", errors="replace") as file:
            yield from (line.strip() for line in file if line.strip())
    except (OSError, EOFError, zlib.error):
        return


def _line_of(path: Path, row: int) -> str | None:
    """A row, numbered from 0, as it stands in a CSV file; None for another kind of file."""
    return next(islice(_lines(path), row, None), None)


def expect_shape(path: Path, array: np.ndarray, shape: tuple[int, int]) -> None:
    """A table has so many rows and columns. Raises ``DataError``."""
    if array.shape != shape:
        raise DataError(
            f"'{path}' does not have the shape that the counts and the other files give.",
            given=f"{array.shape[0]} rows, {array.shape[1]} columns",
            allowed=f"{shape[0]} rows, {shape[1]} columns",
        )


def expect_range(path: Path, array: np.ndarray, low: int, high: int, what: str, first: int = 0) -> None:
    """All entries of [rows, columns] lie in [low, high); ``first``: the number of the first row in the file."""
    if not array.size or (array.min() >= low and array.max() < high):
        return
    row = int(np.flatnonzero(((array < low) | (array >= high)).any(1))[0])
    raise DataError(
        f"'{path}' names {what} in row {first + row + 1}.", given=array[row].tolist(), allowed=f"{low} to {high - 1}"
    )
