"""Predictions as Parquet or CSV, with the ids that nodes had in their tables, from the ``.npy`` files that workers wrote.

| file | a row for each |
|---|---|
| ``predictions`` | node, ``id``; edge, ``source``, ``destination``: ``prediction``, ``logits``, ``smoothed``, ... |
| ``embeddings`` | node, of links and edges; ``type`` in a typed graph |
| ``pair_scores`` | pair of ``pairs=FILE``: ``source``, ``destination``, ``score`` |
| ``partners`` | node and partner: ``id``, ``rank`` from 1, ``partner``, ``score`` |

A node without an id has its number, as column ``node``. In CSV a column of rows [C] is C columns.

Letters: n rows of a piece, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from sargnn.graph.dataset import Dataset
from sargnn.sources.links import read_pairs, relation_of
from sargnn.tasks.kinds import EMBEDDINGS, LOGITS, PREDICTIONS, SMOOTHED

_ROWS = 1 << 16
Columns = dict[str, pa.Array]


def write_tables(
    folder: Path, written: Sequence[str], dataset: Dataset, form: str, asked: dict[str, Any], *, of: str
) -> list[str]:
    """Write tables (parquet or csv) beside the arrays in a folder, whose names are ``written``; the names of the tables.

    Args:
        asked: what of (``training.evaluation.write_predictions``).
        of: the labelled type of nodes; empty: of edges, or links.
    """
    arrays = {name.removesuffix(".npy"): np.load(folder / name, mmap_mode="r") for name in written}
    tables: dict[str, tuple[int, Callable[[int, int], Columns]]] = {}
    predicted = [name.removesuffix(".npy") for name in (PREDICTIONS, LOGITS, SMOOTHED, EMBEDDINGS) if name in written]
    schema = dataset.schema
    if of:
        node_type = schema.node_types.index(of)
        own = {name: arrays[name] for name in predicted}

        def nodes(first: int, last: int) -> Columns:
            return _ids(dataset, node_type, first, last) | _values(dataset, own, first, last, form)

        tables["predictions"] = (schema.count(node_type), nodes)
    elif "predictions" in arrays:
        pairs = dataset.pairs
        assert pairs is not None
        own = {name: arrays[name] for name in predicted if name != "embeddings"}

        def edges(first: int, last: int) -> Columns:
            ends = {name: np.asarray(end[first:last]) for name, end in (("source", pairs.heads), ("destination", pairs.tails))}
            numbers = np.zeros(last - first, np.uint8) if pairs.relation is None else np.asarray(pairs.relation[first:last])
            names = pa.array([relation.name for relation in schema.relations])
            kinds = {"relation": names.take(pa.array(numbers))} if schema.typed else {}
            return {name: _named(dataset, end) for name, end in ends.items()} | kinds | _values(dataset, own, first, last, form)

        tables["predictions"] = (len(pairs.heads), edges)
    if not of and "embeddings" in arrays:

        def every(first: int, last: int) -> Columns:
            rows = np.arange(first, last)
            types = pa.array(schema.node_types).take(pa.array(schema.types_of(rows)))
            own = {"embeddings": arrays["embeddings"]}
            return (
                {"id": _named(dataset, rows)}
                | ({"type": types} if schema.typed else {})
                | _values(dataset, own, first, last, form)
            )

        tables["embeddings"] = (schema.num_nodes, every)
    if "pair_scores" in arrays or "partners" in arrays:
        relation = schema.relations[relation_of(schema, asked["relation"])]
        ends = (relation.source, relation.destination)
        begins = [schema.offsets[end] for end in ends]
    if "pair_scores" in arrays:
        given = read_pairs(Path(asked["pairs"]))

        def scored(first: int, last: int) -> Columns:
            heads, tails = (_named(dataset, given[end, first:last] + begins[end], ends[end]) for end in (0, 1))
            return {"source": heads, "destination": tails} | _wide("score", np.array(arrays["pair_scores"][first:last]), form)

        tables["pair_scores"] = (given.shape[1], scored)
    if "partners" in arrays:

        def best(first: int, last: int) -> Columns:
            partners = np.array(arrays["partners"][first:last])
            rows, ranks = np.nonzero(partners >= 0)
            scores = np.array(arrays["partner_scores"][first:last])[rows, ranks]
            names = (
                _named(dataset, rows + first + begins[0], ends[0]),
                _named(dataset, partners[rows, ranks] + begins[1], ends[1]),
            )
            return {"id": names[0], "rank": pa.array(ranks + 1), "partner": names[1], "score": pa.array(scores)}

        tables["partners"] = (len(arrays["partners"]), best)
    for name, (rows, columns) in tables.items():
        _write(folder / f"{name}.{form}", _batches(rows, columns), form)
    return [f"{name}.{form}" for name in tables]


def _batches(rows: int, columns: Callable[[int, int], Columns]) -> Iterator[pa.RecordBatch]:
    for first in range(0, max(1, rows), _ROWS):
        yield pa.RecordBatch.from_pydict(columns(first, min(first + _ROWS, rows)))


def _write(path: Path, batches: Iterator[pa.RecordBatch], form: str) -> None:
    temporary, writer = path.with_name(f".{path.name}.tmp"), None
    for batch in batches:
        if writer is None:
            writer = (parquet.ParquetWriter if form == "parquet" else csv.CSVWriter)(temporary, batch.schema)
        (writer.write_batch if form == "parquet" else writer.write)(batch)
    assert writer is not None
    writer.close()
    temporary.replace(path)


def _values(dataset: Dataset, arrays: dict[str, np.ndarray], first: int, last: int, form: str) -> Columns:
    """Classes by their names, where they have some."""
    columns: Columns = {}
    outputs = dataset.num_classes if dataset.pairs is None or dataset.pairs.labels is None else dataset.pairs.outputs
    for name, array in arrays.items():
        piece = np.array(array[first:last])
        classes = dataset.origin.classes if dataset.origin is not None else ()
        if name == "predictions":
            of_classes = piece.ndim == 1 and len(classes) >= outputs and piece.dtype.kind in "iu"
            named = pa.array(classes).take(pa.array(piece)) if of_classes else None
            columns |= {"prediction": named} if named is not None else _wide("prediction", piece, form)
        else:
            columns |= _wide(name, piece, form)
    return columns


def _wide(name: str, rows: np.ndarray, form: str) -> Columns:
    """One column of numbers [n]; of rows [n, C] one of lists, or C of numbers in CSV."""
    if rows.ndim == 1:
        return {name: pa.array(rows)}
    if form == "csv":
        return {f"{name}_{column}": pa.array(np.ascontiguousarray(rows[:, column])) for column in range(rows.shape[1])}
    return {name: pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])}


def _ids(dataset: Dataset, node_type: int, first: int, last: int) -> Columns:
    ids = dataset.origin.ids[node_type] if dataset.origin is not None else None
    return {"id": ids.arrow(first, last)} if ids is not None else {"node": pa.array(np.arange(first, last))}


def _named(dataset: Dataset, nodes: np.ndarray, *types: int) -> pa.Array:
    """Ids of nodes (int64 [n], numbers in the whole graph), or their numbers within their types, all or some; texts where one
    of these has some.
    """
    schema, every = dataset.schema, types or range(len(dataset.schema.node_types))
    ids_of = {t: dataset.origin.ids[t] if dataset.origin is not None else None for t in every}
    texts = any(ids is not None and ids.ends is not None for ids in ids_of.values())
    kind = pa.large_string() if texts else pa.int64()
    of, parts, places = schema.types_of(nodes), [pa.array([], kind)], [np.zeros(0, np.int64)]
    for node_type in np.unique(of).tolist():
        chosen, ids = np.flatnonzero(of == node_type), ids_of[node_type]
        within = nodes[chosen] - schema.offsets[node_type]
        parts.append((pa.array(within) if ids is None else ids.take(within)).cast(kind))
        places.append(chosen)
    order = np.argsort(np.concatenate(places), kind="stable")
    return pa.concat_arrays(parts).take(pa.array(order))
