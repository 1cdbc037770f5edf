"""What a trial says of a call: ``Verdict``; and a call's arguments described without how many rows a worker has.

Letters: N rows of a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sargnn.modules.tag import Count, Mark, mark_of

Kind = Literal["rows", "others", "sum", "mean", "alike", "other"]
PAIRS, ODD = -2, -3
"""In ``Out.dim``: rows run along two dimensions; a dimension depends on how many there are, in another way."""


class Out(NamedTuple):
    """One tensor of a result.

    Attributes:
        kind: as the table above has it; ``other`` with ``dim`` >= 0: it has rows, but they are none by themselves.
        group: which set of the call's rows, by its number; -1 without rows.
        dim: the dimension of the rows; -1 without.
        parts, before: as ``Mark`` has them.
        shape: without the rows' dimension, where there is one.
        dtype: of its numbers.
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
        outs: of the tensors in its result, in order.
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
        """Of a set."""
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
        return "slice", *(described(item, groups, describe) for item in (value.start, value.stop, value.step))
    if isinstance(value, dict):
        return "dict", *((key, described(item, groups, describe)) for key, item in value.items())
    if isinstance(value, (int, np.generic)):  # of an enumeration and the like
        return kind, value.item() if isinstance(value, np.generic) else int(value)
    raise NotTried(f"an argument of type {kind.__name__}")


def walk(value: Any) -> Iterator[Any]:
    """A description and all that is in it."""
    yield value
    if isinstance(value, tuple) and not isinstance(value, (Table, Number)):
        for item in value:
            yield from walk(item)
