"""Datasets as raw files in OGB's layouts, which its own readers read: written piece by piece.

A symmetric graph's edges are written once each, as in ogbn-products, where reading adds the other direction.

Letters: N nodes, E edges, F features.
"""

from __future__ import annotations

import csv
import gzip
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.lib import format as npy_format

from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset, row_runs
from sargnn.graph.edge_columns import ATTR, WEIGHT, EdgePiece
from sargnn.graph.manifest import file_name
from sargnn.graph.schema import SPLITS, UNLABELLED
from sargnn.steps import step

_CHUNK = 1 << 20
_LONGEST_NAME = 80
"""Bytes of a type's or relation's name: three of them are the name of a folder."""


def export(dataset: Dataset, root: Path, layout: str, *, symmetric: bool) -> None:
    """Write ``root``, which must not exist.

    Args:
        layout: ``csv``, ``binary`` or ``typed``.
        symmetric: every edge is there in both directions, carrying the same.

    Raises ``ConfigError``: the folder exists, or the layout cannot hold the graph.
    """
    if dataset.task != "classes":
        raise ConfigError(
            "Of OGB's layouts only those of one class a node are written.",
            given=f"labels of the task {dataset.task}",
            hint="dataset=... with classes",
        )
    if root.exists():
        raise ConfigError("The folder exists.", given=str(root), hint="choose another out=FOLDER")
    if (layout == "typed") != dataset.schema.typed:
        raise ConfigError(
            "This layout cannot hold the graph.",
            given=f"layout={layout}",
            allowed="typed for typed graphs, csv or binary for others",
        )
    temporary = root.with_name(f".{root.name}.{os.getpid()}.tmp")
    (temporary / "raw").mkdir(parents=True)
    (temporary / "processed").mkdir()
    try:
        writers: dict[str, Callable[..., None]] = {"csv": _csv, "binary": _binary, "typed": _typed}
        writers[layout](dataset, temporary, symmetric)
        temporary.rename(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def edge_pieces(dataset: Dataset, once: bool) -> Iterator[EdgePiece]:
    """Sources and destinations, int64, and columns; with ``once`` only edges to larger ids."""
    indptr = np.asarray(dataset.indptr)
    for row, last in row_runs(indptr, _CHUNK):
        step("writing edges", row, dataset.num_nodes)
        own = slice(int(indptr[row]), int(indptr[last]))
        source, columns = np.asarray(dataset.indices[own]).astype(np.int64), dataset.columns.run(own)
        destination = np.repeat(np.arange(row, last), np.diff(indptr[row : last + 1]))
        kept: Any = source < destination if once else slice(None)
        yield source[kept], destination[kept], columns.take(kept) if once else columns


def _weights(dataset: Dataset, once: bool) -> Iterator[np.ndarray]:
    return (weights for *_, columns in edge_pieces(dataset, once) if (weights := columns.weight) is not None)


def _edge_features(dataset: Dataset, once: bool) -> Iterator[np.ndarray]:
    for *_, columns in edge_pieces(dataset, once):
        for piece in columns.pieces(_CHUNK // 16):
            yield np.asarray(piece[ATTR])


def _table(path: Path, pieces: Iterator[np.ndarray] | list[np.ndarray]) -> None:
    """A headerless gzip CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", compresslevel=1) as file:
        for piece in pieces:
            pd.DataFrame(piece).to_csv(file, header=False, index=False)


def _rows(rows: np.ndarray) -> Iterator[np.ndarray]:
    for first in range(0, len(rows), _CHUNK // 16):
        step("writing features", first, len(rows))
        yield np.asarray(rows[first : first + _CHUNK // 16])


def _label_rows(labels: np.ndarray, *, whole: bool = False) -> np.ndarray:
    """float32 [N, 1], nan where there is none; with ``whole`` as they are where all nodes have one."""
    if whole and bool((labels != UNLABELLED).all()):
        return labels[:, None]
    return np.where(labels == UNLABELLED, np.nan, labels).astype(np.float32)[:, None]


def _splits(folder: Path, split: np.ndarray) -> None:
    for name, value in SPLITS.items():
        _table(folder / f"{name}.csv.gz", [np.flatnonzero(split == value)])


def _csv(dataset: Dataset, root: Path, symmetric: bool) -> None:
    raw, edges = root / "raw", 0

    def pieces() -> Iterator[np.ndarray]:
        nonlocal edges
        for source, destination, _ in edge_pieces(dataset, symmetric):
            edges += len(source)
            yield np.stack([source, destination], 1)

    _table(raw / "edge.csv.gz", pieces())
    if WEIGHT in dataset.columns:
        _table(raw / "edge-weight.csv.gz", _weights(dataset, symmetric))
    if ATTR in dataset.columns:
        _table(raw / "edge-feat.csv.gz", _edge_features(dataset, symmetric))
    _table(raw / "node-feat.csv.gz", _rows(dataset.features[0]))
    _table(raw / "node-label.csv.gz", [_label_rows(np.asarray(dataset.labels), whole=True)])
    _table(raw / "num-node-list.csv.gz", [np.array([dataset.num_nodes])])
    _table(raw / "num-edge-list.csv.gz", [np.array([edges])])
    _splits(root / "split" / "sales_ranking", np.asarray(dataset.split))
    (root / "RELEASE_v1.txt").write_text("")


def _binary(dataset: Dataset, root: Path, symmetric: bool) -> None:
    total = sum(len(source) for source, *_ in edge_pieces(dataset, symmetric)) if symmetric else dataset.num_edges
    with zipfile.ZipFile(root / "raw" / "data.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        ends = (pair[side].tobytes() for side in (0, 1) for *pair, _ in edge_pieces(dataset, symmetric))
        _member(archive, "edge_index", (2, total), np.dtype(np.int64), ends)
        if WEIGHT in dataset.columns:
            weights = (piece.tobytes() for piece in _weights(dataset, symmetric))
            _member(archive, "edge_weight", (total,), np.dtype(np.float32), weights)
        if ATTR in dataset.columns:
            form = dataset.columns.forms[ATTR]
            features = (piece.tobytes() for piece in _edge_features(dataset, symmetric))
            _member(archive, "edge_feat", (total, *form.shape), form.base, features)
        for name, count in (("num_nodes_list", dataset.num_nodes), ("num_edges_list", total)):
            _member(archive, name, (1,), np.dtype(np.int64), iter([np.array([count]).tobytes()]))
        rows = (np.ascontiguousarray(piece, np.float32).tobytes() for piece in _rows(dataset.features[0]))
        _member(archive, "node_feat", dataset.features[0].shape, np.dtype(np.float32), rows)
        years = iter([np.full((dataset.num_nodes, 1), 2000).tobytes()])
        _member(archive, "node_year", (dataset.num_nodes, 1), np.dtype(np.int64), years)
    with zipfile.ZipFile(root / "raw" / "node-label.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        labels = _label_rows(np.asarray(dataset.labels))
        _member(archive, "node_label", labels.shape, labels.dtype, iter([labels.tobytes()]))
    _splits(root / "split" / "time", np.asarray(dataset.split))
    (root / "RELEASE_v1.txt").write_text("")


def _member(archive: zipfile.ZipFile, name: str, shape: Any, dtype: np.dtype, content: Iterator[bytes]) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        header = {"descr": npy_format.dtype_to_descr(dtype), "fortran_order": False, "shape": tuple(shape)}
        npy_format.write_array_header_1_0(file, header)
        for piece in content:
            file.write(piece)


def _typed(dataset: Dataset, root: Path, symmetric: bool) -> None:
    schema, raw = dataset.schema, root / "raw"
    names, offsets = [file_name(node_type, _LONGEST_NAME) for node_type in schema.node_types], schema.offsets
    labelled = int(schema.types_of(np.flatnonzero(dataset.split)[:1])[0])
    _text(raw / "num-node-dict.csv.gz", [names, [str(schema.count(t)) for t in range(len(names))]])
    _text(raw / "nodetype-has-label.csv.gz", [names, [str(t == labelled) for t in range(len(names))]])
    triplets = [(names[r.source], file_name(r.name, _LONGEST_NAME), names[r.destination]) for r in schema.relations]
    _text(raw / "triplet-type-list.csv.gz", triplets)
    for number, (relation, triplet) in enumerate(zip(schema.relations, triplets, strict=True)):
        shift = np.array([offsets[relation.source], offsets[relation.destination]])
        destination = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
        own = slice(None) if dataset.relation is None else np.asarray(dataset.relation) == number
        edges = np.stack([np.asarray(dataset.indices)[own], destination[own]], 1) - shift
        folder = raw / "relations" / "___".join(triplet)
        _table(folder / "edge.csv.gz", [edges])
        if dataset.columns.weight is not None:
            _table(folder / "edge-weight.csv.gz", [np.asarray(dataset.columns.weight)[own]])
        if ATTR in dataset.columns:
            _table(
                folder / "edge-feat.csv.gz",
                [np.asarray(dataset.columns.only([ATTR]).take(np.arange(dataset.num_edges)[own])[ATTR])],
            )
        _table(folder / "num-edge-list.csv.gz", [np.array([len(edges)])])
        _table(folder / "edge_reltype.csv.gz", [np.full((len(edges), 1), number)])
    for t, rows in enumerate(dataset.features):
        if rows.shape[1]:
            _table(raw / "node-feat" / names[t] / "node-feat.csv.gz", _rows(rows))
    own_nodes = slice(offsets[labelled], offsets[labelled + 1])
    _table(raw / "node-feat" / names[labelled] / "node_year.csv.gz", [np.full((schema.count(labelled), 1), 2000)])
    labels = _label_rows(np.asarray(dataset.labels[own_nodes]), whole=True)
    _table(raw / "node-label" / names[labelled] / "node-label.csv.gz", [labels])
    split = root / "split" / "time"
    _splits(split / names[labelled], np.asarray(dataset.split[own_nodes]))
    _text(split / "nodetype-has-split.csv.gz", [names, [str(t == labelled) for t in range(len(names))]])
    (root / "RELEASE_v2.txt").write_text("")


def _text(path: Path, rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
