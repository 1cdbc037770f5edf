"""From tables to arrays, in two passes over each (``table``).

Ids get numbers in the order of the rows (``ids``). Rows that cannot be used are an error, or are dropped.

Letters: N nodes of a type, E edges of a relation, n rows of a batch, C columns of labels.
"""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sargnn.errors import DataError
from sargnn.graph.check import index_dtype
from sargnn.graph.dataset import Reader
from sargnn.graph.origin import Ids, Origin
from sargnn.graph.schema import SPLITS
from sargnn.sources.own.edges import EdgeArrays, Triplet
from sargnn.sources.own.given import (
    COUNT,
    EDGE_FEATURES,
    EDGE_LABELS,
    EDGES,
    FEATURES,
    LABELS,
    WEIGHTS,
    GivenArray,
    PlainArray,
)
from sargnn.sources.own.graph import Unread, build_graph
from sargnn.sources.own.reader import own_reader
from sargnn.sources.tables.columns import Category, as_texts, decoded, is_time, plain_type
from sargnn.sources.tables.ids import IdMap, Records, keys_of, text_arrays
from sargnn.sources.tables.spec import EdgeTable, NodeTable, read_spec
from sargnn.sources.tables.table import Table, is_null
from sargnn.steps import step

if TYPE_CHECKING:
    from sargnn.sources.settings import TablesConfig

_VERSION = 1
_WORDS = {"train": "train", "valid": "val", "test": "test"}
_SETTINGS = ("on_error", "add_inverse_edges", "normalize_features", "homogenize", "task", "link_messages", "predicted_type")
"""What decides the content, too."""
_ROWS = 1 << 20


def tables_reader(config: TablesConfig) -> Reader:
    """The reader of the tables that the file ``config.root`` lists; raises ``DataError`` for what cannot be read."""
    return TablesReader(config)


class FileArray(GivenArray):
    """Rows appended to a file and read back in order, never mapped, so that they do not count as memory.

    Args:
        row: the shape of an entry.
        table: says where a row came from, for messages.
    """

    def __init__(self, name: str, path: Path, dtype: Any, row: tuple[int, ...] = (), table: Table | None = None) -> None:
        self.name, self.path, self.dtype, self._row, self._table = name, path, np.dtype(dtype), row, table
        self._width = int(np.prod(row, dtype=np.int64))
        self.path.touch()

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.path.stat().st_size // (self.dtype.itemsize * self._width) if self._width else 0, *self._row)

    def append(self, rows: np.ndarray) -> None:
        with self.path.open("ab") as file:
            np.ascontiguousarray(rows, self.dtype).tofile(file)

    def pieces(self, rows: int) -> Iterator[np.ndarray]:
        with self.path.open("rb") as file:
            while len(piece := np.fromfile(file, self.dtype, rows * self._width)):
                yield piece.reshape(-1, *self._row)

    def place(self, row: int, unit: str) -> str:
        return super().place(row, unit) if self._table is None else self._table.kept_place(row)

    def mapped(self) -> np.ndarray:
        """All of it, in memory where it is empty."""
        return np.memmap(self.path, self.dtype, "r", shape=self.shape) if self.shape[0] else np.zeros(self.shape, self.dtype)


class _Mask(GivenArray):
    """Which rows are of a split. splits: uint8 [rows]."""

    def __init__(self, splits: FileArray, split: str) -> None:
        self.name, self._splits, self._number, self.dtype = splits.name, splits, SPLITS[split], np.dtype(bool)
        self.shape = splits.shape

    def pieces(self, rows: int) -> Iterator[np.ndarray]:
        for piece in self._splits.pieces(rows):
            yield piece == self._number


class TablesReader(Reader):
    """The tables that a YAML file lists. Raises ``DataError`` for what can be told without reading them."""

    def __init__(self, config: TablesConfig) -> None:
        self.config, self._root = config, Path(config.root)
        self._spec = read_spec(self._root)
        self.known = known = config.known()
        labelled = [*(name for name, table in self._spec.nodes.items() if table.label)]
        labelled_edges = [triplet for triplet, table in self._spec.edges.items() if table.label]

        def make(name: str, title: str, spec: NodeTable | EdgeTable, *, timed: bool) -> Table:
            encodings = known.encodings.get(name, {}) if known is not None else {}
            classes = list(known.classes) if known is not None and known.classes and spec.label else None
            return Table(title, spec, self._root.parent, encodings, classes, config.split_by if timed else None)

        self.nodes = {
            name: make(name, f"nodes of type '{name}'", table, timed=name in labelled)
            for name, table in self._spec.nodes.items()
        }
        self.edges = {
            triplet: make(
                " ".join(triplet),
                f"edges '{' '.join(triplet)}'",
                table,
                timed=not labelled and (triplet in labelled_edges or not labelled_edges),
            )
            for triplet, table in self._spec.edges.items()
        }
        self.types = sorted({end for triplet in self.edges for end in (triplet[0], triplet[2])})
        self.texts = {name: any(table.has_texts(column) for table, column in self.columns_of(name)) for name in self.types}
        config.check_split_by()
        if config.split is not None and config.split_by is None and not labelled:
            raise DataError(
                "Nodes have no labels, so that no split of them is drawn.",
                given=f"dataset.split={list(config.split)}",
                hint="dataset.link_split=[0.8,0.1,0.1] splits edges, dataset.split_by=COLUMN by time",
            )

    def identity(self) -> dict[str, Any]:
        config, known = self.config, self.known
        return {
            "reader": "tables",
            "version": _VERSION,
            "files": {name: table.identity() for name, table in self.tables().items()},
            "spec": [
                {name: dataclasses.asdict(table) for name, table in self._spec.nodes.items()},
                {" ".join(triplet): dataclasses.asdict(table) for triplet, table in self._spec.edges.items()},
            ],
            "split_by": [config.split_by, config.split_at, "known by relation"] if config.split_by is not None else None,
            "split": [config.split, config.split_seed] if config.split is not None else None,
            "edge_categories": list(config.edge_categories or ()),
            **{name: getattr(config, name) for name in _SETTINGS},
            **({"known": [known.encodings, list(known.classes)]} if known is not None else {}),
        }

    def tables(self) -> dict[str, Table]:
        return {**self.nodes, **{" ".join(triplet): table for triplet, table in self.edges.items()}}

    def write(self, path: Path, buffer_bytes: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tables-", suffix=".tmp") as scratch:
            tree, origin = _Arrays(self, Path(scratch), buffer_bytes).read()
            graph = build_graph(self._root.stem, f"'{self._root}'", tree, Unread())
            split = None if self.config.split_by is not None else self.config.split
            reader = own_reader(graph, dataclasses.replace(self.config, split=split), None)
            reader.remember(self.identity(), origin)
            reader.write(path, buffer_bytes)

    def columns_of(self, node_type: str) -> list[tuple[Table, str]]:
        """The columns that name nodes of a type, in tables of edges; before them that of its own table, where it has one."""
        columns = [(table, table.spec.ends[0]) for name, table in self.nodes.items() if name == node_type]
        for (source, _, destination), table in self.edges.items():
            columns += [(table, end) for of, end in zip((source, destination), table.spec.ends, strict=True) if of == node_type]
        return columns

    def ids_of(self, node_type: str, values: pa.Array) -> pa.Array:
        """Ids as they are compared: large_string, or int64."""
        if self.texts[node_type]:
            return as_texts(values)
        return pc.cast(decoded(values), pa.int64())


class _Arrays:
    def __init__(self, reader: TablesReader, folder: Path, buffer_bytes: int) -> None:
        self._reader, self._folder, self._config = reader, folder, reader.config
        self._bytes = max(1 << 16, buffer_bytes // 16)
        self._dropped: Counter[str] | None = Counter() if reader.config.on_error == "drop" else None
        self._maps: dict[str, IdMap] = {}
        self._files = 0

    def read(self) -> tuple[dict[str, Any], Origin]:
        """The tree of arrays that ``own.graph`` takes, and what the dataset remembers."""
        reader, warn = self._reader, logging.getLogger(__name__).warning
        tree: dict[str, dict[Any, Any]] = {}
        ids = [self._read_nodes(node_type, tree) for node_type in reader.types]
        for triplet, table in reader.edges.items():
            self._read_edges(triplet, table, tree)
        for what, count in (self._dropped or {}).items():
            if count:
                warn(f"dropped: {what}: {count}")
        tables = reader.tables()
        for table in tables.values():
            for column in (*table.columns, table.label):
                if isinstance(column, Category) and column.others:
                    what = f"the column '{column.name}' of {table.title} has categories that were not trained with"
                    warn(f"{what}; they {'have no label' if column is table.label else 'are zeros'}: {column.others} rows")
        known = reader.known
        of_texts = [table.label.categories for table in tables.values() if isinstance(table.label, Category)]
        classes = of_texts[0] if of_texts else known.classes if known is not None else ()
        encodings = {name: {c.name: c.encoding() for c in table.columns} for name, table in tables.items() if table.columns}
        return tree, Origin(tuple(ids), tuple(classes), encodings)

    def _read_nodes(self, node_type: str, tree: dict[str, dict[Any, Any]]) -> Ids:
        """Where a type has no table, those that edges name, in their order. Raises ``DataError``: an id of the table is null or
        twice."""
        table, columns = self._reader.nodes.get(node_type), self._reader.columns_of(node_type)
        columns = columns if table is None else columns[:1]
        about = sum(of.about_rows for of, _ in columns)
        self._maps[node_type] = numbers = IdMap(self._folder, f"ids_{len(self._maps):03d}", about, self._bytes)
        parts = [np.zeros(0, bool)]
        count = 0
        for of, column in columns:
            passed = of.first_pass(self._rows(1), self._dropped) if table is not None else self._with_ids(of, column)
            for _, batch, good in passed:
                numbers.add(self._keys(node_type, batch.column(column), count, good))
                parts.append(good)
                count += len(good)
        kept = np.concatenate(parts)
        twice: list[tuple[int, int]] = []
        for later, before in numbers.repeats():
            kept[later] = False
            if len(later) and table is not None:
                twice.append(min(zip(later.tolist(), before.tolist(), strict=True)))
                self._count(f"{table.title} whose '{columns[0][1]}' is there twice", len(later))
        if table is not None and twice and self._dropped is None:
            again, first = min(twice)
            raise DataError(
                f"An id is there twice in {table.title}.",
                given=f"{table.value(columns[0][1], again)}, in {table.place(first)} and {table.place(again)}",
                hint="dataset.on_error=drop keeps the first",
            )
        numbers.number(kept)
        tree.setdefault(COUNT, {})[node_type] = numbers.count
        ids = self._new_ids(node_type)
        if table is None:
            count = 0
            for of, column in columns:
                for _, batch in of.batches([column], self._rows(1)):
                    self._append_ids(node_type, ids, batch.column(column).filter(pa.array(kept[count : count + len(batch)])))
                    count += len(batch)
        else:
            table.kept = kept
            arrays = self._columns(table, node_type, ids)
            for name, used in (("features", FEATURES), ("label", LABELS)):
                if name in arrays:
                    tree.setdefault(used, {})[node_type] = arrays[name]
            if (splits := self._splits(table, arrays)) is not None:
                for split, word in _WORDS.items():
                    tree.setdefault(f"{word}_mask", {})[node_type] = _Mask(splits, split)
        return Ids(*(array.mapped() for array in ids))

    def _read_edges(self, triplet: Triplet, table: Table, tree: dict[str, dict[Any, Any]]) -> None:
        """The edges of a relation. Raises ``DataError`` for an end that is null or no node."""
        types = (triplet[0], triplet[2])
        ends = [self._maps[of].ends(name) for of, name in zip(types, ("sources", "destinations"), strict=True)]
        for first, batch, good in table.first_pass(self._rows(1), self._dropped):
            for of, column, end in zip(types, table.spec.ends, ends, strict=True):
                end.add(self._keys(of, batch.column(column), first, good))
        joined = [self._join(table, *of_end) for of_end in zip(table.spec.ends, types, ends, strict=True)]
        sources, destinations = (self._only_kept(table, array) for array in joined)
        tree.setdefault(EDGES, {})[triplet] = EdgeArrays(table.title, sources, destinations)
        arrays = self._columns(table)
        for name, used in (("features", EDGE_FEATURES), ("weight", WEIGHTS), ("label", EDGE_LABELS)):
            if name in arrays:
                tree.setdefault(used, {})[triplet] = arrays[name]
        if (splits := self._splits(table, arrays)) is None:
            return
        for split, word in _WORDS.items():
            mask = _Mask(splits, split)
            if "label" in arrays:
                tree.setdefault(f"edge_{word}_mask", {})[triplet] = mask
            elif split != "train":  # links: what is left of the edges is trained on
                chosen = mask.whole()
                pairs = [PlainArray(array.name, array.whole()[chosen]) for array in (sources, destinations)]
                tree.setdefault(f"{split}_pairs", {})[triplet] = EdgeArrays(table.title, *pairs)

    def _join(self, table: Table, column: str, node_type: str, ends: Records) -> FileArray:
        """Node numbers of one end of all edges, -1 where there is none; those edges are not kept."""
        numbers = self._array(column, index_dtype(max(1, self._maps[node_type].count)), table=table)
        if not len(table.kept):
            return numbers
        step(f"joining {table.title}, '{column}'")
        mapped = np.memmap(numbers.path, numbers.dtype, "w+", shape=table.kept.shape)
        if not table.kept.all():
            mapped[:] = -1
        self._maps[node_type].look_up(ends, mapped)
        del mapped
        missing, first_missing, start = 0, -1, 0
        for piece in numbers.pieces(_ROWS):
            wrong = (piece < 0) & table.kept[start : start + len(piece)]
            first_missing = start + int(wrong.argmax()) if wrong.any() and not missing else first_missing
            missing += int(wrong.sum())
            table.kept[start : start + len(piece)] &= ~wrong
            start += len(piece)
        if missing and self._dropped is None:
            raise DataError(
                f"The column '{column}' of {table.title} names a node of type '{node_type}' that is not in its table.",
                given=f"{table.value(column, first_missing)}, in {table.place(first_missing)}; {missing} in all",
                hint="dataset.on_error=drop leaves such edges out",
            )
        self._count(f"{table.title} whose '{column}' is no node of type '{node_type}'", missing)
        return numbers

    def _only_kept(self, table: Table, array: FileArray) -> FileArray:
        if table.kept.all():
            return array
        kept, start = self._array(array.name, array.dtype, table=table), 0
        for piece in array.pieces(_ROWS):
            kept.append(piece[table.kept[start : start + len(piece)]])
            start += len(piece)
        array.path.unlink()
        return kept

    def _columns(self, table: Table, node_type: str = "", ids: list[FileArray] | None = None) -> dict[str, FileArray]:
        """The arrays of a table's columns by name. ids: get the ids of a table of nodes of this type."""
        arrays: dict[str, FileArray] = {}
        features = sum(column.width for column in table.columns)
        for batch, some in table.second_pass(self._rows(features + len(table.spec.label)), ids=ids is not None):
            if ids is not None:
                self._append_ids(node_type, ids, batch.column(table.spec.ends[0]))
            for name, array in some.items():
                if name not in arrays:
                    dtype = {"features": np.float32, "split": np.uint8}.get(name, np.float64)
                    title = f"{', '.join(table.spec.label) if name == 'label' else name} of {table.title}"
                    arrays[name] = self._array(title, dtype, array.shape[1:], table)
                arrays[name].append(array)
        if not arrays and table.columns:  # a table without a row has its columns
            arrays["features"] = self._array(f"features of {table.title}", np.float32, (features,), table)
        if "weight" not in arrays and table.weight is not None:
            arrays["weight"] = self._array(f"weight of {table.title}", np.float64, (), table)
        return arrays

    def _splits(self, table: Table, arrays: dict[str, FileArray]) -> FileArray | None:
        """Of each row the split's number, uint8; None where no column says one."""
        if table.time is not None:
            return self._splits_by_time(table, arrays)
        if self._dropped is None or "label" not in arrays or "split" not in arrays:
            return arrays.get("split")
        kept = self._array(arrays["split"].name, np.uint8, table=table)
        for splits, labels in zip(arrays["split"].pieces(1 << 18), arrays["label"].pieces(1 << 18), strict=True):
            unknown = np.isnan(labels.reshape(len(labels), -1)).all(1) & (splits > 0)
            self._count(f"{table.title} of a split that have no label, from the split", int(unknown.sum()))
            kept.append(np.where(unknown, 0, splits))
        return kept

    def _splits_by_time(self, table: Table, arrays: dict[str, FileArray]) -> FileArray:
        """The earliest rows are trained on, the latest tested: by shares of those with labels, or by two moments."""
        config, times, known = self._config, arrays["time"].whole(), None
        if "label" in arrays:
            pieces = [~np.isnan(piece.reshape(len(piece), -1)).all(1) for piece in arrays["label"].pieces(1 << 18)]
            known = np.concatenate([np.zeros(0, bool), *pieces])
        if config.split_at is not None:
            bounds = [*config.moments(times=is_time(plain_type(table.types[table.time or ""]))), np.inf]
        else:
            assert config.split is not None
            ordered = np.sort(times if known is None else times[known])
            places = np.round(np.cumsum(config.split) * len(ordered)).astype(np.int64)
            bounds = [ordered[place] if place < len(ordered) else np.inf for place in places]
        numbers = np.searchsorted(np.array(bounds), times, side="right")
        splits = np.array([*SPLITS.values(), 0], np.uint8)[numbers]
        if known is not None:
            splits[~known] = 0
        counts = {name: int((splits == value).sum()) for name, value in SPLITS.items()}
        empty = [name for name, share in zip(SPLITS, config.split or (), strict=False) if share and not counts[name]]
        if empty and config.predicted_type is None:
            raise DataError(
                f"The times in '{table.time}' of {table.title} leave nothing for {' and '.join(empty)}: too many are alike.",
                given=", ".join(f"{name} {count}" for name, count in counts.items()),
                hint="dataset.split_at=[...,...] says where validation and test begin",
            )
        array = self._array(f"'{table.time}' of {table.title}", np.uint8, table=table)
        array.append(splits)
        return array

    def _with_ids(self, table: Table, column: str) -> Iterator[tuple[int, pa.RecordBatch, np.ndarray]]:
        """As the first pass, of which only ids are asked."""
        for first, batch in table.batches([column], self._rows(1)):
            yield first, batch, ~is_null(batch.column(column))

    def _keys(self, node_type: str, ids: pa.Array, first: int, good: np.ndarray) -> np.ndarray:
        """Of those that are good. first: the row of the first one."""
        return keys_of(self._reader.ids_of(node_type, ids.filter(pa.array(good))), first + np.flatnonzero(good))

    def _new_ids(self, node_type: str) -> list[FileArray]:
        """What takes the ids of a type, as ``Ids`` has them."""
        if not self._reader.texts[node_type]:
            return [self._array("ids", np.int64)]
        ids = [self._array("ids", np.uint8), self._array("ids", np.int64)]
        ids[1].append(np.zeros(1, np.int64))
        return ids

    def _append_ids(self, node_type: str, ids: list[FileArray], values: pa.Array) -> None:
        values = self._reader.ids_of(node_type, values)
        if not self._reader.texts[node_type]:
            ids[0].append(values.to_numpy(zero_copy_only=False))
            return
        data, ends = text_arrays(values)
        ids[1].append(ends[1:] - ends[0] + ids[0].shape[0])
        ids[0].append(data[ends[0] : ends[-1]])

    def _count(self, what: str, count: int) -> None:
        if self._dropped is not None:
            self._dropped[what] += count

    def _rows(self, width: int) -> int:
        """How many rows of so many numbers are read at once."""
        return max(1, self._bytes // (64 + 24 * width))

    def _array(self, name: str, dtype: Any, row: tuple[int, ...] = (), table: Table | None = None) -> FileArray:
        self._files += 1
        return FileArray(name, self._folder / f"array_{self._files:04d}", dtype, row, table)
