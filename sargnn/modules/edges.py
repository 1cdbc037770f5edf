"""Edge fields that are not computed yet: what ``apply_edges`` gives.

A layer such as GAT computes scores and weights for all edges at once. Held as tables they would be most of its memory, and a
score needs rows of other workers. So what a layer does with an edge field is noted as an expression; ``update_all`` makes it a
part of its message function, and it is computed run by run. Whatever takes each edge by itself is noted so. For all else the
field is computed for all edges of this worker, a table [E, ...] that stays with the destinations' owner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from sargnn.modules.counts import Count
from sargnn.modules.expressions import EDGE_COUNT, Call, Dropped, Field, Item, Node, Softmax, map_values
from sargnn.modules.rows import rows_of
from sargnn.rng import Draw

if TYPE_CHECKING:
    from sargnn.modules.graph import ShardedGraph

_FAKE_COUNT = 7919
"""Edges of the tables without content that shapes are found with; a prime, so that no other size is taken for it."""

_BY_ELEMENT = frozenset(
    """add sub rsub mul div true_divide neg negative abs absolute exp exp2 expm1 log log2 log1p sqrt rsqrt pow square reciprocal
    relu relu6 leaky_relu elu gelu silu selu celu mish tanh sigmoid softplus softsign hardtanh hardswish hardsigmoid logsigmoid
    tanhshrink clamp clip clamp_min clamp_max minimum maximum fmax fmin where eq ne lt le gt ge isnan isinf isfinite logical_and
    logical_or logical_not logical_xor sin cos tan sinh cosh asin acos atan erf sign floor ceil round trunc frac remainder fmod
    lerp addcmul addcdiv nan_to_num float double half bfloat16 long int bool to type_as type contiguous clone detach
    zeros_like ones_like full_like masked_fill linear layer_norm rms_norm expand_as special_expit expit __and__ __or__ __xor__
    __invert__ positive heaviside copysign logaddexp xlogy atan2 hypot normalize""".split()
)
_BY_DIMENSION = frozenset(
    """sum mean amax amin max min prod norm logsumexp softmax log_softmax softmin std var argmax argmin cumsum cumprod
    unsqueeze squeeze cat concat concatenate stack narrow select chunk split unbind flip glu cosine_similarity any all
    topk sort argsort normalize""".split()
)
_WITH_PARAMETERS = frozenset("linear layer_norm rms_norm matmul mm".split())
_BY_SHAPE = frozenset("view reshape flatten unflatten expand view_as reshape_as".split())
_DIMENSION_AT = {
    "narrow": 1,
    "select": 1,
    "chunk": 2,
    "split": 2,
    "norm": 2,
    "cosine_similarity": 2,
    "topk": 2,
    "std": 1,
    "var": 1,
}
"""Where the dimension stands among the positional arguments; 1 for all others."""
_DEFAULTS = {
    "cat": 0,
    "concat": 0,
    "concatenate": 0,
    "stack": 0,
    "chunk": 0,
    "split": 0,
    "unbind": 0,
    "glu": -1,
    "normalize": 1,
    "topk": -1,
    "sort": -1,
    "argsort": -1,
    "cosine_similarity": 1,
}


class OfEdges:
    """An expression over edges that stands where a tensor is expected.

    Args:
        graph: whose edges. node: the expression.
    """

    leading: ClassVar[int]
    """How many dimensions there are before a row's."""

    def __init__(self, graph: ShardedGraph, node: Node) -> None:
        self.graph, self.node = graph, node

    @property
    def shape(self) -> Any:
        """As a tensor has it."""
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        return self.node.dtype

    @property
    def device(self) -> torch.device:
        return self.graph.device

    @property
    def ndim(self) -> int:
        return self.leading + len(self.node.shape)

    def dim(self) -> int:
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]


def set_operators(kind: type[OfEdges], call: Callable[..., Any], names: str) -> None:
    """Let Python's operators on ``kind`` make calls of PyTorch's: ``call(function, args, kwargs)``."""

    def operator(name: str) -> Callable[..., Any]:
        method = getattr(Tensor, name)
        return lambda self, *args: call(method, (self, *args), {})

    for name in names.split():
        setattr(kind, f"__{name}__", operator(f"__{name}__"))
    kind.__hash__ = object.__hash__  # type: ignore[method-assign]


class EdgeTensor(OfEdges):
    """A field of this worker's edges, [E, ...], as an expression. Stands where a layer expects a tensor.

    Args:
        graph: whose edges. node: the expression.
    """

    leading = 1

    def __init__(self, graph: ShardedGraph, node: Node) -> None:
        super().__init__(graph, node)
        self._value: Tensor | None = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return record(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(Tensor, name):
            raise AttributeError(f"an edge field has no '{name}'")
        attribute = getattr(Tensor, name)
        if not callable(attribute):
            return getattr(self.value(), name)
        return lambda *args, **kwargs: record(attribute, (self, *args), kwargs)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.graph.num_edges(), *self.node.shape)

    @property
    def requires_grad(self) -> bool:
        if isinstance(self.node, Field) and self.node.where == "e":
            return self.node.tensor.requires_grad
        return torch.is_grad_enabled()

    def is_floating_point(self) -> bool:
        return self.node.dtype.is_floating_point

    def numel(self) -> int:
        return int(self.graph.num_edges()) * torch.Size(self.node.shape).numel()

    def __len__(self) -> int:
        return int(self.graph.num_edges())

    def __bool__(self) -> bool:
        return bool(self.value())

    def __repr__(self) -> str:
        return f"EdgeTensor(edges={len(self)}, shape={self.node.shape}, dtype={self.dtype})"

    def dropped(self, draw: Draw) -> EdgeTensor:
        """The values dropped by the edges' original ids."""
        return EdgeTensor(self.graph, Dropped(self.node.shape, self.node.dtype, self.node, draw))

    def softmax_over_edges(self) -> EdgeTensor:
        """Softmax over the edges of each destination, column by column."""
        return EdgeTensor(self.graph, Softmax(self.node.shape, self.node.dtype, self.node))

    def value(self) -> Tensor:
        """The values of all edges of this worker, [E, ...]; computed once. All workers must ask together."""
        if self._value is None:
            self._value = self.graph.edge_values(self.node)
            self.node = Field(self.node.shape, self.node.dtype, "e", self._value)
        return self._value


def record(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``func`` gives: an edge field where it takes each edge by itself, else what it gives for the values."""
    noted = noted_call(func, args, kwargs)
    if noted is not NotImplemented:
        return noted
    args, kwargs = values_of((args, kwargs))
    return func(*args, **kwargs)


def values_of(arguments: Any) -> Any:
    """The same nest of arguments with the values of edge fields."""
    return map_values(arguments, lambda value: value.value() if isinstance(value, EdgeTensor) else value)


def noted_call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``func`` gives as edge fields; ``NotImplemented`` where it does not take each edge by itself."""
    first = _first(args, kwargs)
    name = str(getattr(func, "__name__", func))
    if name.endswith("_") and not name.startswith("__"):
        raise first.graph.wrong(
            f"An edge field is written to in place by '{name}'.",
            hint=f"use what '{name[:-1]}' gives: edge fields are expressions",
        )
    if name in _BY_SHAPE and len(args) > 1 and type(args[1]) is int and args[1] == len(first):
        args = (args[0], first.shape[0], *args[2:])
    if _takes_each_edge(name, args, kwargs, first.ndim):
        parameters = name.strip("_") in _WITH_PARAMETERS
        prepared = map_values((args, kwargs), lambda value: _prepared(value, first, parameters=parameters))
        return _noted(first.graph, func, *prepared)
    return NotImplemented


def _first(args: Any, kwargs: Any) -> EdgeTensor:
    fields: list[EdgeTensor] = []
    map_values((args, kwargs), lambda value: fields.append(value) if isinstance(value, EdgeTensor) else None)
    return fields[0]


def _takes_each_edge(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], ndim: int) -> bool:
    plain = name.strip("_") if name.startswith("__") else name
    plain = plain[1:] if plain in ("radd", "rsub", "rmul", "rtruediv", "rpow") else plain
    if plain in _BY_ELEMENT or plain in ("truediv", "floordiv", "mod", "invert", "and", "or", "xor"):
        return True
    if plain == "matmul" or plain == "mm":
        return isinstance(args[0], EdgeTensor) and isinstance(args[1], Tensor) and args[1].dim() <= 2 and ndim >= 2
    if plain in _BY_DIMENSION:
        where = kwargs.get("dim", kwargs.get("axis"))
        at = _DIMENSION_AT.get(plain, 1)
        if where is None:
            where = args[at] if len(args) > at else _DEFAULTS.get(plain)
        dims = where if isinstance(where, (tuple, list)) else (where,)
        size = ndim + (plain in ("unsqueeze", "stack"))
        return all(isinstance(dim, int) and dim % size != 0 for dim in dims)
    if plain in ("transpose", "swapaxes", "swapdims"):
        return all(dim % ndim for dim in args[1:])
    if plain == "permute":
        order = args[1] if isinstance(args[1], (tuple, list)) else args[1:]
        return len(order) > 0 and order[0] == 0
    if plain == "getitem":
        key = args[1] if isinstance(args[1], tuple) else (args[1],)
        return key[0] is Ellipsis or (isinstance(key[0], slice) and key[0] == slice(None))
    return plain in _BY_SHAPE


def _prepared(value: Any, first: EdgeTensor, *, parameters: bool) -> Any:
    """An argument as an expression holds it. parameters: tensors beside edge fields are parameters, whatever their shape."""
    if isinstance(value, EdgeTensor):
        return value.node
    if isinstance(value, Count) and value.kind == "edges":
        return EDGE_COUNT
    if isinstance(value, Tensor) and _is_edge_table(value, first, parameters=parameters):
        return Field(tuple(value.shape[1:]), value.dtype, "e", value)
    return value


def _is_edge_table(value: Tensor, first: EdgeTensor, *, parameters: bool) -> bool:
    """Whether a tensor's first dimension are the edges: noted so, or as long as they are where a parameter would be 1."""
    rows = rows_of(value)
    if rows is not None:
        return rows.kind == "edges"
    return not parameters and value.dim() == first.ndim and value.shape[0] == len(first) != 1


def _noted(graph: ShardedGraph, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The result as edge fields; ``NotImplemented`` if its first dimension are not the edges."""

    def blank(value: Any) -> Any:
        if isinstance(value, Node):
            return torch.empty(_FAKE_COUNT, *value.shape, dtype=value.dtype, device="meta")
        if isinstance(value, Tensor):
            return torch.empty_like(value, device="meta")
        if isinstance(value, torch.device):
            return torch.device("meta")
        return _FAKE_COUNT if value is EDGE_COUNT else value

    with torch._C.DisableTorchFunction(), torch.no_grad():
        output = func(*map_values(args, blank), **map_values(kwargs, blank))
    several = isinstance(output, (tuple, list))
    results = list(output) if several else [output]
    if not all(isinstance(tensor, Tensor) and tensor.dim() and tensor.shape[0] == _FAKE_COUNT for tensor in results):
        return NotImplemented
    if not several:
        shape = tuple(output.shape[1:])
        if getattr(func, "__name__", "") in ("view", "reshape") and output.dtype == args[0].dtype:
            args, kwargs = (args[0], (EDGE_COUNT, *shape)), {}  # without -1, which is no size where there are no edges
        return EdgeTensor(graph, Call(shape, output.dtype, func, args, kwargs))
    whole = Call((), results[0].dtype, func, args, kwargs)
    items = [EdgeTensor(graph, Item(tuple(tensor.shape[1:]), tensor.dtype, whole, k)) for k, tensor in enumerate(results)]
    return items if type(output) in (tuple, list) else _Named(output, items)


class _Named(tuple):
    """Several results with the names that PyTorch gives them."""

    def __new__(cls, like: Any, items: list[EdgeTensor]) -> _Named:
        self = super().__new__(cls, items)
        for name, item in zip(("values", "indices"), items, strict=False):
            if hasattr(like, name):
                setattr(self, name, item)
        return self


set_operators(
    EdgeTensor,
    record,
    """add radd sub rsub mul rmul truediv rtruediv pow rpow neg abs eq ne lt le gt ge and or xor invert matmul getitem mod
    floordiv""",
)
