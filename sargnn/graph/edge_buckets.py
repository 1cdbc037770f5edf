"""Edges sorted on disk: files for ranges of destinations, each small enough to be sorted in memory.

An edge is a key, ``destination * N + source``, or a record of the key and what the edge carries.

Letters: N nodes, E directed edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np

from sargnn.graph.check import index_dtype
from sargnn.graph.dataset import group_by
from sargnn.graph.edge_columns import NO_COLUMNS, EdgeColumns, file_of
from sargnn.graph.store import StoreWriter
from sargnn.steps import step

_CHUNK_KEYS, _MOST_FILES = 1 << 20, 256
_PIECE_BYTES, _FAST_BYTES = 1 << 22, 1 << 26
_KEY: np.dtype = np.dtype(np.int64)


class EdgeBuckets:
    """Takes edges in any order and gives them back by destination, then source; parallel edges are kept, in the order in which
    they came. A context manager.

    Args:
        folder: where the files go; 8 bytes an edge, and what it carries.
        num_nodes: N, below 2**31.5, so that ``destination * N + source`` fits 63 bits.
        num_edges: about how many will come.
        bucket_edges: how many are sorted at once, in 8 bytes each, whatever the degrees are; fewer of edges that carry
            something.
        forms: what every edge carries: name -> dtype, with a shape where it is several numbers.
    """

    def __init__(
        self,
        folder: Path,
        num_nodes: int,
        num_edges: int,
        bucket_edges: int,
        forms: Mapping[str, np.dtype] = MappingProxyType({}),
    ) -> None:
        self._names, self._dtype = tuple(forms), _KEY
        if forms:  # sorting holds records, keys, an order and what counting needs
            self._dtype = np.dtype([("key", _KEY), *((file_of(name), form.base, form.shape) for name, form in forms.items())])
            bucket_edges = max(1, bucket_edges * 8 // (self._dtype.itemsize + 48))
        self._chunk = max(1, _CHUNK_KEYS * _KEY.itemsize // self._dtype.itemsize)
        self.num_nodes, self.bucket_edges = num_nodes, bucket_edges
        wanted = -(-num_edges // bucket_edges)
        if forms:  # memory that is used again and again is fast
            wanted = max(wanted, num_edges * self._dtype.itemsize // _FAST_BYTES)
        self.count = max(1, min(num_nodes, wanted, _MOST_FILES))
        self.rows = -(-num_nodes // self.count)
        self._paths = [folder / f"bucket_{number:05d}" for number in range(self.count)]
        self._open = ExitStack()
        self._files = [self._open.enter_context(path.open("wb")) for path in self._paths]

    def add(self, destination: np.ndarray, source: np.ndarray, columns: EdgeColumns = NO_COLUMNS) -> None:
        """Add edges: integers [E] each, in [0, N), and what they carry."""
        keys = destination.astype(np.int64) * self.num_nodes + source.astype(np.int64, copy=False)
        indptr, order = group_by(destination // self.rows, self.count)
        records: Any = keys
        assert set(columns.columns) == set(self._names)
        if columns:
            records = np.empty(len(keys), self._dtype)
            records["key"] = keys
            for name in self._names:
                records[file_of(name)] = columns[name]
        records = np.take(records, order)
        for number, file in enumerate(self._files):
            records[indptr[number] : indptr[number + 1]].tofile(file)

    def flush(self) -> None:
        """All edges have come."""
        self._open.close()

    def keys(self, number: int) -> np.ndarray:
        """A bucket's ``destination * N + source``, int64, unsorted or as ``put``; the whole bucket, however large."""
        return np.fromfile(self._paths[number], np.int64)

    def put(self, number: int, keys: np.ndarray) -> None:
        keys.tofile(self._paths[number])

    def runs(self) -> Iterator[np.ndarray]:
        """Sorted keys, or records sorted by key, run by run; each bucket's file is removed once its run was given.

        A bucket with too many edges is divided further. The keys of one node always come in one run; records come in pieces
        that a processor's cache holds, for a sorted copy of all takes most of the time.
        """
        for number, path in enumerate(self._paths):
            step("sorting edges", number, self.count)
            yield from self._sorted(path, number * self.rows, min((number + 1) * self.rows, self.num_nodes))

    def _sorted(self, path: Path, first: int, last: int) -> Iterator[np.ndarray]:
        pieces = -(-(path.stat().st_size // self._dtype.itemsize) // self.bucket_edges)
        if pieces <= 1 or last - first <= 1:
            records = np.fromfile(path, self._dtype)
            path.unlink()
            if self._dtype == _KEY:
                records.sort()
                yield records
                return
            order = self._order(_keys(records), first, last)
            size = max(1, _PIECE_BYTES // self._dtype.itemsize)
            for start in range(0, len(order), size):
                yield np.take(records, order[start : start + size])
            return
        rows = -(-(last - first) // min(pieces, _MOST_FILES))
        starts = list(range(first, last, rows))
        parts = [path.with_name(f"{path.name}.{k}") for k in range(len(starts))]
        with ExitStack() as stack, path.open("rb") as whole:
            files = [stack.enter_context(part.open("wb")) for part in parts]
            while len(records := np.fromfile(whole, self._dtype, self._chunk)):
                which = (_keys(records) // self.num_nodes - first) // rows
                for k, file in enumerate(files):
                    records[which == k].tofile(file)
        path.unlink()
        for start, part in zip(starts, parts, strict=True):
            yield from self._sorted(part, start, min(start + rows, last))

    def _order(self, keys: np.ndarray, first: int, last: int) -> np.ndarray:
        """Positions of edges into the nodes from ``first`` up to ``last``, sorted by key; equal ones stay in their order."""
        if self.num_nodes > len(keys):
            return np.argsort(keys, kind="stable")
        destination = keys // self.num_nodes
        _, order = group_by(keys - destination * self.num_nodes, self.num_nodes)
        _, again = group_by(destination[order] - first, last - first)
        return order[again]

    def write(self, writer: StoreWriter, keep: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None) -> None:
        """``indptr``, ``indices`` and columns of a dataset's store.

        ``keep``: which edges, bool, from destinations and sources; None: all. Only of edges without columns.
        """
        self.flush()
        degrees = np.zeros(self.num_nodes, np.int64)
        with ExitStack() as stack:
            indices = stack.enter_context(writer.append("indices", index_dtype(self.num_nodes)))
            forms: Any = self._dtype
            fields = {file_of(name): forms[file_of(name)] for name in self._names}
            columns = {name: stack.enter_context(writer.append(name, form.base, form.shape)) for name, form in fields.items()}
            for records in self.runs():
                for start in range(0, len(records), self._chunk):
                    some = records[start : start + self._chunk]
                    chunk = _keys(some)
                    destination = chunk // self.num_nodes
                    source = chunk - destination * self.num_nodes
                    low = int(destination[0])
                    if keep is not None:
                        assert not columns
                        kept = keep(destination, source)
                        destination, source = destination[kept], source[kept]
                    counts = np.bincount(destination - low)
                    degrees[low : low + len(counts)] += counts
                    indices.write(source.astype(indices.dtype))
                    for name, column in columns.items():
                        column.write(np.ascontiguousarray(some[name]))
                    del chunk, some
                del records  # before the next run is read
        indptr = np.zeros(self.num_nodes + 1, np.int64)
        np.cumsum(degrees, out=indptr[1:])
        writer.put("indptr", indptr)

    def __enter__(self) -> EdgeBuckets:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()
        for path in self._paths:
            path.unlink(missing_ok=True)


def _keys(records: np.ndarray) -> np.ndarray:
    """Of edges that carry something or do not, int64."""
    return records if records.dtype == _KEY else np.ascontiguousarray(records["key"])
