"""What a user's module calls of PyTorch, done by the engine instead where it concerns rows; each with PyTorch's arguments.

A handler answers ``NotImplemented`` where PyTorch's own function is to be called, also where the arguments are wrong, so that
the message is PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.engine.rebuild import rebuild_of, rebuilt_by
from sargnn.modules.combined import COMBINED, combine
from sargnn.modules.made_rows import MAKERS, rows_asked_for
from sargnn.modules.marks import is_plain, is_row_major, mark_of
from sargnn.modules.row_dropout import RowDropout
from sargnn.modules.row_operators import RowOperators
from sargnn.modules.rows import tagged


@dataclass
class RowCalls:
    """What handlers work with.

    Attributes:
        group: the workers. operators: of tables of rows. dropout: of anything.
        is_temporary: of the call at hand: nobody else knows its first argument.
    """

    group: Group
    operators: RowOperators
    dropout: RowDropout
    is_temporary: bool = False


Handler = Callable[[RowCalls, str, Any, tuple[Any, ...], dict[str, Any]], Any]
"""(what to work with, the function's name, the function, args, kwargs) to its result."""


def _dropout(rows: RowCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.dropout(input, p, training, inplace)`` and ``torch.dropout(input, p, train)``."""
    x = kwargs.get("input", args[0] if args else None)
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    inplace = bool(kwargs.get("inplace", name == "dropout_"))
    if not 0 <= p <= 1:
        return NotImplemented
    if not training or p == 0:
        return x
    return rows.dropout(x, float(p), inplace=inplace)


def _batch_norm(rows: RowCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.batch_norm`` and ``torch.batch_norm``, which differ in the order of their arguments."""
    given = {**dict(zip(_norm_arguments(func), args, strict=False)), **kwargs}
    x, mark = given["input"], mark_of(given["input"])
    if mark is None or mark.dim != 0 or not given.get("training", False) or x.dim() < 2:
        return NotImplemented
    mean, variance, weight, bias = (given.get(key) for key in ("running_mean", "running_var", "weight", "bias"))
    if any(tensor is not None and tensor.shape != (x.shape[1],) for tensor in (mean, variance, weight, bias)):
        return NotImplemented
    running = None if mean is None or variance is None else (mean, variance)
    return rows.operators.batch_norm(x, running, weight, bias, given.get("momentum", 0.1), given.get("eps", 1e-5))


def _norm_arguments(func: Any) -> tuple[str, ...]:
    if func is torch.batch_norm:
        return ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
    return ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


def _activation(rows: RowCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """ReLU and ELU (alpha 1)."""
    x = args[0] if args else kwargs["input"]
    operators, mark = rows.operators, mark_of(x)
    if mark is None or not operators.is_table(x, mark):
        return NotImplemented
    if kwargs.get("inplace") or name.endswith("_"):
        out = operators.relu_(x) if name.startswith("relu") else None
        return NotImplemented if out is None else out
    if name == "elu" and kwargs.get("alpha", args[1] if len(args) > 1 else 1.0) != 1:
        return NotImplemented
    out = operators.activate(name, x, rows.dropout.ids(mark))
    if out is None and name == "relu" and x.requires_grad and torch.is_grad_enabled():
        return operators.relu(x)
    return NotImplemented if out is None else out


def _linear(rows: RowCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.linear(input, weight, bias)``."""
    given = {**dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
    x = given["input"]
    if not rows.operators.is_table(x, mark_of(x)):
        return NotImplemented
    out = rows.operators.linear(x, given.get("weight"), given.get("bias"))
    return NotImplemented if out is None else out


def _product(rows: RowCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x @ W`` with a table and a matrix of parameters."""
    if len(args) != 2 or kwargs or not rows.operators.is_table(args[0], mark_of(args[0])):
        return NotImplemented
    weight = args[1]
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return NotImplemented
    out = rows.operators.linear(args[0], weight.t())
    return NotImplemented if out is None else out


def _sum_of_two(rows: RowCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``a + b`` of two tables, or of rows and a vector."""
    if len(args) != 2 or kwargs:
        return NotImplemented
    operators, mark = rows.operators, mark_of(args[0])
    if operators.is_table(args[0], mark) and (out := operators.add(*args, onto=rows.is_temporary)) is not None:
        return out
    if mark is None or not is_plain(args[0], mark):
        return NotImplemented
    out = operators.plus_vector(*args)
    return NotImplemented if out is None else out


def _times(rows: RowCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x * a`` of rows [N, K, D] and a vector for each head."""
    mark = mark_of(args[0]) if args else None
    if len(args) != 2 or kwargs or mark is None or not is_plain(args[0], mark):
        return NotImplemented
    out = rows.operators.times_vector(*args)
    return NotImplemented if out is None else out


def _sum(rows: RowCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``sum(-1)`` of such a product."""
    x = args[0] if args else None
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if isinstance(x, Tensor) and x.dim() == 3 and dim in (-1, 2) and set(kwargs) <= {"dim", "keepdim"} and len(args) < 3:
        sums = rows.operators.sum_of_last(x)
        if sums is not None:
            return sums.unsqueeze(-1) if kwargs.get("keepdim") else sums
    return _combined(rows, name, func, args, kwargs)


def _reshaped(rows: RowCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same rows in another shape."""
    if not args or mark_of(args[0]) is None:
        return NotImplemented
    return rows.operators.same_rows(args[0], func(*_without_guess(args), **kwargs))


def _without_guess(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of ``x.view(len(x), -1)`` with the size that -1 stands for, which PyTorch cannot tell where there are no
    rows."""
    x, *sizes = args
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = list(sizes[0])
    if x.numel() or not all(isinstance(size, int) for size in sizes):
        return args
    sizes = [int(size) for size in sizes]  # of this worker: a ``Count`` of none here need not equal 0
    if sorted(sizes)[:2] != [-1, 0]:
        return args
    of_row, known = (math.prod(size for size in shape if size > 0) for shape in (x.shape, sizes))
    return (x, *(of_row // known if size < 0 else size for size in sizes))


def _contiguous(rows: RowCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.contiguous()`` gives a table of its own wherever it does with many rows, also for one or none."""
    x, mark = args[0], mark_of(args[0])
    if mark is None or x.shape[mark.dim] > 1 or len(args) > 1 or kwargs or is_row_major(x, mark.dim):
        return NotImplemented
    return x.clone(memory_format=torch.contiguous_format)


def _first_rows(rows: RowCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x[:n]`` is rebuilt in the way that ``x`` is."""
    x, key = args
    if not (isinstance(key, slice) and rows.operators.is_table(x, mark_of(x))):
        return NotImplemented
    out = func(x, key)
    rebuild = rebuild_of(x) if out.requires_grad else None
    return out if rebuild is None else rebuilt_by(out, lambda: rebuild()[key])


def _squeeze(rows: RowCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.squeeze()`` and ``x.squeeze(dim)`` leave the rows' dimension, also on a worker that has one row."""
    tensor, mark = args[0], mark_of(args[0])
    if mark is None or tensor.shape[mark.dim] != 1:
        return NotImplemented
    dims: Any = kwargs.get("dim", args[1] if len(args) > 1 else tuple(range(tensor.dim())))
    dims = (dims,) if isinstance(dims, int) else dims
    return func(tensor, tuple(dim for dim in dims if dim % tensor.dim() != mark.dim))


def _made(rows: RowCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.ones(graph.num_edges(), 1)`` has edges' rows."""
    asked_rows = rows_asked_for(name, args, kwargs)
    return NotImplemented if asked_rows is None else tagged(func(*args, **kwargs), asked_rows)


def _combined(rows: RowCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return combine(rows.group, name, func, args, kwargs)


HANDLERS: dict[str, Handler] = {
    "dropout": _dropout,
    "dropout_": _dropout,
    "batch_norm": _batch_norm,
    "linear": _linear,
    "relu": _activation,
    "relu_": _activation,
    "elu": _activation,
    "matmul": _product,
    "mm": _product,
    "__matmul__": _product,
    "add": _sum_of_two,
    "__add__": _sum_of_two,
    "__getitem__": _first_rows,
    "squeeze": _squeeze,
    "contiguous": _contiguous,
    **dict.fromkeys(COMBINED, _combined),
    **dict.fromkeys(MAKERS, _made),
    "mul": _times,
    "__mul__": _times,
    "sum": _sum,
    "flatten": _reshaped,
    "view": _reshaped,
    "reshape": _reshaped,
}
ALWAYS = frozenset(("dropout", "dropout_")) | MAKERS
"""Functions that are handled also where no argument has rows."""
