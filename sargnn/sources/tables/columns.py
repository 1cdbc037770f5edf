"""Values of tables become numbers: features, labels, weights, splits.

    number      the number itself; of a time the days since 1970-01-01
    standard    (number - mean) / standard deviation, both over all rows of the table; 0 where they are all alike
    list        its entries, of one length in all rows
    category    a 1 among zeros, at the place of the text among the sorted distinct ones

Without a kind, numbers, truth values and decimals are ``number``, times ``standard``, lists ``list``, texts ``category``.
What a column was, its mean or its categories, is kept with the dataset: another graph's columns become the same numbers.

Letters: n rows of a batch, F features of a column.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sargnn.config.fields import brief
from sargnn.errors import DataError
from sargnn.sources.scan import holds_number
from sargnn.sources.tables.spec import Kind

_MOST_CATEGORIES = 1000
_DAY_US = 86_400_000_000
_GUESSED: Mapping[str, Kind] = {
    "numbers": "number",
    "times": "standard",
    "lists": "list",
    "texts": "category",
    "null": "number",
}
_FITS: Mapping[Kind, tuple[str, ...]] = {
    "number": ("numbers", "times"),
    "standard": ("numbers", "times"),
    "list": ("lists",),
    "category": ("texts", "numbers", "times"),
}
"""Kind -> families of types that it may be of."""
_SPLIT_WORDS = {"train": 1, "training": 1, "valid": 2, "val": 2, "validation": 2, "test": 3, "none": 0, "": 0}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values, of a dictionary those of its entries."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.large_string() if str(kind) == "string_view" else kind


def is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_list(kind: pa.DataType) -> bool:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(lists) and is_number(kind.value_type)


def family_of(kind: pa.DataType) -> str:
    """What values of the Arrow type are, whatever their width."""
    tests = ((is_number, "numbers"), (is_time, "times"), (is_text, "texts"), (is_list, "lists"))
    return next((name for test, name in tests if test(kind)), str(kind))


def as_numbers(values: pa.Array) -> np.ndarray:
    """float64 [n], nan for null; of times the days since 1970-01-01."""
    values = decoded(values)
    if is_time(values.type):
        moments = pc.cast(pc.cast(values, pa.timestamp("us", getattr(values.type, "tz", None)), safe=False), pa.int64())
        return np.asarray(pc.cast(moments, pa.float64(), safe=False).to_numpy(zero_copy_only=False)) / _DAY_US
    numbers = pc.cast(values, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(numbers, np.float64)


def decoded(values: pa.Array) -> pa.Array:
    """The values themselves, of a dictionary its entries."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


class Column(ABC):
    """A column on its way to features; messages call its table ``of``. ``width``: F; ``observes``: all rows must be seen before
    the first is encoded."""

    width = 1
    observes = False
    of = "its table"

    def __init__(self, name: str) -> None:
        self.name = name

    def observe(self, values: pa.Array) -> None:
        """Some rows, on the first pass; those with faults do not count."""
        return None

    @abstractmethod
    def faults(self, values: pa.Array) -> np.ndarray:
        """bool [n]: the rows that hold nothing that can be a feature."""

    @abstractmethod
    def encode(self, values: pa.Array) -> np.ndarray:
        """float32 [n, F], of rows without faults."""

    @abstractmethod
    def encoding(self) -> dict[str, Any]:
        """What ``of_encoding`` makes the same column from, JSON-able."""


class Number(Column):
    """``number`` and ``standard``. statistics: mean and deviation, where they are known."""

    def __init__(self, name: str, *, standard: bool, statistics: tuple[float, float] | None = None) -> None:
        super().__init__(name)
        self._standard, self._statistics = standard, statistics
        self.observes = standard and statistics is None
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def observe(self, values: pa.Array) -> None:
        numbers = as_numbers(values)
        numbers = numbers[np.isfinite(numbers)]
        if not len(numbers):
            return
        # Chan, Golub and LeVeque (1983): sums of squares about the means of both parts, and the distance of these.
        mean, count = float(numbers.mean()), self._count + len(numbers)
        apart = mean - self._mean
        self._squares += float(((numbers - mean) ** 2).sum()) + apart**2 * self._count * len(numbers) / count
        self._mean += apart * len(numbers) / count
        self._count = count

    def faults(self, values: pa.Array) -> np.ndarray:
        return ~np.isfinite(as_numbers(values).astype(np.float32))

    def encode(self, values: pa.Array) -> np.ndarray:
        numbers = as_numbers(values)
        if self._standard:
            mean, deviation = self._found()
            numbers = (numbers - mean) / (deviation or 1)
        return numbers.astype(np.float32)[:, None]

    def _found(self) -> tuple[float, float]:
        return self._statistics or (self._mean, math.sqrt(self._squares / max(1, self._count)))

    def encoding(self) -> dict[str, Any]:
        return {"kind": "standard", "statistics": list(self._found())} if self._standard else {"kind": "number"}


class Numbers(Column):
    """``list``. width: where it is known."""

    def __init__(self, name: str, width: int | None = None) -> None:
        super().__init__(name)
        self.width = width or 0
        self.observes = not width

    def observe(self, values: pa.Array) -> None:
        if not self.width:
            self.width = int(next((length for length in self._lengths(values).tolist() if length > 0), 0))

    def faults(self, values: pa.Array) -> np.ndarray:
        lengths = self._lengths(values)
        wrong = lengths != self.width if self.width else lengths <= 0
        whole = np.flatnonzero(~wrong)
        if not len(whole):
            return wrong
        numbers = as_numbers(values.take(pa.array(whole)).flatten()).astype(np.float32)
        wrong[whole] = ~np.isfinite(numbers).reshape(len(whole), -1).all(1)
        return wrong

    def encode(self, values: pa.Array) -> np.ndarray:
        return as_numbers(values.flatten()).astype(np.float32).reshape(len(values), self.width)

    def encoding(self) -> dict[str, Any]:
        return {"kind": "list", "width": self.width}

    def _lengths(self, values: pa.Array) -> np.ndarray:
        """int64 [n], -1 for null."""
        return np.asarray(pc.fill_null(pc.cast(pc.list_value_length(values), pa.int64()), -1).to_numpy(zero_copy_only=False))


class Category(Column):
    """``category``.

    Args:
        categories: where they are known; then another one has zeros only.
        guessed: nothing but the column's type says that it is one; texts that are numbers are refused.
    """

    def __init__(self, name: str, categories: list[str] | None = None, *, guessed: bool = False) -> None:
        super().__init__(name)
        self._guessed = guessed
        self._known, self._seen = categories, set[str]()
        self.observes = categories is None
        self.others = 0

    @property
    def width(self) -> int:  # type: ignore[override]
        return len(self.categories)

    @property
    def categories(self) -> list[str]:
        """Sorted where they were read from this table."""
        return self._known if self._known is not None else sorted(self._seen)

    def observe(self, values: pa.Array) -> None:
        self._seen.update(pc.unique(as_texts(values).drop_null()).to_pylist())
        if len(self._seen) > _MOST_CATEGORIES:
            raise DataError(
                f"The column '{self.name}' of {self.of} has too many categories.",
                given=f"more than {_MOST_CATEGORIES}, such as {brief(sorted(self._seen)[0])}",
                hint="leave it out, or give numbers or lists: an embedding of the text, a hash with few values",
            )

    def faults(self, values: pa.Array) -> np.ndarray:
        return np.asarray(values.is_null().to_numpy(zero_copy_only=False))

    def codes(self, values: pa.Array) -> np.ndarray:
        """int32 [n]: the places of the texts among the categories, -1 for null and for others."""
        if self._known is None:
            self._known = sorted(self._seen)  # all were seen
            texts = [text for text in self._known if not holds_number(text)]
            if self._guessed and 2 * len(texts) < len(self._known):
                raise DataError(
                    f"The column '{self.name}' of {self.of} holds numbers that are texts.",
                    given=f"'{texts[0]}' among {len(self._known) - len(texts)} numbers" if texts else f"'{self._known[0]}'",
                    hint=f"features: {{{self.name}: category}} if these are names of something; else mend them",
                )
        places = pc.index_in(as_texts(values), pa.array(self._known, pa.large_string()))
        codes = np.asarray(pc.fill_null(places, -1).to_numpy(zero_copy_only=False))
        self.others += int((codes < 0).sum()) - values.null_count
        return codes

    def encode(self, values: pa.Array) -> np.ndarray:
        codes = self.codes(values)
        table = np.zeros((len(values), self.width), np.float32)
        known = np.flatnonzero(codes >= 0)
        table[known, codes[known]] = 1
        return table

    def encoding(self) -> dict[str, Any]:
        return {"kind": "category", "categories": self.categories}


def as_texts(values: pa.Array) -> pa.Array:
    """Of any type that can be written down, as large_string; null stays null."""
    return pc.cast(decoded(values), pa.large_string())


def column_of(name: str, of: str, kind: Kind | None, arrow: pa.DataType, known: Mapping[str, Any] | None = None) -> Column:
    """How a column becomes features.

    Args:
        of: what messages call its table.
        kind: what the spec says; None: as its type says.
        known: its encoding in another dataset, which decides.

    Raises ``DataError``: values of that type cannot become features, or not of that kind.
    """
    arrow, guessed = plain_type(arrow), kind is None
    family = family_of(arrow)
    if known is not None:
        kind = known["kind"]
    elif kind is None:
        if family not in _GUESSED:
            allowed = "numbers, times, lists of numbers, texts"
            raise DataError(f"The column '{name}' of {of} cannot be a feature.", given=str(arrow), allowed=allowed)
        kind = _GUESSED[family]
    kinds = [fits for fits, families in _FITS.items() if family in families]
    if arrow != pa.null() and kind not in kinds:
        raise DataError(f"The column '{name}' of {of} cannot be a feature of kind '{kind}'.", given=str(arrow), allowed=kinds)
    known = known or {}
    column: Column
    if kind == "list":
        column = Numbers(name, known.get("width") or (arrow.list_size if pa.types.is_fixed_size_list(arrow) else None))
    elif kind == "category":
        column = Category(name, known.get("categories"), guessed=guessed)
    else:
        statistics = known.get("statistics")
        column = Number(name, standard=kind == "standard", statistics=None if statistics is None else tuple(statistics))
    column.of = of
    return column


def split_numbers(values: pa.Array) -> np.ndarray:
    """int8 [n]: the number of the split that each text names, 0 for none, -1 for a text that names no split."""
    words = pc.utf8_lower(pc.utf8_trim_whitespace(pc.fill_null(as_texts(values), "")))
    codes = pc.index_in(words, pa.array(list(_SPLIT_WORDS), pa.large_string()))
    numbers = np.array([*_SPLIT_WORDS.values(), -1], np.int8)
    return numbers[np.asarray(pc.fill_null(codes, len(_SPLIT_WORDS)).to_numpy(zero_copy_only=False))]
