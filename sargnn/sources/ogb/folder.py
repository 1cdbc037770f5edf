"""What OGB's layouts of homogeneous graphs share: raw files by what they hold, and split files.

    split/NAME/{train,valid,test}.csv.gz: node numbers

Letters: N nodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sargnn.graph.edge_columns import WEIGHT
from sargnn.sources.ogb.layouts import FlatFiles
from sargnn.sources.ogb.tables import identity_of, read_split
from sargnn.sources.settings import OgbConfig, OgbDirConfig
from sargnn.sources.streamed import StreamedReader


class OgbFolder(StreamedReader):
    """A folder in one of the layouts.

    Args:
        files: that it holds.

    Attributes:
        layout, version: of the reader, part of the store's key.
        raw: the files' paths by what they hold.
    """

    layout: str
    version: int

    def __init__(self, config: OgbDirConfig | OgbConfig, root: Path, files: FlatFiles) -> None:
        self.name = config.name if isinstance(config, OgbConfig) else root.name
        self.add_inverse_edges, self.normalize_features = config.add_inverse_edges, config.normalize_features
        self.task = config.task
        self.raw, self._split = files.raw, files.split

    def identity(self) -> dict[str, Any]:
        """What decides the content, for the store's key: the flags, and what tells each raw file from another."""
        return {
            "reader": self.layout,
            "version": self.version,
            "files": identity_of([*self.raw.values(), *self._split.values()]),
            "add_inverse_edges": self.add_inverse_edges,
            "normalize_features": self.normalize_features,
            **({"task": self.task} if self.task is not None else {}),
            **({"edge_weights": True} if WEIGHT in self.forms else {}),
        }

    def edge_place(self, position: int) -> str:
        return f"row {position + 1}"

    def split(self) -> np.ndarray:
        return read_split(self._split, self.num_nodes)
