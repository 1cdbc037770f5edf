"""A call of PyTorch's on rows: which of its arguments have some, what it does to them, as a trial says (``trial.py``), and
which its results get.

A call's arguments are described without how many rows a worker has. Nothing here computes a result or knows who does.

Letters: N rows of a worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sargnn.modules.expressions import flat, map_values
from sargnn.modules.tag import JOINED, Count, Mark, Rows, is_shared, mark_of, own_of, set_mark

Kind = Literal["rows", "others", "sum", "mean", "alike", "other"]
PAIRS, ODD = -2, -3
"""In ``Out.dim``: rows run along two dimensions; a dimension depends on how many there are, in another way."""


class Out(NamedTuple):
    """One tensor of a result.

    Attributes:
        kind: as the table of ``trial.py`` has it; ``other`` with ``dim`` >= 0: it has rows, but they are none by themselves.
        group: which set of the call's rows, by its number; -1 without rows.
        dim: the dimension of the rows; -1 without.
        parts, before: as ``Mark`` has them.
        shape: without the rows' dimension, where there is one.
    """

    kind: Kind
    group: int = -1
    dim: int = -1
    parts: int = 1
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    before: int = 1

    def rows_at(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """The elements of some rows, in that order."""
        split = tensor.unflatten(self.dim, (self.before, tensor.shape[self.dim] // (self.before * self.parts), self.parts))
        return split.index_select(self.dim + 1, rows.to(tensor.device)).flatten(self.dim, self.dim + 2)


@dataclass(frozen=True)
class Verdict:
    """What a call does to rows.

    Attributes:
        is_random: it draws numbers.
        starts: whether f(0 rows) is known to be zeros, so that a sum needs not take it off.
        returns_numbers: the result has numbers that are no tensors and depend on the rows.
        why: what went wrong, where nothing could be tried.
        nest: what its tensors come in: ``tensor``, or a kind of tuple with what is in it.
        views: a result has the memory of an argument with rows.
        writes: it writes to an argument with rows.
        by_totals: counts of rows among the arguments are numbers to calculate with: those of all workers.
    """

    outs: tuple[Out, ...]
    is_random: bool = False
    starts: bool = False
    returns_numbers: bool = False
    why: str = ""
    views: bool = False
    writes: bool = False
    by_totals: bool = False
    nest: Any = "tensor"

    @property
    def is_known(self) -> bool:
        """Whether a worker may compute it by itself, or as a sum or mean over workers."""
        return not (self.why or self.is_random or self.returns_numbers) and all(out.kind != "other" for out in self.outs)

    @property
    def is_each_row(self) -> bool:
        """Whether every result is row by row with one element of the first dimension for each row."""
        rows = all(out.kind == "rows" and out.dim == 0 and out.parts == 1 == out.before for out in self.outs)
        return rows and bool(self.outs) and not (self.why or self.is_random or self.returns_numbers)


class Table(NamedTuple):
    """An argument that has rows, described without their number: group of rows, dimension, how they run there, other sizes."""

    group: int
    dim: int
    parts: int
    before: int
    sizes: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Number(NamedTuple):
    """A count of rows among the arguments: ``factor`` times that of a group, plus ``shift``."""

    group: int
    factor: int
    shift: int


class Groups:
    """The sets of rows in one call, numbered as they come; their marks."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.marks: list[Mark | None] = []

    def number(self, key: Hashable, mark: Mark | None) -> int:
        number = self.numbers.setdefault(key, len(self.numbers))
        if number == len(self.marks):
            self.marks.append(mark)
        elif self.marks[number] is None:
            self.marks[number] = mark
        return number


class NotTried(Exception):
    """Why a call cannot be tried."""


Describe = Callable[[Any, Groups], Any]
"""(an argument, the groups) to its ``Table``; ``NotImplemented``: it has no rows."""


def describe_tensor(value: Any, groups: Groups) -> Any:
    """A tensor with a mark as a ``Table``."""
    mark = mark_of(value) if isinstance(value, Tensor) else None
    if mark is None:
        return NotImplemented
    with torch._C.DisableTorchFunctionSubclass():
        shape, dtype, device = tuple(value.shape), value.dtype, value.device
    if mark.before * mark.number * mark.parts != shape[mark.dim]:
        raise NotTried(f"rows of shape {shape}, of which there are {mark.number}")
    sizes = (*shape[: mark.dim], *shape[mark.dim + 1 :])
    return Table(groups.number(mark.key, mark), mark.dim, mark.parts, mark.before, sizes, dtype, device)


def described(value: Any, groups: Groups, describe: Describe) -> Any:
    """An argument, or a nest of them, as something hashable that does not depend on a worker's rows."""
    kind = type(value)
    if kind in (
        str,
        float,
        bool,
        type(None),
        torch.dtype,
        torch.device,
        type(Ellipsis),
        torch.layout,
        torch.memory_format,
        complex,
    ):
        return kind, value
    if kind is int:
        return value
    if isinstance(value, Count):
        return Number(groups.number(value.of[0], None), *value.of[1:]) if value.of is not None else ("count", value.own)
    table = describe(value, groups)
    if table is not NotImplemented:
        return table
    if isinstance(value, Tensor):
        return "tensor", tuple(value.shape), value.dtype, value.device, value.layout
    if isinstance(value, (tuple, list)):
        return kind, *(described(item, groups, describe) for item in value)
    if kind is slice:
        if isinstance(value.start, Count) or isinstance(value.stop, Count):
            raise NotTried("rows from or up to a number of rows, which no type ends with")
        return "slice", *(described(item, groups, describe) for item in (value.start, value.stop, value.step))
    if isinstance(value, dict):
        return "dict", *((key, described(item, groups, describe)) for key, item in value.items())
    if isinstance(value, (int, np.generic)):  # of an enumeration and the like
        return kind, value.item() if isinstance(value, np.generic) else int(value)
    raise NotTried(f"an argument of type {kind.__name__}")


def walk(value: Any) -> Iterator[Any]:
    """A description and all that is in it, but a tensor's shape."""
    yield value
    if isinstance(value, tuple) and not isinstance(value, (Table, Number)) and value[:1] != ("tensor",):
        for item in value:
            yield from walk(item)


Marked = list[tuple[Tensor, Mark]]


@dataclass(slots=True)
class Call:
    """A call of a PyTorch function.

    Attributes:
        name: as PyTorch calls the function; a property's own.
        marked: the tensors with marks among the arguments, also in lists.
        watched: what is called within is seen as the module's own calls are.
        is_temporary: nobody but the call knows its first argument.
    """

    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    marked: Marked
    watched: Callable[[], AbstractContextManager[Any]]
    is_temporary: bool = False

    def argument(self, at: int, *keys: str, default: Any = None) -> Any:
        for key in keys:
            if key in self.kwargs:
                return self.kwargs[key]
        return self.args[at] if len(self.args) > at else default

    def on_own_rows(self) -> Any:
        """What the function itself gives, with numbers of this worker's rows as sizes."""
        args, kwargs = map_values((self.args, self.kwargs), own_of)
        return self.func(*args, **kwargs)

    def again(self, make: Callable[[], Any]) -> Any:
        """What other calls give in this one's place."""
        with self.watched():
            return make()


def answer(handler: Callable[..., Any] | None, *first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a handler gives, of ``first`` and the call's arguments by their names; ``NotImplemented`` where there is none, or it
    takes others."""
    if handler is None:
        return NotImplemented
    try:
        bound = _signature(handler).bind(*first, *args, **kwargs)
    except TypeError:
        return NotImplemented
    return handler(*bound.args, **bound.kwargs)


_signature = cache(inspect.signature)


def of_last_layer(args: Any, kwargs: Any, marked: Marked) -> tuple[Any, Any, Marked]:
    """Arguments of which the rows of earlier layers are narrowed to those of the last one, which are the first of them."""
    of_nodes = [(mark, mark.rows) for _, mark in marked if mark.rows is not None and mark.rows.kind == "nodes"]
    if len({rows.level for _, rows in of_nodes}) < 2:
        return args, kwargs, marked
    last, to = max(of_nodes, key=lambda pair: pair[1].level)

    def narrowed(value: Any) -> Any:
        mark = mark_of(value)
        if mark is None or mark.rows is None or mark.rows == to:
            return value
        same = (mark.rows.kind, mark.rows.type) == (to.kind, to.type)
        if not same or mark.number < last.number or value.shape[mark.dim] != mark.number:
            return value
        return set_mark(value.narrow(mark.dim, 0, last.number), mark._replace(rows=to, number=last.number), shared=True)

    args, kwargs = map_values((args, kwargs), narrowed)
    return args, kwargs, marked_in(args, kwargs)


def marked_in(args: Iterable[Any], kwargs: dict[str, Any]) -> Marked:
    """The tensors with marks among arguments, also in lists."""
    marked: Marked = []
    for argument in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(argument, (list, tuple)):
            marked += [(tensor, mark) for tensor in argument if (mark := mark_of(tensor)) is not None]
        elif (mark := mark_of(argument)) is not None:
            marked.append((argument, mark))
    return marked


def tensors_of(out: Any) -> list[Tensor]:
    if isinstance(out, Tensor):
        return [out]
    return [value for value in flat(out) if isinstance(value, Tensor)]


def carry(call: Call, out: Any, outs: Sequence[Out], groups: Groups) -> None:
    """Note on results what their rows are, and whether others read their memory."""
    shared = [t.untyped_storage()._cdata for t, _ in call.marked if is_shared(t) and t.layout == torch.strided]
    numbered = next((mark.numbered for _, mark in call.marked if mark.numbered), "")
    for number, output in enumerate(tensors_of(out)):
        told = outs[number] if number < len(outs) else Out("other")
        mark = mark_of_result(output, told, call, groups, numbered)
        is_view = bool(shared) and output.layout == torch.strided and output.untyped_storage()._cdata in shared
        set_mark(output, mark, shared=is_view or (is_shared(output) and any(output is tensor for tensor, _ in call.marked)))


def mark_of_result(output: Tensor, told: Out, call: Call, groups: Groups, numbered: str) -> Mark | None:
    """The mark of one of a call's results; None: it is the same on all workers."""
    if told.kind in ("alike", "sum", "mean"):
        return None
    source = groups.marks[told.group] if 0 <= told.group < len(groups.marks) else None
    if told.kind == "rows" and source is not None:
        return source._replace(dim=told.dim, parts=told.parts, before=told.before, numbered=numbered)
    if told.kind == "rows":  # made with a number of rows
        key = next(key for key, number in groups.numbers.items() if number == told.group)
        rows = key if isinstance(key, Rows) else None
        number = output.shape[told.dim] // (told.parts * told.before)
        return Mark(rows, told.dim, number, parts=told.parts, set=key, before=told.before)
    if not output.dim():
        return None
    dim = max(told.dim, 0)
    if told.kind == "others":
        joins = call.name in _JOINS and len({mark.key for _, mark in call.marked}) > 1
        why = "rows of several types were joined" if joins else "a part of them was taken, or they were put in another order"
        return Mark(None, dim, output.shape[dim], why, 1, _chosen_by(call), numbered)
    return Mark(None, dim, output.shape[dim], f"{call.name} made other rows of them", 1, object())


_JOINS = frozenset("cat concat concatenate vstack hstack row_stack".split())


def _chosen_by(call: Call) -> Any:
    """What tells picked rows from others: the mask that picked them, as it is now; joined ones: what was joined."""
    if call.name in _JOINS:
        return JOINED, *(mark.key for _, mark in call.marked)
    masks = [(id(tensor), tensor._version) for tensor, _ in call.marked if tensor.dtype == torch.bool]
    return ("others", call.marked[0][1].key, *masks) if call.name == "__getitem__" and len(masks) == 1 else object()


def memory_of(tensor: Tensor) -> Any:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else None


def told_apart(rows: Tensor, dim: int) -> Tensor:
    """[8], a sum of a function of each row, which hardly any other rows have."""
    table = rows.movedim(dim, 0).flatten(1).double() if rows.dim() > 1 else rows[:, None].double()
    table = torch.nan_to_num(table, 3.25, 7.5, -5.5)
    directions = torch.randn(table.shape[1], 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    told = (table @ directions).cos().sum(0)
    return told.to(rows.dtype) if rows.is_floating_point() else told


def flatten(value: Any, leaves: list[Any]) -> Any:
    """Lists the tensors and numbers of a nest; what nest it is."""
    if isinstance(value, (tuple, list)):
        return type(value).__name__, *(flatten(item, leaves) for item in value)
    if isinstance(value, dict):
        return "dict", *((key, flatten(item, leaves)) for key, item in value.items())
    leaves.append(value)
    return "tensor" if isinstance(value, Tensor) else "value"


def same_value(a: Any, b: Any) -> bool:
    try:
        return bool(a == b) or (a != a and b != b)
    except Exception:
        return a is b


def is_close(a: Tensor, b: Tensor) -> bool:
    """Whether they are equal but for rounding; what is no number is equal to itself."""
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return False
    if a.layout != torch.strided:
        return is_close(a.to_dense(), b.to_dense())
    if not a.dtype.is_floating_point and not a.dtype.is_complex:
        return torch.equal(a, b)
    if not a.numel():
        return True
    tolerance = 1e-9 if a.dtype in (torch.float64, torch.complex128) else 3e-4 if a.dtype == torch.float32 else 5e-2
    finite = a.abs()[torch.isfinite(a)]
    scale = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
