"""Notes of rows for tensors whose rows do not simply run along the first dimension, and which note a result gets.

``rows.py`` notes a table [N, ...] of a graph's rows. On the way from one such table to the next a module stacks, transposes and
reshapes: a mark says in which dimension the rows run, or why they are no longer a graph's rows. What has no mark is the same on
all workers, so whether a tensor has one must not depend on how many rows a worker has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor

from sargnn.modules.rows import Rows, rows_of, tagged

_MARK = "_sargnn_mark"


class Mark(NamedTuple):
    """Where a tensor's rows are.

    Attributes:
        rows: which; None where they are rows of this worker, but not those of one type in their order.
        dim: the dimension along which they run.
        number: how many. That dimension is ``number`` long, or k ``number`` with k consecutive elements for each row.
        why: what was done to them, where ``rows`` is None.
    """

    rows: Rows | None
    dim: int
    number: int
    why: str = ""


Marked = list[tuple[Tensor, Mark]]


def mark_of(tensor: Any) -> Mark | None:
    """The tensor's mark; None where it is the same on all workers."""
    if not isinstance(tensor, Tensor):
        return None
    rows = rows_of(tensor)
    if rows is not None and tensor.dim():
        return Mark(rows, 0, tensor.shape[0])
    mark: Mark | None = getattr(tensor, _MARK, None)
    return mark


def set_mark(tensor: Tensor, mark: Mark) -> None:
    """Note it on the tensor; tables of rows get the note of ``rows.py``."""
    if mark.rows is not None and mark.dim == 0 and tensor.shape[0] == mark.number:
        tagged(tensor, mark.rows)
    else:
        setattr(tensor, _MARK, mark)


def marked_in(args: Iterable[Any], kwargs: dict[str, Any]) -> Marked:
    """The tensors with marks among arguments, also in lists."""
    marked: Marked = []
    for argument in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(argument, (list, tuple)):
            marked += [(tensor, mark) for tensor in argument if (mark := mark_of(tensor)) is not None]
        elif (mark := mark_of(argument)) is not None:
            marked.append((argument, mark))
    return marked


def unknown(out: Tensor, why: str) -> Mark | None:
    """The mark of rows that are no longer a type's rows in their order; None for a scalar."""
    return Mark(None, 0, out.shape[0], why) if out.dim() else None


def is_plain(tensor: Tensor, mark: Mark | None) -> bool:
    """Whether it is a table of a graph's rows."""
    return mark is not None and mark.rows is not None and mark.dim == 0 and tensor.shape[0] == mark.number


def is_row_major(x: Tensor, dim: int = 0) -> bool:
    """Whether rows along a dimension lie as in a contiguous tensor, however many there are.

    PyTorch calls any tensor of one row contiguous, or of none, so that its answer differs from worker to worker.
    """
    expected = 1
    for place in range(x.dim() - 1, -1, -1):
        if x.stride(place) != expected and (place == dim or x.shape[place] != 1):
            return False
        expected *= max(x.shape[place], 1)
    return True


def merged(marks: list[Mark]) -> Mark:
    """The mark of what is made of rows that run along the same dimension of a result."""
    first = marks[0]
    for other in marks[1:]:
        if first.rows is None or other.rows is None:
            first = first if first.rows is None else other
        elif (first.rows.kind, first.rows.type) != (other.rows.kind, other.rows.type):
            return first._replace(rows=None, why="rows of two types were mixed")
        elif other.rows.level > first.rows.level:
            first = other
    return first


def along(out: Tensor, marked: Marked, name: str, *, broadcast: bool = False) -> Mark | None:
    """The mark of a result whose dimensions are those of its arguments, or theirs aligned at the last one.

    Args:
        broadcast: they are aligned at the last one, whatever their lengths.
    """
    shape, marks = out.shape, []
    for tensor, mark in marked:
        at, length = mark.dim, tensor.shape[mark.dim]
        aligned = len(shape) - tensor.dim() + at
        for position in (aligned,) if broadcast else (at, aligned):
            if 0 <= position < len(shape) and shape[position] == length:
                marks.append(mark if position == at else mark._replace(dim=position))
                break
    if not marks:
        return unknown(out, f"{name} made other rows of them")
    where = marks[0].dim
    return merged([mark for mark in marks if mark.dim == where])
