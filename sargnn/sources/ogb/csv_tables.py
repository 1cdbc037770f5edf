"""OGB's raw layouts of homogeneous graphs, read piece by piece.

gzip CSV without header (ogbn-products, ogbn-arxiv):

    raw/edge.csv.gz [E, 2]   raw/edge-weight.csv.gz [E, 1], where edges have weights
    raw/node-feat.csv.gz [N, F]   raw/node-label.csv.gz [N, 1]
    raw/num-node-list.csv.gz [1]   raw/num-edge-list.csv.gz [1]: where they are missing, rows are counted
    split/NAME/{train,valid,test}.csv.gz: node numbers

The other layouts: ``binary`` (ogbn-papers100M) and ``typed`` (ogbn-mag).

Letters: N nodes, E rows of the edge file, F features.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import repeat
from pathlib import Path

import numpy as np

from sargnn.graph.dataset import Reader
from sargnn.graph.edge_columns import NO_COLUMNS, WEIGHT, WEIGHT_FORM, EdgeColumns, EdgePiece
from sargnn.sources.ogb.folder import OgbFolder
from sargnn.sources.ogb.layouts import BINARY, MAX_EDGES, MAX_NODES, TYPED, find_csv, folder_at, layout_at
from sargnn.sources.ogb.tables import count_rows, expect_range, read_count, read_labels, table_pieces, width_of
from sargnn.sources.settings import OgbConfig, OgbDirConfig
from sargnn.steps import step


def ogb_dir(config: OgbDirConfig) -> Reader:
    """The reader of the layout that the folder ``config.root`` has. Raises ``DataError`` with all files that are missing."""
    from sargnn.sources.ogb.binary import BinaryOgbDir
    from sargnn.sources.ogb.typed import TypedOgbDir

    root = folder_at(config.root)
    layout = layout_at(root)
    if layout is TYPED:
        return TypedOgbDir(config, root)
    return BinaryOgbDir(config, root) if layout is BINARY else OgbDir(config, root)


class OgbDir(OgbFolder):
    """Reads a homogeneous folder of CSV files.

    Raises (reading):
        DataError: a file that cannot be read, counts that disagree, an edge to a node that does not exist, a feature that
            cannot be trained on, a label that is not a class; file and row are named.
    """

    layout, version = "ogb_dir", 2

    def __init__(self, config: OgbDirConfig | OgbConfig, root: Path) -> None:
        super().__init__(config, root, find_csv(root))
        self.forms = {WEIGHT: WEIGHT_FORM} if "edge-weight" in self.raw else {}

    @cached_property
    def num_nodes(self) -> int:  # type: ignore[override]
        if "num-node-list" in self.raw:
            return read_count(self.raw["num-node-list"], 1, MAX_NODES)
        return count_rows(self.raw["node-label"], 1, MAX_NODES)

    @cached_property
    def num_rows(self) -> int:  # type: ignore[override]
        if "num-edge-list" in self.raw:
            return read_count(self.raw["num-edge-list"], 0, MAX_EDGES)
        step("counting edges")
        return count_rows(self.raw["edge"], 0, MAX_EDGES)

    @cached_property
    def num_features(self) -> int:
        return width_of(self.raw["node-feat"])

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        path = self.raw["edge"]
        weights = self._weights(rows) if self.forms else repeat(NO_COLUMNS)
        for first, piece in table_pieces(path, np.int64, rows, 2, self.num_rows):
            expect_range(path, piece, 0, self.num_nodes, "a node that does not exist", first)
            yield piece[:, 0], piece[:, 1], next(weights)

    def _weights(self, rows: int) -> Iterator[EdgeColumns]:
        """Float64 [at most ``rows``] each, cut as the edges are."""
        last = None
        for _, piece in table_pieces(self.raw["edge-weight"], np.float64, rows, 1, self.num_rows):
            if last is not None:
                yield last
            last = EdgeColumns.of({WEIGHT: piece[:, 0]})
        if last is not None:  # only now is it known that there are as many as edges
            yield last

    def weights_source(self) -> str:
        return f"'{self.raw['edge-weight']}'" if self.forms else super().weights_source()

    def features(self, rows: int) -> Iterator[np.ndarray]:
        # As OGB's reader: parsed in double precision, rounded by who stores them.
        for _, piece in table_pieces(self.raw["node-feat"], np.float64, rows, self.num_features, self.num_nodes):
            yield piece

    def features_source(self) -> str:
        return str(self.raw["node-feat"])

    def labels(self) -> np.ndarray:
        return read_labels(self.raw["node-label"], self.num_nodes, self.task)

    def labels_source(self) -> str:
        return str(self.raw["node-label"])
