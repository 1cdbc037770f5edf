"""What becomes of rows of edges that a module scatters to their ends: folds, means, softmax, degrees (``lazy_calls.py``).

Letters: N input rows, M output rows, E edges of this worker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sargnn.modules.edge_sets import DerivedEdges, Reversed, reverse
from sargnn.modules.expressions import AtEnd, Call, Field, Node, Softmax, Where, function_of
from sargnn.modules.lazy import (
    EdgeRows,
    Ends,
    Filled,
    Folded,
    Handler,
    blank,
    check_alone,
    edge_rows,
    folded,
    numbers,
    own_shape,
    same_number,
    values,
)
from sargnn.modules.patterns import is_weighted, product_of
from sargnn.modules.pending_fold import Fold
from sargnn.modules.row_folds import SumOverWorkers
from sargnn.modules.tag import tag_of, tagged

if TYPE_CHECKING:
    from sargnn.modules.folds import Edges

_REDUCTIONS = {"sum": "sum", "mean": "mean", "amax": "max", "amin": "min", "prod": "mul"}
SMALL = 1e-12
"""What is added to a sum of a softmax's weights, one of which is 1, so that it is no zero."""


def _scattered(func: Any, target: Any, dim: int, index: Any, source: Any, reduce: Any, include_self: bool = True) -> Any:
    """Rows of edges folded at their ends."""
    if reduce is None or dim % target.dim() != 0:
        return NotImplemented
    if isinstance(index, EdgeRows) and reduce == "sum":
        return _summed_by_number(target, index, source, writes=getattr(func, "__name__", "").endswith("_"))
    if not isinstance(index, Ends):
        return NotImplemented
    edges, shape, name = index.edges, own_shape(target)[1:], getattr(func, "__name__", "")
    if isinstance(source, Filled):
        source = same_number(edges, own_shape(source)[1:], source.dtype, source.number)
    if not (_is_for_each_row(target, index) and own_shape(source)[1:] == shape and index.dim() in (1, source.dim())):
        return NotImplemented
    if index.dim() > 1 and own_shape(index) != own_shape(source):  # which adds some columns alone
        return NotImplemented
    made: Any
    if isinstance(source, EdgeRows) and source.number == 1 and reduce == "sum":
        made = _count(index, source.dtype, shape)
    else:
        if isinstance(source, EdgeRows) and source.edges.plan is not edges.plan:
            return NotImplemented
        node = source.node if isinstance(source, EdgeRows) else edges.field("e", values(source))
        if index.side == "v":
            made = folded(Fold(edges, reduce, node, source.dtype))
        else:
            made = folded(Fold(reverse(edges), reduce, _AtSources(edges).changed(node), source.dtype, node))
    up_to = target.up_to if isinstance(target, Filled) else None
    if isinstance(made, Folded):
        made.fold.up_to = up_to
    elif up_to is not None:
        up_to.check()
    is_start = isinstance(target, Filled) and target.number == (1 if reduce == "mul" else 0)
    if not is_start or (include_self and reduce in ("max", "min", "mean")):
        into = edges if index.side == "v" else reverse(edges)
        rows = values(made)
        if isinstance(target, Filled):
            before = torch.full_like(rows, target.number)
        else:
            before = values(target)
            edges.session.takes_rows(before, index.rows, "what edges are folded into")
        rows = _joined_to(before, rows, reduce, into, include_self=include_self)
        if name.endswith("_") and not isinstance(target, Filled):
            rows = target.copy_(rows)
        made = tagged(rows, edges.destinations if index.side == "v" else edges.sources)
    if name.endswith("_") and isinstance(target, Filled):
        check_alone(target, name)
        target.became = made
    return made


def _scatter_add(func: Any, input: Any, dim: int, index: Any, src: Any) -> Any:
    return _scattered(func, input, dim, index, src, "sum")


def _index_add(func: Any, input: Any, dim: int, index: Any, source: Any) -> Any:
    return _scattered(func, input, dim, index, source, "sum")


def _is_for_each_row(target: Any, index: Ends) -> bool:
    """Whether a table has a row for each node at these ends, here or of all workers; without edges it may have none."""
    edges = index.edges
    read = edges.session.calls.places.size(replace(edges.sources, type=index.rows.type))
    nodes = [edges.number_of_dst_nodes(), read] if index.side == "v" else [edges.number_of_src_nodes(), read]
    sizes = [size for count in nodes for size in (count.own, count.total)]
    return own_shape(target)[0] in sizes or edges.num_edges().total == 0


def _scatter_reduce(func: Any, input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:
    return _scattered(func, input, dim, index, src, _REDUCTIONS.get(reduce), include_self)


SCATTERS: dict[str, Handler] = {
    **dict.fromkeys(("scatter_add_", "scatter_add"), _scatter_add),
    **dict.fromkeys(("index_add_", "index_add"), _index_add),
    **dict.fromkeys(("scatter_reduce_", "scatter_reduce"), _scatter_reduce),
}


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


def _summed_by_number(target: Any, index: EdgeRows, source: Any, *, writes: bool) -> Any:
    """What edges carry, added up over all workers by a number of each edge, as by its relation."""
    if not isinstance(target, Filled):
        return NotImplemented
    if isinstance(source, Filled):
        source = same_number(index.edges, own_shape(source)[1:], source.dtype, source.number)
    table = values(target)
    own = table.new_zeros(table.shape).index_add(0, index.value().flatten(), numbers(source).to(table.dtype))
    made = table + SumOverWorkers.apply(index.edges.session.engine.group, own)
    if writes:
        check_alone(target, "scatter")
        target.became = made
    return made


def _count(index: Ends, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """How many edges end or start in each row."""
    if index.side == "v":
        return folded(Fold(index.edges, "count", None, dtype).with_shape(shape))
    degrees = index.edges.out_degrees().to(dtype).view(-1, *[1] * len(shape)).expand(-1, *shape)
    return tagged(degrees, index.edges.sources)


def _clamp(func: Any, input: Any, min: Any = None, max: Any = None) -> Any:
    if not isinstance(input, Folded) or input.fold.kind != "count" or input.fold.is_computed or min != 1 or max is not None:
        return NotImplemented
    return folded(input.fold.with_shape(input.fold.shape, at_least=1))


def _div(func: Any, input: Any, other: Any) -> Any:
    """Means, and softmax over the edges of each node."""
    if isinstance(input, Folded) and isinstance(other, Folded):
        fold, count = input.fold, other.fold
        if fold.kind == "sum" and count.kind == "count" and count.at_least == 1 and not (fold.is_computed or count.is_computed):
            fits = len(fold.shape) == len(count.shape) and torch.broadcast_shapes(fold.shape, count.shape) == fold.shape
            if fold.edges.plan is count.edges.plan and fits and not fold.plus and fold.is_tracked_as_now:
                mean = Fold(fold.edges, "mean", fold.node, fold.dtype)
                mean.up_to = fold.up_to
                return folded(mean)
    if isinstance(input, EdgeRows) and isinstance(other, EdgeRows):
        logits = _logits(input.node, other.node, "v", input.edges)
        if logits is not None:
            return edge_rows(input.edges, Softmax(logits.shape, logits.dtype, logits))
    return NotImplemented


class _AtSources(Reversed):
    """Also what is a softmax over the edges out of each source: of the reversed edges it is over those of a destination."""

    def change(self, node: Node) -> Node:
        if isinstance(node, Call) and function_of(node) in ("div", "true_divide", "truediv") and len(node.args) == 2:
            logits = None if node.kwargs else _logits(*node.args, "u", reverse(self._edges))
            if logits is not None:
                return Softmax(node.shape, node.dtype, self.changed(logits))
        return super().change(node)


def _logits(above: Node, below: Any, where: Where, edges: Edges) -> Node | None:
    """Of the softmax that a quotient is: exp(logits - their maximum) / the sum of that, over the edges of each node.

    Args:
        edges: those that it is to be over, into each node.
    """
    if not (isinstance(below, AtEnd) and isinstance(below.fold, Fold) and below.fold.kind == "sum" and below.where == where):
        return None
    if below.fold.origin is not above or below.fold.edges.plan is not edges.plan or not below.fold.is_tracked_as_now:
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


def _add(func: Any, input: Any, other: Any, *, writes: bool = False) -> Any:
    """Ends moved up to where their nodes' rows begin in a table, and sums of weights that are no zero anyway."""
    if isinstance(input, Ends) and isinstance(other, int):
        if writes:
            input.begin[0] = input.first + other
            return input
        return blank(Ends, own_shape(input), torch.int64, edges=input.edges, side=input.side, begin=[input.first + other])
    if isinstance(input, Folded) and isinstance(other, float) and 0 < other <= SMALL:
        if input.fold.kind == "sum" and function_of(input.fold.origin) == "exp" and not input.fold.is_computed:
            return folded(input.fold.with_added(other))
    return NotImplemented


def _linear(func: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    """A map W [O, F] of summed or averaged rows [M, F], O < F: the rows are mapped first, W sum x_j = sum W x_j, so that O
    columns travel instead of F. Sums of rows that never change are kept over passes, and mapped as they are."""
    if not isinstance(input, Folded) or input.fold.is_computed or input.fold.kind not in ("sum", "mean"):
        return NotImplemented
    if input.fold.plus or not input.fold.is_tracked_as_now:
        return NotImplemented
    fold, node = input.fold, input.fold.node
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
    fold.check()
    made = Fold(fold.edges, fold.kind, mapped, fold.dtype)
    return folded(made) if bias is None else call(torch.add, (), (made.rows(), bias))


def set_loops(target: Any, key: Ends, value: Any) -> Any:
    """``rows[ends of self-loops] = what these carry``: each node's own."""
    only, number = key.edges, value.number if isinstance(value, (Filled, EdgeRows)) else None
    if isinstance(target, Filled) and number == target.number:
        return None
    if not (isinstance(only, DerivedEdges) and only.loops == "only") or not isinstance(value, (Filled, EdgeRows)):
        return NotImplemented
    if number is None:
        carried = only.folded("max", value.node, "what self-loops carry")  # type: ignore[union-attr]
    else:
        carried = torch.full((only.plan.num_out,), number, dtype=value.dtype)
    there = (only.plan.in_degrees > 0).view(-1, *[1] * (carried.dim() - 1))
    if isinstance(target, Filled):
        check_alone(target, "x[...] =")
        target.became = tagged(torch.where(there, carried, target.number), only.destinations)
    else:
        target.copy_(torch.where(there, carried, target))
    return None


FOLDS: dict[str, Handler] = {
    **SCATTERS,
    **dict.fromkeys(("clamp", "clamp_min"), _clamp),
    **dict.fromkeys("div true_divide truediv".split(), _div),
    "add": _add,
    "add_": partial(_add, writes=True),
    "linear": _linear,
}
