"""Reading OGB's raw files: gzip CSV tables, with errors that name the file and the row."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sargnn.data.dataset import SPLITS, UNLABELLED
from sargnn.errors import DataError

ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""What a damaged zip archive is answered with, a flipped bit that says it is encrypted among them."""


def existing(path: Path) -> Path:
    """``path``, which must be a file."""
    if not path.is_file():
        raise DataError(f"The dataset file '{path}' is missing.", hint="see OGB's raw layout for the expected files")
    return path


def identity_of(paths: list[Path]) -> dict[str, list[int]]:
    """Each file's size and time of change, for a store's key."""
    files = {}
    for path in paths:
        status = path.stat()
        files[str(path)] = [status.st_size, status.st_mtime_ns]
    return files


def split_folder(root: Path) -> Path:
    """The one folder in ``root/split``."""
    folders = sorted(p for p in (root / "split").glob("*") if p.is_dir())
    if len(folders) != 1:
        raise DataError(
            f"'{root / 'split'}' must hold exactly one folder with train, valid and test.",
            given=", ".join(p.name for p in folders) or "none",
        )
    return folders[0]


def read_features(path: Path, num_nodes: int, normalize: bool) -> np.ndarray:
    """float32 [num_nodes, F]. Raises ``DataError`` for a number that is not finite."""
    features = read_table(path, np.float32)
    expect_shape(path, features, (num_nodes, features.shape[1]))
    bad = np.flatnonzero(~np.isfinite(features).all(1))
    if len(bad):
        raise DataError(f"'{path}' holds a feature that is not finite in row {bad[0] + 1}.")
    if normalize:
        features /= np.maximum(np.abs(features).sum(1, keepdims=True), 1e-12)
    return features


def read_labels(path: Path, num_nodes: int) -> np.ndarray:
    """int64 [num_nodes], ``UNLABELLED`` where there is none."""
    return checked_labels(path, read_table(path, np.float64), num_nodes)


def checked_labels(path: Path, raw: np.ndarray, num_nodes: int) -> np.ndarray:
    """The same from numbers [num_nodes, 1], nan where there is none."""
    expect_shape(path, raw, (num_nodes, 1))
    fractional = np.flatnonzero(np.nan_to_num(raw[:, 0]) % 1 != 0)
    if len(fractional):
        raise DataError(
            f"'{path}' names a label that is not a class in row {fractional[0] + 1}.",
            given=float(raw[fractional[0], 0]),
            allowed="whole numbers from 0, or nothing for a node without a label",
        )
    labels = np.where(np.isnan(raw[:, 0]), UNLABELLED, raw[:, 0]).astype(np.int64)
    expect_range(path, labels[:, None], UNLABELLED, 2**31, "a label that is not a class")
    return labels


def read_split(paths: dict[str, Path], num_nodes: int) -> np.ndarray:
    """uint8 [num_nodes], from one file of node numbers per name of ``SPLITS``."""
    split = np.zeros(num_nodes, np.uint8)
    for name, value in SPLITS.items():
        rows = read_table(paths[name], np.int64, may_be_empty=name != "train")
        expect_range(paths[name], rows, 0, num_nodes, "a node that does not exist")
        if split[rows[:, 0]].any():
            row = int(np.flatnonzero(split[rows[:, 0]])[0])
            raise DataError(f"'{paths[name]}' holds a node of another split in row {row + 1}.")
        split[rows[:, 0]] = value
    return split


def read_table(path: Path, dtype: type, *, may_be_empty: bool = False, rows: int | None = None) -> np.ndarray:
    """A headerless CSV, or its first ``rows`` rows, as a writable [rows, columns] array."""
    try:
        frame = pd.read_csv(path, header=None, dtype=dtype, nrows=rows)
    except pd.errors.EmptyDataError as error:
        if may_be_empty:
            return np.zeros((0, 1), dtype)
        raise DataError(f"'{path}' is empty.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read: {error}") from error
    except (ValueError, OverflowError) as error:
        raise _malformed(path, dtype) or DataError(f"'{path}' cannot be read: {error}") from error
    return np.array(frame.to_numpy())


def table_pieces(path: Path, dtype: type, rows: int, columns: int, total: int) -> Iterator[tuple[int, np.ndarray]]:
    """A headerless CSV of ``total`` rows piece by piece: the first row's number, and a writable [at most ``rows``, columns].

    Raises:
        DataError: a file that cannot be read, or another number of rows or columns than expected.
    """
    found = 0
    try:
        with pd.read_csv(path, header=None, dtype=dtype, chunksize=rows) as reader:
            for frame in reader:
                piece = np.array(frame.to_numpy())
                if piece.shape[1] != columns or found + len(piece) > total:
                    expect_shape(path, np.empty((found + len(piece), piece.shape[1]), bool), (total, columns))
                yield found, piece
                found += len(piece)
    except pd.errors.EmptyDataError as error:
        if total:
            raise DataError(f"'{path}' is empty.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read: {error}") from error
    except (ValueError, OverflowError) as error:
        raise _malformed(path, dtype) or DataError(f"'{path}' cannot be read: {error}") from error
    if found != total:
        raise DataError(
            f"'{path}' does not have the shape that the counts give.", given=f"{found} rows", allowed=f"{total} rows"
        )


def width_of(path: Path) -> int:
    """Columns of a CSV, from its first row."""
    return read_table(path, np.float64, rows=1).shape[1]


def _malformed(path: Path, dtype: type) -> DataError | None:
    """What is wrong with the first row that does not fit, found by reading the file again, slowly."""
    number: Any = int if np.issubdtype(dtype, np.integer) else float
    width = 0
    with gzip.open(path, "rt", errors="replace") as file:
        for row, line in enumerate(file, start=1):
            fields = line.rstrip("\n").split(",")
            width = width or len(fields)
            if len(fields) != width:
                return DataError(
                    f"'{path}' has {len(fields)} columns in row {row}.", given=line.strip()[:60], allowed=f"{width}"
                )
            for field in fields:
                try:
                    fits = field == "" or abs(number(field)) < 2**63 or number is float
                except ValueError:
                    fits = False
                if not fits or (field == "" and number is int):
                    kind = "a whole number" if number is int else "a number"
                    return DataError(f"'{path}' does not hold {kind} in row {row}.", given=line.strip()[:60])
    return None


def expect_shape(path: Path, array: np.ndarray, shape: tuple[int, int]) -> None:
    if array.shape != shape:
        raise DataError(
            f"'{path}' does not have the shape that the counts give.",
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
    )  # fmt: skip
