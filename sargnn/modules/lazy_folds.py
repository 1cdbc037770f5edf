"""What becomes of rows of edges that a module scatters to their ends: folds, means, softmax, degrees (``lazy_calls.py``).

Letters: N input rows, M output rows, E edges of this worker.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sargnn.modules.edge_fields import EdgeTensor
from sargnn.modules.edge_sets import DerivedEdges, Reversed, reverse
from sargnn.modules.expressions import AtEnd, Call, Field, Node, Softmax, Where, function_of
from sargnn.modules.lazy import (
    EdgeRows,
    Ends,
    Filled,
    Fold,
    Folded,
    Handler,
    Lazy,
    constant_field,
    folded,
    function_name,
    rows_of_edges,
    values,
)
from sargnn.modules.patterns import is_weighted, product_of
from sargnn.modules.row_folds import SumOverWorkers
from sargnn.modules.tag import tag_of, tagged

if TYPE_CHECKING:
    from sargnn.modules.folds import Edges

_FOLDS = {"sum": "sum", "mean": "mean", "amax": "max", "amin": "min", "prod": "mul"}
SMALL = 1e-12
"""What is added to a sum of a softmax's weights, one of which is 1, so that it is no zero."""


def scatter(kind: str | None) -> Handler:
    """Rows of edges folded at their ends. kind: None where an argument says it."""

    def handler(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = ("dim", "index", "src" if "scatter" in function_name(func) else "source", "reduce", "include_self")
        given = {**dict(zip(names, args[1:], strict=False)), **kwargs}
        target, index, source = args[0], given["index"], given[names[2]]
        reduce = kind or _FOLDS.get(given.get("reduce", ""))
        if isinstance(index, EdgeRows) and reduce == "sum" and given["dim"] % target.dim() == 0:
            return _summed_by_number(target, index, source)
        if not isinstance(index, Ends) or reduce is None or given["dim"] % target.dim() != 0:
            return NotImplemented
        edges = index.edges
        shape = tuple(operator.index(size) for size in target.shape[1:])
        made: Any
        if isinstance(source, Filled) and source.number == 1 and reduce == "sum":
            made = _count(index, source.dtype, shape)
        else:
            if isinstance(source, Filled):
                field = constant_field(source, edges)
            elif isinstance(source, EdgeRows):
                field = source.field
                if field.edges.plan is not edges.plan:
                    return NotImplemented
            else:
                field = EdgeTensor(edges, edges.field("e", values(source)))
            node, dtype = field.node, source.dtype
            if index.side == "v":
                made = folded(Fold(edges, reduce, node, dtype))
            else:
                made = folded(Fold(reverse(edges), reduce, _AtSources(edges).changed(node), dtype, node))
        if isinstance(target, Filled) and target.number == (1 if reduce == "mul" else 0):
            if function_name(func) != getattr(func, "__name__", ""):
                target.became = made
            return made
        if isinstance(target, Filled):
            return NotImplemented
        out = _joined_to(target, values(made), reduce, edges, include_self=given.get("include_self", True))
        out = target.copy_(out) if getattr(func, "__name__", "").endswith("_") else out
        return tagged(out, edges.destinations if index.side == "v" else edges.sources)

    return handler


def _joined_to(target: Tensor, rows: Tensor, reduce: str, edges: Edges, *, include_self: bool) -> Tensor:
    """Rows that were folded, with those of the table that they are folded into."""
    there = (edges.plan.in_degrees > 0).view(-1, *[1] * (rows.dim() - 1))
    if not include_self:
        return torch.where(there, rows, target)
    if reduce == "sum":
        return target + rows
    if reduce == "mul":
        return target * rows
    if reduce == "mean":
        degrees = edges.plan.in_degrees.view(there.shape).to(rows.dtype)
        return (target + degrees * rows) / (1 + degrees)
    larger: Tensor = (torch.maximum if reduce == "max" else torch.minimum)(target, rows)
    return torch.where(there, larger, target)


def _summed_by_number(target: Any, index: EdgeRows, source: Any) -> Any:
    """What edges carry, added up over all workers by a number of each edge, as by its relation."""
    if not isinstance(target, Filled):
        return NotImplemented
    field = constant_field(source, index.edges) if isinstance(source, Filled) else values(source)
    rows = field.value() if isinstance(field, EdgeTensor) else field
    with torch._C.DisableTorchFunction():
        table = torch.full(tuple(Tensor.size(target)), target.number, dtype=target.dtype)
    own = table.new_zeros(table.shape).index_add(0, index.field.value().flatten(), rows.to(table.dtype))
    target.became = table + SumOverWorkers.apply(index.edges.session.engine.group, own)
    return target.became


def _count(index: Ends, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """How many edges end or start in each row."""
    if index.side == "v":
        return folded(Fold(index.edges, "count", None, dtype).with_shape(shape))
    degrees = index.edges.out_degrees().to(dtype).view(-1, *shape)
    return tagged(degrees, index.edges.sources)


def clamp(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    lazy = args[0]
    low = args[1] if len(args) > 1 else kwargs.get("min")
    if not isinstance(lazy, Folded) or lazy.fold.kind != "count" or lazy.fold.is_computed or low != 1:
        return NotImplemented
    if kwargs.get("max") is not None or len(args) > 2:
        return NotImplemented
    return folded(lazy.fold.with_shape(lazy.fold.shape, at_least=1))


def div(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Means, and softmax over the edges of each node."""
    if len(args) != 2 or kwargs:
        return NotImplemented
    above, below = args
    if isinstance(above, Folded) and isinstance(below, Folded):
        fold, count = above.fold, below.fold
        if fold.kind == "sum" and count.kind == "count" and count.at_least == 1 and not (fold.is_computed or count.is_computed):
            if fold.edges.plan is count.edges.plan:
                return folded(Fold(fold.edges, "mean", fold.node, fold.dtype))
    if isinstance(above, EdgeRows) and isinstance(below, EdgeRows):
        logits = _logits(above.field.node, below.field.node, "v")
        if logits is not None:
            return rows_of_edges(EdgeTensor(above.edges, Softmax(logits.shape, logits.dtype, logits)))
    return NotImplemented


class _AtSources(Reversed):
    """Also what is a softmax over the edges out of each source: of the reversed edges it is over those of a destination."""

    def change(self, node: Node) -> Node:
        if isinstance(node, Call) and function_of(node) in ("div", "true_divide", "truediv") and len(node.args) == 2:
            logits = None if node.kwargs else _logits(*node.args, "u")
            if logits is not None:
                return Softmax(node.shape, node.dtype, self.changed(logits))
        return super().change(node)


def _logits(above: Node, below: Any, where: Where) -> Node | None:
    """Of the softmax that a quotient is: exp(logits - their maximum) / the sum of that, over the edges of each node."""
    if not (isinstance(below, AtEnd) and isinstance(below.fold, Fold) and below.fold.kind == "sum" and below.where == where):
        return None
    if below.fold.origin is not above:
        return None

    def of(end: AtEnd) -> Any:
        is_largest = isinstance(end.fold, Fold) and end.fold.kind == "max" and end.where == where
        return end.fold.origin if is_largest else None  # type: ignore[attr-defined]

    return shifted_softmax(above, of)


def shifted_softmax(above: Node, largest_of: Callable[[AtEnd], Any]) -> Node | None:
    """The logits of ``exp(logits - their maximum)``.

    Args:
        largest_of: what a maximum at the edges' ends is of; None: it is none.
    """
    if function_of(above) != "exp":
        return None
    difference = above.args[0]  # type: ignore[attr-defined]
    if function_of(difference) != "sub" or len(difference.args) != 2 or not isinstance(difference.args[1], AtEnd):
        return None
    logits, largest = difference.args
    of = largest_of(largest)
    while function_of(of) == "detach":
        of = of.args[0]
    return logits if of is logits and isinstance(logits, Node) else None


def add(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Ends moved up to where their nodes' rows begin in a table, and sums of weights that are no zero anyway."""
    lazy = args[0]
    if isinstance(lazy, Ends) and len(args) == 2 and isinstance(args[1], int):
        return Lazy.blank(Ends, lazy.shape, torch.int64, edges=lazy.edges, side=lazy.side, first=lazy.first + args[1])
    if isinstance(lazy, Folded) and len(args) == 2 and isinstance(args[1], float) and 0 < args[1] <= SMALL:
        if lazy.fold.kind == "sum" and function_of(lazy.fold.origin) == "exp":
            return lazy
    return NotImplemented


def linear(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A map W [O, F] of summed or averaged rows [M, F], O < F: the rows are mapped first, W sum x_j = sum W x_j, so that O
    columns travel instead of F. Sums of rows that never change are kept over passes, and mapped as they are."""
    given = {**dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
    lazy, weight, bias = given["input"], given["weight"], given.get("bias")
    if not isinstance(lazy, Folded) or lazy.fold.is_computed or lazy.fold.kind not in ("sum", "mean"):
        return NotImplemented
    fold, node = lazy.fold, lazy.fold.node
    assert node is not None
    pair = product_of(node) if is_weighted(node) else None
    rows = pair[0] if pair else node
    if not isinstance(rows, Field) or rows.where != "u" or len(rows.shape) != 1 or len(weight) >= rows.shape[0]:
        return NotImplemented
    if tag_of(rows.tensor).constant:
        return NotImplemented
    call = fold.edges.session.calls.__torch_function__
    mapped: Node = Field((len(weight),), rows.dtype, "u", call(torch.nn.functional.linear, (), (rows.tensor, weight)))
    if pair:
        mapped = Call(mapped.shape, mapped.dtype, torch.mul, (mapped, pair[1]), {})
    made = Fold(fold.edges, fold.kind, mapped, fold.dtype)
    return folded(made) if bias is None else call(torch.add, (), (made.rows(), bias))


def set_loops(target: Any, key: Ends, value: Any) -> Any:
    """``rows[ends of self-loops] = what these carry``: each node's own."""
    if isinstance(value, Filled) and isinstance(target, Filled) and value.number == target.number:
        return None
    only = key.edges
    if not (isinstance(only, DerivedEdges) and only.loops == "only"):
        return NotImplemented
    if isinstance(value, EdgeRows):
        carried = only.folded("max", value.field.node, "what self-loops carry")
    else:
        carried = torch.full((only.plan.num_out,), value.number, dtype=value.dtype)
    there = (only.plan.in_degrees > 0).view(-1, *[1] * (carried.dim() - 1))
    if isinstance(target, Filled):
        rest = target.number
        target.became = tagged(torch.where(there, carried, rest), only.destinations)
    else:
        target.copy_(torch.where(there, carried, target))
    return None
