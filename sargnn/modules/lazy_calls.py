"""What functions of PyTorch give for tensors without numbers (``lazy.py``).

Letters: N input rows, M output rows, E edges of this worker.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sargnn.engine.reducers.generic import EdgeRun
from sargnn.modules.edge_fields import EdgeTensor
from sargnn.modules.edge_sets import DerivedEdges, is_loop, masked, moved, with_self_loops
from sargnn.modules.expressions import AtEnd, Call, Column, Field, Node, Written, map_values
from sargnn.modules.joined import join, joined_call, repeated
from sargnn.modules.lazy import (
    EdgeCount,
    EdgeIndex,
    EdgeRows,
    Ends,
    Filled,
    Folded,
    Handler,
    Joined,
    JoinedFolded,
    Largest,
    Lazy,
    constant_field,
    edge_index,
    ends_of,
    filled,
    flat,
    folded,
    function_name,
    rows_of_edges,
    shape_of,
    values,
)
from sargnn.modules.lazy_folds import add, clamp, div, linear, scatter, set_loops
from sargnn.modules.tag import is_shared, mark_of, rows_of

if TYPE_CHECKING:
    from sargnn.modules.calls import StockCalls
    from sargnn.modules.folds import Edges


def lazy_call(calls: StockCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function of PyTorch gives where one of its arguments is a lazy tensor.

    Raises:
        ConfigError: it reads the numbers of edges' ends.
    """
    args, kwargs = map_values((args, kwargs), lambda value: _now(value, calls))
    plain = name.strip("_") if name.startswith("__") else name
    given = flat((args, kwargs))
    if any(isinstance(value, (Joined, JoinedFolded)) for value in given):
        return joined_call(calls, plain, func, args, kwargs)
    handler = _HANDLERS.get(plain)
    if handler is not None and (out := handler(func, args, kwargs)) is not NotImplemented:
        return out
    for value in given:
        if isinstance(value, (EdgeIndex, Ends)):
            raise value.edges.session.wrong(
                f"'{plain}' reads the numbers of the edges' nodes, which are spread over workers.",
                given=f"{plain} of edge_index",
                allowed="x[edge_index[0]], scatter, softmax, degree, self-loops, edge_index[:, mask]",
                hint=_HINTS.get(
                    "slice" if plain == "getitem" and isinstance(args[1], slice) else plain,
                    "message passing by torch_geometric.nn and torch_geometric.utils works (sargnn help PyG)",
                ),
            )
    lazy = [value for value in given if isinstance(value, Lazy)]
    if lazy and all(isinstance(value, Filled) for value in lazy) and (out := _of_filled(func, plain, args, kwargs)) is not None:
        return out
    of_edges: list[Any] = [value for value in lazy if isinstance(value, EdgeRows)]
    of_edges += [value for value in lazy if isinstance(value, Filled) and value.edges is not None]
    first = of_edges[0] if of_edges else None
    if first is None:
        args, kwargs = map_values((args, kwargs), values)
        return calls.__torch_function__(func, (), args, kwargs)
    edges: Edges = first.edges
    for value in lazy:
        if isinstance(value, EdgeRows) and value.edges.plan is not edges.plan:
            raise edges.session.wrong(
                f"'{plain}' joins values of different sets of edges.",
                hint="layers that add or remove self-loops give the values of the new edges, too",
            )
    in_place = name.endswith("_") and not name.startswith("__") or name.startswith("__i") and plain[1:] in _OPERATORS
    if in_place and isinstance(args[0], (EdgeRows, Filled)):
        func = getattr(Tensor, name[:-1]) if name.endswith("_") and not name.startswith("__") else _OPERATORS[plain[1:]]
        target, *others = args
        new = lazy_call(calls, func.__name__, func, (target, *others), kwargs)
        if isinstance(target, Filled):
            target.became = new
            return new
        target.field = new.field
        return target
    args, kwargs = map_values((args, kwargs), lambda value: _beside(value, edges, first.dim()))
    out = calls.__torch_function__(func, (EdgeTensor,), args, kwargs)
    return map_values(out, lambda value: rows_of_edges(value) if isinstance(value, EdgeTensor) else value)


_HINTS = {
    **dict.fromkeys(
        "slice bincount argsort sort".split(),
        "aggregations that want a node's messages side by side (LSTM, median, quantile, sort) are not computed piece by piece; "
        "sum, mean, max, min, mul, std, var, softmax and powermean are",
    ),
    **dict.fromkeys("index_select scatter_add_ scatter_reduce_".split(), "let nodes run along the first dimension of rows"),
    "cat": "an undirected graph is made before training: give the reader both directions of each edge",
}
"""What to do instead, by the function that reads the numbers."""

_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "truediv": torch.div,
    "pow": torch.pow,
}


def made_of_edges(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.ones(edge_index.size(1))`` and its like, ``row.expand(edge_index.size(1), -1)``: the same for each edge;
    ``NotImplemented`` for other sizes."""
    if name == "expand":
        sizes = _sizes(args[1:], kwargs)
        repeats = bool(sizes) and isinstance(sizes[0], EdgeCount) and args[0].dim() == len(sizes) and len(args[0]) == 1
        return repeated(args[0], sizes, sizes[0].edges) if repeats and mark_of(args[0]) is None else NotImplemented
    shape = _sizes(args[:1] if name == "full" else args, kwargs)
    if not shape or not isinstance(shape[0], EdgeCount):
        return NotImplemented
    number = {"ones": 1.0, "zeros": 0.0}.get(name)
    if number is None:
        number = kwargs["fill_value"] if "fill_value" in kwargs else args[1]
    return filled(shape, kwargs.get("dtype") or torch.get_default_dtype(), float(number), shape[0].edges)


def _sizes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    sizes = args or (kwargs.get("size", ()),)
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else tuple(sizes)


def _now(value: Any, calls: StockCalls) -> Any:
    """A lazy tensor as it is after what was written to it; one that a layer has kept from a pass before belongs to this one."""
    if isinstance(value, Filled) and value.became is not None:
        return value.became
    if isinstance(value, Lazy) and value.edges is not None and value.edges.session.calls is not calls:
        session = None if calls.session is None else calls.session()
        assert session is not None
        value.edges.session = session
    return value


def _beside(value: Any, edges: Edges, dims: int) -> Any:
    """An argument beside a field of edges. Beside one self-loop of each node a node's row is its loop's."""
    if isinstance(edges, DerivedEdges) and edges.loops == "only" and getattr(edges.parent, "loops", None) == "each":
        if rows_of(value) == edges.destinations:
            return EdgeTensor(edges, edges.field("v", value))
    if isinstance(value, Filled) and (value.edges is not None or value.dim() == dims):
        return constant_field(value, edges)
    return values(value)


def _of_filled(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of numbers that are the same in every place; None where it is not known to take them one by one."""
    if name not in _BY_ELEMENT or kwargs:
        return None
    if not all(isinstance(value, (Filled, int, float)) for value in args):
        return None
    first = next(value for value in args if isinstance(value, Filled))
    if any(isinstance(value, Filled) and value.shape != first.shape for value in args):
        return None
    given = [torch.tensor(v.number, dtype=v.dtype) if isinstance(v, Filled) else v for v in args]
    with torch._C.DisableTorchFunction():
        out = func(*given)
    return filled(shape_of(first), out.dtype, out.item(), first.edges)


_BY_ELEMENT = frozenset("neg add sub mul div true_divide truediv pow sqrt rsqrt abs exp reciprocal float double to".split())


def _getitem(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, key = args
    if isinstance(x, EdgeIndex):
        if isinstance(key, int):
            ends = ends_of(x.edges, x.side(key))
            ends.first = x.first[key]
            return ends
        if isinstance(key, tuple) and len(key) == 2 and key[0] in (slice(None), Ellipsis) and _is_mask(key[1]):
            return _index(masked(x.edges, key[1].field.node), flipped=x.flipped)
        order = key.tolist() if isinstance(key, Tensor) and not isinstance(key, Lazy) else key
        if order in ([0, 1], [1, 0], (0, 1), (1, 0)):
            return _index(x.edges, flipped=x.flipped ^ (list(order) == [1, 0]))
        return NotImplemented
    if isinstance(key, Ends):
        return _gathered(x, key)
    if isinstance(x, Ends) and isinstance(key, tuple) and key[0] in (slice(None), Ellipsis) and not any(key[1:]):
        return _same_shape(func, args, kwargs)  # ends[:, None]
    if _is_mask(key) and isinstance(x, (Ends, EdgeRows, Filled)):
        edges = masked(key.edges, key.field.node)
        if isinstance(x, Ends):
            return ends_of(edges, x.side)
        if isinstance(x, Filled):
            return filled((EdgeCount.from_edges(edges), *x.shape[1:]), x.dtype, x.number, edges)
        return rows_of_edges(EdgeTensor(edges, moved(x.field.node, x.edges, edges)))
    if isinstance(key, EdgeRows) and not isinstance(x, Lazy) and mark_of(x) is None:
        return _picked(x, key)
    return NotImplemented


def _is_mask(key: Any) -> bool:
    return isinstance(key, EdgeRows) and key.dtype == torch.bool and key.dim() == 1


def _index(edges: Edges, *, flipped: bool) -> EdgeIndex:
    index = edge_index(edges)
    index.flipped = flipped
    return index


def _index_select(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0] if args else kwargs["input"]
    dim = args[1] if len(args) > 1 else kwargs["dim"]
    index = args[2] if len(args) > 2 else kwargs["index"]
    if isinstance(index, Ends) and dim % x.dim() == 0:
        return _gathered(x, index)
    if isinstance(index, EdgeRows) and dim % x.dim() == 0 and not isinstance(x, Lazy) and mark_of(x) is None:
        return _picked(x, index)
    return NotImplemented


def _embedding(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.embedding(numbers, weight)``."""
    index, weight = args[:2] if len(args) > 1 else (args[0], kwargs["weight"])
    if isinstance(index, Ends) and mark_of(weight) is not None:
        return _gathered(weight, index)
    return _picked(weight, index) if isinstance(index, EdgeRows) and mark_of(weight) is None else NotImplemented


def _picked(table: Tensor, index: EdgeRows) -> EdgeRows:
    """Rows of a table that all workers have, by a number of each edge."""
    shape = (*index.shape[1:], *table.shape[1:])
    node = Call(tuple(operator.index(size) for size in shape), table.dtype, _rows_by_number, (table, index.field.node), {})
    return rows_of_edges(EdgeTensor(index.edges, node))


def _rows_by_number(table: Tensor, numbers: Tensor) -> Tensor:
    return table[numbers]


def _gathered(x: Any, ends: Ends) -> Any:
    edges = ends.edges
    # Told by whose rows they are: how many a worker has of them must not decide when a fold is computed.
    own = edges.sources if ends.side == "u" else edges.destinations
    if isinstance(x, Folded) and x.fold.edges.destinations == own:
        node: Node = AtEnd(x.fold.shape, x.dtype, x.fold, ends.side)
    else:
        rows = values(x)
        if isinstance(rows, EdgeTensor):
            return NotImplemented
        if not isinstance(x, Filled):
            edges.session.takes_rows(rows, own, "read at the edges' ends")
        if rows_of(rows) == edges.destinations != own and edges.destinations.type == own.type:
            raise edges.session.wrong(
                "Rows that a layer computes are read at the edges' sources, of which it computes some alone.",
                given="a message flow",
                allowed="mfg=false batches.count=1 batches.steps=1 sample.fanouts=null",
                hint="layers that scale by both ends' degrees, such as GCNConv, need full batches",
            )
        mark, count = mark_of(rows), edges.plan.num_out
        of_sources = mark is not None and mark.rows is not None and mark.rows.type == edges.sources.type
        if ends.side == "v" and len(rows) > count and of_sources and len(rows) == edges.plan.num_rows:
            rows = rows[:count]  # the rows that the layer computes are the first of those that it reads
        node = edges.field(ends.side, rows)
    return rows_of_edges(EdgeTensor(edges, node))


def _unbind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not isinstance(args[0], EdgeIndex):
        return NotImplemented
    return tuple(ends_of(args[0].edges, args[0].side(row)) for row in (0, 1))


def _iter(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return iter(_unbind(func, args, kwargs)) if isinstance(args[0], EdgeIndex) else NotImplemented


def _flip(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given: Any = args[1:] if len(args) > 1 else (kwargs.get("dims"),)
    dims = tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else tuple(given)
    if not isinstance(args[0], EdgeIndex) or dims not in ((0,), (-2,)):
        return NotImplemented
    return _index(args[0].edges, flipped=not args[0].flipped)


def _stack(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.stack([row, col])``."""
    tensors = args[0]
    if len(tensors) != 2 or not all(isinstance(ends, Ends) and ends.dim() == 1 for ends in tensors):
        return NotImplemented
    first, second = tensors
    if first.edges.plan is not second.edges.plan or first.side == second.side or (args[1:] or (kwargs.get("dim", 0),))[0] != 0:
        return NotImplemented
    return _index(first.edges, flipped=first.side == "v")


def _narrow(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The edges of a layer, and their weights, cut out of those of all layers by ``trim_to_layer``."""
    x = args[0]
    dim, start, length = (args[k] if len(args) > k else kwargs[name] for k, name in enumerate(("dim", "start", "length"), 1))
    if not isinstance(length, EdgeCount) or start != 0:
        return NotImplemented
    if isinstance(x, EdgeIndex) and dim % 2 == 1:
        return _index(length.edges, flipped=x.flipped)
    if isinstance(x, EdgeRows) and dim == 0 and isinstance(x.field.node, Column):
        return rows_of_edges(EdgeTensor(length.edges, x.field.node))
    if isinstance(x, EdgeRows) and dim == 0 and isinstance(x.field.node, Field) and is_shared(x.field.node.tensor):
        return rows_of_edges(EdgeTensor(length.edges, length.edges.field("e", length.edges.weights())))
    return NotImplemented


def _same_shape(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Ends of edges, or a count, in another form; an index as it is."""
    lazy = args[0]
    if isinstance(lazy, EdgeIndex):
        if function_name(func) == "clone":
            return _index(lazy.edges, flipped=lazy.flipped)
        return lazy if function_name(func) in ("contiguous", "long", "to", "detach") else NotImplemented
    count = isinstance(lazy, Folded) and lazy.fold.kind == "count" and not lazy.fold.is_computed
    if not (isinstance(lazy, (Ends, Filled)) or count):
        return NotImplemented
    with torch._C.DisableTorchFunction():
        given = map_values((args, kwargs), lambda value: value.as_subclass(Tensor) if isinstance(value, Tensor) else value)
        out = func(*given[0], **given[1])
    if isinstance(lazy, Filled):
        edges = lazy.edges if out.dim() and out.shape[0] == Tensor.size(lazy)[0] else None
        return filled(out.shape, out.dtype, lazy.number, edges)
    if isinstance(lazy, Ends):
        return Lazy.blank(Ends, out.shape, torch.int64, edges=lazy.edges, side=lazy.side, first=lazy.first)
    if function_name(func) in ("to", "float", "double", "long") or not out.dim():
        return NotImplemented
    return folded(lazy.fold.with_shape(tuple(out.shape[1:])))


def _compared(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``row != col``, ``row < col``: by original numbers."""
    if len(args) != 2 or not all(isinstance(end, Ends) for end in args) or args[0].edges.plan is not args[1].edges.plan:
        return NotImplemented
    name, edges = function_name(func), args[0].edges
    if {args[0].side, args[1].side} != {"u", "v"}:
        return NotImplemented
    if name in ("eq", "ne"):
        node: Node = is_loop()
        if name == "ne":
            node = Call((), torch.bool, torch.logical_not, (node,), {})
    else:
        compare, ends = getattr(operator, name), [end.side for end in args]

        def compared(run: EdgeRun, fields: Any) -> Tensor:
            left, right = (run.src_ids if where == "u" else run.dst_ids for where in ends)
            out: Tensor = compare(left, right)
            return out

        node = Written((), torch.bool, compared, (), ())
    return rows_of_edges(EdgeTensor(edges, node))


def _cat(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Self-loops appended to edges, and what they carry to what edges carry."""
    tensors = args[0] if args else kwargs["tensors"]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if (joined := join(tensors, dim)) is not NotImplemented:
        return joined
    if len(tensors) != 2:
        return NotImplemented
    first, second = tensors
    if isinstance(first, EdgeIndex) and isinstance(second, Tensor) and not isinstance(second, Lazy):
        plan = first.edges.plan
        rows = second.shape[1] if second.dim() == 2 else -1
        if rows not in (plan.num_out, plan.num_rows) or dim % 2 != 1 or not bool((second == torch.arange(rows)).all()):
            return NotImplemented
        return _index(with_self_loops(first.edges, "each"), flipped=first.flipped)
    if not isinstance(first, (EdgeRows, Filled)) or first.edges is None or dim % first.dim() != 0:
        return NotImplemented
    edges = with_self_loops(first.edges, "each")
    if isinstance(first, Filled) and isinstance(second, Filled) and first.number == second.number:
        return filled((EdgeCount.from_edges(edges), *first.shape[1:]), first.dtype, first.number, edges)
    if isinstance(second, EdgeRows):
        return NotImplemented
    before = first.field if isinstance(first, EdgeRows) else constant_field(first)
    loop: Any = second.number if isinstance(second, Filled) else edges.field("v", values(second)[: edges.plan.num_out])
    node = Call(before.node.shape, before.dtype, _where_loop, (is_loop(), loop, moved(before.node, first.edges, edges)), {})
    return rows_of_edges(EdgeTensor(edges, node))


def _where_loop(loops: Tensor, loop: Any, other: Tensor) -> Tensor:
    return torch.where(loops.view(-1, *[1] * (other.dim() - 1)), loop, other)


def _new(number: float | None) -> Handler:
    """``rows.new_zeros(size)`` and its like."""

    def handler(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        like, *given = args
        value = number
        if value is None:
            value = kwargs["fill_value"] if "fill_value" in kwargs else given[1]
            given = given[:1]
        shape = _sizes(tuple(given), kwargs)
        edges = shape[0].edges if shape and isinstance(shape[0], EdgeCount) else None
        return filled(shape, kwargs.get("dtype") or like.dtype, float(value), edges)

    return handler


def _like(number: float | None) -> Handler:
    def handler(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = number
        if value is None:
            value = kwargs["fill_value"] if "fill_value" in kwargs else args[1]
        edges = args[0].edges if isinstance(args[0], (EdgeRows, Filled)) else None
        return filled(shape_of(args[0]), kwargs.get("dtype") or args[0].dtype, float(value), edges)

    return handler


def _max(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The largest number of a node."""
    if len(args) > 1 or kwargs:
        return NotImplemented
    if isinstance(args[0], Ends):
        return Largest.of(args[0].edges, args[0].side)
    return Largest.of(args[0].edges, "uv") if isinstance(args[0], EdgeIndex) else NotImplemented


def _setitem(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target, key, value = args
    if isinstance(target, EdgeIndex) and isinstance(value, Ends) and key in (0, 1) and value.side == target.side(key):
        target.first = (value.first, target.first[1]) if key == 0 else (target.first[0], value.first)
        return None
    if isinstance(key, Ends):
        return set_loops(target, key, value)
    if _is_mask(key) and isinstance(target, (EdgeRows, Filled)) and target.edges is not None:
        before = target.field if isinstance(target, EdgeRows) else constant_field(target)
        if isinstance(value, EdgeRows):  # of the edges where the mask holds, made of the target's
            value = moved(value.field.node, value.edges, target.edges)
        elif isinstance(value, Filled):
            value = value.number
        node = Call(before.node.shape, before.dtype, _where_loop, (key.field.node, value, before.node), {})
        if isinstance(target, EdgeRows):
            target.field = EdgeTensor(target.edges, node)
        else:
            target.became = rows_of_edges(EdgeTensor(target.edges, node))
        return None
    return NotImplemented


_HANDLERS: dict[str, Handler] = {
    "getitem": _getitem,
    "index_select": _index_select,
    "embedding": _embedding,
    "unbind": _unbind,
    "iter": _iter,
    "flip": _flip,
    "narrow": _narrow,
    "stack": _stack,
    **dict.fromkeys("view reshape unsqueeze expand expand_as contiguous long to clone detach".split(), _same_shape),
    "new_zeros": _new(0.0),
    "new_ones": _new(1.0),
    "new_full": _new(None),
    "zeros_like": _like(0.0),
    "ones_like": _like(1.0),
    "full_like": _like(None),
    **dict.fromkeys("scatter_add_ scatter_add index_add_ index_add".split(), scatter("sum")),
    **dict.fromkeys("scatter_reduce_ scatter_reduce".split(), scatter(None)),
    "clamp": clamp,
    "clamp_min": clamp,
    **dict.fromkeys("div true_divide truediv".split(), div),
    **dict.fromkeys("add add_".split(), add),
    "linear": linear,
    "max": _max,
    **dict.fromkeys("eq ne lt le gt ge".split(), _compared),
    **dict.fromkeys("cat concat concatenate".split(), _cat),
    "setitem": _setitem,
}
