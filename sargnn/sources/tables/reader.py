"""From tables to arrays, in two passes over each.

The first one takes the ids, and of columns what must be known of all rows: mean, categories, length. Ids get numbers in the
order of the rows (``ids``). The second one writes the arrays. Rows that cannot be used are an error, or are dropped: then the
first pass looks at all columns, so that a node without features has no number, and its edges go with it.

Letters: N nodes of a type, E edges of a relation, n rows of a batch, C columns of labels.
"""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Iterator, Mapping
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
from sargnn.sources.own.given import COUNT, EDGE_FEATURES, EDGE_LABELS, EDGES, FEATURES, LABELS, WEIGHTS, GivenArray, PlainArray
from sargnn.sources.own.graph import Unread, build_graph
from sargnn.sources.own.reader import own_reader
from sargnn.sources.tables.columns import (
    Category,
    Column,
    Number,
    Numbers,
    as_numbers,
    as_texts,
    column_of,
    decoded,
    family_of,
    is_list,
    is_number,
    is_text,
    is_time,
    split_numbers,
)
from sargnn.sources.tables.files import Table, plain_type
from sargnn.sources.tables.ids import Ends, IdMap, keys_of, text_arrays
from sargnn.sources.tables.spec import EdgeTable, NodeTable, read_spec
from sargnn.steps import step

if TYPE_CHECKING:
    from sargnn.sources.settings import TablesConfig

_VERSION = 1
_WORDS = {"train": "train", "valid": "val", "test": "test"}


def tables_reader(config: TablesConfig) -> Reader:
    """The reader of the tables that the file ``config.root`` lists; raises ``DataError`` for what cannot be read."""
    return TablesReader(config)


class RawArray(GivenArray):
    """Rows appended to a file and read back in order, never mapped, so that they do not count as memory.

    Args:
        name: what messages call it.
        path: the file.
        dtype: of the numbers.
        row: the shape of an entry.
        rows_of: says where a row came from, for messages.
    """

    def __init__(self, name: str, path: Path, dtype: Any, row: tuple[int, ...] = (), rows_of: Rows | None = None) -> None:
        self.name, self.path, self.dtype, self._row, self._rows_of = name, path, np.dtype(dtype), row, rows_of
        self.path.touch()

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        width = int(np.prod(self._row, dtype=np.int64))
        count = self.path.stat().st_size // (self.dtype.itemsize * width) if width else 0
        return (count, *self._row)

    def append(self, rows: np.ndarray) -> None:
        with self.path.open("ab") as file:
            np.ascontiguousarray(rows, self.dtype).tofile(file)

    def pieces(self, rows: int) -> Iterator[np.ndarray]:
        width = int(np.prod(self._row, dtype=np.int64))
        with self.path.open("rb") as file:
            while len(piece := np.fromfile(file, self.dtype, rows * width)):
                yield piece.reshape(-1, *self._row)

    def place(self, row: int, unit: str) -> str:
        return super().place(row, unit) if self._rows_of is None else self._rows_of.place(row)


class Mask(GivenArray):
    """Which rows are of a split. splits: uint8 [rows]."""

    def __init__(self, name: str, splits: RawArray, number: int) -> None:
        self.name, self._splits, self._number, self.dtype = name, splits, number, np.dtype(bool)
        self.shape = splits.shape

    def pieces(self, rows: int) -> Iterator[np.ndarray]:
        for piece in self._splits.pieces(rows):
            yield piece == self._number


class TableEdges(EdgeArrays):
    """Edges whose places are rows of their tables."""

    def __init__(self, rows: Rows, sources: RawArray, destinations: RawArray) -> None:
        super().__init__(rows.title, sources, destinations)
        self._rows = rows

    def place(self, position: int) -> str:
        return self._rows.place(position)


class Rows:
    """One table and what is read of it.

    Args:
        title: what messages call it.
        spec: its entry in the file of tables.
        folder: where relative names start.
        known: its columns' encodings in another dataset.
        classes: of labels that are texts, in another dataset.
        time: the column whose time decides the split; None: it has none.

    Raises:
        DataError: a column is missing or of another type; the file is named.
    """

    def __init__(
        self,
        title: str,
        spec: NodeTable | EdgeTable,
        folder: Path,
        known: Mapping[str, Any],
        classes: list[str] | None,
        time: str | None,
    ) -> None:
        self.title, self.spec = title, spec
        self.table = Table(title, spec.files, folder, texts=spec.ends)
        ends = ("id",) if isinstance(spec, NodeTable) else ("source", "destination")
        for of, column in zip(ends, spec.ends, strict=True):
            self.table.check(column, lambda t: is_text(t) or pa.types.is_integer(t), "texts, or whole numbers", of=of)
        for column in spec.features:
            self.table.check(column, lambda t: True, "", of="features")
        for column in (*spec.features, *spec.label):
            self.table.check_alike(column, family_of)
        self.columns: list[Column] = [
            column_of(name, title, kind, self.table.columns[name], known.get(name)) for name, kind in spec.features.items()
        ]
        alone = len(spec.label) == 1
        for column in spec.label:
            self.table.check(
                column,
                lambda t: is_number(t) or (alone and (is_text(t) or is_list(t))),
                "numbers; of a single column also texts, which are classes, or lists of numbers",
                of="label",
            )
        self.classes: Category | None = None
        self._label_list: Numbers | None = None
        if len(spec.label) == 1:
            kind = plain_type(self.table.columns[spec.label[0]])
            self.classes = Category(spec.label[0], classes) if is_text(kind) else None
            self._label_list = Numbers(spec.label[0]) if is_list(kind) else None
        if spec.split is not None:
            self.table.check(spec.split, is_text, "texts: train, valid, test, or null", of="split")
        self.weight = getattr(spec, "weight", None)
        if self.weight is not None:
            self.table.check(self.weight, is_number, "numbers", of="weight")
        self.time = time
        if time is not None:
            self.table.check(time, lambda t: is_time(t) or is_number(t), "dates, times or numbers", of="dataset.split_by")
        self.kept = np.zeros(0, bool)

    @property
    def _checked(self) -> list[Column]:
        """All columns whose faults make a row useless."""
        others = [name for name in (self.weight, self.time) if name is not None]
        return [*self.columns, *(Number(name, standard=False) for name in others)]

    @property
    def _observed(self) -> list[Column]:
        labels = [column for column in (self.classes, self._label_list) if column is not None]
        return [column for column in (*self.columns, *labels) if column.observes]

    def place(self, row: int) -> str:
        """Where the kept row came from."""
        return self.table.place(row if self.kept.all() else int(np.flatnonzero(self.kept)[row]))

    def first_pass(self, rows: int, *, drop: bool) -> Iterator[tuple[int, pa.RecordBatch, np.ndarray]]:
        """Number of the first row, batch, and bool [n]: the rows that have what it takes, as far as this pass looks."""
        checked = self._checked if drop else []
        names = [*self.spec.ends, *(column.name for column in (*self._observed, *checked))]
        total = self.table.about_rows
        for first, batch in self.table.batches(list(dict.fromkeys(names)), rows):
            step(f"reading ids of {self.title}", first, total)
            for column in self._observed:
                if column is not self.classes:
                    column.observe(decoded(batch.column(column.name)))
            good = np.ones(batch.num_rows, bool)
            for column in checked:
                good &= ~column.faults(decoded(batch.column(column.name)))
            if self.classes is not None and self.classes.observes:
                self.classes.observe(decoded(batch.column(self.classes.name)).filter(pa.array(good)))
            yield first, batch, good

    def second_pass(self, rows: int, *, ids: bool) -> Iterator[tuple[pa.RecordBatch, dict[str, np.ndarray]]]:
        """The rows that are kept, and their arrays by name. ids: the batches have the ids, too.

        Raises:
            DataError: a value that cannot be used; its file, row and column are named.
        """
        spec, checked = self.spec, self._checked
        names = [
            *(spec.ends if ids else ()),
            *(column.name for column in checked),
            *spec.label,
            *([spec.split] if spec.split else []),
        ]
        total = self.table.about_rows
        for first, batch in self.table.batches(list(dict.fromkeys(names)), rows) if names else ():
            step(f"reading columns of {self.title}", first, total)
            chosen = self.kept[first : first + batch.num_rows]
            for column in checked:
                values = decoded(batch.column(column.name))
                if (wrong := column.faults(values) & chosen).any():
                    self._fault(column, values, first, wrong)
            batch = batch if chosen.all() else batch.filter(pa.array(chosen))
            yield batch, self._arrays(batch, first, chosen)

    def _fault(self, column: Column, values: pa.Array, first: int, wrong: np.ndarray) -> None:
        row = int(wrong.argmax())
        value = values[row].as_py()
        given = "null" if value is None else f"{len(value)} entries" if isinstance(value, list) else str(value)
        wants = f"{column.width} finite numbers" if isinstance(column, Numbers) else "a finite number"
        raise DataError(
            f"The column '{column.name}' of {self.title} holds a value that cannot be used.",
            given=f"{given}, in {self.table.place(first + row)}",
            allowed="a text" if isinstance(column, Category) else wants,
            hint="dataset.on_error=drop leaves such rows out",
        )

    def _arrays(self, batch: pa.RecordBatch, first: int, chosen: np.ndarray) -> dict[str, np.ndarray]:
        spec, arrays = self.spec, {}
        if self.columns:
            parts = [column.encode(decoded(batch.column(column.name))) for column in self.columns]
            arrays["features"] = np.concatenate(parts, 1)
        if self.weight:
            arrays["weight"] = as_numbers(batch.column(self.weight))
        if spec.label:
            arrays["label"] = self._labels(batch)
        if self.time:
            arrays["time"] = as_numbers(batch.column(self.time))
        elif spec.split:
            values = decoded(batch.column(spec.split))
            splits = split_numbers(values)
            if (splits < 0).any():
                row = int((splits < 0).argmax())
                raise DataError(
                    f"The column '{spec.split}' of {self.title} names no split.",
                    given=f"'{values[row].as_py()}', in {self.table.place(first + int(np.flatnonzero(chosen)[row]))}",
                    allowed="train, valid, test; null or nothing for none",
                )
            arrays["split"] = splits.astype(np.uint8)
        return arrays

    def _labels(self, batch: pa.RecordBatch) -> np.ndarray:
        """float64 [n] or [n, C], nan where there is none."""
        columns = [decoded(batch.column(name)) for name in self.spec.label]
        if self.classes is not None:
            codes = self.classes.codes(columns[0])
            return np.where(codes < 0, np.nan, codes)
        if self._label_list is not None:
            wrong = self._label_list.faults(columns[0])
            labels = np.full((len(wrong), self._label_list.width), np.nan)
            labels[~wrong] = self._label_list.encode(columns[0].filter(pa.array(~wrong)))
            return labels
        numbers = [as_numbers(column) for column in columns]
        return numbers[0] if len(numbers) == 1 else np.stack(numbers, 1)


class TablesReader(Reader):
    """The tables that a YAML file lists. Raises ``DataError`` for what can be told without reading them."""

    def __init__(self, config: TablesConfig) -> None:
        self.config, self._root = config, Path(config.root)
        self._spec = read_spec(self._root)
        self.known = known = config.known()
        labelled = [*(name for name, table in self._spec.nodes.items() if table.label)]
        labelled_edges = [triplet for triplet, table in self._spec.edges.items() if table.label]

        def make(name: str, title: str, table: NodeTable | EdgeTable, *, timed: bool) -> Rows:
            encodings = known.encodings.get(name, {}) if known is not None else {}
            classes = list(known.classes) if known is not None and known.classes and table.label else None
            return Rows(title, table, self._root.parent, encodings, classes, config.split_by if timed else None)

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
        self._texts = {name: self.has_texts(name) for name in self.types}
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
            "files": {
                name: rows.table.identity()
                for name, rows in [*self.nodes.items(), *((" ".join(key), rows) for key, rows in self.edges.items())]
            },
            "spec": [
                {name: dataclasses.asdict(table) for name, table in self._spec.nodes.items()},
                {" ".join(triplet): dataclasses.asdict(table) for triplet, table in self._spec.edges.items()},
            ],
            "on_error": config.on_error,
            "split_by": [config.split_by, config.split_at] if config.split_by is not None else None,
            "split": [config.split, config.split_seed] if config.split is not None else None,
            "add_inverse_edges": config.add_inverse_edges,
            "normalize_features": config.normalize_features,
            "homogenize": config.homogenize,
            "task": config.task,
            "link_messages": config.link_messages,
            "edge_categories": list(config.edge_categories or ()),
            "predicted_type": config.predicted_type,
            **({"known": [known.encodings, list(known.classes)]} if known is not None else {}),
        }

    def write(self, path: Path, buffer_bytes: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tables-", suffix=".tmp") as scratch:
            tree, origin = _Arrays(self, Path(scratch), buffer_bytes).read()
            graph = build_graph(self._root.stem, f"'{self._root}'", tree, Unread())
            split = None if self.config.split_by is not None else self.config.split
            reader = own_reader(graph, dataclasses.replace(self.config, split=split), None)
            reader.remember(self.identity(), origin)
            reader.write(path, buffer_bytes)

    def has_texts(self, node_type: str) -> bool:
        """Whether the ids of a type are texts in some table; then all of them are."""
        columns = [(rows, rows.spec.ends[0]) for name, rows in self.nodes.items() if name == node_type]
        for (source, _, destination), rows in self.edges.items():
            columns += [(rows, end) for of, end in zip((source, destination), rows.spec.ends, strict=True) if of == node_type]
        kinds = [kind for rows, column in columns for kind in rows.table.kinds(column)]
        return any(is_text(kind) or pa.types.is_uint64(kind) for kind in kinds)  # the latter do not all fit into int64

    def ids_of(self, node_type: str, values: pa.Array) -> pa.Array:
        """Ids as they are compared: large_string, or int64."""
        if self._texts[node_type]:
            return as_texts(values)
        return pc.cast(decoded(values), pa.int64())


class _Arrays:
    """Reads the tables into files of a folder."""

    def __init__(self, reader: TablesReader, folder: Path, buffer_bytes: int) -> None:
        self._reader, self._folder, self._config = reader, folder, reader.config
        self._bytes = max(1 << 16, buffer_bytes // 16)
        self._drop = reader.config.on_error == "drop"
        self._dropped: dict[str, int] = {}
        self._maps: dict[str, IdMap] = {}
        self._files = 0

    def read(self) -> tuple[dict[str, Any], Origin]:
        """The tree of arrays that ``own.graph`` takes, and what the dataset remembers."""
        reader = self._reader
        tree: dict[str, dict[Any, Any]] = {}
        ids = []
        for node_type in reader.types:
            rows = reader.nodes.get(node_type)
            ids.append(self._read_nodes(node_type, rows, tree) if rows is not None else self._ids_of_ends(node_type))
            tree.setdefault(COUNT, {})[node_type] = len(ids[-1])
        for triplet, rows in reader.edges.items():
            self._read_edges(triplet, rows, tree)
        for what, count in self._dropped.items():
            logging.getLogger(__name__).warning(f"dropped: {what}: {count}")
        tables: dict[str, Rows] = dict(reader.nodes) | {" ".join(triplet): rows for triplet, rows in reader.edges.items()}
        for rows in tables.values():
            for column in (*rows.columns, rows.classes):
                if isinstance(column, Category) and column.others:
                    what = f"the column '{column.name}' of {rows.title} has categories that were not trained with"
                    become = "have no label" if column is rows.classes else "are zeros"
                    logging.getLogger(__name__).warning(f"{what}; they {become}: {column.others} rows")
        known = reader.known
        of_texts = [rows.classes.categories for rows in tables.values() if rows.classes is not None]
        classes = of_texts[0] if of_texts else known.classes if known is not None else ()
        encodings = {name: {c.name: c.encoding() for c in rows.columns} for name, rows in tables.items() if rows.columns}
        return tree, Origin(tuple(ids), tuple(classes), encodings)

    def _read_nodes(self, node_type: str, rows: Rows, tree: dict[str, dict[Any, Any]]) -> Ids:
        """The nodes of a type that has a table. Raises ``DataError`` for an id that is null or there twice."""
        (column,) = rows.spec.ends
        numbers, kept = self._map(node_type, rows.table.about_rows), []
        for first, batch, good in rows.first_pass(self._rows(1), drop=self._drop):
            good = self._without_nulls(rows, batch, first, good)
            chosen = self._reader.ids_of(node_type, batch.column(column).filter(pa.array(good)))
            numbers.add(keys_of(chosen, first + np.flatnonzero(good)))
            kept.append(good)
        rows.kept = np.concatenate([np.zeros(0, bool), *kept])
        twice: list[tuple[int, int]] = []
        for later, before in numbers.repeats():
            rows.kept[later] = False
            if len(later):
                self._count(f"{rows.title} whose '{column}' is there twice", len(later))
                twice.append(min(zip(later.tolist(), before.tolist(), strict=True)))
        if twice and not self._drop:
            again, first_row = min(twice)
            raise DataError(
                f"An id is there twice in {rows.title}.",
                given=f"{self._value(rows, column, again)}, in {rows.table.place(first_row)} and {rows.table.place(again)}",
                hint="dataset.on_error=drop keeps the first",
            )
        numbers.number(rows.kept)
        ids, arrays = self._columns(rows, node_type)
        assert ids is not None
        for name, used in (("features", FEATURES), ("label", LABELS)):
            if name in arrays:
                tree.setdefault(used, {})[node_type] = arrays[name]
        if (splits := self._splits(rows, arrays)) is not None:
            for split, word in _WORDS.items():
                tree.setdefault(f"{word}_mask", {})[node_type] = Mask(splits.name, splits, SPLITS[split])
        return ids

    def _ids_of_ends(self, node_type: str) -> Ids:
        """The ids of a type without a table: those that edges name, in the order in which they do."""
        columns = [
            (rows, column)
            for (source, _, destination), rows in self._reader.edges.items()
            for of, column in zip((source, destination), rows.spec.ends, strict=True)
            if of == node_type
        ]
        numbers = self._map(node_type, sum(rows.table.about_rows for rows, _ in columns))
        kept, count = [], 0
        for rows, column in columns:
            for _, batch in rows.table.batches([column], self._rows(1)):
                good = self._are_there(batch, column)
                chosen = self._reader.ids_of(node_type, batch.column(column).filter(pa.array(good)))
                numbers.add(keys_of(chosen, count + np.flatnonzero(good)))
                kept.append(good)
                count += len(good)
        first = np.concatenate([np.zeros(0, bool), *kept])
        for later, _ in numbers.repeats():
            first[later] = False
        numbers.number(first)
        ids, count = _IdFiles(self, self._reader, node_type), 0
        for rows, column in columns:
            for _, batch in rows.table.batches([column], self._rows(1)):
                ids.append(batch.column(column).filter(pa.array(first[count : count + batch.num_rows])))
                count += batch.num_rows
        return ids.ids()

    def _read_edges(self, triplet: Triplet, rows: Rows, tree: dict[str, dict[Any, Any]]) -> None:
        """The edges of a relation. Raises ``DataError`` for an end that is null or no node."""
        types = (triplet[0], triplet[2])
        ends = [self._maps[of].ends(name) for of, name in zip(types, ("sources", "destinations"), strict=True)]
        kept = []
        for first, batch, good in rows.first_pass(self._rows(1), drop=self._drop):
            good = self._without_nulls(rows, batch, first, good)
            for of, column, end in zip(types, rows.spec.ends, ends, strict=True):
                chosen = self._reader.ids_of(of, batch.column(column).filter(pa.array(good)))
                end.add(keys_of(chosen, first + np.flatnonzero(good)))
            kept.append(good)
        rows.kept = np.concatenate([np.zeros(0, bool), *kept])
        joined = [self._join(rows, column, of, end) for of, column, end in zip(types, rows.spec.ends, ends, strict=True)]
        sources, destinations = (self._only_kept(rows, array) for array in joined)
        edges = TableEdges(rows, sources, destinations)
        _, arrays = self._columns(rows, None)
        tree.setdefault(EDGES, {})[triplet] = edges
        for name, used in (("features", EDGE_FEATURES), ("weight", WEIGHTS), ("label", EDGE_LABELS)):
            if name in arrays:
                tree.setdefault(used, {})[triplet] = arrays[name]
        if (splits := self._splits(rows, arrays)) is None:
            return
        for split, word in _WORDS.items():
            mask = Mask(splits.name, splits, SPLITS[split])
            if "label" in arrays:
                tree.setdefault(f"edge_{word}_mask", {})[triplet] = mask
            elif split != "train":  # links: what is left of the edges is trained on
                chosen = mask.whole()
                pairs = [PlainArray(array.name, array.whole()[chosen]) for array in (sources, destinations)]
                tree.setdefault(f"{split}_pairs", {})[triplet] = EdgeArrays(rows.title, *pairs)

    def _join(self, rows: Rows, column: str, node_type: str, ends: Ends) -> RawArray:
        """Node numbers of one end of all edges, -1 where there is none; those edges are not kept."""
        numbers = self._array(column, index_dtype(max(1, self._maps[node_type].count)), rows=rows)
        if not len(rows.kept):
            return numbers
        step(f"joining {rows.title}, '{column}'")
        mapped = np.memmap(numbers.path, numbers.dtype, "w+", shape=rows.kept.shape)
        if not rows.kept.all():
            mapped[:] = -1
        self._maps[node_type].look_up(ends, mapped)
        mapped.flush()
        del mapped
        missing, first_missing, start = 0, -1, 0
        for piece in numbers.pieces(1 << 20):
            wrong = (piece < 0) & rows.kept[start : start + len(piece)]
            if wrong.any():
                first_missing = start + int(wrong.argmax()) if first_missing < 0 else first_missing
                missing += int(wrong.sum())
                rows.kept[start : start + len(piece)] &= ~wrong
            start += len(piece)
        if missing and not self._drop:
            raise DataError(
                f"The column '{column}' of {rows.title} names a node of type '{node_type}' that is not in its table.",
                given=f"{self._value(rows, column, first_missing)}, in {rows.table.place(first_missing)}; {missing} in all",
                hint="dataset.on_error=drop leaves such edges out",
            )
        self._count(f"{rows.title} whose '{column}' is no node of type '{node_type}'", missing)
        return numbers

    def _only_kept(self, rows: Rows, array: RawArray) -> RawArray:
        if rows.kept.all():
            return array
        kept, start = self._array(array.name, array.dtype, rows=rows), 0
        for piece in array.pieces(1 << 20):
            kept.append(piece[rows.kept[start : start + len(piece)]])
            start += len(piece)
        array.path.unlink()
        return kept

    def _columns(self, rows: Rows, node_type: str | None) -> tuple[Ids | None, dict[str, RawArray]]:
        """The arrays of a table's columns by name, and of a table of nodes the ids."""
        arrays: dict[str, RawArray] = {}
        ids = _IdFiles(self, self._reader, node_type) if node_type is not None else None
        width = sum(column.width for column in rows.columns) + len(rows.spec.label)
        for batch, some in rows.second_pass(self._rows(width), ids=ids is not None):
            if ids is not None:
                ids.append(batch.column(rows.spec.ends[0]))
            for name, array in some.items():
                if name not in arrays:
                    dtype = {"features": np.float32, "split": np.uint8}.get(name, np.float64)
                    title = f"{', '.join(rows.spec.label) if name == 'label' else name} of {rows.title}"
                    arrays[name] = self._array(title, dtype, array.shape[1:], rows)
                arrays[name].append(array)
        if not arrays and rows.columns:  # a table without a row has its columns
            columns = sum(column.width for column in rows.columns)
            arrays["features"] = self._array(f"features of {rows.title}", np.float32, (columns,), rows)
        if not arrays.keys() & {"weight"} and rows.weight is not None:
            arrays["weight"] = self._array(f"weight of {rows.title}", np.float64, (), rows)
        return (ids.ids() if ids is not None else None), arrays

    def _splits(self, rows: Rows, arrays: dict[str, RawArray]) -> RawArray | None:
        """Of each row the split's number, uint8; None where no column says one."""
        if rows.time is not None:
            return self._splits_by_time(rows, arrays)
        if not self._drop or "label" not in arrays or "split" not in arrays:
            return arrays.get("split")
        kept = self._array(arrays["split"].name, np.uint8, rows=rows)
        for splits, labels in zip(arrays["split"].pieces(1 << 18), arrays["label"].pieces(1 << 18), strict=True):
            unknown = np.isnan(labels.reshape(len(labels), -1)).all(1) & (splits > 0)
            self._count(f"{rows.title} of a split that have no label, from the split", int(unknown.sum()))
            kept.append(np.where(unknown, 0, splits))
        return kept

    def _splits_by_time(self, rows: Rows, arrays: dict[str, RawArray]) -> RawArray:
        """The earliest rows are trained on, the latest tested: by shares of those with labels, or by two moments."""
        config, times, known = self._config, arrays["time"].whole(), None
        if "label" in arrays:
            pieces = [~np.isnan(piece.reshape(len(piece), -1)).all(1) for piece in arrays["label"].pieces(1 << 18)]
            known = np.concatenate([np.zeros(0, bool), *pieces])
        if config.split_at is not None:
            bounds = [*config.moments(times=is_time(plain_type(rows.table.columns[rows.time or ""]))), np.inf]
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
                f"The times in '{rows.time}' of {rows.title} leave nothing for {' and '.join(empty)}: too many are alike.",
                given=", ".join(f"{name} {count}" for name, count in counts.items()),
                hint="dataset.split_at=[...,...] says where validation and test begin",
            )
        array = self._array(f"'{rows.time}' of {rows.title}", np.uint8, rows=rows)
        array.append(splits)
        return array

    def _without_nulls(self, rows: Rows, batch: pa.RecordBatch, first: int, good: np.ndarray) -> np.ndarray:
        self._count(f"{rows.title} with values that cannot be used", int((~good).sum()))
        for column in rows.spec.ends:
            null = ~self._are_there(batch, column)
            if null.any() and not self._drop:
                raise DataError(
                    f"The column '{column}' of {rows.title} holds no id.",
                    given=f"null, in {rows.table.place(first + int(null.argmax()))}",
                    hint="dataset.on_error=drop leaves such rows out",
                )
            self._count(f"{rows.title} whose '{column}' is null", int((null & good).sum()))
            good = good & ~null
        return good

    def _are_there(self, batch: pa.RecordBatch, column: str) -> np.ndarray:
        """bool [n]: the rows that are not null."""
        return np.asarray(batch.column(column).is_valid().to_numpy(zero_copy_only=False))

    def _value(self, rows: Rows, column: str, row: int) -> str:
        """What a row holds, for messages; read once more."""
        for first, batch in rows.table.batches([column], 1 << 16):
            if row < first + batch.num_rows:
                return repr(batch.column(column)[row - first].as_py())
        raise AssertionError

    def _count(self, what: str, count: int) -> None:
        if count:
            self._dropped[what] = self._dropped.get(what, 0) + count

    def _map(self, node_type: str, about: int) -> IdMap:
        self._maps[node_type] = IdMap(self._folder, f"ids_{len(self._maps):03d}", about, self._bytes)
        return self._maps[node_type]

    def _rows(self, width: int) -> int:
        """How many rows of so many numbers are read at once."""
        return max(1, self._bytes // (64 + 24 * width))

    def _array(self, name: str, dtype: Any, row: tuple[int, ...] = (), rows: Rows | None = None) -> RawArray:
        return RawArray(name, self.new_file(), dtype, row, rows)

    def new_file(self) -> Path:
        """A path in the folder that is not used yet."""
        self._files += 1
        return self._folder / f"array_{self._files:04d}"


class _IdFiles:
    """Ids of a type, in the order of their numbers, in files."""

    def __init__(self, arrays: _Arrays, reader: TablesReader, node_type: str) -> None:
        self._reader, self._type = reader, node_type
        texts = reader.has_texts(node_type)
        self._data = RawArray("ids", arrays.new_file(), np.uint8 if texts else np.int64)
        self._ends = RawArray("ids", arrays.new_file(), np.int64) if texts else None
        self._last = 0
        if self._ends is not None:
            self._ends.append(np.zeros(1, np.int64))

    def append(self, values: pa.Array) -> None:
        ids = self._reader.ids_of(self._type, values)
        if self._ends is None:
            self._data.append(ids.to_numpy(zero_copy_only=False))
            return
        data, ends = text_arrays(ids)
        self._data.append(data[ends[0] : ends[-1]])
        self._ends.append(ends[1:] - ends[0] + self._last)
        self._last += int(ends[-1] - ends[0])

    def ids(self) -> Ids:
        return Ids(_mapped(self._data), None if self._ends is None else _mapped(self._ends))


def _mapped(array: RawArray) -> np.ndarray:
    shape = array.shape
    return np.memmap(array.path, array.dtype, "r", shape=shape) if shape[0] else np.zeros(shape, array.dtype)
