"""OGB's raw layouts of homogeneous graphs, read piece by piece.

Gzip CSV without header (ogbn-products, ogbn-arxiv):

    raw/edge.csv.gz [E, 2]   raw/edge-weight.csv.gz [E, 1], raw/edge-feat.csv.gz [E, D], where edges have weights, features
    raw/node-feat.csv.gz [N, F]   raw/node-label.csv.gz [N, 1]
    raw/node-feat.csv.gz may be missing where edges have features (ogbn-proteins): a node's are then the mean of its in-edges'
    raw/num-node-list.csv.gz [1]   raw/num-edge-list.csv.gz [1]: where they are missing, rows are counted

Binary (ogbn-papers100M), arrays in deflated ``.npz`` files, too large to be read at once:

    raw/data.npz: edge_index int [2, E], node_feat float [N, F] (node_year is not used); num_nodes_list, num_edges_list [1],
        which may be missing: then the shapes of the others say it; edge_weight [E] or [E, 1] where edges have weights,
        edge_feat [E, D] where they have features
    raw/node-label.npz: node_label float [N, 1], nan where there is none

Both have ``split/NAME/{train,valid,test}.csv.gz``: node numbers. Members of archives are inflated piece by piece, never
unpickled. Sources and destinations lie one after the other in ``edge_index``, so that it is inflated twice, once for each.

Letters: N nodes, E edges, F features, D features of edges.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.check import edge_place
from sargnn.graph.edge_columns import ATTR, WEIGHT, WEIGHT_FORM, EdgeColumns, EdgePiece, attr_form
from sargnn.graph.manifest import shape_fits
from sargnn.sources.npz import blame_archive
from sargnn.sources.ogb import tables
from sargnn.sources.ogb.layouts import MAX_EDGES, MAX_NODES, FlatFiles, find_binary, find_csv
from sargnn.sources.own.given import MemberArray
from sargnn.sources.scan import identity_of
from sargnn.sources.settings import OgbConfig, OgbDirConfig
from sargnn.sources.streamed import StreamedReader
from sargnn.steps import step


class OgbFolder(StreamedReader):
    """``layout`` and ``version`` of the reader are part of the store's key; ``raw``: the files' paths by what they hold."""

    layout: str
    version: int

    def __init__(self, config: OgbDirConfig | OgbConfig, root: Path, files: FlatFiles) -> None:
        self.name = config.name if isinstance(config, OgbConfig) else root.name
        self.add_inverse_edges, self.normalize_features = config.add_inverse_edges, config.normalize_features
        self.task = config.task
        self.raw, self._split = files.raw, files.split

    def identity(self) -> dict[str, Any]:
        return {
            "reader": self.layout,
            "version": self.version,
            "files": identity_of([*self.raw.values(), *self._split.values()]),
            "add_inverse_edges": self.add_inverse_edges,
            "normalize_features": self.normalize_features,
            **({"task": self.task} if self.task is not None else {}),
            **({"edge_weights": True} if WEIGHT in self.forms else {}),
        }

    def split(self) -> np.ndarray:
        return tables.read_split(self._split, self.num_nodes)


class OgbDir(OgbFolder):
    """A folder of CSV files.

    Reading raises ``DataError`` with file and row: unreadable, counts that disagree, an edge to no node, a feature that cannot
    be trained on, a label that is no class.
    """

    layout, version = "ogb_dir", 2

    def __init__(self, config: OgbDirConfig | OgbConfig, root: Path) -> None:
        super().__init__(config, root, find_csv(root))
        self._beside: dict[str, Path] = {}
        if (path := self.raw.get("edge-weight")) is not None:
            self.forms, self.weights_source, self._beside[WEIGHT] = {WEIGHT: WEIGHT_FORM}, f"'{path}'", path
        if (path := self.raw.get("edge-feat")) is not None:
            self.forms = {**self.forms, ATTR: attr_form(tables.width_of(path))}
            self.edge_features_source, self._beside[ATTR] = str(path), path
        self.nodes_have_means = "node-feat" not in self.raw
        self.features_source = str(self.raw.get("node-feat", self.edge_features_source))
        self.labels_source = str(self.raw["node-label"])

    @cached_property
    def num_nodes(self) -> int:  # type: ignore[override]
        if "num-node-list" in self.raw:
            return tables.read_count(self.raw["num-node-list"], 1, MAX_NODES)
        return tables.count_rows(self.raw["node-label"], 1, MAX_NODES)

    @cached_property
    def num_rows(self) -> int:  # type: ignore[override]
        if "num-edge-list" in self.raw:
            return tables.read_count(self.raw["num-edge-list"], 0, MAX_EDGES)
        step("counting edges")
        return tables.count_rows(self.raw["edge"], 0, MAX_EDGES)

    @cached_property
    def num_features(self) -> int:  # type: ignore[override]
        return self.forms[ATTR].shape[0] if self.nodes_have_means else tables.width_of(self.raw["node-feat"])

    def edge_place(self, position: int) -> str:
        return f"row {position + 1}"

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        path, widths = self.raw["edge"], {name: form.shape[0] if form.shape else 1 for name, form in self.forms.items()}
        ends = tables.table_pieces(path, np.int64, rows, 2, self.num_rows)
        beside = [tables.table_pieces(of, np.float64, rows, widths[name], self.num_rows) for name, of in self._beside.items()]
        for (first, piece), *others in zip(ends, *beside, strict=True):
            tables.expect_range(path, piece, 0, self.num_nodes, "a node that does not exist", first)
            given = dict(zip(self._beside, (other for _, other in others), strict=True))
            columns = {name: other if name == ATTR else other[:, 0] for name, other in given.items()}
            yield piece[:, 0], piece[:, 1], EdgeColumns.of(columns)

    def features(self, rows: int) -> Iterator[np.ndarray]:
        # As OGB's reader: parsed in double precision, rounded by who stores them.
        for _, piece in tables.table_pieces(self.raw["node-feat"], np.float64, rows, self.num_features, self.num_nodes):
            yield piece

    def labels(self) -> np.ndarray:
        return tables.read_labels(self.raw["node-label"], self.num_nodes, self.task)


class BinaryOgbDir(OgbFolder):
    """A folder in the binary layout.

    Reading raises ``DataError`` as that of ``OgbDir``, and for archives that are missing, cut off or damaged.
    """

    layout, version = "ogb_binary", 1

    def __init__(self, config: OgbDirConfig | OgbConfig, root: Path) -> None:
        super().__init__(config, root, find_binary(root))
        self.data, self.label = self.raw["data"], self.raw["label"]
        with blame_archive(self.data), zipfile.ZipFile(self.data) as archive:
            self._held = {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}
        self.forms = {WEIGHT: WEIGHT_FORM} if "edge_weight" in self._held else {}
        if "edge_feat" in self._held:
            self.forms[ATTR] = attr_form(self._array(self.data, "edge_feat", (None, None), "fiub").shape[1])
        self.weights_source, self.features_source, self.labels_source = f"'{self.data}'", str(self.data), str(self.label)
        self.edge_features_source = f"{self.data}, 'edge_feat'"

    @cached_property
    def num_nodes(self) -> int:  # type: ignore[override]
        return self._count("num_nodes_list", 1, MAX_NODES, "node_feat", 0)

    @cached_property
    def num_rows(self) -> int:  # type: ignore[override]
        return self._count("num_edges_list", 0, MAX_EDGES, "edge_index", 1)

    def _count(self, name: str, low: int, high: int, other: str, axis: int) -> int:
        """The count that ``name`` holds; where there is no such array, a length of the array ``other``."""
        if name in self._held:
            count, what = self._array(self.data, name, (1,), "iu").whole(), f"a count in '{name}' that cannot be"
        else:
            length = self._array(self.data, other, (None, None), "iuf").shape[axis]
            count, what = np.array([length]), f"a length of '{other}' that cannot be"
        tables.expect_range(self.data, count.reshape(1, 1), low, high + 1, what)
        return int(count[0])

    def _array(self, path: Path, name: str, shape: tuple[int | None, ...], kinds: str) -> MemberArray:
        array = MemberArray(path, name)
        if not shape_fits(array.shape, shape) or array.dtype.kind not in kinds:
            raise DataError(
                f"'{path}' does not hold '{name}' as the counts give it.",
                given=f"{array.dtype} {list(array.shape)}",
                allowed=f"{[n or 'any' for n in shape]}",
            )
        return array

    @cached_property
    def num_features(self) -> int:  # type: ignore[override]
        return self._array(self.data, "node_feat", (self.num_nodes, None), "f").shape[1]

    def edge_place(self, position: int) -> str:
        return edge_place(position)

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        index, first = self._array(self.data, "edge_index", (2, self.num_rows), "iu"), 0
        carried: dict[str, MemberArray] = {}
        if WEIGHT in self.forms:
            shape = (self.num_rows, 1) if MemberArray(self.data, "edge_weight").shape[1:] else (self.num_rows,)
            carried[WEIGHT] = self._array(self.data, "edge_weight", shape, "fiub")
        if ATTR in self.forms:
            carried[ATTR] = self._array(self.data, "edge_feat", (self.num_rows, None), "fiub")
        arrays = (index.row(0), index.row(1), *carried.values())
        for source, destination, *others in zip(*(array.pieces(rows) for array in arrays), strict=True):
            pair = np.stack([source, destination], 1)
            tables.expect_range(self.data, pair, 0, self.num_nodes, "a node that does not exist", first)
            given = dict(zip(carried, others, strict=True))
            columns = {name: other if name == ATTR else other.reshape(-1) for name, other in given.items()}
            yield source, destination, EdgeColumns.of(columns)
            first += len(source)

    def features(self, rows: int) -> Iterator[np.ndarray]:
        return self._array(self.data, "node_feat", (self.num_nodes, self.num_features), "f").pieces(rows)

    def labels(self) -> np.ndarray:
        array = self._array(self.label, "node_label", (self.num_nodes, None), "fiu")
        return tables.labels_from(self.label, array.whole(), self.num_nodes, self.task)
