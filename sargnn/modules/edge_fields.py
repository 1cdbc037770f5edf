"""Stand-ins for tensors that are not computed yet: a field of all edges, and the messages of each node.

A layer such as GAT computes scores and weights for all edges at once. Held as tables they would be most of its memory, and a
score needs rows of other workers. So what a layer does with an edge field is noted as an expression; a fold over the edges
makes it a part of its messages, and it is computed run by run. Whatever takes each edge by itself is noted so. For all else the
field is computed for all edges of this worker, a table [E, ...] that stays with the destinations' owner.

A reduce function of the user's is called once, for all nodes, with a ``Mailbox``. What it does with each message by itself
becomes a part of the message's expression; what it folds over the neighbours (sum, mean, maximum, minimum, logsumexp, softmax)
is folded shard by shard there and then. What cannot be folded raises ``CannotFold``.

Nothing here knows what kind of graph a layer got, or how a fold is computed: that is ``folds.Edges``.

Letters: E edges of this worker, M output rows.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from sargnn.modules.expressions import (
    EDGE_COUNT,
    Call,
    Column,
    Dropped,
    Field,
    Item,
    Node,
    Softmax,
    map_values,
    without_gradient,
)
from sargnn.modules.session import paused
from sargnn.modules.tag import Count, mark_of, rows_of, tagged, user_line
from sargnn.modules.trial import verdict_of
from sargnn.modules.verdict import Groups, NotTried, Table, describe_tensor
from sargnn.rng import Draw

if TYPE_CHECKING:
    from sargnn.modules.folds import Edges

_FOLDED = {"sum": "sum", "mean": "mean", "amax": "max", "max": "max", "amin": "min", "min": "min", "logsumexp": "logsumexp"}
_DIMENSION_OF_MESSAGES = frozenset(
    "sum mean amax amin max min norm prod nansum std var logsumexp softmax log_softmax unsqueeze squeeze cat concat stack "
    "select narrow".split()
)
_EACH_MESSAGE = frozenset(
    """add radd sub rsub mul rmul div true_divide truediv rtruediv neg negative abs exp log log1p sqrt rsqrt pow rpow square
    relu leaky_relu elu gelu silu selu celu tanh sigmoid softplus clamp clip minimum maximum where eq ne lt le gt ge float
    double type_as to contiguous clone detach linear layer_norm matmul masked_fill""".split()
)
_OPERATORS = "add radd sub rsub mul rmul truediv rtruediv pow rpow neg abs eq ne lt le gt ge matmul getitem".split()


class OfEdges:
    """An expression over edges that stands where a tensor is expected.

    Args:
        edges: which edges.
        node: the expression.
    """

    leading: ClassVar[int]
    """How many dimensions there are before a row's."""

    def __init__(self, edges: Edges, node: Node) -> None:
        self.edges, self.node = edges, node

    @property
    def shape(self) -> Any:
        """As a tensor has it."""
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        return self.node.dtype

    @property
    def device(self) -> torch.device:
        return self.edges.device

    @property
    def ndim(self) -> int:
        return self.leading + len(self.node.shape)

    def dim(self) -> int:
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]


F = TypeVar("F", bound=OfEdges)


def _first(kind: type[F], arguments: Any) -> F:
    fields: list[F] = []
    map_values(arguments, lambda value: fields.append(value) if isinstance(value, kind) else None)
    return fields[0]


def _set_operators(kind: type[OfEdges], call: Callable[..., Any], names: list[str]) -> None:
    """Let Python's operators on ``kind`` make calls of PyTorch's: ``call(function, args, kwargs)``."""

    def operator(name: str) -> Callable[..., Any]:
        method = getattr(Tensor, name)
        return lambda self, *args: call(method, (self, *args), {})

    for name in names:
        setattr(kind, f"__{name}__", operator(f"__{name}__"))
    kind.__hash__ = object.__hash__  # type: ignore[method-assign]


class EdgeTensor(OfEdges):
    """A field of this worker's edges, [E, ...]."""

    leading = 1

    def __init__(self, edges: Edges, node: Node) -> None:
        super().__init__(edges, node)
        self._value: Tensor | None = None

    @property
    def node(self) -> Node:
        """The expression. What was noted under ``torch.no_grad()`` is constant to what follows it, though computed later."""
        if not self._tracked and torch.is_grad_enabled():
            self.node = without_gradient(self._node)
        return self._node

    @node.setter
    def node(self, node: Node) -> None:
        self._node, self._tracked = node, torch.is_grad_enabled()

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
        return (self.edges.num_edges(), *self.node.shape)

    @property
    def requires_grad(self) -> bool:
        if isinstance(self.node, Field) and self.node.where == "e":
            return self.node.tensor.requires_grad
        if isinstance(self.node, Column):
            return False
        return torch.is_grad_enabled()

    def is_floating_point(self) -> bool:
        return self.node.dtype.is_floating_point

    def numel(self) -> int:
        return self.shape[0] * torch.Size(self.node.shape).numel()

    def __len__(self) -> int:
        return operator.index(self.edges.num_edges())

    def __bool__(self) -> bool:
        return bool(self.value())

    def __repr__(self) -> str:
        return f"EdgeTensor(edges={len(self)}, shape={self.node.shape}, dtype={self.dtype})"

    def dropped(self, draw: Draw) -> EdgeTensor:
        """The values dropped by the edges' original ids."""
        return EdgeTensor(self.edges, Dropped(self.node.shape, self.node.dtype, self.node, draw))

    def value(self) -> Tensor:
        """The values of all edges of this worker, [E, ...]; computed once. All workers must ask together."""
        if self._value is None:
            self._value = self.edges.edge_values(self.node)
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
    """What ``func`` gives as edge fields; ``NotImplemented`` where it does not take each edge by itself, told by a trial."""
    first = _first(EdgeTensor, (args, kwargs))
    name = str(getattr(func, "__name__", func))
    if name.endswith("_") and not name.startswith("__"):
        raise first.edges.session.wrong(
            f"An edge field is written to in place by '{name}'.",
            hint=f"use what '{name[:-1]}' gives: edge fields are expressions",
        )
    if name in ("view", "reshape") and len(args) > 1 and type(args[1]) is int and args[1] == len(first):
        args = (args[0], first.shape[0], *args[2:])
    edges, key = first.edges, first.edges.rows_key

    def described(value: Any, groups: Groups) -> Any:
        """As a trial sees an argument."""
        if isinstance(value, EdgeTensor):
            return Table(groups.number(key, None), 0, 1, 1, value.node.shape, value.dtype, value.device)
        mark = mark_of(value)
        if mark is not None and mark.key != key:
            raise NotTried("rows of nodes beside those of edges")
        return describe_tensor(value, groups)

    verdict = verdict_of(func, args, kwargs, Groups(), described)
    if not verdict.is_each_row:
        return NotImplemented

    def prepared(value: Any) -> Any:
        """An argument as an expression holds it."""
        if isinstance(value, EdgeTensor):
            return value.node
        if isinstance(value, Count) and value.of == (key, 1, 0):
            return EDGE_COUNT
        if isinstance(value, Count):
            raise edges.session.wrong(f"'{name}' of an edge field takes another number of rows.")
        if mark_of(value) is not None:
            return Field(tuple(value.shape[1:]), value.dtype, "e", value)
        return value

    args, kwargs = map_values((args, kwargs), prepared)
    outs = [(out.shape, out.dtype) for out in verdict.outs]
    if verdict.nest == "tensor":
        ((shape, dtype),) = outs
        if name in ("view", "reshape") and dtype == args[0].dtype:
            args, kwargs = (args[0], (EDGE_COUNT, *shape)), {}  # without -1, which is no size where there are no edges
        return EdgeTensor(edges, Call(shape, dtype, func, args, kwargs))
    whole = Call((), outs[0][1], func, args, kwargs)
    items = [EdgeTensor(edges, Item(shape, dtype, whole, k)) for k, (shape, dtype) in enumerate(outs)]
    return items if verdict.nest[0] in ("tuple", "list") else _Named(verdict.nest[0], items)


class _Named(tuple):
    """Several results with the names that PyTorch gives them."""

    def __new__(cls, kind: str, items: list[EdgeTensor]) -> _Named:
        self = super().__new__(cls, items)
        for name, item in zip(_NAMES.get(kind, ("values", "indices")), items, strict=False):
            setattr(self, name, item)
        return self


_NAMES = {"aminmax": ("min", "max"), "frexp": ("mantissa", "exponent"), "qr": ("Q", "R"), "linalg_qr": ("Q", "R")}


class CannotFold(Exception):
    """What a reduce function does that needs all messages of a node at one time.

    Attributes:
        what: such as ``'sort' over neighbours``.
        place: the user's file and line.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what, self.place = what, user_line()


class Mailbox(OfEdges):
    """The messages of each node, [M, neighbours, ...], as an expression over edges."""

    leading = 2

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _of_messages(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(Tensor, name):
            raise AttributeError(name)
        attribute = getattr(Tensor, name)
        if not callable(attribute):
            raise CannotFold(f"'{name}' of a node's messages")
        return lambda *args, **kwargs: _of_messages(attribute, (self, *args), kwargs)

    @property
    def shape(self) -> Any:
        return _Shape(self)

    def __len__(self) -> int:
        return operator.index(self.edges.number_of_dst_nodes())

    def in_degrees(self) -> Tensor:
        """[M, 1, ...], how many messages each node has, beside what they are folded to."""
        with paused():
            degrees = self.edges.plan.in_degrees.to(self.node.dtype if self.node.dtype.is_floating_point else torch.float64)
            return tagged(degrees.view(-1, *[1] * len(self.node.shape)), self.edges.destinations)


class _Shape:
    """The shape of messages; how many neighbours there are differs from node to node."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def __getitem__(self, at: Any) -> Any:
        whole = [self._mailbox.edges.number_of_dst_nodes(), None, *self._mailbox.node.shape]
        size = whole[at]
        if size is None and isinstance(at, int):  # as a number beside folded rows
            return self._mailbox.in_degrees()
        if size is None or (isinstance(size, list) and None in size):
            raise CannotFold("the number of a node's neighbours")
        return tuple(size) if isinstance(size, list) else size

    def __iter__(self) -> Any:
        raise CannotFold("the number of a node's neighbours")

    def __len__(self) -> int:
        return self._mailbox.ndim


class _Maxima(tuple):
    """What ``max(dim)`` gives: the values, and indices that are not there."""

    @property
    def values(self) -> Tensor:
        values: Tensor = self[0]
        return values

    @property
    def indices(self) -> Tensor:
        raise CannotFold("the places of maxima among neighbours")


def _of_messages(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call gives: messages, or rows [M, ...] where it folds over the neighbours."""
    first = _first(Mailbox, (args, kwargs))
    name = str(getattr(func, "__name__", func)).strip("_")
    if name in _DIMENSION_OF_MESSAGES:
        kwargs = dict(kwargs)
        dim: Any = kwargs.pop("dim", kwargs.pop("axis", None))
        at = 2 if name == "norm" else 1
        if dim is None and len(args) > at:
            dim, args = args[at], (*args[:at], *args[at + 1 :])
        if isinstance(dim, (tuple, list)) and len(dim) == 1:
            dim = dim[0]
        dim = dim % (first.ndim + (name in ("unsqueeze", "stack"))) if isinstance(dim, int) else None
        if dim == 1 and name in _FOLDED:
            rows = first.edges.folded(_FOLDED[name], first.node, f"'{name}' of a reduce function")
            rows = rows.unsqueeze(1) if kwargs.get("keepdim") else rows
            return _Maxima((rows, None)) if name in ("max", "min") else rows
        if dim == 1 and name in _MADE_OF_FOLDS:
            others = {key: value for key, value in kwargs.items() if key != "keepdim" and value is not None}
            rows = tagged(_MADE_OF_FOLDS[name](first, func, *args[1:], **others), first.edges.destinations)
            return rows.unsqueeze(1) if kwargs.get("keepdim") else rows
        if dim == 1 and name == "softmax":
            return Mailbox(first.edges, Softmax(first.node.shape, first.node.dtype, first.node))
        if dim is None or dim < 2:
            raise CannotFold(f"'{name}' over neighbours")
        kwargs["dim"] = dim - 1
    elif name == "einsum":
        return _einsum(first, *args)
    elif name not in _EACH_MESSAGE:
        raise CannotFold(f"'{name}'")
    noted = noted_call(func, *map_values((args, kwargs), lambda value: _beside_messages(value, first)))
    if not isinstance(noted, EdgeTensor):
        raise CannotFold(f"'{name}'")
    return Mailbox(first.edges, noted.node)


def _each(first: Mailbox, func: Callable[..., Any], *args: Any) -> Node:
    """A function of each message."""
    return Call(first.node.shape, first.node.dtype, func, args, {})


def _sum_of(first: Mailbox, node: Node) -> Tensor:
    return first.edges.folded("sum", node, "a sum of a reduce function")


def _variance(first: Mailbox, func: Any, unbiased: bool = True, *, correction: float | None = None) -> Tensor:
    """``std`` and ``var``: of the differences from the mean, which is folded first."""
    mean = first.edges.folded("mean", first.node, "a mean of a reduce function")
    centred = _each(first, torch.sub, first.node, first.edges.field("v", mean))
    free = correction if correction is not None else float(unbiased)
    variance = _sum_of(first, _each(first, torch.mul, centred, centred)) / (first.in_degrees() - free).clamp(min=0)
    return variance.sqrt() if func.__name__ == "std" else variance


def _norm(first: Mailbox, func: Any, p: Any = 2) -> Tensor:
    p = 2.0 if p in (None, "fro") else float(p)
    if p == math.inf:
        return first.edges.folded("max", _each(first, torch.abs, first.node), "a norm of a reduce function")
    if p <= 0:
        raise CannotFold(f"a norm with p = {p:g}")
    return _sum_of(first, _each(first, torch.pow, _each(first, torch.abs, first.node), p)) ** (1 / p)


def _einsum(first: Mailbox, equation: Any, *operands: Any) -> Tensor:
    """A sum over neighbours of what is computed of each message: the neighbours' letter is in no result."""
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else operands
    text = str(equation).replace(" ", "")
    of_messages = [
        term for term, operand in zip(text.split("->")[0].split(","), given, strict=False) if isinstance(operand, Mailbox)
    ]
    nodes, neighbours = of_messages[0][0], of_messages[0][1]
    if "." in text or "->" not in text or neighbours in text.split("->")[1] or text.split("->")[1][:1] != nodes:
        raise CannotFold(f"'einsum' of '{equation}'")
    if any(term[:2] != nodes + neighbours for term in of_messages):
        raise CannotFold(f"'einsum' of '{equation}'")
    args = (text.replace(neighbours, ""), *(_beside_messages(_with_neighbours(value, first), first) for value in given))
    noted = noted_call(torch.einsum, args, {})
    if not isinstance(noted, EdgeTensor):
        raise CannotFold("'einsum'")
    return _sum_of(first, noted.node)


def _with_neighbours(value: Any, first: Mailbox) -> Any:
    """Rows of nodes as they stand beside messages."""
    return value.unsqueeze(1) if isinstance(value, Tensor) and rows_of(value) == first.edges.destinations else value


_MADE_OF_FOLDS: dict[str, Callable[..., Tensor]] = {
    "prod": lambda first, func: first.edges.folded("mul", first.node, "'prod' of a reduce function"),
    "nansum": lambda first, func: _sum_of(first, _each(first, torch.nan_to_num, first.node, 0.0, math.inf, -math.inf)),
    "std": _variance,
    "var": _variance,
    "norm": _norm,
}
"""Folds over neighbours that are made of others, by name: (the messages, the function, its other arguments)."""


def _beside_messages(value: Any, first: Mailbox) -> Any:
    """An argument for the same call on edges."""
    if isinstance(value, Mailbox):
        return EdgeTensor(first.edges, value.node)
    if not isinstance(value, Tensor):
        return value
    rows = rows_of(value)
    if rows is None and value.dim() == first.ndim and value.shape[:2] == (1, 1):
        return value[0]  # the same for all messages, also where there is one node
    if rows is not None or (value.dim() == first.ndim and len(value) == len(first) and value.shape[1] == 1):
        if value.dim() < 2 or value.shape[1] != 1 or len(value) != len(first):
            raise CannotFold(f"rows of nodes of shape {tuple(value.shape)} beside their messages")
        return EdgeTensor(first.edges, first.edges.field("v", value.squeeze(1)))
    if value.dim() > first.ndim - 2 and value.dim() > 1:
        raise CannotFold(f"a tensor of shape {tuple(value.shape)} beside messages")
    return value


_set_operators(EdgeTensor, record, [*_OPERATORS, *"and or xor invert mod floordiv".split()])
_set_operators(Mailbox, _of_messages, _OPERATORS)
