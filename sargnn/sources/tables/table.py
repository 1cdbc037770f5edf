"""One table of a graph: all its files, and what is read of them in two passes.

The first pass takes the ids, and of columns what must be known of all rows: mean, categories, length. Where rows that cannot be
used are dropped, it looks at all columns, so that a node without features has no number, and its edges go with it. The second
pass gives the arrays.

Letters: n rows of a batch, C columns of labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sargnn.errors import DataError, nearest
from sargnn.sources.scan import Scan, files_of
from sargnn.sources.tables.columns import (
    Category,
    Column,
    Number,
    Numbers,
    as_numbers,
    column_of,
    decoded,
    family_of,
    is_list,
    is_number,
    is_text,
    is_time,
    plain_type,
    split_numbers,
)
from sargnn.sources.tables.spec import EdgeTable, NodeTable
from sargnn.steps import step

_ROW_BYTES = 16
"""Of a row of another file than Parquet at least, as a guess."""


class Table:
    """One table.

    Args:
        title: what messages call it ("nodes of type 'user'").
        folder: where relative names start.
        known: its columns' encodings in another dataset.
        classes: of labels that are texts, in another dataset.
        time: the column whose time decides the split; None: it has none.

    Attributes:
        types: column -> Arrow type, of the first file that knows it.
        label: of a single column of texts, which are classes, or of lists.
        kept: bool [rows], those that can be used, behind the first pass.

    Raises ``DataError``: no file, one that cannot be read, or a column that is missing or of another type; the file is named.
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
        self.title, self.spec, self.time = title, spec, time
        files = {file.name: file for pattern in spec.files for file in files_of(pattern, folder, title)}
        self._scans = [Scan(file, texts=spec.ends) for file in files.values()]
        self._starts: dict[int, int] = {}  # number of a file -> rows before it, of those that were read
        self.types: dict[str, pa.DataType] = {}
        for scan in self._scans:
            if twice := [column for column in scan.schema.names if scan.schema.names.count(column) > 1]:
                raise DataError(f"'{scan.file.name}' has several columns '{twice[0]}'.", hint="rename one of them")
            for field in scan.schema:
                if self.types.get(field.name, pa.null()) == pa.null():
                    self.types[field.name] = field.type
        for of, column in zip(spec.ENDS, spec.ends, strict=True):
            self._check(of, column, lambda t: is_text(t) or pa.types.is_integer(t), "texts, or whole numbers")
        for column in spec.features:
            self._check("features", column, lambda t: True, "", alike=True)
        self.columns = [column_of(name, title, kind, self.types[name], known.get(name)) for name, kind in spec.features.items()]
        alone = len(spec.label) == 1
        several = "numbers; of a single column also texts, which are classes, or lists of numbers"
        for column in spec.label:
            self._check("label", column, lambda t: is_number(t) or (alone and (is_text(t) or is_list(t))), several, alike=True)
        kind = plain_type(self.types[spec.label[0]]) if alone else pa.null()
        self.label = Category(spec.label[0], classes) if is_text(kind) else Numbers(spec.label[0]) if is_list(kind) else None
        if spec.split is not None:
            self._check("split", spec.split, is_text, "texts: train, valid, test, or null")
        self.weight: str | None = getattr(spec, "weight", None)
        if self.weight is not None:
            self._check("weight", self.weight, is_number, "numbers")
        if time is not None:
            self._check("dataset.split_by", time, lambda t: is_time(t) or is_number(t), "dates, times or numbers")
        self.kept = np.zeros(0, bool)

    def _check(self, of: str, column: str, allowed: Callable[[pa.DataType], bool], what: str, *, alike: bool = False) -> None:
        """Every file has the column that ``of`` names, of an allowed type (in words ``what``), perhaps of one family in all."""
        families: dict[str, str] = {}
        for scan in self._scans:
            name, names = scan.file.name, scan.schema.names
            if column not in names:
                given, likely = ", ".join(names[:12]), nearest(column, names)
                raise DataError(f"'{name}' has no column '{column}', which '{of}' names.", given=given, allowed=likely)
            kind = plain_type(scan.schema.field(column).type)
            if kind != pa.null() and not allowed(kind):
                raise DataError(f"The column '{column}' cannot be '{of}'.", given=f"{kind}, in '{name}'", allowed=what)
            if alike and kind != pa.null():
                families.setdefault(family_of(kind), name)
        if len(families) > 1:
            given = "; ".join(f"{family} in '{name}'" for family, name in list(families.items())[:2])
            raise DataError(f"The column '{column}' of {self.title} is not the same in all files.", given=given)

    def identity(self) -> dict[str, Any]:
        """What tells the files from others, JSON-able."""
        return {scan.file.name: scan.file.identity() for scan in self._scans}

    def has_texts(self, column: str) -> bool:
        """Whether ids are texts in some file, or such that not all fit into int64."""
        kinds = [plain_type(scan.schema.field(column).type) for scan in self._scans]
        return any(is_text(kind) or pa.types.is_uint64(kind) for kind in kinds)

    @cached_property
    def about_rows(self) -> int:
        """How many rows there are, about; exactly of Parquet."""
        exact = {scan for scan in self._scans if scan.file.name.endswith(".parquet")}
        return sum(scan.count if scan in exact else scan.file.size() // _ROW_BYTES for scan in self._scans)

    @property
    def _checked(self) -> list[Column]:
        """All columns whose faults make a row useless."""
        others = [name for name in (self.weight, self.time) if name is not None]
        return [*self.columns, *(Number(name, standard=False) for name in others)]

    def batches(self, columns: Sequence[str], rows: int, what: str = "") -> Iterator[tuple[int, pa.RecordBatch]]:
        """Some columns of all rows, at most ``rows`` at a time, each with the number of its first row; a person is told
        ``what`` it is for."""
        columns = list(dict.fromkeys(columns))
        # What later rows of a text hold is not known from the first ones.
        known = {name: self.types[name] for name in columns if self.types[name] != pa.null()}
        types = {name: pa.float64() if pa.types.is_integer(kind) else kind for name, kind in known.items()}
        first = 0
        for number, scan in enumerate(self._scans):
            self._starts[number] = first
            for batch in scan.batches(columns, rows, types):
                if what:
                    step(f"{what} of {self.title}", first, self.about_rows)
                arrays = [_plain(array, text_of_csv=scan.file.is_csv) for array in batch.columns]
                yield first, pa.RecordBatch.from_arrays(arrays, names=columns)
                first += len(batch)

    def place(self, row: int) -> str:
        """Where a row is that has been read, for messages."""
        number = max(number for number, first in self._starts.items() if first <= row)
        return f"{self._scans[number].place(row - self._starts[number])} of '{self._scans[number].file.name}'"

    def kept_place(self, row: int) -> str:
        """Where the kept row came from."""
        return self.place(row if self.kept.all() else int(np.flatnonzero(self.kept)[row]))

    def value(self, column: str, row: int) -> str:
        """What a row holds, for messages; read once more."""
        batches = self.batches([column], 1 << 16)
        first, batch = next((first, batch) for first, batch in batches if row < first + len(batch))
        return repr(batch.column(column)[row - first].as_py())

    def first_pass(self, rows: int, dropped: Counter[str] | None) -> Iterator[tuple[int, pa.RecordBatch, np.ndarray]]:
        """Number of the first row, batch, and bool [n]: the rows that have what it takes, as far as this pass looks.

        ``dropped`` counts rows that cannot be used; None: they are errors. Raises ``DataError`` with file and row: no id.
        """
        checked, kept = self._checked if dropped is not None else [], []
        observed = [column for column in (*self.columns, self.label) if column is not None and column.observes]
        names = [*self.spec.ends, *(column.name for column in (*observed, *checked))]
        for first, batch in self.batches(names, rows, "reading ids"):
            good = np.ones(len(batch), bool)
            for column in checked:
                good &= ~column.faults(decoded(batch.column(column.name)))
            for column in observed:
                values = decoded(batch.column(column.name))
                column.observe(
                    values.filter(pa.array(good)) if isinstance(self.label, Category) and column is self.label else values
                )
            if dropped is not None:
                dropped[f"{self.title} with values that cannot be used"] += int((~good).sum())
            for name in self.spec.ends:
                null = is_null(batch.column(name))
                if dropped is not None:
                    dropped[f"{self.title} whose '{name}' is null"] += int((null & good).sum())
                elif null.any():
                    raise DataError(
                        f"The column '{name}' of {self.title} holds no id.",
                        given=f"null, in {self.place(first + int(null.argmax()))}",
                        hint="dataset.on_error=drop leaves such rows out",
                    )
                good = good & ~null
            kept.append(good)
            yield first, batch, good
        self.kept = np.concatenate([np.zeros(0, bool), *kept])

    def second_pass(self, rows: int, *, ids: bool) -> Iterator[tuple[pa.RecordBatch, dict[str, np.ndarray]]]:
        """The rows that are kept, and their arrays by name. ids: the batches have the ids, too.

        Raises ``DataError`` with file, row and column: a value that cannot be used.
        """
        spec, checked = self.spec, self._checked
        names = [*(spec.ends if ids else ()), *(column.name for column in checked), *spec.label]
        names += [spec.split] if spec.split else []
        for first, batch in self.batches(names, rows, "reading columns") if names else ():
            chosen = self.kept[first : first + len(batch)]
            for column in checked:
                values = decoded(batch.column(column.name))
                if (wrong := column.faults(values) & chosen).any():
                    self._fault(column, values, first, int(wrong.argmax()))
            batch = batch if chosen.all() else batch.filter(pa.array(chosen))
            yield batch, self._arrays(batch, first + np.flatnonzero(chosen))

    def _fault(self, column: Column, values: pa.Array, first: int, row: int) -> None:
        value = values[row].as_py()
        given = "null" if value is None else f"{len(value)} entries" if isinstance(value, list) else str(value)
        wants = f"{column.width} finite numbers" if isinstance(column, Numbers) else "a finite number"
        raise DataError(
            f"The column '{column.name}' of {self.title} holds a value that cannot be used.",
            given=f"{given}, in {self.place(first + row)}",
            allowed="a text" if isinstance(column, Category) else wants,
            hint="dataset.on_error=drop leaves such rows out",
        )

    def _arrays(self, batch: pa.RecordBatch, rows: np.ndarray) -> dict[str, np.ndarray]:
        spec, arrays = self.spec, {}
        if self.columns:
            parts = [column.encode(decoded(batch.column(column.name))) for column in self.columns]
            arrays["features"] = np.concatenate(parts, 1)
        if self.weight:
            arrays["weight"] = as_numbers(batch.column(self.weight))
        if spec.label:
            arrays["label"] = self._labels([decoded(batch.column(name)) for name in spec.label])
        if self.time:
            arrays["time"] = as_numbers(batch.column(self.time))
        elif spec.split:
            splits = split_numbers(decoded(batch.column(spec.split)))
            if (splits < 0).any():
                row = int((splits < 0).argmax())
                raise DataError(
                    f"The column '{spec.split}' of {self.title} names no split.",
                    given=f"'{decoded(batch.column(spec.split))[row].as_py()}', in {self.place(int(rows[row]))}",
                    allowed="train, valid, test; null or nothing for none",
                )
            arrays["split"] = splits.astype(np.uint8)
        return arrays

    def _labels(self, columns: list[pa.Array]) -> np.ndarray:
        """float64 [n] or [n, C], nan where there is none."""
        if isinstance(self.label, Category):
            codes = self.label.codes(columns[0])
            return np.where(codes < 0, np.nan, codes)
        if self.label is not None:
            wrong = self.label.faults(columns[0])
            labels = np.full((len(wrong), self.label.width), np.nan)
            labels[~wrong] = self.label.encode(columns[0].filter(pa.array(~wrong)))
            return labels
        numbers = [as_numbers(column) for column in columns]
        return numbers[0] if len(numbers) == 1 else np.stack(numbers, 1)


def is_null(array: pa.Array) -> np.ndarray:
    """bool [n]."""
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def _plain(array: pa.Array, *, text_of_csv: bool) -> pa.Array:
    """Texts of a type that everything works on; of CSV an empty one is null, and no other one."""
    if str(array.type) == "string_view":
        return pc.cast(array, pa.large_string())
    if text_of_csv and pa.types.is_string(array.type):
        return pc.if_else(pc.equal(array, ""), pa.scalar(None, array.type), array)
    return array
