"""What a user's module calls of PyTorch, done by the engine instead where it concerns rows, for the rows of all workers.

Dropout is drawn by original ids (``RowDropout``); the other functions have a handler each.

A handler answers ``NotImplemented`` where PyTorch's own function is to be called, also where the arguments are wrong, so that
the message is PyTorch's. What is computed over rows is computed over those of all workers (``row_folds.py``), so that a
module takes the same branch everywhere. Nothing here knows a graph: ``Places`` says whose rows a tensor has.

Letters: N rows, E edges, W elements of a row.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine
from sargnn.engine.rebuild import rebuilt_by
from sargnn.engine.reducers.generic import EdgeRun
from sargnn.errors import ConfigError
from sargnn.modules.expressions import Written
from sargnn.modules.lazy import EdgeCount, EdgeRows, edge_rows
from sargnn.modules.marked_call import Call
from sargnn.modules.row_draws import RowNumbers
from sargnn.modules.row_operators import RowOperators, again_of, is_row_major
from sargnn.modules.row_picks import choose_rows, narrow_rows, pick_chosen, pick_rows, split_rows
from sargnn.modules.session import Places
from sargnn.modules.tag import Mark, is_plain, is_shared, mark_of, set_mark, tagged, user_line
from sargnn.profile import NODEWISE, Profile
from sargnn.rng import Draw, Purpose, dropout_rows, edge_mask, uniform_numbers

MOST_CALLS = 256
_CHUNK_EDGES = 1 << 16


class RowDropout:
    """The dropouts of one module: nodes are drawn by original id, edges by their two ends' ids, parameters by row number.

    The calls of one forward pass are numbered, and the number takes the place of the layer in a draw. Nodes and parameters are
    numbered together, edges apart from them: a stack with one dropout after each layer draws the masks of the built-in stack,
    and attention dropout those of the built-in attention, whichever of both the module calls first. Calls that drop nothing do
    not count.

    Args:
        engine: whose seed and epoch they are drawn for.
        places: whose rows they drop.
        operators: make dropped rows straight from what they were made of, where that is known.
        path: the user's file.
    """

    def __init__(self, engine: Engine, places: Places, operators: RowOperators, path: str | None) -> None:
        self._engine, self._places, self._operators, self._path = engine, places, operators, path
        self.begin()

    def begin(self) -> None:
        """A forward pass begins: number its calls from 0."""
        self._calls = {"nodes": 0, "edges": 0}

    def __call__(self, x: Any, p: float, *, inplace: bool) -> Any:
        """``x`` dropped with probability 0 < p <= 1.

        Args:
            x: a tensor, or an expression for each edge, which has a method ``dropped(draw)``.
        """
        if isinstance(x, EdgeRows) or not isinstance(x, Tensor):
            return x.dropped(self.draw(p, of_edges=True))
        mark = mark_of(x)
        if mark is not None and mark.rows is None:
            raise self._not_of_one_type(mark)
        draw = self.draw(p, of_edges=mark is not None and mark.rows is not None and mark.rows.kind == "edges")
        if p >= 1:
            return x.mul_(0) if inplace else x * 0
        if inplace or x.dtype not in (torch.float32, torch.float64):  # no kernel is compiled for other formats
            with torch.no_grad():
                ones = torch.ones_like(x, dtype=x.dtype if x.dtype == torch.float64 else torch.float32)
                factor = self._dropped(ones, mark, draw).to(x.dtype)
            return x.mul_(factor) if inplace else x * factor
        if self._operators.is_table(x, mark):
            assert mark is not None
            ids, out = self.ids(mark), self._operators.dropped(x, self.ids(mark), draw)
            if out is not None:
                return out
            # A table that the fused operators serve; rebuilt where its rows are held anyway.
            out = self._engine.operators.dropout(self._operators.reads(x), ids, draw)
            source = again_of(x) if out.requires_grad else None
            return out if source is None else rebuilt_by(out, lambda: dropout_rows(source(), ids, draw))
        return self._dropped(x, mark, draw)

    def ids(self, mark: Mark) -> Tensor:
        """int64 [count], original ids of marked node rows."""
        assert mark.rows is not None
        return self._places.first_node_ids(mark.rows, mark.number)

    def numbers(self, mark: Mark, shape: Sequence[int], dtype: torch.dtype) -> RowNumbers:
        """Random numbers for the rows that a mark says."""
        if mark.rows is None:
            raise self._not_of_one_type(mark)
        of_edges, rows = mark.rows.kind == "edges", mark.rows

        def ids() -> tuple[Tensor, Tensor]:
            if of_edges:
                return self._places.edge_ids(rows)
            of_nodes = self.ids(mark)
            return of_nodes, torch.zeros_like(of_nodes)

        return RowNumbers(ids, lambda: self.draw(0.0, of_edges=of_edges), shape, mark, dtype)

    def _not_of_one_type(self, mark: Mark) -> ConfigError:
        return ConfigError(
            "Dropout is drawn for a graph's nodes or edges, and these rows are no longer those of one type",
            given=f"{user_line(self._path)}: {mark.why}",
            allowed="rows of one node type or relation, also as [N, K, D], stacked or transposed",
            hint="drop the rows before they are joined or picked",
        )

    def draw(self, p: float, *, of_edges: bool) -> Draw:
        """The draw of the next call."""
        kind = "edges" if of_edges else "nodes"
        number = self._calls[kind]
        self._calls[kind] += 1
        if number >= MOST_CALLS:
            raise ConfigError(
                "A forward pass has more dropouts than can be told apart",
                given=f"{user_line(self._path)}: call {number + 1}",
                allowed=f"at most {MOST_CALLS} calls in a forward pass, and as many of edges",
                hint="drop several tensors in one call, or fewer of them",
            )
        purpose = Purpose.ATTENTION_DROPOUT if of_edges else Purpose.DROPOUT
        return Draw(self._engine.seed, self._engine.epoch, purpose, number, p if p < 1 else 0.0)

    def _dropped(self, x: Tensor, mark: Mark | None, draw: Draw) -> Tensor:
        """Rows that run along any dimension, dropped as a table [N, W]."""
        if mark is not None and not mark.is_single:
            split = mark.split(x)
            single = mark._replace(dim=mark.dim + 1, parts=1, before=1)
            return self._dropped(split, single, draw).flatten(mark.dim, mark.dim + 2)
        at = mark.dim if mark is not None else 0
        moved = x.movedim(at, 0) if at else x
        if mark is not None and mark.number and moved.dim() > 2:
            table = moved.reshape(mark.number, -1)
        else:
            table = moved.flatten(1) if moved.dim() > 1 else moved.reshape(-1, 1)
        if mark is not None and mark.rows is not None and mark.rows.kind == "edges":
            out = _EdgeDropout.apply(table, self._places.edge_ids(mark.rows), draw, self._engine.profile)
        else:
            ids = torch.arange(len(table)) if mark is None else self.ids(mark)
            out = self._engine.operators.dropout(table, ids.to(table.device), draw)
        out = out.view(moved.shape)
        return out.movedim(0, at) if at else out


class _EdgeDropout(torch.autograd.Function):
    """``y = x * mask / (1 - p)`` for rows of edges [E, W]. Saves nothing: the mask is drawn again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ids: tuple[Tensor, Tensor], draw: Draw, profile: Profile) -> Tensor:
        ctx.ids, ctx.draw, ctx.profile = ids, draw, profile
        return _EdgeDropout.drop(ctx, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _EdgeDropout.drop(ctx, grad), None, None, None

    @staticmethod
    def drop(ctx: Any, x: Tensor) -> Tensor:
        """Run by run of edges: the counters of a draw are larger than the rows."""
        source, destination = ctx.ids
        with ctx.profile.span(NODEWISE):
            out = torch.empty_like(x)
            for start in range(0, len(x), _CHUNK_EDGES):
                run = slice(start, start + _CHUNK_EDGES)
                kept = edge_mask(source[run].to(x.device), destination[run].to(x.device), x.shape[1], ctx.draw)
                torch.mul(x[run], kept.to(x.dtype).mul_(ctx.draw.scale), out=out[run])
        return out


@dataclass
class RowCalls:
    """What handlers work with.

    Attributes:
        group: the workers.
        operators: of tables of rows.
        dropout: of anything.
    """

    group: Group
    operators: RowOperators
    dropout: RowDropout


Handler = Callable[[RowCalls, Call], Any]
"""(what to work with, the call) to its result."""


def _or_plain(out: Any) -> Any:
    """A result, or PyTorch's own where there is none."""
    return NotImplemented if out is None else out


def _dropout(rows: RowCalls, call: Call) -> Any:
    """``F.dropout(input, p, training, inplace)`` and ``torch.dropout(input, p, train)``."""
    x, p = call.argument(0, "input"), call.argument(1, "p", default=0.5)
    if not 0 <= p <= 1:
        return NotImplemented
    if not call.argument(2, "training", "train", default=True) or p == 0:
        return x
    return rows.dropout(x, float(p), inplace=bool(call.kwargs.get("inplace", call.name == "dropout_")))


_OF_BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_OF_TORCH_BATCH_NORM = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")


def _batch_norm(rows: RowCalls, call: Call) -> Any:
    """``F.batch_norm`` and ``torch.batch_norm``, which differ in the order of their arguments."""
    names = _OF_TORCH_BATCH_NORM if call.func is torch.batch_norm else _OF_BATCH_NORM
    given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    x, mark = given["input"], mark_of(given["input"])
    if mark is None or mark.dim != 0 or not given.get("training", False) or x.dim() < 2:
        return NotImplemented
    mean, variance, weight, bias = (given.get(key) for key in ("running_mean", "running_var", "weight", "bias"))
    if any(tensor is not None and tensor.shape != (x.shape[1],) for tensor in (mean, variance, weight, bias)):
        return NotImplemented
    running = None if mean is None or variance is None else (mean, variance)
    return rows.operators.batch_norm(x, running, weight, bias, given.get("momentum", 0.1), given.get("eps", 1e-5))


def _activation(rows: RowCalls, call: Call) -> Any:
    """ReLU and ELU (alpha 1)."""
    x, name = call.argument(0, "input"), call.name
    operators, mark = rows.operators, mark_of(x)
    if mark is None or not operators.is_table(x, mark):
        return NotImplemented
    if call.kwargs.get("inplace") or name.endswith("_"):
        return _or_plain(operators.relu_(x) if name.startswith("relu") else None)
    if name == "elu" and call.argument(1, "alpha", default=1.0) != 1:
        return NotImplemented
    out = operators.activate(name, x, rows.dropout.ids(mark))
    if out is None and name == "relu" and x.requires_grad and torch.is_grad_enabled():
        return operators.relu(x)
    return _or_plain(out)


def _linear(rows: RowCalls, call: Call) -> Any:
    """``F.linear(input, weight, bias)``."""
    x = call.argument(0, "input")
    if not rows.operators.is_table(x, mark_of(x)):
        return NotImplemented
    return _or_plain(rows.operators.linear(x, call.argument(1, "weight"), call.argument(2, "bias")))


def _product(rows: RowCalls, call: Call) -> Any:
    """``x @ W`` with a table and a matrix of parameters."""
    if len(call.args) != 2 or call.kwargs or not rows.operators.is_table(call.args[0], mark_of(call.args[0])):
        return NotImplemented
    weight = call.args[1]
    if not isinstance(weight, Tensor) or weight.dim() != 2 or mark_of(weight) is not None:
        return NotImplemented
    return _or_plain(rows.operators.linear(call.args[0], weight.t()))


def _sum_of_two(rows: RowCalls, call: Call) -> Any:
    """``a + b`` of two tables, or of rows and a vector."""
    if len(call.args) != 2 or call.kwargs:
        return NotImplemented
    x, other = call.args
    operators, mark = rows.operators, mark_of(x)
    if operators.is_table(x, mark) and (out := operators.add(x, other, onto=call.is_temporary)) is not None:
        return out
    return _or_plain(operators.plus_vector(x, other)) if mark is not None and is_plain(x, mark) else NotImplemented


def _times(rows: RowCalls, call: Call) -> Any:
    """``x * a`` of rows [N, K, D] and a vector for each head."""
    if len(call.args) != 2 or call.kwargs or not is_plain(call.args[0], mark_of(call.args[0])):
        return NotImplemented
    return _or_plain(rows.operators.times_vector(*call.args))


def _sum(rows: RowCalls, call: Call) -> Any:
    """``sum(-1)`` of such a product."""
    x = call.args[0] if call.args else None
    only = set(call.kwargs) <= {"dim", "keepdim"} and len(call.args) < 3
    if isinstance(x, Tensor) and x.dim() == 3 and call.argument(1, "dim") in (-1, 2) and only:
        sums = rows.operators.sum_of_last(x)
        if sums is not None:
            return sums.unsqueeze(-1) if call.kwargs.get("keepdim") else sums
    return NotImplemented


def _reshaped(rows: RowCalls, call: Call) -> Any:
    """The same rows in another shape. In ``x.view(len(x), -1)`` PyTorch cannot tell the size -1 where there are no rows."""
    if not call.args or mark_of(call.args[0]) is None:
        return NotImplemented
    x, *sizes = call.args
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = list(sizes[0])
    args = call.args
    if not x.numel() and all(isinstance(size, int) for size in sizes):
        sizes = [operator.index(size) for size in sizes]  # of this worker: a ``Count`` of none here need not equal 0
        if sorted(sizes)[:2] == [-1, 0]:
            of_row, known = (math.prod(size for size in shape if size > 0) for shape in (x.shape, sizes))
            args = (x, *(of_row // known if size < 0 else size for size in sizes))
    return rows.operators.same_rows(x, call.func(*args, **call.kwargs))


def _contiguous(rows: RowCalls, call: Call) -> Any:
    """``x.contiguous()`` gives a table of its own wherever it does with many rows, also for one or none."""
    x, mark = call.args[0], mark_of(call.args[0])
    if mark is None or x.shape[mark.dim] > 1 or len(call.args) > 1 or call.kwargs or is_row_major(x, mark.dim):
        return NotImplemented
    return x.clone(memory_format=torch.contiguous_format)


def _squeeze(rows: RowCalls, call: Call) -> Any:
    """``x.squeeze()`` and ``x.squeeze(dim)`` leave the rows' dimension, also on a worker that has one row."""
    tensor, mark = call.argument(0, "input"), mark_of(call.argument(0, "input"))
    if mark is None or tensor.shape[mark.dim] != 1:
        return NotImplemented
    dims: Any = call.argument(1, "dim", default=tuple(range(tensor.dim())))
    dims = (dims,) if isinstance(dims, int) else dims
    gone = [dim % tensor.dim() for dim in dims if dim % tensor.dim() != mark.dim and tensor.shape[dim] == 1]
    out = call.func(tensor, tuple(gone))
    return set_mark(out, mark._replace(dim=mark.dim - sum(dim < mark.dim for dim in gone)), shared=is_shared(tensor))


def _uniform(rows: RowCalls, call: Call) -> Any:
    """``torch.rand(edge_index.size(1))``: numbers for each edge, drawn by both ends and never held."""
    first = call.args[0] if call.args else call.kwargs.get("size")
    shape = tuple(first) if isinstance(first, (tuple, list)) else call.args
    if not shape or not isinstance(shape[0], EdgeCount):
        return NotImplemented
    dtype = call.kwargs.get("dtype") or torch.get_default_dtype()
    draw, sizes = rows.dropout.draw(0.0, of_edges=True), tuple(operator.index(size) for size in shape[1:])

    def numbers_of(run: EdgeRun, fields: Any) -> Tensor:
        return uniform_numbers(run.src_ids, run.dst_ids, math.prod(sizes), draw, dtype).view(-1, *sizes)

    return edge_rows(shape[0].edges, Written(sizes, dtype, numbers_of, (), ()))


def _instance_norm(rows: RowCalls, call: Call) -> Any:
    """``F.instance_norm`` of one graph's rows, [1, C, N]: a batch norm of them."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
    given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    x, mark = given["input"], mark_of(given["input"])
    if mark is None or mark.dim != x.dim() - 1 or x.dim() != 3 or x.shape[0] != 1 or not given.get("use_input_stats", True):
        return NotImplemented
    mean, variance = given.get("running_mean"), given.get("running_var")
    running = None if mean is None or variance is None else (mean, variance)
    table = tagged(x[0].t().contiguous(), mark.rows) if mark.rows is not None else x[0].t()
    out = rows.operators.batch_norm(
        table, running, given.get("weight"), given.get("bias"), given.get("momentum", 0.1), given.get("eps", 1e-5)
    )
    return out.t()[None]


HANDLERS: dict[str, Handler] = {
    "instance_norm": _instance_norm,
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
    "__getitem__": lambda rows, call: pick_rows(rows.operators, call),
    "squeeze": _squeeze,
    "contiguous": _contiguous,
    "narrow": lambda rows, call: narrow_rows(call),
    **dict.fromkeys("split split_with_sizes".split(), lambda rows, call: split_rows(call)),
    **dict.fromkeys("nonzero argwhere".split(), lambda rows, call: choose_rows(call)),
    **dict.fromkeys("index_select index_copy index_copy_".split(), lambda rows, call: pick_chosen(call)),
    "rand": _uniform,
    "mul": _times,
    "__mul__": _times,
    "sum": _sum,
    "flatten": _reshaped,
    "view": _reshaped,
    "reshape": _reshaped,
}
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
