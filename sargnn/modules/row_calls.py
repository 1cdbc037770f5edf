"""What a user's module calls of PyTorch, done by the engine instead where it concerns rows, for the rows of all workers.

Dropout is drawn by original ids (``RowDropout``); the other functions have a handler each.

A handler answers ``NotImplemented`` where PyTorch's own function is to be called, also where the arguments are wrong, so that
the message is PyTorch's. What is computed over rows is computed over those of all workers (``row_folds.py``), so that a
module takes the same branch everywhere. Nothing here knows a graph: ``Places`` says whose rows a tensor has.

Letters: N rows, E edges, W elements of a row.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sargnn.engine.rebuild import rebuild_of, rebuilt_by
from sargnn.engine.reducers.generic import EdgeRun
from sargnn.modules.call import Call
from sargnn.modules.expressions import Written, map_values
from sargnn.modules.lazy import EdgeCount, edge_rows
from sargnn.modules.row_draws import RowDropout
from sargnn.modules.row_operators import RowOperators, is_row_major
from sargnn.modules.session import Places
from sargnn.modules.tag import JOINED, Count, Mark, Rows, is_plain, is_shared, mark_of, own_of, set_mark, tagged
from sargnn.rng import uniform_numbers


@dataclass
class RowCalls:
    """What handlers work with: whose rows there are, operators of tables of rows, and dropout of anything."""

    places: Places
    operators: RowOperators
    dropout: RowDropout


Handler = Callable[..., Any]
"""(what to work with, the call, its arguments by their names) to its result. Other arguments are not for it."""


def _or_plain(out: Any) -> Any:
    return NotImplemented if out is None else out


def _dropout(
    rows: RowCalls, call: Call, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, *, train: bool = True
) -> Any:
    """``F.dropout(input, p, training, inplace)`` and ``torch.dropout(input, p, train)``."""
    if not 0 <= p <= 1:
        return NotImplemented
    if not (training and train) or p == 0:
        return input
    return rows.dropout(input, float(p), inplace=bool(inplace or call.name == "dropout_"))


def _batch_norm(
    rows: RowCalls,
    call: Call,
    input: Tensor,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    mark = mark_of(input)
    if mark is None or mark.dim != 0 or not training or input.dim() < 2:
        return NotImplemented
    given = (running_mean, running_var, weight, bias)
    if any(tensor is not None and tensor.shape != (input.shape[1],) for tensor in given):
        return NotImplemented
    running = None if running_mean is None or running_var is None else (running_mean, running_var)
    return rows.operators.batch_norm(input, running, weight, bias, momentum, eps)


def _torch_batch_norm(
    rows: RowCalls,
    call: Call,
    input: Tensor,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> Any:
    """``torch.batch_norm``, which has its arguments in another order."""
    return _batch_norm(rows, call, input, running_mean, running_var, weight, bias, training, momentum, eps)


def _relu(rows: RowCalls, call: Call, input: Any, inplace: bool = False) -> Any:
    if inplace and "inplace" not in call.kwargs:  # a trial tells that it writes
        return NotImplemented
    return _activated(rows, call, input, bool(inplace) or call.name == "relu_")


def _elu(rows: RowCalls, call: Call, input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    return NotImplemented if inplace or alpha != 1 else _activated(rows, call, input, False)


def _activated(rows: RowCalls, call: Call, x: Any, inplace: bool) -> Any:
    operators, mark = rows.operators, mark_of(x)
    if mark is None or not operators.is_table(x, mark):
        return NotImplemented
    if inplace:
        return _or_plain(operators.relu_(x))
    out = operators.activate(call.name, x, rows.dropout.ids(mark))
    if out is None and call.name == "relu" and x.requires_grad and torch.is_grad_enabled():
        return operators.relu(x)
    return _or_plain(out)


def _linear(rows: RowCalls, call: Call, input: Any, weight: Any, bias: Any = None) -> Any:
    if not rows.operators.is_table(input, mark_of(input)):
        return NotImplemented
    return _or_plain(rows.operators.linear(input, weight, bias))


def _product(rows: RowCalls, call: Call, x: Any, weight: Any, /) -> Any:
    """``x @ W`` with a table and a matrix of parameters."""
    if not rows.operators.is_table(x, mark_of(x)):
        return NotImplemented
    if not isinstance(weight, Tensor) or weight.dim() != 2 or mark_of(weight) is not None:
        return NotImplemented
    return _or_plain(rows.operators.linear(x, weight.t()))


def _sum_of_two(rows: RowCalls, call: Call, x: Any, other: Any, /) -> Any:
    """``a + b`` of two tables, or of rows and a vector."""
    operators, mark = rows.operators, mark_of(x)
    if operators.is_table(x, mark) and (out := operators.add(x, other, onto=call.is_temporary)) is not None:
        return out
    return _or_plain(operators.plus_vector(x, other)) if is_plain(x, mark) else NotImplemented


def _times(rows: RowCalls, call: Call, x: Any, vector: Any, /) -> Any:
    """``x * a`` of rows [N, K, D] and a vector for each head."""
    return _or_plain(rows.operators.times_vector(x, vector)) if is_plain(x, mark_of(x)) else NotImplemented


def _sum(rows: RowCalls, call: Call, input: Any, dim: Any, keepdim: bool = False) -> Any:
    """``sum(-1)`` of such a product."""
    sums = rows.operators.sum_of_last(input) if input.dim() == 3 and dim in (-1, 2) else None
    return _or_plain(sums.unsqueeze(-1) if sums is not None and keepdim else sums)


def _reshaped(rows: RowCalls, call: Call, x: Any, /, *given: Any, **named: Any) -> Any:
    """The same rows in another shape. In ``x.view(len(x), -1)`` PyTorch cannot tell the size -1 where there are no rows."""
    if mark_of(x) is None:
        return NotImplemented
    sizes = list(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else list(given)
    if not x.numel() and all(isinstance(size, int) for size in sizes):
        sizes = [own_of(size) for size in sizes]  # a ``Count`` of none here need not equal 0
        if sorted(sizes)[:2] == [-1, 0]:
            of_row, known = (math.prod(size for size in shape if size > 0) for shape in (x.shape, sizes))
            given = tuple(of_row // known if size < 0 else size for size in sizes)
    return rows.operators.same_rows(x, call.func(x, *map_values(given, own_of), **map_values(named, own_of)))


def _contiguous(rows: RowCalls, call: Call, x: Any, /) -> Any:
    """``x.contiguous()`` gives a table of its own wherever it does with many rows, also for one or none."""
    mark = mark_of(x)
    if mark is None or x.shape[mark.dim] > 1 or is_row_major(x, mark.dim):
        return NotImplemented
    return x.clone(memory_format=torch.contiguous_format)


def _squeeze(rows: RowCalls, call: Call, input: Any, dim: Any = None) -> Any:
    """``x.squeeze()`` and ``x.squeeze(dim)`` leave the rows' dimension, also on a worker that has one row."""
    mark = mark_of(input)
    if mark is None or input.shape[mark.dim] != 1:
        return NotImplemented
    dims = range(input.dim()) if dim is None else (dim,) if isinstance(dim, int) else dim
    gone = [dim % input.dim() for dim in dims if dim % input.dim() != mark.dim and input.shape[dim] == 1]
    out = call.func(input, tuple(gone))
    return set_mark(out, mark._replace(dim=mark.dim - sum(dim < mark.dim for dim in gone)), shared=is_shared(input))


def _uniform(rows: RowCalls, call: Call, *given: Any, size: Any = (), dtype: Any = None, **named: Any) -> Any:
    """``torch.rand(edge_index.size(1))``: numbers for each edge, drawn by both ends and never held."""
    shape = given or (size,)
    shape = tuple(shape[0]) if isinstance(shape[0], (tuple, list)) else shape
    if not shape or not isinstance(shape[0], EdgeCount):
        return NotImplemented
    kind = dtype or torch.get_default_dtype()
    draw, sizes = rows.dropout.draw(0.0, of_edges=True), tuple(map(own_of, shape[1:]))

    def numbers_of(run: EdgeRun, fields: Any) -> Tensor:
        return uniform_numbers(run.src_ids, run.dst_ids, math.prod(sizes), draw, kind).view(-1, *sizes)

    return edge_rows(shape[0].edges, Written(sizes, kind, numbers_of, (), ()))


def _instance_norm(
    rows: RowCalls,
    call: Call,
    input: Tensor,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """``F.instance_norm`` of one graph's rows, [1, C, N]: a batch norm of them."""
    x, mark = input, mark_of(input)
    if mark is None or mark.dim != x.dim() - 1 or x.dim() != 3 or x.shape[0] != 1 or not use_input_stats:
        return NotImplemented
    running = None if running_mean is None or running_var is None else (running_mean, running_var)
    table = tagged(x[0].t().contiguous(), mark.rows) if mark.rows is not None else x[0].t()
    return rows.operators.batch_norm(table, running, weight, bias, momentum, eps).t()[None]


CHOSEN = "chosen"
"""The first of ``Mark.set`` of rows that a mask chose."""


def _pick_rows(rows: RowCalls, call: Call, x: Any, key: Any, /) -> Any:
    """``x[:n]`` with the number of a later layer's rows, which are the first ones, and ``x[numbers of all rows]``. What is as
    it was is rebuilt in the way that ``x`` is."""
    if (out := _pick_chosen(call, x, key)) is not NotImplemented:
        return out
    first, *others = key if isinstance(key, tuple) and key else (key,)
    mark, by = mark_of(x), mark_of(first)
    if mark is None or mark.dim != 0:
        return NotImplemented
    if by is not None and by.numbered and first.dim() == 1 and by.set == ("numbers", mark.key) and mark.is_single:
        return call.again(lambda: x[(slice(None), *others)])
    if not isinstance(first, slice) or first.step not in (None, 1):
        return NotImplemented
    if (out := _rows_of_types(rows.places, x, mark, first)) is not None:
        return call.again(lambda: out[(slice(None), *others)]) if others else out
    if first.start not in (None, 0):
        return NotImplemented
    out = _first_rows(x, mark, first.stop)
    if out is not None and others:
        return call.again(lambda: out[(slice(None), *others)])
    rebuild = rebuild_of(x) if out is not None and rows.operators.is_table(x, mark) and out.requires_grad else None
    if out is None or rebuild is None:
        return _or_plain(out)
    length = len(out)
    return set_mark(rebuilt_by(out, lambda: rebuild()[:length]), mark_of(out), shared=is_shared(out))


def _rows_of_types(places: Places, x: Tensor, mark: Mark, picked: slice) -> Tensor | None:
    """``x[first:last]`` of several types' rows, one after the other; None where they are not, or no type begins there."""
    types = places.types_in(mark)
    begins = [(own_of(begin), int(begin)) for begin in accumulate(map(places.size, types), initial=0)]
    start = own_of(picked.start or 0), int(picked.start or 0)
    stop = begins[-1] if picked.stop is None else (own_of(picked.stop), int(picked.stop))
    if not types or start not in begins or stop not in begins:
        return None
    first = len(begins) - 1 - begins[::-1].index(start)
    part = types[first : max(begins.index(stop), first)]
    if len(part) == len(types):
        return set_mark(x[:], mark, shared=is_shared(x))
    out, rows = x[start[0] : stop[0]], part[0] if len(part) == 1 else None
    return set_mark(out, Mark(rows, 0, len(out), mark.why, set=rows or (JOINED, *part)), shared=is_shared(x))


def _first_rows(x: Tensor, mark: Mark, stop: Any, dim: int = 0) -> Tensor | None:
    """``x.narrow(dim, 0, stop)``; None where these are not the rows of a layer."""
    of = stop.of if isinstance(stop, Count) else (mark.key, 1, 0) if stop is None or stop == sys.maxsize else None
    if of is None or of[1:] != (1, 0) or not mark.is_single:
        return None
    later, earlier, number = of[0], mark.rows, mark.number if stop is None else own_of(stop)
    if later == mark.key:
        return set_mark(x.narrow(dim, 0, x.shape[dim]), mark, shared=is_shared(x)) if stop is not None else None
    if not isinstance(later, Rows) or earlier is None or (later.kind, later.type) != (earlier.kind, earlier.type):
        return None
    if later.level < earlier.level or number > mark.number:
        return None
    return set_mark(x.narrow(dim, 0, number), mark._replace(rows=later, number=number), shared=is_shared(x))


def _narrow_rows(rows: RowCalls, call: Call, input: Any, dim: int, start: Any, length: Any) -> Any:
    """``x.narrow(0, 0, n)`` in the same way."""
    mark = mark_of(input)
    if mark is None or type(dim) is not int or dim % input.dim() != mark.dim or start != 0:
        return NotImplemented
    return _or_plain(_first_rows(input, mark, length, mark.dim))


def _split_rows(rows: RowCalls, call: Call, x: Any, /, sizes: Any = None, dim: int = 0, **named: Any) -> Any:
    """Joined rows cut into those of each type again, ``x.split([number of each type's nodes])``."""
    mark, sizes = mark_of(x), next(iter(named.values()), None) if sizes is None else sizes
    if mark is None or not isinstance(sizes, (list, tuple)) or dim % x.dim() != mark.dim or not mark.is_single:
        return NotImplemented
    of = [size.of for size in sizes if isinstance(size, Count) and size.of is not None and size.of[1:] == (1, 0)]
    keys = [key for key, *_ in of]
    joined = isinstance(mark.set, tuple) and mark.set == (JOINED, *keys)
    types = [key.type for key in keys if isinstance(key, Rows) and key.kind == "nodes"]
    by_type = mark.rows is not None and mark.rows.type < 0 and types == list(range(len(sizes)))
    if len(of) != len(sizes) or not (joined or by_type) or sum(map(own_of, sizes)) != x.shape[mark.dim]:
        return NotImplemented
    parts = torch.split(x, list(map(own_of, sizes)), mark.dim)
    for part, key in zip(parts, keys, strict=True):
        own = Mark(key if isinstance(key, Rows) else None, mark.dim, part.shape[mark.dim], mark.why, set=key)
        set_mark(part, own, shared=is_shared(x))
    return parts


def _choose_rows(rows: RowCalls, call: Call, input: Any, *, as_tuple: bool = False) -> Any:
    """``mask.nonzero()``: numbers of rows, which pick those rows again, as ``x[mask]`` does."""
    mark = mark_of(input)
    if mark is None or input.dim() != 1 or not mark.is_single or as_tuple:
        return NotImplemented
    out = input.nonzero()
    why = f"'{call.name}' gives numbers of this worker's rows"
    return set_mark(out, Mark(None, 0, len(out), why, 1, (CHOSEN, mark.key, id(input), input._version), why), shared=False)


def _pick_along(rows: RowCalls, call: Call, input: Any, dim: int, index: Any) -> Any:
    return _pick_chosen(call, input, index) if dim % input.dim() == 0 else NotImplemented


def _write_along(rows: RowCalls, call: Call, input: Any, dim: int, index: Any, source: Any) -> Any:
    return _pick_chosen(call, input, index, source) if dim % input.dim() == 0 else NotImplemented


def _pick_chosen(call: Call, x: Any, index: Any, source: Any = None) -> Any:
    """Rows that are picked, or written to, by such numbers."""
    mark, by = mark_of(x), mark_of(index)
    if mark is None or by is None or mark.dim or index.dim() != 1:
        return NotImplemented
    if not isinstance(by.set, tuple) or by.set[:2] != (CHOSEN, mark.key):
        return NotImplemented
    if source is not None:
        of_part = mark_of(source)
        if of_part is None or of_part.set != by.set or of_part.dim:
            return NotImplemented
        return set_mark(call.on_own_rows(), mark, shared=False)
    out = call.on_own_rows()
    return set_mark(out, Mark(None, 0, len(out), "a part of them was taken", 1, by.set), shared=False)


HANDLERS: dict[str, Handler] = {
    "instance_norm": _instance_norm,
    **dict.fromkeys(("dropout", "dropout_"), _dropout),
    "batch_norm": _batch_norm,
    "linear": _linear,
    **dict.fromkeys(("relu", "relu_"), _relu),
    "elu": _elu,
    **dict.fromkeys("matmul mm __matmul__".split(), _product),
    **dict.fromkeys(("add", "__add__"), _sum_of_two),
    "__getitem__": _pick_rows,
    "squeeze": _squeeze,
    "contiguous": _contiguous,
    "narrow": _narrow_rows,
    **dict.fromkeys("split split_with_sizes".split(), _split_rows),
    **dict.fromkeys("nonzero argwhere".split(), _choose_rows),
    "index_select": _pick_along,
    **dict.fromkeys("index_copy index_copy_".split(), _write_along),
    "rand": _uniform,
    **dict.fromkeys(("mul", "__mul__"), _times),
    "sum": _sum,
    **dict.fromkeys("flatten view reshape".split(), _reshaped),
}


def handler_of(func: Any, name: str) -> Handler | None:
    """What is done instead of a function of PyTorch's, where it applies."""
    return _torch_batch_norm if func is torch.batch_norm else HANDLERS.get(name)


ALWAYS = frozenset(("dropout", "dropout_", "rand"))
"""Functions that are handled also where no argument has rows."""
KEEPS_ROWS = frozenset("dropout dropout_ batch_norm instance_norm".split())
"""Handlers whose results have their first argument's rows."""


def is_temporary(args: tuple[Any, ...]) -> bool:
    """Whether ``args[0]`` has no name where a call gets it, as ``f(x)`` in ``f(x) + y``: the result may take its memory.

    Asked by ``__torch_function__``, of its own ``args``. Python counts references. What it counts for a value without a name is
    measured once, on this interpreter; where that cannot be told from a value with one, nothing is ever taken for temporary.
    """
    return sys.getrefcount(args[0]) <= most_references()


class _Counts(TorchFunctionMode):
    """Notes what is counted for the first operand of sums."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "add":
            self.counted.append(_count(args))
        return func(*args, **(kwargs or {}))


def _count(args: tuple[Any, ...]) -> int:
    return sys.getrefcount(args[0])


def _made_value() -> Tensor:
    return torch.zeros(1)


@cache
def most_references() -> int:
    """References to a value without a name; -1 where names make no difference."""
    with _Counts() as counts:
        _made_value() + 1.0
        named = _made_value()
        named + 1.0
        torch.add(named, 1.0)
        named.add(1.0)
        held = [_made_value()]
        held[0] + 1.0
    without, *others = counts.counted
    return without if len(others) == 4 and all(count > without for count in others) else -1
