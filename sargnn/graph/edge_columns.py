"""What edges carry: columns of numbers, one row an edge, all in the same order.

A reader makes them. From then on they are passed as one thing: a cut, a shard, a draw take edges, a store saves and opens them.
Who computes with a column asks for it by its name. So a further column changes only who reads it and who uses it.

A column may be mapped from a file. Rows that are no wider than a number or two are read as they are taken. Of wider ones only
the order is kept, four bytes an edge, and they are read when somebody asks for them, in pieces if need be.

Letters: E edges, D numbers of an edge.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, Union, cast

import numpy as np

from sargnn.graph.store import Store, StoreWriter

if TYPE_CHECKING:
    import torch

WEIGHT = "weight"
WEIGHT_FORM = np.dtype(np.float32)
ATTR = "attr"
"""The column of edge features, float32 [E, D]."""
FIXED_FORMS: Mapping[str, np.dtype] = {WEIGHT: WEIGHT_FORM}
"""Of columns that have the same form in every graph: what a row is."""
_ADDED: Mapping[str, float] = {WEIGHT: 1.0}
"""What an edge carries that is added to the data's own, such as a self-loop; 0 in other columns."""
NAMES = "edge_columns"
"""What a store's manifest calls the names of columns other than weights."""
_TAKEN = frozenset(("src", "dst", "offsets"))
"""A part has files of these names."""
_NARROW_BYTES, _PIECE_BYTES = 8, 1 << 24

EdgePiece: TypeAlias = "tuple[np.ndarray, np.ndarray, EdgeColumns]"
"""Sources and destinations, integers [E] each, and what these edges carry."""
Array: TypeAlias = Union[np.ndarray, "torch.Tensor"]
Order: TypeAlias = slice | np.ndarray | None


@dataclass(frozen=True)
class Column:
    """Numbers of edges, which need not have been read yet.

    Attributes:
        array: [n] or [n, D], in memory or mapped; a tensor where kernels read it.
        order: which of its rows the edges have: a run, or int32 [E] (int64 from 2**31 rows on), -1 for an edge that was added;
            None: all.
        added: what an added edge carries.
        loops: the row of ``array`` behind which each node has one for a self-loop that is added; None: there are none.
    """

    array: Array
    order: Order = None
    added: float = 0.0
    loops: int | None = None

    def __len__(self) -> int:
        if isinstance(self.order, slice):
            return int(self.order.stop - self.order.start)
        return len(self.array if self.order is None else self.order)

    def __reduce__(self) -> tuple[Any, ...]:
        read = self.read()
        return Column, (np.array(read) if isinstance(read, np.ndarray) else read, None, self.added)

    @property
    def form(self) -> np.dtype:
        """What an edge has: a dtype, with a shape where it is several numbers. Only of arrays."""
        assert isinstance(self.array, np.ndarray)
        return np.dtype((self.array.dtype, self.array.shape[1:]))

    @property
    def narrow(self) -> bool:
        """Whether a row is no larger than what tells where it is."""
        width = self.array.shape[1] if self.array.ndim > 1 else 1
        return width * self.array.dtype.itemsize <= _NARROW_BYTES

    def read(self) -> Array:
        if self.order is None:
            return self.array
        if isinstance(self.order, slice) or len(self.array):
            rows = self.array[self.order]
        else:  # all were added
            rows = np.empty((len(self.order), *self.array.shape[1:]), self.form.base)
        if isinstance(self.order, np.ndarray) and self.order.min(initial=0) < 0:
            rows[self.order < 0] = self.added
        return rows

    def take(self, edges: Array) -> Column:
        if not isinstance(self.array, np.ndarray):
            return Column(self._picked(edges), None, self.added)
        order = np.asarray(edges)
        if order.dtype == bool:
            order = np.flatnonzero(order)
        if len(self.array) < 2**31 and not self.narrow:
            order = order.astype(np.int32, copy=False)
        if isinstance(self.order, slice):
            order = np.where(order < 0, order, order + order.dtype.type(self.order.start))
        elif self.order is not None:
            order = np.where(order < 0, order, self.order[order] if len(self.order) else order)
        if self.narrow:
            return Column(Column(self.array, order, self.added).read(), None, self.added)
        return Column(self.array, order, self.added, self.loops)

    def with_loops(self, edges: np.ndarray, rows: np.ndarray) -> Column:
        """As ``take``, and an edge that is added, -1 in ``edges``, is the self-loop of the node that ``rows`` [E] says."""
        taken, added = self.take(edges), edges < 0
        if self.loops is None:
            return taken
        if isinstance(taken.order, np.ndarray):
            taken.order[added] = self.loops + rows[added]
        else:
            taken.array[added] = self.array[self.loops + rows[added]]
        return taken

    def _picked(self, edges: Any) -> Array:
        """Rows of a tensor; places of -1 get what an added edge carries."""
        array: Any = self.array
        if len(edges) and edges.min() < 0:
            rows = array[edges] if len(array) else array.new_empty((len(edges), *array.shape[1:]))
            rows[edges < 0] = self.added
            return cast("torch.Tensor", rows)
        return cast("torch.Tensor", array[edges])

    def run(self, span: slice) -> Column:
        if self.order is None and (self.narrow or not isinstance(self.array, np.ndarray)):
            return Column(self.array[span], None, self.added)
        if isinstance(self.order, np.ndarray):
            return Column(self.array, self.order[span], self.added, self.loops)
        first, last, _ = span.indices(len(self))
        before = 0 if self.order is None else self.order.start
        return Column(self.array, slice(before + first, before + last), self.added, self.loops)


@dataclass(frozen=True)
class EdgeColumns:
    """Named columns of the same edges. Without any it is false; its number of edges is not known then."""

    columns: Mapping[str, Column] = field(default_factory=dict)

    @classmethod
    def of(cls, arrays: Mapping[str, Array | None]) -> EdgeColumns:
        """From arrays [E] or [E, D], or None. Raises ``ValueError`` for a name that another file of a store has."""
        if wrong := _TAKEN & arrays.keys():
            raise ValueError(f"no column of edges can be called {', '.join(sorted(wrong))}")
        given = {name: array for name, array in arrays.items() if array is not None}
        return cls({name: Column(array, None, _ADDED.get(name, 0.0)) for name, array in given.items()})

    @classmethod
    def empty(cls, forms: Mapping[str, np.dtype]) -> EdgeColumns:
        """Of no edges. ``forms``: name -> dtype, with a shape where it is several numbers."""
        return cls.of({name: np.zeros((0, *form.shape), form.base) for name, form in forms.items()})

    def __bool__(self) -> bool:
        return bool(self.columns)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Array:
        """A column's numbers, [E] or [E, D], in its own dtype. Raises ``KeyError`` where there is none."""
        return self.columns[name].read()

    @property
    def weight(self) -> np.ndarray | None:
        """Edge weights, float32 [E]; None: the graph has none. Only on the way to a plan, which has tensors."""
        array = self[WEIGHT] if WEIGHT in self else None
        assert array is None or isinstance(array, np.ndarray)
        return array

    @property
    def width(self) -> int:
        """D, how many features an edge has; 0: the graph has none."""
        return int(self.columns[ATTR].form.shape[0]) if ATTR in self else 0

    @property
    def forms(self) -> dict[str, np.dtype]:
        """What an edge has in each column: a dtype, with a shape where it is several numbers."""
        return {name: column.form for name, column in self.columns.items()}

    @property
    def edge_bytes(self) -> int:
        return sum(form.itemsize for form in self.forms.values())

    def put(self, name: str, array: np.ndarray) -> EdgeColumns:
        """With another column, or other numbers in place of a column's."""
        return EdgeColumns({**self.columns, **EdgeColumns.of({name: array}).columns})

    def _each(self, change: Callable[[Column], Column]) -> EdgeColumns:
        return EdgeColumns({name: change(column) for name, column in self.columns.items()})

    def take(self, edges: Array) -> EdgeColumns:
        """Other edges: selected, repeated, in another order, by integers, -1 for an edge that is added; or by bool [E]."""
        return self._each(lambda column: column.take(edges))

    def run(self, span: slice) -> EdgeColumns:
        """Edges that stand one behind the other; no numbers are copied."""
        return self._each(lambda column: column.run(span))

    def runs(self, spans: Sequence[slice]) -> EdgeColumns:
        if len(spans) == 1 or not self:
            return self.run(spans[0]) if spans else self
        return self.take(np.concatenate([np.arange(span.start, span.stop) for span in spans]))

    def pieces(self, edges: int) -> Iterator[EdgeColumns]:
        """All edges in order, at most so many at once; nothing without columns."""
        count = next((len(column) for column in self.columns.values()), 0)
        return (self.run(slice(first, min(count, first + edges))) for first in range(0, count, edges))

    def only(self, names: Sequence[str]) -> EdgeColumns:
        return EdgeColumns({name: column for name, column in self.columns.items() if name in names})

    def with_loops(self, edges: np.ndarray, rows: np.ndarray) -> EdgeColumns:
        """As ``take``; self-loops that are added, -1 in ``edges``, carry what there is for their nodes, ``rows`` [E]."""
        return self._each(lambda column: column.with_loops(edges, rows))

    def save(self, writer: StoreWriter, folder: str = "", means: InEdgeMeans | None = None) -> None:
        """Put every column into a store, piece by piece, as ``edge_NAME`` behind ``folder``, which ends with a slash.

        ``means``: gets the edges' features, and gives what stands behind them.
        """
        for name, column in self.columns.items():
            row = column.form
            size = max(1, _PIECE_BYTES // max(1, row.itemsize))
            with writer.append(folder + file_of(name), row.base, row.shape) as target:
                for first in range(0, len(column), size):
                    piece = column.run(slice(first, first + size)).read()
                    assert isinstance(piece, np.ndarray)
                    target.write(piece)
                    if name == ATTR and means is not None:
                        means.add(first, piece)
                if name == ATTR and means is not None:
                    target.write(means.rows())

    def on(self, device: torch.device, dtype: torch.dtype) -> EdgeColumns:
        """As a block has them: narrow columns are tensors, fractions in the dtype of rows; wide ones stay where they are."""
        import torch

        def moved(column: Column) -> Column:
            if not column.narrow:
                return column
            tensor = torch.from_numpy(np.array(column.read())).to(device)
            return Column(tensor.to(dtype) if tensor.is_floating_point() else tensor, None, column.added)

        return self._each(moved)

    def tensor(self, name: str, like: torch.Tensor | None = None) -> torch.Tensor:
        """A column's numbers, [E] or [E, D], on the device of ``like``, fractions in its dtype; None: as they are."""
        import torch

        numbers = self[name]
        tensor = torch.from_numpy(np.array(numbers)) if isinstance(numbers, np.ndarray) else numbers
        if like is None:
            return tensor
        return tensor.to(like.device, like.dtype if tensor.is_floating_point() else tensor.dtype)

    def read_in(self) -> EdgeColumns:
        return self._each(lambda column: Column(np.array(column.read()), None, column.added))

    def release(self) -> None:
        """Give back the pages of columns that are mapped; they are read again if needed."""
        for column in self.columns.values():
            if (mapped := getattr(column.array, "_mmap", None)) is not None:
                mapped.madvise(mmap.MADV_DONTNEED)


class InEdgeMeans:
    """The mean features of each node's in-edges, its own self-loops left out: what PyG's attention gives the self-loop that it
    adds (``fill_value="mean"``). Made while the edges pass by.

    Args:
        destinations: int32 [E].
        loops: bool [E], which edges are self-loops.
        num_rows: N.
        width: D.
    """

    def __init__(self, destinations: np.ndarray, loops: np.ndarray, num_rows: int, width: int) -> None:
        self._destinations, self._loops = destinations, loops
        self._sums, self._counts = np.zeros((num_rows, width)), np.zeros(num_rows, np.int64)

    def add(self, first: int, numbers: np.ndarray) -> None:
        """The features [some, D] of the edges from ``first`` on."""
        span = slice(first, first + len(numbers))
        kept = ~self._loops[span]
        destinations = np.asarray(self._destinations[span])[kept]
        if not len(destinations):
            return
        low = int(destinations.min())  # edges are sorted by destination, run by run
        counts = np.bincount(destinations - low)
        rows = slice(low, low + len(counts))
        self._counts[rows] += counts
        for column in range(self._sums.shape[1]):
            self._sums[rows, column] += np.bincount(destinations - low, numbers[kept, column])

    def rows(self) -> np.ndarray:
        """float32 [N, D]; zeros where a node has no in-edges."""
        return (self._sums / np.maximum(self._counts, 1)[:, None]).astype(np.float32)


NO_COLUMNS = EdgeColumns()
"""Of edges that carry nothing."""


def join(parts: Sequence[EdgeColumns], counts: Sequence[int]) -> EdgeColumns:
    """The edges of several graphs, one behind the other, in memory; where one lacks a column they carry what added ones do."""
    joined: dict[str, Column] = {}
    for name in dict.fromkeys(name for part in parts for name in part.columns):
        columns = [part.columns.get(name) for part in parts]
        known = next(column for column in columns if column is not None)
        if not known.narrow and all(column is not None and column.array is known.array for column in columns):
            orders = [column.take(np.arange(len(column))).order for column in columns if column is not None]
            joined[name] = Column(known.array, np.concatenate(cast("list[np.ndarray]", orders)), known.added)
            continue
        rows = [
            np.full((count, *known.form.shape), known.added, known.form.base) if column is None else column.read()
            for column, count in zip(columns, counts, strict=True)
        ]
        joined[name] = Column(np.concatenate(rows), None, known.added)
    return EdgeColumns(joined)


def attr_form(width: int) -> np.dtype:
    return np.dtype((np.float32, (width,)))


def file_of(name: str) -> str:
    return f"edge_{name}"


def names_to_json(names: Iterable[str]) -> dict[str, Any]:
    """For a store's manifest; weights have a range there, and nothing more."""
    others = sorted(set(names) - {WEIGHT})
    return {NAMES: others} if others else {}


def names_from_json(meta: Mapping[str, Any], *, weighted: bool) -> list[str]:
    """Raises ``TypeError`` for something else. ``weighted``: there is a range of weights, too."""
    others = meta.get(NAMES, [])
    if not isinstance(others, list) or not all(isinstance(name, str) for name in others):
        raise TypeError("no names")
    return [*([WEIGHT] if weighted else []), *others]


def open_columns(store: Store, names: Sequence[str], count: int, folder: str = "", loops: int = 0) -> EdgeColumns:
    """Columns of a store with E = ``count`` rows, mapped; ``folder`` as of ``EdgeColumns.save``.

    ``loops``: rows that may stand behind the edges' features, for self-loops. Raises ``StoreError`` with the file that is
    missing, or has another form or number of rows.
    """
    columns: dict[str, Column] = {}
    for name in names:
        file = folder + file_of(name)
        row = FIXED_FORMS[name] if name in FIXED_FORMS else np.dtype((store.dtype(file), store.shape(file)[1:]))
        behind = loops if name == ATTR and store.shape(file)[0] != count else 0  # older stores have none
        array = store.array(file, row.base, (count + behind, *row.shape))
        column = EdgeColumns.of({name: array}).columns[name]
        columns[name] = Column(array, slice(0, count), column.added, count) if behind else column
    return EdgeColumns(columns)
