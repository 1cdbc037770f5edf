"""The tag: all that is known of a tensor in a user's forward.

A tensor without one is the same on all workers: parameters, and what is made of them. Whether a tensor has one must not depend
on how many rows a worker has. The tag is one attribute of the tensor, which this file alone reads and writes: ``set_mark``
notes where the rows are, ``note`` what holds until somebody writes to the tensor, and ``tag_of`` leaves that out afterwards.

Nothing here knows a graph, an engine, who computes a tensor, or which tag a function's result gets (``tag_rules.py``).
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
Kind = Literal["nodes", "edges"]
_TAG = "_sargnn_tag"
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
_PYG = os.path.join(os.path.dirname(os.path.dirname(_TORCH)), "torch_geometric", "")
_ON_BEHALF = tuple(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    for name in (
        "call",
        "calls",
        "judged_calls",
        "functions",
        "row_calls",
        "lazy",
        "lazy_calls",
        "lazy_folds",
        "lazy_made",
        "pending_fold",
        "joined",
        "edge_calls",
    )
)
"""Files whose calls of PyTorch's functions are the module's own, handed on."""
_LIBRARIES = (f"{os.sep}dgl{os.sep}", "torch_geometric", "contextlib")
"""In the paths of other libraries' files; PyG also writes some to the temporary folder."""
_NUM_NODES = os.path.join(_PYG, "utils", "num_nodes.py")
"""PyG's file that tells who calls it how many nodes there are."""


@dataclass(frozen=True)
class Rows:
    """Rows of nodes or edges.

    Attributes:
        type: the node type, or the relation; -1: all of them, in one table.
        level: of nodes: the layer that reads them, with the last layer's outputs one further; of edges: their layer.
    """

    kind: Kind
    type: int = 0
    level: int = 0


JOINED = "joined"
"""The first of ``Mark.set`` of several tables' rows in one."""


class Mark(NamedTuple):
    """Where a tensor's rows are.

    Attributes:
        rows: which; None where they are rows of this worker, but not those of one type in their order.
        dim: the dimension along which they run.
        number: how many.
        why: what was done to them, where ``rows`` is None.
        parts: consecutive elements for each row along that dimension.
        before: how often all rows come there, one after the other: element (b number + i) parts + e is one of row i.
        set: what tells these rows from others where ``rows`` is None: those with an equal one are the same rows in one order.
        numbered: why they mean something else on each worker, such as numbers of rows; nothing where they do not.
    """

    rows: Rows | None
    dim: int
    number: int
    why: str = ""
    parts: int = 1
    set: Hashable = None
    numbered: str = ""
    before: int = 1

    @property
    def is_single(self) -> bool:
        """Whether that dimension has one element for each row."""
        return self.parts == 1 == self.before

    def is_table_of(self, rows: Rows) -> bool:
        """Whether a tensor's first dimension has rows of that kind and type in their order."""
        if self.dim or not self.is_single or self.numbered:
            return False
        if self.rows is not None:
            return (self.rows.kind, self.rows.type) == (rows.kind, rows.type)
        joined = self.set[1:] if isinstance(self.set, tuple) and self.set[:1] == (JOINED,) else ()
        types = [part.type if isinstance(part, Rows) else -1 for part in joined]
        return rows.type < 0 and types == list(range(len(types))) or self.set == rows

    def split(self, tensor: Tensor) -> Tensor:
        """``tensor`` with that dimension as [before, number, parts]."""
        return tensor.unflatten(self.dim, (self.before, self.number, self.parts))

    @property
    def key(self) -> Hashable:
        """Equal for tensors with the same rows in the same order."""
        return self.rows if self.rows is not None else self.set


class Tag(NamedTuple):
    """What is known of a tensor.

    Attributes:
        mark: where its rows are; None: it is the same on all workers. Graphs' rows begin as tables [N, ...]; a module stacks,
            transposes and reshapes them on the way from one such table to the next.
        shared: others read the same memory, so that nobody may write to it.
        version: of the tensor's memory, as ``Tensor._version`` counts the writes to it. What follows holds for that version.
        constant: it has the same values in every epoch.
        held: autograd holds it for backward anyway.
        rest: the branch of it that its next reader gets (``row_operators.py``).
        made: how it was made (``row_operators.py``).
        sources: the tensors that ``made`` speaks of, with their versions then.
    """

    mark: Mark | None = None
    shared: bool = False
    version: int = -1
    constant: bool = False
    held: bool = False
    rest: Tensor | None = None
    made: object = None
    sources: tuple[tuple[Tensor, int], ...] = ()


_NOTHING = Tag()


def tag_of(tensor: Any) -> Tag:
    """What is known of a tensor; of anything else, nothing."""
    tag: Tag = getattr(tensor, _TAG, _NOTHING)
    return tag if tag.version < 0 or tag.version == tensor._version else Tag(tag.mark, tag.shared)


def note(tensor: Tensor, **facts: Any) -> Tensor:
    """``tensor`` itself, with attributes of its ``Tag`` that hold as long as nobody writes to it."""
    setattr(tensor, _TAG, tag_of(tensor)._replace(version=tensor._version, **facts))
    return tensor


def note_made(tensor: Tensor, made: object, *sources: Tensor) -> None:
    """Note how a tensor was made, as long as nobody writes to it or to ``sources``."""
    note(tensor, made=made, sources=tuple((source, source._version) for source in sources))


def made_of(tensor: Tensor, kind: type[T]) -> T | None:
    """How a tensor was made; None where that is not known, or no ``kind``."""
    tag = tag_of(tensor)
    if isinstance(tag.made, kind) and all(source._version == version for source, version in tag.sources):
        return tag.made
    return None


def mark_of(tensor: Any) -> Mark | None:
    """Where a tensor's rows are; None where it is the same on all workers."""
    tag: Tag = getattr(tensor, _TAG, _NOTHING)
    return tag.mark


def is_known(tensor: Any) -> bool:
    """Whether somebody has noted where a tensor's rows are, or that it is the same on all workers."""
    return hasattr(tensor, _TAG)


def set_mark(tensor: Tensor, mark: Mark | None, *, shared: bool) -> Tensor:
    """``tensor`` itself, noted to have its rows there, whatever is written to it; ``shared`` as in ``Tag``."""
    setattr(tensor, _TAG, getattr(tensor, _TAG, _NOTHING)._replace(mark=mark, shared=shared))
    return tensor


def is_plain(tensor: Tensor, mark: Mark | None) -> bool:
    """Whether it is a table of a graph's rows."""
    return mark is not None and mark.rows is not None and mark.dim == 0 and mark.is_single


def rows_of(tensor: Any) -> Rows | None:
    """Which rows a table has; None where it is no table of a graph's rows."""
    mark = mark_of(tensor)
    return mark.rows if mark is not None and is_plain(tensor, mark) else None


def tagged(tensor: Tensor, rows: Rows | None, *, shared: bool = False) -> Tensor:
    """``tensor`` itself, a table [N, ...], noted to have these rows; ``shared`` as in ``Tag``."""
    if rows is None or not tensor.dim():
        return tensor
    return set_mark(tensor, Mark(rows, 0, len(tensor)), shared=shared)


def is_shared(tensor: Any) -> bool:
    """Whether nobody may write to it."""
    return bool(getattr(tensor, _TAG, _NOTHING).shared)


def constant(tensor: Tensor) -> Tensor:
    """``tensor`` itself, noted to hold the same values in every epoch."""
    return note(tensor, constant=True)


FIRST_TOLD = 1 << 40
"""As Python numbers of nodes that ``edge_index.max()`` tells begin here: no graph has as many."""


def own_of(number: Any) -> Any:
    """A number of rows of this worker, for the size of a tensor; another number as it is."""
    return number.own if isinstance(number, Count) else number


class Count(int):
    """A number of rows or edges: that of all workers, to whoever compares it, or calculates with it as in the
    ``x.sum() / x.size(0)`` of a mean, so that a layer takes the same branch on each of them. As the size of a tensor PyTorch's
    functions get ``own`` in its place.

    Args:
        own: of this worker.
        total: of all workers.
        kind: of what; None: it was made of another.
        rows: which rows these are, where they are one table's.
        of: which set of rows (``Mark.key``), and a and b where it is a times their number plus b; None: not known.
    """

    own: int
    kind: Kind | None
    rows: Rows | None
    of: tuple[Hashable, int, int] | None

    def __new__(
        cls,
        own: int,
        total: int,
        kind: Kind | None,
        rows: Rows | None = None,
        of: tuple[Hashable, int, int] | None = None,
    ) -> Count:
        self = super().__new__(cls, total)
        self.own, self.kind, self.rows = own, kind, rows
        self.of = (rows, 1, 0) if of is None and rows is not None else of
        return self

    @property
    def total(self) -> int:
        return int(self)

    def __eq__(self, other: object) -> bool:
        """Also of what stands for the number of nodes."""
        return self.total == other or (isinstance(other, (int, float)) and other >= FIRST_TOLD)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    def _made(self, by: Callable[[Any, Any], Any], other: Any, factor: int = 1, shift: int = 0) -> Any:
        """A number made of this one: a size again where the other one is whole, else that of all workers."""
        if isinstance(other, Count):
            same = (
                self.of is not None
                and other.of is not None
                and self.of[0] == other.of[0]
                and by in (operator.add, operator.sub)
            )
            of = (self.of[0], by(self.of[1], other.of[1]), by(self.of[2], other.of[2])) if same else None  # type: ignore[index]
            return Count(by(self.own, other.own), by(self.total, other.total), None, of=of)
        if type(other) is not int:
            return by(self.total, other)
        of = None if self.of is None else (self.of[0], self.of[1] * factor, self.of[2] * factor + shift)
        return Count(by(self.own, other), by(self.total, other), None, of=of)

    def __add__(self, other: Any) -> Any:
        return self._made(operator.add, other, shift=other if type(other) is int else 0)

    def __radd__(self, other: Any) -> Any:
        return self + other

    def __sub__(self, other: Any) -> Any:
        return self._made(operator.sub, other, shift=-other if type(other) is int else 0)

    def __rsub__(self, other: Any) -> Any:
        return self._made(lambda own, other: other - own, other, -1, other if type(other) is int else 0)

    def __mul__(self, other: Any) -> Any:
        return self._made(operator.mul, other, other if type(other) is int else 1)

    def __rmul__(self, other: Any) -> Any:
        return self * other

    def __neg__(self) -> Any:
        return self * -1

    def __floordiv__(self, other: Any) -> Any:
        if type(other) is int and self.of is not None and other and not (self.of[1] % other or self.of[2] % other):
            of = (self.of[0], self.of[1] // other, self.of[2] // other)
            return Count(self.own // other, self.total // other, None, of=of)
        return self.total // other

    def __abs__(self) -> Any:
        return self if self.total >= 0 else -self

    def __pos__(self) -> Count:
        return self

    __trunc__ = __floor__ = __ceil__ = __pos__

    def __round__(self, digits: Any = None) -> Any:
        return self if digits is None or digits >= 0 else round(self.total, digits)

    def __reduce__(self) -> tuple[Any, ...]:
        return Count, (self.own, self.total, self.kind, self.rows, self.of)


def user_line(path: str | None = None) -> str:
    """``FILE line N`` of the innermost call in the file ``path``; without it, or if it is not there, in one that is not of this
    package, PyTorch, PyG or DGL."""
    innermost = None
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if path is not None and name == path:
            return f"{name} line {frame.f_lineno}"
        if innermost is None and not is_library(name):
            innermost = f"{name} line {frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return innermost or "unknown place"


def _caller(*skipped: str) -> str:
    """The file of the innermost call that is in none of these files and folders; empty: there is none."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, *_ON_BEHALF, *skipped)):
        frame = frame.f_back  # type: ignore[assignment]
    return "" if frame is None else frame.f_code.co_filename


def is_own_call() -> bool:
    """Whether code of this package, not the user's or a library's layer, has called the PyTorch function under way."""
    return _caller("<").startswith(_OWN)


def is_users_call() -> bool:
    """Whether the user's code, perhaps by one of PyG's functions, has called the PyTorch function under way."""
    name = _caller(_PYG)
    return name == "<string>" or bool(name) and not is_library(name)


def is_librarys_call() -> bool:
    """Whether a library has called it, to go on with what it gives."""
    name = _caller(_NUM_NODES)
    return name != "<string>" and is_library(name)


def is_convolutions_call() -> bool:
    """Whether one of PyG's own convolutions has called it, perhaps by its ``utils``."""
    return _caller(_NUM_NODES, os.path.join(_PYG, "utils", "")).startswith(os.path.join(_PYG, "nn", "conv", ""))


def is_library(name: str) -> bool:
    """Whether a file of this name is of this package, PyTorch, PyG or DGL, so that no line of it is the user's."""
    return name.startswith(("<", _OWN, _TORCH)) or any(part in name for part in _LIBRARIES)
