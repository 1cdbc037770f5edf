"""A folder in OGB's raw homogeneous layout (gzip CSV without header).

    raw/edge.csv.gz [E, 2]   raw/node-feat.csv.gz [N, F]   raw/node-label.csv.gz [N, 1]
    raw/num-node-list.csv.gz [1]   raw/num-edge-list.csv.gz [1]
    split/NAME/{train,valid,test}.csv.gz: node numbers

Letters: N nodes, E rows of the edge file, F features.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sargnn.config import OgbDirConfig
from sargnn.data.dataset import SPLITS, Dataset, InMemoryReader, by_destination
from sargnn.data.ogb_files import (
    existing,
    expect_range,
    expect_shape,
    identity_of,
    read_features,
    read_labels,
    read_split,
    read_table,
    split_folder,
)
from sargnn.errors import DataError

_RAW = ("edge", "node-feat", "node-label", "num-node-list", "num-edge-list")
_VERSION = 2


def ogb_dir(config: OgbDirConfig) -> InMemoryReader:
    """The reader of the layout that the folder ``config.root`` has."""
    root = Path(config.root).expanduser().resolve()
    if not root.is_dir():
        raise DataError(
            "The dataset folder does not exist.",
            given=str(root),
            hint="dataset.root=FOLDER names a folder that holds raw/ and split/ in OGB's layout",
        )
    from sargnn.data.ogb_typed import TRIPLETS, TypedOgbDir

    return TypedOgbDir(config, root) if (root / TRIPLETS).exists() else OgbDir(config, root)


class OgbDir(InMemoryReader):
    """Reads a homogeneous folder."""

    def __init__(self, config: OgbDirConfig, root: Path) -> None:
        self.config, self.root = config, root
        self.raw = {name: existing(root / "raw" / f"{name}.csv.gz") for name in _RAW}
        folder = split_folder(root)
        self.split = {name: existing(folder / f"{name}.csv.gz") for name in SPLITS}

    def identity(self) -> dict[str, Any]:
        """What decides the content, for the store's key: the flags, and each raw file's size and time of change."""
        return {
            "reader": "ogb_dir",
            "version": _VERSION,
            "files": identity_of([*self.raw.values(), *self.split.values()]),
            "add_inverse_edges": self.config.add_inverse_edges,
            "normalize_features": self.config.normalize_features,
        }

    def read(self) -> Dataset:
        """Read the raw files.

        Raises:
            DataError: a file that cannot be read, counts that disagree, an edge to a node that does not exist, a feature
                that is not finite, a label that is not a class; file and row are named.
        """
        num_nodes = int(read_table(self.raw["num-node-list"], np.int64).sum())
        num_edges = int(read_table(self.raw["num-edge-list"], np.int64).sum())
        edges = read_table(self.raw["edge"], np.int64)
        expect_shape(self.raw["edge"], edges, (num_edges, 2))
        expect_range(self.raw["edge"], edges, 0, num_nodes, "a node that does not exist")
        features = read_features(self.raw["node-feat"], num_nodes, self.config.normalize_features)
        labels = read_labels(self.raw["node-label"], num_nodes)
        split = read_split(self.split, num_nodes)
        source, destination = edges[:, 0], edges[:, 1]
        if self.config.add_inverse_edges:
            source, destination = np.concatenate([source, destination]), np.concatenate([destination, source])
        indptr, indices = by_destination(source, destination, num_nodes)
        return Dataset.homogeneous(self.root.name, int(labels.max()) + 1, features, labels, split, indptr, indices)
