"""Reading OGB's raw files: gzip CSV tables, with errors that name the file and the row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from sargnn.config.choices import Task
from sargnn.errors import DataError
from sargnn.graph.check import FeatureCheck
from sargnn.graph.schema import SPLITS, UNLABELLED
from sargnn.sources.own.given import PlainArray
from sargnn.sources.own.given import read_labels as labels_of_task
from sargnn.sources.scan import File, Scan, lines_of

_PIECE_NUMBERS, _PIECE_ROWS = 1 << 22, 1 << 18


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
    """The rows of a CSV as ``read_table`` counts them, without blank lines, in [low, high]."""
    scan = _scan(path, may_be_empty=not low)
    rows = scan.count if scan is not None else 0
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
    """Labels of a task (``sargnn.graph.schema``), of classes int64 [num_nodes]."""
    return labels_from(path, read_table(path, np.float64), num_nodes, task)


def labels_from(path: Path, raw: np.ndarray, num_nodes: int, task: Task | None = None) -> np.ndarray:
    """Labels of a task from numbers [num_nodes, 1], nan where there is none; of another task than classes [num_nodes, any]."""
    if raw.shape[1] > 1 and task is None:
        raise DataError(
            f"'{path}' has several labels for each node, and nothing says what they are.",
            given=f"{raw.shape[1]} columns",
            allowed="one column, the class of each node",
            hint="task=multilabel for labels of 0 and 1, task=regression for numbers",
        )
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
            given=next(islice(lines_of(File.of_path(path)), row, None))[1] if path.suffix == ".gz" else raw[row, 0],
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


def read_table(path: Path, dtype: type, *, may_be_empty: bool = False) -> np.ndarray:
    """A headerless CSV as a writable [rows, columns] array; [0, 1] of an empty file, where it may be one."""
    return np.concatenate([*_pieces(path, dtype, _PIECE_ROWS, may_be_empty=may_be_empty)] or [np.zeros((0, 1), dtype)])


def table_pieces(path: Path, dtype: type, rows: int, columns: int, total: int) -> Iterator[tuple[int, np.ndarray]]:
    """A headerless CSV of ``total`` rows piece by piece: the first row's number, and a writable [at most ``rows``, columns].
    Raises ``DataError``: a file that cannot be read, or another number of rows or columns than expected."""
    first, last = 0, np.zeros((0, columns))
    for piece in _pieces(path, dtype, rows, may_be_empty=not total):
        if piece.shape[1] != columns or first + len(last) + len(piece) > total:
            expect_shape(path, np.empty((first + len(last) + len(piece), piece.shape[1]), bool), (total, columns))
        if len(last):
            yield first, last
        first, last = first + len(last), piece
    expect_shape(path, np.empty((first + len(last), columns), bool), (total, columns))
    if len(last):  # only now is it known that there are as many rows as expected
        yield first, last


def _pieces(path: Path, dtype: type, rows: int, *, may_be_empty: bool) -> Iterator[np.ndarray]:
    scan = _scan(path, may_be_empty=may_be_empty)
    if scan is not None:
        scan.whole = scan.schema.names if dtype is np.int64 else ()
        yield from (np.stack(columns, 1) for columns in scan.arrays(scan.schema.names, rows))


def _scan(path: Path, *, may_be_empty: bool = False) -> Scan | None:
    """None of a file without a row. Raises ``DataError`` where there must be one."""
    file = File.of_path(path)
    for _, line in lines_of(file):
        # Of one column a line of blanks would be a row.
        return Scan(file, columns=line.count(",") + 1, tidy="," not in line)
    if not may_be_empty:
        raise DataError(f"'{path}' is empty.")
    return None


def width_of(path: Path) -> int:
    """Columns of a CSV, from its first row."""
    scan = _scan(path)
    return len(scan.schema.names) if scan is not None else 0


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
