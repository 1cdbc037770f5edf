"""A folder in OGB's raw homogeneous layout (gzip CSV without header).

    raw/edge.csv.gz [E, 2]   raw/node-feat.csv.gz [N, F]   raw/node-label.csv.gz [N, 1]
    raw/num-node-list.csv.gz [1]   raw/num-edge-list.csv.gz [1]
    split/NAME/{train,valid,test}.csv.gz: node numbers

Letters: N nodes, E rows of the edge file, F features.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sargnn.config import OgbDirConfig
from sargnn.data.dataset import SPLITS, UNLABELLED, Dataset, InMemoryReader, by_destination
from sargnn.errors import DataError

_RAW = ("edge", "node-feat", "node-label", "num-node-list", "num-edge-list")
_VERSION = 1


class OgbDir(InMemoryReader):
    """Reads the folder ``config.root``."""

    def __init__(self, config: OgbDirConfig) -> None:
        self.config = config
        self.root = Path(config.root).expanduser().resolve()
        if not self.root.is_dir():
            raise DataError(
                "The dataset folder does not exist.",
                given=str(self.root),
                hint="dataset.root=FOLDER names a folder that holds raw/ and split/ in OGB's layout",
            )
        self.raw = {name: self._file(self.root / "raw" / f"{name}.csv.gz") for name in _RAW}
        folders = sorted(p for p in (self.root / "split").glob("*") if p.is_dir())
        if len(folders) != 1:
            raise DataError(
                f"'{self.root / 'split'}' must hold exactly one folder with train, valid and test.",
                given=", ".join(p.name for p in folders) or "none",
            )
        self.split = {name: self._file(folders[0] / f"{name}.csv.gz") for name in SPLITS}

    @staticmethod
    def _file(path: Path) -> Path:
        if not path.is_file():
            raise DataError(f"The dataset file '{path}' is missing.", hint="see OGB's raw layout for the expected files")
        return path

    def identity(self) -> dict[str, Any]:
        """What decides the content, for the store's key: the flags, and each raw file's size and time of change."""
        files = {}
        for path in (*self.raw.values(), *self.split.values()):
            status = path.stat()
            files[str(path)] = [status.st_size, status.st_mtime_ns]
        return {
            "reader": "ogb_dir",
            "version": _VERSION,
            "files": files,
            "add_inverse_edges": self.config.add_inverse_edges,
            "normalize_features": self.config.normalize_features,
        }

    def read(self) -> Dataset:
        """Read the raw files.

        Raises:
            DataError: a file that cannot be read, counts that disagree, an edge to a node that does not exist, a feature
                that is not finite, a label that is not a class; file and row are named.
        """
        num_nodes = int(_table(self.raw["num-node-list"], np.int64).sum())
        num_edges = int(_table(self.raw["num-edge-list"], np.int64).sum())
        edges = _table(self.raw["edge"], np.int64)
        _expect_shape(self.raw["edge"], edges, (num_edges, 2))
        _expect_range(self.raw["edge"], edges, 0, num_nodes, "a node that does not exist")

        features = _table(self.raw["node-feat"], np.float32)
        _expect_shape(self.raw["node-feat"], features, (num_nodes, features.shape[1]))
        bad = np.flatnonzero(~np.isfinite(features).all(1))
        if len(bad):
            raise DataError(f"'{self.raw['node-feat']}' holds a feature that is not finite in row {bad[0] + 1}.")
        if self.config.normalize_features:
            features /= np.maximum(np.abs(features).sum(1, keepdims=True), 1e-12)

        raw_labels = _table(self.raw["node-label"], np.float64)
        _expect_shape(self.raw["node-label"], raw_labels, (num_nodes, 1))
        fractional = np.flatnonzero(np.nan_to_num(raw_labels[:, 0]) % 1 != 0)
        if len(fractional):
            raise DataError(
                f"'{self.raw['node-label']}' names a label that is not a class in row {fractional[0] + 1}.",
                given=float(raw_labels[fractional[0], 0]),
                allowed="whole numbers from 0, or nothing for a node without a label",
            )
        labels = np.where(np.isnan(raw_labels[:, 0]), UNLABELLED, raw_labels[:, 0]).astype(np.int64)
        _expect_range(self.raw["node-label"], labels[:, None], UNLABELLED, 2**31, "a label that is not a class")

        split = np.zeros(num_nodes, np.uint8)
        for name, value in SPLITS.items():
            rows = _table(self.split[name], np.int64, may_be_empty=name != "train")
            _expect_range(self.split[name], rows, 0, num_nodes, "a node that does not exist")
            if split[rows[:, 0]].any():
                row = int(np.flatnonzero(split[rows[:, 0]])[0])
                raise DataError(f"'{self.split[name]}' holds a node of another split in row {row + 1}.")
            split[rows[:, 0]] = value

        source, destination = edges[:, 0], edges[:, 1]
        if self.config.add_inverse_edges:
            source, destination = np.concatenate([source, destination]), np.concatenate([destination, source])
        indptr, indices = by_destination(source, destination, num_nodes)
        return Dataset(self.root.name, int(labels.max()) + 1, features, labels, split, indptr, indices)


def _table(path: Path, dtype: type, *, may_be_empty: bool = False) -> np.ndarray:
    """A headerless CSV as a writable [rows, columns] array."""
    try:
        frame = pd.read_csv(path, header=None, dtype=dtype)
    except pd.errors.EmptyDataError as error:
        if may_be_empty:
            return np.zeros((0, 1), dtype)
        raise DataError(f"'{path}' is empty.") from error
    except (OSError, EOFError) as error:
        raise DataError(f"'{path}' cannot be read: {error}") from error
    except (ValueError, OverflowError) as error:
        raise _malformed(path, dtype) or DataError(f"'{path}' cannot be read: {error}") from error
    return np.array(frame.to_numpy())


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


def _expect_shape(path: Path, array: np.ndarray, shape: tuple[int, int]) -> None:
    if array.shape != shape:
        raise DataError(
            f"'{path}' does not have the shape that the counts give.",
            given=f"{array.shape[0]} rows, {array.shape[1]} columns",
            allowed=f"{shape[0]} rows, {shape[1]} columns",
        )


def _expect_range(path: Path, array: np.ndarray, low: int, high: int, what: str) -> None:
    bad = np.flatnonzero(((array < low) | (array >= high)).any(1))
    if len(bad):
        row = int(bad[0])
        raise DataError(f"'{path}' names {what} in row {row + 1}.", given=array[row].tolist(), allowed=f"{low} to {high - 1}")
