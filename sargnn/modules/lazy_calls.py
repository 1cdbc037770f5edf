"""What functions of PyTorch give for tensors without numbers (``lazy.py``).

A handler has the arguments of the function that it answers for, by their names there, after the function itself. A call whose
arguments do not fit is none of its.

Letters: N input rows, M output rows, E edges of this worker.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sargnn.engine.reducers.generic import EdgeRun
from sargnn.modules.call import answer
from sargnn.modules.edge_calls import noted_call
from sargnn.modules.edge_sets import DerivedEdges, is_loop, masked, moved, with_self_loops
from sargnn.modules.expressions import AtEnd, Call, Column, Field, Node, Written, flat, function_name, map_values
from sargnn.modules.functions import Function, check_writes, known_function
from sargnn.modules.joined import join, joined_call
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
    blank,
    check_alone,
    edge_index,
    edge_rows,
    ends_of,
    filled,
    folded,
    is_moved,
    numbers,
    own_shape,
    same_number,
    share,
    values,
)
from sargnn.modules.lazy_folds import FOLDS, set_loops
from sargnn.modules.lazy_made import full_like, new_filled, new_full
from sargnn.modules.tag import is_shared, mark_of, own_of, rows_of

if TYPE_CHECKING:
    from sargnn.modules.calls import StockCalls
    from sargnn.modules.folds import Edges


def lazy_call(calls: StockCalls, known: Function, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function of PyTorch gives where one of its arguments is a lazy tensor.

    Raises:
        ConfigError: it reads the numbers of edges' ends.
    """
    args, kwargs = map_values((args, kwargs), lambda value: _now(value, calls))
    check_writes(name := known.name, args, kwargs, calls.path)
    plain = name.strip("_") if name.startswith("__") else name
    given = flat((args, kwargs))
    writes = known.writes or bool(kwargs.get("inplace"))
    if writes and isinstance(args[0], JoinedFolded):
        raise calls.refused(f"'{plain}' writes to what was folded over several relations' edges", plain)
    if any(isinstance(value, (Joined, JoinedFolded)) for value in given):
        return joined_call(calls, plain, func, args, kwargs)
    reads = args[1:2] if plain in ("getitem", "setitem") else () if plain in _OF_MOVED else given
    for value in reads:
        if is_moved(value):  # a row of another node, or of a table of several types' that is none here
            raise value.edges.session.wrong(
                f"'{plain}' reads numbers of edges' nodes that something was added to.",
                given=f"{plain} of edge_index + N",
                allowed="edges of several types moved so, joined by torch.cat, with a table of all these types' rows",
            )
    if (out := answer(_HANDLERS.get(plain), func, args=args, kwargs=kwargs)) is not NotImplemented:
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
    if kwargs.get("out") is not None:
        raise calls.refused(f"'{plain}' with out= of values of edges", plain, f"{plain} without out=")
    lazy = [value for value in given if isinstance(value, Lazy)]
    of_edges: list[EdgeRows] = [value for value in lazy if isinstance(value, EdgeRows)]
    if lazy and all(map(_has_number, lazy)) and (out := _of_numbers(func, plain, args, kwargs)) is not None:
        return out
    if writes and isinstance(args[0], (EdgeRows, Filled)):
        return _written(calls, known, func, args, kwargs)
    if not of_edges:
        args, kwargs = map_values((args, kwargs), values)
        return calls.__torch_function__(func, (), args, kwargs)
    first = of_edges[0]
    edges: Edges = first.edges
    for value in of_edges:
        if value.edges.plan is not edges.plan:
            raise edges.session.wrong(
                f"'{plain}' joins values of different sets of edges.",
                hint="layers that add or remove self-loops give the values of the new edges, too",
            )
    args, kwargs = map_values((args, kwargs), lambda value: _beside(value, edges, first.dim()))
    if not known.always:
        if (noted := noted_call(func, args, kwargs)) is not NotImplemented:
            if plain in _SAME_NUMBERS and len(of_edges) == 1 and first.number is not None:
                noted.node = same_number(edges, noted.node.shape, noted.dtype, first.number).node
            return noted
        args, kwargs = map_values((args, kwargs), numbers)
    return calls.__torch_function__(func, (), args, kwargs)


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


def _written(calls: StockCalls, known: Function, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that writes to its first argument, which becomes what another function gives, or a table of its own."""
    target, name = args[0], known.name
    check_alone(target, name)
    plain = name.strip("_")
    if kwargs.get("inplace"):
        functional, kwargs = func, {**kwargs, "inplace": False}
    elif name.startswith("__"):
        functional = _OPERATORS.get(plain[1:])
    else:
        functional = getattr(Tensor, name[:-1], None)
    if functional is not None:
        new = lazy_call(calls, known_function(functional), functional, args, kwargs)
    else:
        new = numbers(target)
        if isinstance(target, EdgeRows):
            new = target.edges.as_rows(new.clone())  # expressions read the table as it is
        others, kwargs = map_values((args[1:], kwargs), numbers)
        calls.__torch_function__(func, (), (new, *others), kwargs)
    if isinstance(target, Filled):
        target.became = new
        return new
    if own_shape(new) != own_shape(target) or new.dtype != target.dtype:
        raise target.edges.session.wrong(f"'{name}' gives what a value of each edge holds another shape or type.")
    target.node = new.node if isinstance(new, EdgeRows) else target.edges.field("e", new)
    return target


def _now(value: Any, calls: StockCalls) -> Any:
    """A lazy tensor as it is after what was written to it; one that a layer has kept from a pass before belongs to this one."""
    if isinstance(value, Filled):
        return value if value.became is None else value.became
    if isinstance(value, Lazy) and value.edges.session.calls is not calls:
        session = None if calls.session is None else calls.session()
        assert session is not None
        value.edges.session = session
    return value


def _beside(value: Any, edges: Edges, dims: int) -> Any:
    """An argument beside a field of edges. Beside one self-loop of each node a node's row is its loop's."""
    if isinstance(edges, DerivedEdges) and edges.loops == "only" and getattr(edges.parent, "loops", None) == "each":
        if rows_of(value) == edges.destinations:
            return edge_rows(edges, edges.field("v", value))
    if isinstance(value, Filled) and value.dim() == dims and own_shape(value)[0] == edges.plan.num_edges:
        return same_number(edges, own_shape(value)[1:], value.dtype, value.number)
    return values(value)


def _has_number(value: Any) -> bool:
    return isinstance(value, Filled) or (isinstance(value, EdgeRows) and value.number is not None)


def _of_numbers(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of numbers that are the same in every place; None where it is not known to take them one by one."""
    if name not in _BY_ELEMENT or kwargs or not all(isinstance(value, (Filled, EdgeRows, int, float)) for value in args):
        return None
    first, *others = [value for value in args if isinstance(value, Lazy)]
    if any(value.shape != first.shape for value in others):
        return None
    given = [torch.tensor(v.number, dtype=v.dtype) if isinstance(v, Lazy) else v for v in args]  # type: ignore[attr-defined]
    with torch._C.DisableTorchFunction():
        out = func(*given)
    return filled(first.sizes(), out.dtype, out.item())


_BY_ELEMENT = frozenset("neg add sub mul div true_divide truediv pow sqrt rsqrt abs exp reciprocal float double to".split())
_SAME_NUMBERS = "view reshape unsqueeze expand expand_as contiguous long to clone detach float double".split()


def _getitem(func: Any, x: Any, key: Any) -> Any:
    if isinstance(x, EdgeIndex):
        if isinstance(key, int):
            return ends_of(x.edges, x.side(key), x.begins[key])
        if isinstance(key, tuple) and len(key) == 2 and key[0] in (slice(None), Ellipsis) and _is_mask(key[1]):
            return edge_index(masked(x.edges, key[1].node), flipped=x.flipped, first=x.first)
        order = key.tolist() if isinstance(key, Tensor) and not isinstance(key, Lazy) else key
        if order in ([0, 1], [1, 0]):
            first = x.first[order[0]], x.first[order[1]]
            return edge_index(x.edges, flipped=x.flipped ^ (list(order) == [1, 0]), first=first)
        return NotImplemented
    if isinstance(key, Ends):
        return _gathered(x, key)
    if isinstance(x, Ends) and isinstance(key, tuple) and key[0] in (slice(None), Ellipsis) and not any(key[1:]):
        return _same_shape(func, x, key)  # ends[:, None]
    if _is_mask(key) and isinstance(x, (Ends, EdgeRows)):
        edges = masked(key.edges, key.node)
        return ends_of(edges, x.side, [x.first]) if isinstance(x, Ends) else edge_rows(edges, moved(x.node, x.edges, edges))
    if isinstance(key, EdgeRows) and not isinstance(x, Lazy) and mark_of(x) is None:
        return _picked(x, key)
    return NotImplemented


def _is_mask(key: Any) -> bool:
    return isinstance(key, EdgeRows) and key.dtype == torch.bool and key.dim() == 1


def _index_select(func: Any, input: Any, dim: int, index: Any) -> Any:
    if isinstance(index, Ends) and dim % input.dim() == 0:
        return _gathered(input, index)
    if isinstance(index, EdgeRows) and dim % input.dim() == 0 and not isinstance(input, Lazy) and mark_of(input) is None:
        return _picked(input, index)
    return NotImplemented


def _embedding(func: Any, input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, *others: Any) -> Any:
    if isinstance(input, Ends) and mark_of(weight) is not None and padding_idx is max_norm is None:
        return _gathered(weight, input)
    return _picked(weight, input) if isinstance(input, EdgeRows) and mark_of(weight) is None else NotImplemented


def _picked(table: Tensor, index: EdgeRows) -> EdgeRows:
    """Rows of a table that all workers have, by a number of each edge."""
    shape = (*index.node.shape, *own_shape(table)[1:])
    return edge_rows(index.edges, Call(shape, table.dtype, _rows_by_number, (table, index.node), {}))


def _rows_by_number(table: Tensor, numbers: Tensor) -> Tensor:
    return table[numbers]


def _gathered(x: Any, ends: Ends) -> Any:
    edges = ends.edges
    # Told by whose rows they are: how many a worker has of them must not decide when a fold is computed.
    own = ends.rows
    if isinstance(x, Folded) and x.fold.edges.destinations == own and ends.dim() == 1:
        return edge_rows(edges, AtEnd(x.fold.shape, x.dtype, x.fold, ends.side))
    rows = values(x)
    if isinstance(rows, EdgeRows) or ends.dim() != 1:
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
    return edge_rows(edges, edges.field(ends.side, rows))


def _unbind(func: Any, input: Any, dim: int = 0) -> Any:
    if not isinstance(input, EdgeIndex) or dim not in (0, -2):
        return NotImplemented
    return tuple(ends_of(input.edges, input.side(row), input.begins[row]) for row in (0, 1))


def _iter(func: Any, input: Any) -> Any:
    return iter(_unbind(func, input)) if isinstance(input, EdgeIndex) else NotImplemented


def _flip(func: Any, input: Any, *given: Any, dims: Any = None) -> Any:
    dims = given if dims is None else dims
    dims = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else tuple(dims)
    if not isinstance(input, EdgeIndex) or dims not in ((0,), (-2,)):
        return NotImplemented
    return edge_index(input.edges, flipped=not input.flipped, first=input.first[::-1])


def _stack(func: Any, tensors: Any, dim: int = 0) -> Any:
    """``torch.stack([row, col])``."""
    if len(tensors) != 2 or not all(isinstance(ends, Ends) and ends.dim() == 1 for ends in tensors):
        return NotImplemented
    first, second = tensors
    if first.edges.plan is not second.edges.plan or first.side == second.side or dim != 0:
        return NotImplemented
    return edge_index(first.edges, flipped=first.side == "v", first=(first.first, second.first))


def _narrow(func: Any, input: Any, dim: int, start: Any, length: Any) -> Any:
    """The edges of a layer, and their weights, cut out of those of all layers by ``trim_to_layer``."""
    if not isinstance(length, EdgeCount) or start != 0:
        return NotImplemented
    if isinstance(input, EdgeIndex) and dim % 2 == 1:
        return edge_index(length.edges, flipped=input.flipped, first=input.first)
    if isinstance(input, EdgeRows) and dim == 0 and isinstance(input.node, Column):
        return edge_rows(length.edges, input.node)
    if isinstance(input, EdgeRows) and dim == 0 and isinstance(input.node, Field) and is_shared(input.node.tensor):
        return edge_rows(length.edges, length.edges.field("e", length.edges.weights()))
    return NotImplemented


def _same_shape(func: Any, input: Any, *sizes: Any, **named: Any) -> Any:
    """Ends of edges, or a count, in another form; an index as it is."""
    name = function_name(func)
    if isinstance(input, EdgeIndex):
        if name == "clone":
            return edge_index(input.edges, flipped=input.flipped, first=input.first)
        return input if name in ("contiguous", "long", "to", "detach") else NotImplemented
    count = isinstance(input, Folded) and input.fold.kind == "count" and not input.fold.is_computed
    if not (isinstance(input, (Ends, Filled)) or count):
        return NotImplemented
    with torch._C.DisableTorchFunction():
        given = map_values(
            (sizes, named), lambda value: value.as_subclass(Tensor) if isinstance(value, Tensor) else own_of(value)
        )
        out = func(input.as_subclass(Tensor), *given[0], **given[1])
    if isinstance(input, Filled):
        made = filled(out.shape, out.dtype, input.number)
        made.up_to = input.up_to
        return made if name == "clone" else share(made, input)
    if isinstance(input, Ends):
        if tuple(out.shape[:1]) != own_shape(input)[:1] or math.prod(out.shape[1:]) < math.prod(own_shape(input)[1:]):
            return NotImplemented
        begin = [input.first] if name == "clone" else input.begin
        return blank(Ends, out.shape, torch.int64, edges=input.edges, side=input.side, begin=begin)
    if name in ("to", "float", "double", "long") or not out.dim():
        return NotImplemented
    return folded(input.fold.with_shape(tuple(out.shape[1:])))


def _compared(func: Any, input: Any, other: Any) -> Any:
    """``row != col``, ``row < col``: by original numbers."""
    if not all(isinstance(end, Ends) for end in (input, other)) or input.edges.plan is not other.edges.plan:
        return NotImplemented
    name, ends = function_name(func), [input.side, other.side]
    alike = input.edges.sources.type == input.edges.destinations.type  # original numbers go on from type to type
    if set(ends) != {"u", "v"} or input.dim() != 1 or other.dim() != 1 or not alike:
        return NotImplemented
    if name in ("eq", "ne"):
        node: Node = is_loop()
        if name == "ne":
            node = Call((), torch.bool, torch.logical_not, (node,), {})
    else:
        compare = getattr(operator, name)

        def compared(run: EdgeRun, fields: Any) -> Tensor:
            left, right = (run.src_ids if where == "u" else run.dst_ids for where in ends)
            out: Tensor = compare(left, right)
            return out

        node = Written((), torch.bool, compared, (), ())
    return edge_rows(input.edges, node)


def _cat(func: Any, tensors: Any, dim: int = 0) -> Any:
    """Self-loops appended to edges, and what they carry to what edges carry."""
    if (joined := join(tensors, dim)) is not NotImplemented:
        return joined
    if len(tensors) != 2:
        return NotImplemented
    first, second = tensors
    if isinstance(first, EdgeIndex) and isinstance(second, Tensor) and not isinstance(second, Lazy) and not is_moved(first):
        plan = first.edges.plan
        rows = second.shape[1] if second.dim() == 2 else -1
        if rows not in (plan.num_out, plan.num_rows) or dim % 2 != 1 or not bool((second == torch.arange(rows)).all()):
            return NotImplemented
        return edge_index(with_self_loops(first.edges, "each"), flipped=first.flipped)
    if not isinstance(first, EdgeRows) or isinstance(second, EdgeRows) or dim % first.dim() != 0:
        return NotImplemented
    if own_shape(second)[0] not in (first.edges.plan.num_out, first.edges.plan.num_rows):
        return NotImplemented
    edges, node = with_self_loops(first.edges, "each"), first.node
    if isinstance(second, Filled) and first.number == second.number:
        return same_number(edges, node.shape, node.dtype, second.number)
    loop: Any = second.number if isinstance(second, Filled) else edges.field("v", values(second)[: edges.plan.num_out])
    joined = Call(node.shape, node.dtype, _where_loop, (is_loop(), loop, moved(node, first.edges, edges)), {})
    return edge_rows(edges, joined)


def _where_loop(loops: Tensor, loop: Any, other: Tensor) -> Tensor:
    return torch.where(loops.view(-1, *[1] * (other.dim() - 1)), loop, other)


def _largest(func: Any, input: Any) -> Any:
    """The largest number of a node."""
    if isinstance(input, Ends):
        return Largest.of(input.edges, input.side)
    return Largest.of(input.edges, "uv") if isinstance(input, EdgeIndex) else NotImplemented


def _setitem(func: Any, target: Any, key: Any, value: Any) -> Any:
    if isinstance(target, EdgeIndex) and isinstance(value, Ends) and key in (0, 1) and value.side == target.side(key):
        if value.edges is not target.edges:
            return NotImplemented
        target.begins[key][0] = value.first
        return None
    if isinstance(key, Ends):
        return set_loops(target, key, value)
    if _is_mask(key) and isinstance(target, EdgeRows) and not is_shared(target):
        check_alone(target, "x[...] =")
        node = target.node
        if isinstance(value, EdgeRows):  # of the edges where the mask holds, made of the target's
            value = moved(value.node, value.edges, target.edges)
        elif isinstance(value, Filled):
            value = value.number
        target.node = Call(node.shape, node.dtype, _where_loop, (key.node, value, node), {})
        return None
    return NotImplemented


_OF_MOVED = frozenset([*_SAME_NUMBERS, *"add add_ unbind iter flip narrow stack cat concat concatenate".split()])
"""Functions that keep what was added to numbers of nodes."""
_HANDLERS: dict[str, Handler] = {
    "getitem": _getitem,
    "index_select": _index_select,
    "embedding": _embedding,
    "unbind": _unbind,
    "iter": _iter,
    "flip": _flip,
    "narrow": _narrow,
    "stack": _stack,
    **dict.fromkeys(_SAME_NUMBERS, _same_shape),
    "new_zeros": new_filled(0.0),
    "new_ones": new_filled(1.0),
    "new_full": new_full,
    "zeros_like": partial(full_like, fill_value=0.0),
    "ones_like": partial(full_like, fill_value=1.0),
    "full_like": full_like,
    **FOLDS,
    "max": _largest,
    **dict.fromkeys("eq ne lt le gt ge".split(), _compared),
    **dict.fromkeys("cat concat concatenate".split(), _cat),
    "setitem": _setitem,
}
