"""Homogeneous graphs that are read piece by piece into a store: peak memory is a buffer, and a few numbers per node.

Of the buffer a quarter goes to edges being sorted and a sixteenth to each piece that is read. Beside it 25 bytes a node:
in-degrees and their sums (16), labels (8 where they are classes), split (1). On disk, while it is made: 8 bytes an edge more
than the store itself, and what edges carry once more.

Letters: N nodes, E directed edges, F features, D features of edges.
"""

from __future__ import annotations

import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from sargnn.errors import StoreError
from sargnn.graph.check import EdgeCheck, FeatureCheck, Range, check_split, count_classes, edge_place
from sargnn.graph.dataset import FORMAT_VERSION, Reader, describe, features_name, row_runs
from sargnn.graph.edge_buckets import EdgeBuckets
from sargnn.graph.edge_columns import ATTR, WEIGHT, EdgePiece, file_of
from sargnn.graph.origin import Origin
from sargnn.graph.schema import Schema
from sargnn.graph.store import StoreWriter
from sargnn.steps import step

_LARGEST_PIECE_BYTES = 1 << 26


class StreamedReader(Reader):
    """A graph that comes in pieces.

    Attributes:
        num_nodes: N.
        num_rows: edges as they come.
        num_features: F.
        add_inverse_edges: keep every edge also the other way round, carrying the same.
        normalize_features: divide each row by its L1 norm.
        nodes_have_means: nodes have no features of their own, but the mean of their in-edges'; F = D.
        forms: what edges carry in a store: name -> dtype, with a shape where it is several numbers.
        edge_categories: of each column of edge features as they come, the number of categories; empty: no column has any.
        is_trained_on: whether some nodes must be in the split for training.
        origin: what the dataset remembers of its tables; None: it came from none.
        row_unit: what a row of features or labels is called in errors, and the number of the first.
        weights_source, edge_features_source, features_source, labels_source: where these come from, for errors.
        label_bytes: of a node's labels.
    """

    row_unit: ClassVar[tuple[str, int]] = ("row", 1)

    name: str
    num_nodes: int
    num_rows: int
    num_features: int
    add_inverse_edges: bool
    normalize_features: bool
    nodes_have_means: bool = False
    forms: Mapping[str, np.dtype] = MappingProxyType({})
    edge_categories: Sequence[int] = ()
    weights_source: str = ""
    edge_features_source: str = ""
    features_source: str
    labels_source: str
    label_bytes: int = 8
    is_trained_on: bool = True
    origin: Origin | None = None

    @abstractmethod
    def edges(self, rows: int) -> Iterator[EdgePiece]:
        """Sources and destinations, checked, and columns whose numbers are not yet checked: [at most ``rows``] each."""

    def edge_place(self, position: int) -> str:
        """What an edge's place is called, for errors."""
        return edge_place(position)

    def features(self, rows: int) -> Iterator[np.ndarray]:
        """Floats [at most ``rows``, F] in the nodes' order, as precise as they come. Not called of ``nodes_have_means``."""
        raise NotImplementedError

    @abstractmethod
    def labels(self) -> np.ndarray:
        """Of any task (``graph.schema``): of classes int64 [N], ``UNLABELLED`` where there is none."""

    @abstractmethod
    def split(self) -> np.ndarray:
        """uint8 [N], 0 or a value of ``SPLITS``."""

    @property
    def num_edges(self) -> int:
        """E."""
        return self.num_rows * (2 if self.add_inverse_edges else 1)

    @property
    def _column_bytes(self) -> int:
        return sum(form.itemsize for form in self.forms.values())

    def write(self, path: Path, buffer_bytes: int) -> None:
        """Raises ``DataError`` with file and row; ``StoreError``, before anything is read: the disk has too little room."""
        piece = min(buffer_bytes // 16, _LARGEST_PIECE_BYTES)
        with StoreWriter(path, "dataset", FORMAT_VERSION) as writer:
            self._check_disk(writer.folder)
            # Small arrays first: what is wrong there is found before the long passes.
            labels, split = self.labels(), self.split()
            check_split(self.name, labels, split, Schema.homogeneous(self.num_nodes), is_trained_on=self.is_trained_on)
            num_classes = count_classes(labels, self.labels_source)
            writer.put("labels", labels)
            writer.put("split", split)
            del labels, split
            # What edges carry is held as it comes, in fp32, and in records, in their order and sorted.
            edge_bytes = 64 + 6 * self._column_bytes
            weights = self._write_edges(writer, max(1, piece // edge_bytes), max(1, buffer_bytes // 32))
            self._write_features(writer, max(1, piece // (16 * max(1, self.num_features))))
            describe(writer, self.name, num_classes, Schema.homogeneous(self.num_nodes), self.identity(), self.forms, weights)
            if self.origin is not None:
                writer.meta |= self.origin.save(writer)

    def _check_disk(self, folder: Path) -> None:
        column_bytes = self._column_bytes
        edge_bytes = (4 if self.num_nodes < 2**31 else 8) + column_bytes
        stored = self.num_edges * edge_bytes + self.num_nodes * (8 + self.label_bytes + 1 + 4 * self.num_features)
        needed = stored + (8 + column_bytes) * self.num_edges
        free = shutil.disk_usage(folder).free
        sizes = f"{needed / 1e9:.1f} GB while it is made, {stored / 1e9:.1f} GB afterwards"
        step(f"reading {self.name}: {sizes}")
        if free < needed:
            raise StoreError(
                f"The disk has too little room for '{self.name}'.",
                given=f"{free / 1e9:.1f} GB free where {folder.parent} lies",
                allowed=sizes,
                hint="store_dir=FOLDER on another disk",
            )

    def _write_edges(self, writer: StoreWriter, rows: int, bucket_edges: int) -> Range | None:
        """The range of the weights, if there are any."""
        check = EdgeCheck(self.weights_source, self.edge_features_source, self.edge_place, self.edge_categories)
        with (
            tempfile.TemporaryDirectory(dir=writer.folder) as scratch,
            EdgeBuckets(Path(scratch), self.num_nodes, self.num_edges, bucket_edges, self.forms) as buckets,
        ):
            done = 0
            for source, destination, given in self.edges(rows):
                step("reading edges", done, self.num_rows)
                done += len(source)
                columns = check.checked(given)
                buckets.add(destination, source, columns)
                if self.add_inverse_edges:
                    buckets.add(source, destination, columns)
            buckets.write(writer)
        weights = check.finish()
        return weights if WEIGHT in self.forms else None

    def _write_features(self, writer: StoreWriter, rows: int) -> None:
        done, check = 0, FeatureCheck(self.features_source, unit=self.row_unit[0], first=self.row_unit[1])
        with writer.append(features_name(0), np.float32, (self.num_features,)) as target:
            for piece in in_edge_means(writer.folder, rows) if self.nodes_have_means else self.features(rows):
                step("reading features", done, self.num_nodes)
                target.write(check.to_float32(piece, normalize=self.normalize_features))
                done += len(piece)
        check.finish()


def in_edge_means(folder: Path, entries: int) -> Iterator[np.ndarray]:
    """The mean features of each node's in-edges, float64 [some nodes, D], zeros without any, from a store being made.

    About ``entries`` edges are read at once; all of a node in any case.
    """
    indptr = np.load(folder / "indptr.npy")
    numbers = np.load(folder / f"{file_of(ATTR)}.npy", mmap_mode="r")
    for first, last in row_runs(indptr, entries):
        for start in range(first, last, entries):  # nodes without edges cost something, too
            ends = indptr[start : min(last, start + entries) + 1]
            degrees = np.diff(ends)
            sums = np.zeros((len(degrees), numbers.shape[1]))
            used = np.flatnonzero(degrees)
            if len(used):
                block = np.asarray(numbers[ends[0] : ends[-1]], np.float64)
                sums[used] = np.add.reduceat(block, ends[used] - ends[0], axis=0)
            yield sums / np.maximum(degrees, 1)[:, None]
