"""What a layer of PyG's gets in place of ``edge_index``, and what becomes of it.

``edge_index`` is a tensor of shape [2, E] without memory: all its numbers are one zero with stride 0. PyG runs as it is.
What it does with such a tensor is noted:

| PyG | here |
|---|---|
| ``edge_index[0]``, ``edge_index[1]`` | ``Ends``, [E]: the edges' sources, their destinations |
| ``x[ends]``, ``x.index_select(0, ends)`` | ``EdgeRows``, [E, ...]: an expression for each edge (``edge_fields.py``) |
| functions of ``EdgeRows`` that take each edge by itself | ``EdgeRows`` |
| ``zeros.scatter_add_(0, ends, rows)`` and its like | ``Folded``, [M, ...]: a fold over each destination's edges, not computed yet |
| ``folded[ends]`` | ``EdgeRows``. exp(l - max(l)[ends]) / (sum of these)[ends] is a softmax, which is fused |
| anything else of ``Folded`` | the fold is computed, by one ``engine.aggregate``, and the function gets its rows |
| ``rows.new_zeros(...)`` | ``Filled``: a number in a shape, until somebody needs a table of it |
| ``ends != other_ends`` | ``Loops``: which edges are self-loops; what it picks are edges without them |

Only names of PyTorch's functions are known here, none of PyG's.

Letters: N input rows, M output rows, E edges of this worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sargnn.modules.edge_fields import EdgeTensor
from sargnn.modules.expressions import EDGE_COUNT, Call, Node, Softmax, map_values
from sargnn.modules.tag import Count, tagged

if TYPE_CHECKING:
    from sargnn.modules.calls import StockCalls
    from sargnn.modules.folds import Edges


class Lazy(Tensor):
    """A tensor without numbers: whatever asks for them is answered in ``lazy_call``."""

    edges: Edges

    @staticmethod
    def blank(made: type[Any], shape: Any, dtype: torch.dtype, **attributes: Any) -> Any:
        """A tensor of a kind, with one zero as all its numbers."""
        grad = dtype.is_floating_point and made in (EdgeRows, Folded) and torch.is_grad_enabled()
        with torch._C.DisableTorchFunction():
            zero = torch.zeros((), dtype=dtype, requires_grad=grad)
            lazy = zero.expand(tuple(int(size) for size in shape)).as_subclass(made)
        for name, value in attributes.items():
            setattr(lazy, name, value)
        return lazy

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What passes ``StockCalls`` by: questions about the shape, which is right, and numbers, which are not there."""
        name = getattr(func, "__name__", "")
        kwargs = kwargs or {}
        if name == "__get__":
            name = func.__self__.__name__
            if name == "shape":
                return _shape(args[0])
        if name == "size":
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            return _shape(args[0]) if dim is None else _shape(args[0])[dim]
        if name in ("__len__",):
            return int(_shape(args[0])[0])
        if name in ("numel", "nelement"):
            return _numel(args[0])
        if name in _ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        args, kwargs = map_values((args, kwargs), values)
        return func(*args, **kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"{type(self).__name__}(shape={tuple(_shape(self))})"


_ABOUT = frozenset(
    """dim ndimension ndim dtype device layout is_cuda is_sparse is_sparse_csr is_quantized is_mkldnn is_meta is_nested is_leaf
    requires_grad grad_fn is_floating_point is_complex is_contiguous stride element_size get_device __hash__ is_cpu is_xla
    is_mps is_vulkan names output_nr _version is_inference is_conj is_neg grad retain_grad register_hook""".split()
)


class EdgeIndex(Lazy):
    """[2, E]. flipped: sources and destinations are exchanged."""

    flipped: bool


class Ends(Lazy):
    """int64 [E, 1, ...], expanded or not. where: ``u`` sources, ``v`` destinations."""

    loops_only: bool = False

    where: str


class EdgeRows(Lazy):
    """[E, ...]. field: the expression."""

    field: EdgeTensor


class Filled(Lazy):
    """A table with one number in every place.

    Attributes:
        number: that number.
        became: what was written to it in place; None: nothing was.
    """

    number: float
    became: Any = None


class Loops(Lazy):
    """bool [E]. others: true for edges that are no self-loops, else for self-loops."""

    others: bool


class Folded(Lazy):
    """[M, ...]: a fold that is not computed yet.

    Attributes:
        kind: ``sum``, ``mean``, ``max`` or ``min``; ``count``: the number of edges.
        node: what is folded.
        rows: the fold, once it is computed.
    """

    kind: str
    node: Node
    rows: Tensor | None


@dataclass(frozen=True, eq=False)
class AtDestination(Node):
    """The row of a fold at each edge's destination. plus: added to it."""

    fold: Any


def edge_index(edges: Edges) -> EdgeIndex:
    """The index of a layer's edges."""
    lazy: EdgeIndex = Lazy.blank(EdgeIndex, (2, edges.plan.num_edges), torch.int64, edges=edges, flipped=False)
    return lazy


class EdgeCount(Count):
    """The number of edges, which knows the edges."""

    edges: Edges

    @classmethod
    def of(cls, edges: Edges) -> EdgeCount:
        count = edges.num_edges()
        made = cls(int(count), count.total, count.kind, count.rows)
        made.edges = edges
        return made


def made_of_edges(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.ones(edge_index.size(1))`` and its like: a number for each edge."""
    sizes = kwargs.get("size", args[0] if args else None)
    first = sizes[0] if isinstance(sizes, (tuple, list)) and sizes else sizes
    if not isinstance(first, EdgeCount):
        return NotImplemented
    shape = sizes if isinstance(sizes, (tuple, list)) else [size for size in args if isinstance(size, int)]
    number = {"ones": 1.0, "zeros": 0.0}.get(name)
    if number is None:
        number = kwargs["fill_value"] if "fill_value" in kwargs else args[1]
    return Lazy.blank(Filled, shape, kwargs.get("dtype") or torch.get_default_dtype(), number=float(number))


def _shape(lazy: Any) -> Any:
    with torch._C.DisableTorchFunction():
        shape = tuple(Tensor.size(lazy))
    if isinstance(lazy, EdgeIndex):
        return (shape[0], EdgeCount.of(lazy.edges))
    if isinstance(lazy, (Ends, EdgeRows, Loops)):
        return (EdgeCount.of(lazy.edges), *shape[1:])
    return torch.Size(shape)


def _numel(lazy: Any) -> Any:
    shape = _shape(lazy)
    if isinstance(lazy, (Ends, Loops)) and len(shape) == 1:
        return shape[0]
    return math.prod(int(size) for size in shape)


def rows_of_edges(field: EdgeTensor) -> EdgeRows:
    """A field of edges as PyG's layers see it."""
    rows: EdgeRows = Lazy.blank(EdgeRows, (field.edges.plan.num_edges, *field.node.shape), field.dtype, edges=field.edges)
    rows.field = field
    return rows


def values(value: Any) -> Any:
    """What stands for a lazy tensor where a function is called: an edge field, or numbers."""
    if isinstance(value, EdgeRows):
        return value.field
    if isinstance(value, Folded):
        return compute(value)
    if isinstance(value, Filled):
        if value.became is not None:
            return values(value.became)
        return torch.full(tuple(_shape(value)), value.number, dtype=value.dtype)
    return value


def compute(fold: Folded) -> Tensor:
    """The rows of a fold, [M, ...]; all workers compute it together."""
    if fold.rows is None:
        edges = fold.edges
        if fold.kind == "count":
            rows = edges.plan.in_degrees.to(fold.dtype)
            fold.rows = tagged(rows.clone(), edges.destinations)
        else:
            fold.rows = edges.folded(fold.kind, fold.node, f"{fold.kind} over edges")
    return fold.rows


def resolved(value: Any) -> Any:
    """An expression whose folds at destinations are computed."""
    if isinstance(value, AtDestination):
        return value.fold.edges.field("v", compute(value.fold))
    return value


Handler = Callable[..., Any]


def lazy_call(calls: StockCalls, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function of PyTorch gives where one of its arguments is a lazy tensor."""
    args, kwargs = map_values((args, kwargs), _current)
    handler = _HANDLERS.get(name.strip("_") if name.startswith("__") else name)
    if handler is not None:
        out = handler(func, args, kwargs)
        if out is not NotImplemented:
            return out
    for value in _flat((args, kwargs)):
        if isinstance(value, (EdgeIndex, Ends, Loops)):
            raise NotImplementedError(f"{name} of {value!r}")
    first = next((value for value in _flat((args, kwargs)) if isinstance(value, EdgeRows)), None)
    if first is not None:
        args, kwargs = map_values((args, kwargs), lambda value: _beside(value, first))
    else:
        args, kwargs = map_values((args, kwargs), values)
    fields = [value for value in _flat((args, kwargs)) if isinstance(value, EdgeTensor)]
    types = (EdgeTensor,) if fields else ()
    out = calls.__torch_function__(func, types, args, kwargs)
    return map_values(out, lambda value: rows_of_edges(value) if isinstance(value, EdgeTensor) else value)


def _current(value: Any) -> Any:
    return value.became if isinstance(value, Filled) and value.became is not None else value


def _flat(arguments: Any) -> list[Any]:
    found: list[Any] = []
    map_values(arguments, found.append)
    return found


def _beside(value: Any, rows: EdgeRows) -> Any:
    """An argument beside a field of edges."""
    if isinstance(value, Filled) and value.dim() == rows.dim():
        shape = tuple(_shape(value))[1:]
        return EdgeTensor(rows.edges, Call(shape, value.dtype, torch.full, ((EDGE_COUNT, *shape), value.number), {"dtype": value.dtype}))
    return values(value)


def _getitem(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, key = args
    if isinstance(x, EdgeIndex):
        if isinstance(key, int):
            where = "uv"[(key % 2) ^ x.flipped]
            return Lazy.blank(Ends, (x.edges.plan.num_edges,), torch.int64, edges=x.edges, where=where)
        if isinstance(key, tuple) and len(key) == 2 and key[0] == slice(None) and isinstance(key[1], Loops) and key[1].others:
            edges = without_loops(x.edges)
            return Lazy.blank(EdgeIndex, (2, edges.plan.num_edges), torch.int64, edges=edges, flipped=x.flipped)
        return NotImplemented
    if isinstance(key, Ends):
        return _gathered(x, key)
    if isinstance(key, Loops):
        if isinstance(x, Ends) and not key.others:
            return Lazy.blank(Ends, x.shape, torch.int64, edges=x.edges, where=x.where, loops_only=True)
        if isinstance(x, EdgeRows) and key.others:
            return rows_of_edges(moved(x.field, without_loops(x.edges)))
        if isinstance(x, Filled) and key.others:
            return x
        if isinstance(x, EdgeRows):
            out = rows_of_edges(x.field)
            out.loops_only = True
            return out
    return NotImplemented


def without_loops(edges: Edges) -> Edges:
    return edges.variant("without")


def moved(field: EdgeTensor, edges: Edges) -> EdgeTensor:
    """The same expression on other edges of the same rows."""
    from sargnn.modules.folds import on_variant

    return EdgeTensor(edges, on_variant(field.node, field.edges, edges))


def _different(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not (len(args) == 2 and all(isinstance(end, Ends) for end in args) and args[0].edges is args[1].edges):
        return NotImplemented
    assert {args[0].where, args[1].where} == {"u", "v"}
    name = func.__name__.strip("_")
    return Lazy.blank(Loops, (args[0].edges.plan.num_edges,), torch.bool, edges=args[0].edges, others=name == "ne")


def _inverted(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mask = args[0]
    if not isinstance(mask, Loops):
        return NotImplemented
    return Lazy.blank(Loops, (mask.edges.plan.num_edges,), torch.bool, edges=mask.edges, others=not mask.others)


def _cat(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = args[0]
    if len(tensors) != 2:
        return NotImplemented
    first, second = tensors
    if isinstance(first, EdgeIndex) and isinstance(second, Tensor) and not isinstance(second, Lazy):
        count = first.edges.plan.num_out
        if second.shape != (2, count) or not bool((second == torch.arange(count)).all()):
            return NotImplemented
        edges = first.edges.variant("each")
        return Lazy.blank(EdgeIndex, (2, edges.plan.num_edges), torch.int64, edges=edges, flipped=first.flipped)
    if isinstance(first, EdgeRows) and not isinstance(second, EdgeRows) and (args[1:] or (kwargs.get("dim", 0),))[0] == 0:
        edges = first.edges.variant("each")
        field = moved(first.field, edges)
        from sargnn.modules.expressions import Written

        second = values(second)
        loop = edges.field("v", second)
        is_loop = Written((), torch.bool, lambda run, fields: run.src_ids == run.dst_ids, (), ())
        node = Call(field.node.shape, field.node.dtype, _where_loop, (is_loop, loop, field.node), {})
        return rows_of_edges(EdgeTensor(edges, node))
    return NotImplemented


def _where_loop(is_loop: Tensor, loop: Tensor, other: Tensor) -> Tensor:
    return torch.where(is_loop.view(-1, *[1] * (other.dim() - 1)), loop, other)


def _index_select(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    dim = args[1] if len(args) > 1 else kwargs["dim"]
    index = args[2] if len(args) > 2 else kwargs["index"]
    if not isinstance(index, Ends) or dim % x.dim():
        return NotImplemented
    return _gathered(x, index)


def _gathered(x: Any, ends: Ends) -> Any:
    edges = ends.edges
    if isinstance(x, Folded) and ends.where == "v":
        node: Node = AtDestination(tuple(_shape(x))[1:], x.dtype, x)
    else:
        x = values(x)
        node = edges.field(ends.where, x)  # type: ignore[arg-type]
    return rows_of_edges(EdgeTensor(edges, node))


def _unbind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(args[0], EdgeIndex):
        return tuple(args[0][number] for number in (0, 1))
    return NotImplemented


def _same_ends(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Another form of the ends of edges."""
    ends = args[0]
    if not isinstance(ends, Ends):
        return _folded_view(func, args, kwargs)
    with torch._C.DisableTorchFunction():
        given = map_values((args, kwargs), lambda value: value.as_subclass(Tensor) if isinstance(value, Tensor) else value)
        shape = func(*given[0], **given[1]).shape
    return Lazy.blank(Ends, shape, torch.int64, edges=ends.edges, where=ends.where)


def _folded_view(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    fold = args[0]
    if isinstance(fold, Folded) and fold.kind == "count":
        with torch._C.DisableTorchFunction():
            given = map_values((args, kwargs), lambda value: value.as_subclass(Tensor) if isinstance(value, Tensor) else value)
            shape = func(*given[0], **given[1]).shape
        out = Lazy.blank(Folded, shape, fold.dtype, edges=fold.edges, kind="count", node=fold.node, rows=None)
        out.rows = compute(fold).reshape(out.shape[0], *[1] * (out.dim() - 1))
        return out
    return NotImplemented


def _filled(number: float | None) -> Handler:
    def handler(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        like = args[0]
        sizes = args[1:] if number is not None else args[1:2]
        shape = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
        if not sizes:
            shape = kwargs.get("size", ())
        value = number if number is not None else (args[2] if len(args) > 2 else kwargs["fill_value"])
        return Lazy.blank(Filled, shape, kwargs.get("dtype") or like.dtype, number=float(value))

    return handler


def _filled_like(number: float) -> Handler:
    def handler(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return Lazy.blank(Filled, Tensor.size(args[0]), kwargs.get("dtype") or args[0].dtype, number=number)

    return handler


def _scatter(kind: str | None) -> Handler:
    def handler(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target, dim, index = args[:3]
        source = args[3] if len(args) > 3 else kwargs["src"]
        reduce = kind or {"amax": "max", "amin": "min", "sum": "sum", "mean": "mean"}.get(kwargs.get("reduce") or args[4])
        if not isinstance(index, Ends) or index.where != "v" or reduce is None:
            return NotImplemented
        edges = index.edges
        if isinstance(source, Tensor) and not isinstance(source, Lazy) and getattr(source, "_ones_of", None) is edges and reduce == "sum":
            source = Lazy.blank(Filled, source.shape, source.dtype, number=1.0)
        if isinstance(source, Filled) and source.number == 1 and reduce == "sum":
            made = Lazy.blank(Folded, tuple(Tensor.size(target)), source.dtype, edges=edges, kind="count", node=None, rows=None)
        else:
            if isinstance(source, Filled):
                shape = tuple(_shape(source))[1:]
                source = rows_of_edges(
                    EdgeTensor(edges, Call(shape, source.dtype, torch.full, ((EDGE_COUNT, *shape), source.number), {"dtype": source.dtype}))
                )
            if not isinstance(source, EdgeRows):
                source = rows_of_edges(EdgeTensor(edges, edges.field("e", source)))
            node = source.field.node
            shape = (edges.plan.num_out, *node.shape)
            made = Lazy.blank(Folded, shape, source.dtype, edges=edges, kind=reduce, node=node, rows=None)
        if isinstance(target, Filled) and target.number == 0:
            if getattr(func, "__name__", "").endswith("_"):
                target.became = made
            return made
        return target.add_(compute(made)) if reduce == "sum" else NotImplemented

    return handler


def _clamp(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    fold = args[0]
    low = args[1] if len(args) > 1 else kwargs.get("min")
    if isinstance(fold, Folded) and fold.kind == "count" and low == 1 and kwargs.get("max") is None:
        out = Lazy.blank(Folded, Tensor.size(fold), fold.dtype, edges=fold.edges, kind="count", node="clamped", rows=None)
        out.rows = compute(fold).clamp(min=1)
        return out
    return NotImplemented


def _div(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) != 2:
        return NotImplemented
    above, below = args
    if isinstance(above, Folded) and isinstance(below, Folded):
        if above.kind == "sum" and below.kind == "count" and below.node == "clamped" and above.rows is None:
            shape = Tensor.size(above)
            return Lazy.blank(Folded, shape, above.dtype, edges=above.edges, kind="mean", node=above.node, rows=None)
    if isinstance(above, EdgeRows) and isinstance(below, EdgeRows):
        logits = _softmax_of(above.field.node, below.field.node)
        if logits is not None:
            return rows_of_edges(EdgeTensor(above.edges, Softmax(logits.shape, logits.dtype, logits)))
    return NotImplemented


def _softmax_of(above: Node, below: Node) -> Node | None:
    """The logits, where a quotient is exp(logits - their maximum) / the sum of that, over each destination's edges."""
    if not (isinstance(below, AtDestination) and below.fold.kind == "sum" and below.fold.node is above):
        return None
    if _called(above) != "exp":
        return None
    difference = above.args[0]  # type: ignore[attr-defined]
    if _called(difference) != "sub":
        return None
    logits, largest = difference.args
    if not (isinstance(largest, AtDestination) and largest.fold.kind == "max"):
        return None
    of = largest.fold.node
    while _called(of) == "detach":
        of = of.args[0]
    return logits if of is logits else None


def _called(node: Any) -> str:
    return str(getattr(node.func, "__name__", "")).strip("_") if isinstance(node, Call) else ""


def _add(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The sum of a softmax's weights and 1e-16: some weight is 1."""
    fold = args[0]
    if isinstance(fold, Folded) and fold.kind == "sum" and args[1:] and isinstance(args[1], float) and 0 < args[1] <= 1e-12:
        return fold
    return NotImplemented


def _max(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The largest number of a node: that of the last row of this worker."""
    if isinstance(args[0], (Ends, EdgeIndex)) and len(args) == 1:
        return torch.tensor(args[0].edges.plan.num_rows - 1)
    return NotImplemented


def _setitem(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``values[ends of self-loops] = what they carry``: each node's loop."""
    target, key, value = args
    if not (isinstance(key, Ends) and key.loops_only):
        return NotImplemented
    edges = key.edges.variant("only")
    if isinstance(value, EdgeRows):
        field = moved(value.field, edges)
        carried = edges.folded("max", field.node, "what self-loops carry")
    else:
        carried = torch.full((edges.plan.num_out,), value.number, dtype=value.dtype)
    there = edges.plan.in_degrees > 0
    if isinstance(target, Filled):
        base = target.became if target.became is not None else values(target)
        target.became = tagged(torch.where(there.view(-1, *[1] * (base.dim() - 1)), carried, base), edges.destinations)
    else:
        target[there] = carried[there]
    return None


_HANDLERS: dict[str, Handler] = {
    "getitem": _getitem,
    "index_select": _index_select,
    "unbind": _unbind,
    "iter": lambda func, args, kwargs: iter(args[0].unbind(0)) if isinstance(args[0], EdgeIndex) else NotImplemented,
    **dict.fromkeys("view reshape unsqueeze expand expand_as contiguous long to clone".split(), _same_ends),
    "new_zeros": _filled(0.0),
    "new_ones": _filled(1.0),
    "new_full": _filled(None),
    "zeros_like": _filled_like(0.0),
    "ones_like": _filled_like(1.0),
    "scatter_add_": _scatter("sum"),
    "scatter_add": _scatter("sum"),
    "index_add_": _scatter("sum"),
    "index_add": _scatter("sum"),
    "scatter_reduce_": _scatter(None),
    "scatter_reduce": _scatter(None),
    "clamp": _clamp,
    "div": _div,
    "true_divide": _div,
    "truediv": _div,
    "add": _add,
    "max": _max,
    "ne": _different,
    "eq": _different,
    "invert": _inverted,
    "bitwise_not": _inverted,
    "logical_not": _inverted,
    "cat": _cat,
    "setitem": _setitem,
}
