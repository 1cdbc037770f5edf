"""Rows picked by what the graph or a mask says: a layer's first rows, those of a type out of all, those where a mask holds.

Letters: N rows of this worker.
"""

from __future__ import annotations

import operator
import sys
from typing import Any

import torch
from torch import Tensor

from sargnn.engine.rebuild import rebuild_of, rebuilt_by
from sargnn.modules.marked_call import Call
from sargnn.modules.row_operators import RowOperators
from sargnn.modules.tag import JOINED, Count, Mark, Rows, is_shared, mark_of, set_mark

CHOSEN = "chosen"
"""The first of ``Mark.set`` of rows that a mask chose."""


def pick_rows(operators: RowOperators, call: Call) -> Any:
    """``x[:n]`` with the number of a later layer's rows, which are the first ones, and ``x[numbers of all rows]``. What is as
    it was is rebuilt in the way that ``x`` is."""
    x, key = call.args
    if (out := pick_chosen(call)) is not NotImplemented:
        return out
    first, *others = key if isinstance(key, tuple) and key else (key,)
    mark, by = mark_of(x), mark_of(first)
    if mark is None or mark.dim != 0:
        return NotImplemented
    if by is not None and by.numbered and first.dim() == 1 and by.set == ("numbers", mark.key) and mark.is_single:
        return call.again(lambda: x[(slice(None), *others)])
    if not isinstance(first, slice) or first.start not in (None, 0) or first.step not in (None, 1):
        return NotImplemented
    out = first_rows(x, mark, first.stop)
    if out is None or not others:
        if out is None or not (operators.is_table(x, mark) and out.requires_grad):
            return NotImplemented if out is None else out
        rebuild, length = rebuild_of(x), len(out)
        return (
            out
            if rebuild is None
            else set_mark(rebuilt_by(out, lambda: rebuild()[:length]), mark_of(out), shared=is_shared(out))
        )
    return call.again(lambda: out[(slice(None), *others)])


def first_rows(x: Tensor, mark: Mark, stop: Any, dim: int = 0) -> Tensor | None:
    """``x.narrow(dim, 0, stop)``; None where these are not the rows of a layer."""
    of = stop.of if isinstance(stop, Count) else (mark.key, 1, 0) if stop is None or stop == sys.maxsize else None
    if of is None or of[1:] != (1, 0) or not mark.is_single:
        return None
    later, earlier = of[0], mark.rows
    if of[0] == mark.key:
        return set_mark(x.narrow(dim, 0, x.shape[dim]), mark, shared=is_shared(x)) if stop is not None else None
    if not isinstance(later, Rows) or earlier is None or (later.kind, later.type) != (earlier.kind, earlier.type):
        return None
    if later.level < earlier.level or operator.index(stop) > mark.number:
        return None
    return set_mark(
        x.narrow(dim, 0, operator.index(stop)), mark._replace(rows=later, number=operator.index(stop)), shared=is_shared(x)
    )


def narrow_rows(call: Call) -> Any:
    """``x.narrow(0, 0, n)`` in the same way."""
    x, dim, start, length = (call.argument(k, name) for k, name in enumerate(("input", "dim", "start", "length")))
    mark = mark_of(x)
    if mark is None or type(dim) is not int or dim % x.dim() != mark.dim or start != 0:
        return NotImplemented
    return NotImplemented if (out := first_rows(x, mark, length, mark.dim)) is None else out


def split_rows(call: Call) -> Any:
    """Joined rows cut into those of each type again, ``x.split([number of each type's nodes])``."""
    x, sizes, dim = (
        call.argument(k, *names)
        for k, names in enumerate((("input", "tensor"), ("split_size_or_sections", "split_sizes", "split_size"), ("dim",)))
    )
    mark = mark_of(x)
    if mark is None or not isinstance(sizes, (list, tuple)) or (dim or 0) % x.dim() != mark.dim or not mark.is_single:
        return NotImplemented
    of = [size.of for size in sizes if isinstance(size, Count) and size.of is not None and size.of[1:] == (1, 0)]
    keys = [key for key, *_ in of]
    joined = isinstance(mark.set, tuple) and mark.set == (JOINED, *keys)
    types = [key.type for key in keys if isinstance(key, Rows) and key.kind == "nodes"]
    by_type = mark.rows is not None and mark.rows.type < 0 and types == list(range(len(sizes)))
    if len(of) != len(sizes) or not (joined or by_type) or sum(map(operator.index, sizes)) != x.shape[mark.dim]:
        return NotImplemented
    parts = torch.split(x, [operator.index(size) for size in sizes], mark.dim)
    for part, key in zip(parts, keys, strict=True):
        own = Mark(key if isinstance(key, Rows) else None, mark.dim, part.shape[mark.dim], mark.why, set=key)
        set_mark(part, own, shared=is_shared(x))
    return parts


def choose_rows(call: Call) -> Any:
    """``mask.nonzero()``: numbers of rows, which pick those rows again, as ``x[mask]`` does."""
    x, mark = call.argument(0, "input"), mark_of(call.argument(0, "input"))
    if mark is None or x.dim() != 1 or not mark.is_single or call.kwargs.get("as_tuple") or len(call.args) > 1:
        return NotImplemented
    out = x.nonzero()
    why = f"'{call.name}' gives numbers of this worker's rows"
    return set_mark(out, Mark(None, 0, len(out), why, 1, (CHOSEN, mark.key, id(x), x._version), why), shared=False)


def pick_chosen(call: Call) -> Any:
    """Rows that are picked, or written to, by such numbers."""
    index, x = call.argument(2, "index") if call.name != "__getitem__" else call.args[1], call.argument(0, "input")
    mark, by = mark_of(x), mark_of(index)
    along = call.name == "__getitem__" or call.argument(1, "dim") % x.dim() == 0
    if mark is None or by is None or not along or mark.dim or index.dim() != 1:
        return NotImplemented
    if not isinstance(by.set, tuple) or by.set[:2] != (CHOSEN, mark.key):
        return NotImplemented
    of_part = mark_of(call.argument(3, "source", "tensor"))
    if call.name.startswith("index_copy"):
        if of_part is None or of_part.set != by.set or of_part.dim:
            return NotImplemented
        return set_mark(call.func(*call.args, **call.kwargs), mark, shared=False)
    out = call.func(*call.args, **call.kwargs)
    return set_mark(out, Mark(None, 0, len(out), "a part of them was taken", 1, by.set), shared=False)
