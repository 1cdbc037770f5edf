"""Calls on what stands for rows of edges: an expression of each edge, or of each node's messages, which are folded.

Whatever takes each edge by itself is noted (``noted_call``). A reduce function of the user's is called once, for all nodes,
with a ``Mailbox``: what it does with each message by itself becomes a part of the message's expression; what it folds over the
neighbours (sum, mean, maximum, minimum, logsumexp, softmax) is folded shard by shard there and then. What cannot be folded
raises ``CannotFold``.

Letters: E edges of this worker, M output rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sargnn.modules.call import Groups, NotTried, Table, describe_tensor
from sargnn.modules.expressions import EDGE_COUNT, Call, Field, Item, Node, Softmax, flat, function_name, map_values
from sargnn.modules.lazy import EdgeRows, Lazy, blank, edge_rows, share
from sargnn.modules.session import paused
from sargnn.modules.tag import Count, mark_of, rows_of, tagged, user_line
from sargnn.modules.trial import verdict_of

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
_ABOUT = frozenset("shape size __len__ dim ndimension ndim dtype device is_floating_point __hash__".split())
"""What messages answer by themselves."""


def noted_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``func`` gives as expressions; ``NotImplemented`` where it does not take each edge by itself, told by a trial."""
    first = next(value for value in flat((args, kwargs)) if isinstance(value, EdgeRows))
    name, edges, key = function_name(func), first.edges, first.edges.rows_key
    if name in ("view", "reshape") and len(args) > 1 and type(args[1]) is int and args[1] == len(first):
        args = (args[0], first.shape[0], *args[2:])

    def described(value: Any, groups: Groups) -> Any:
        if isinstance(value, EdgeRows):
            return Table(groups.number(key, None), 0, 1, 1, value.node.shape, value.dtype, value.device)
        if isinstance(value, Lazy):
            raise NotTried("a tensor without numbers")
        mark = mark_of(value)
        if mark is not None and mark.key != key:
            raise NotTried("rows of nodes beside those of edges")
        return describe_tensor(value, groups)

    verdict = verdict_of(func, args, kwargs, Groups(), described)
    if not verdict.is_each_row or verdict.writes:
        return NotImplemented

    def prepared(value: Any) -> Any:
        if isinstance(value, EdgeRows):
            return value.node
        if isinstance(value, Count) and value.of == (key, 1, 0):
            return EDGE_COUNT
        if isinstance(value, Count):
            raise edges.session.wrong(f"'{name}' of an edge field takes another number of rows.")
        if mark_of(value) is not None:
            return Field(tuple(value.shape[1:]), value.dtype, "e", value)
        return value

    bases = [value for value in flat((args, kwargs)) if isinstance(value, EdgeRows)] if verdict.views else []
    args, kwargs = map_values((args, kwargs), prepared)
    outs = [(out.shape, out.dtype) for out in verdict.outs]
    if verdict.nest == "tensor":
        ((shape, dtype),) = outs
        if name in ("view", "reshape") and dtype == args[0].dtype:
            args, kwargs = (args[0], (EDGE_COUNT, *shape)), {}  # without -1, which is no size where there are no edges
        made = [edge_rows(edges, Call(shape, dtype, func, args, kwargs))]
    else:
        whole = Call((), outs[0][1], func, args, kwargs)
        made = [edge_rows(edges, Item(shape, dtype, whole, k)) for k, (shape, dtype) in enumerate(outs)]
    for base in bases:
        for view in made:
            share(view, base)
    if verdict.nest == "tensor":
        return made[0]
    return made if verdict.nest[0] in ("tuple", "list") else _Named(verdict.nest[0], made)


class _Named(tuple):
    """Several results with the names that PyTorch gives them."""

    def __new__(cls, kind: str, items: list[EdgeRows]) -> _Named:
        self = super().__new__(cls, items)
        for name, item in zip(_NAMES.get(kind, ("values", "indices")), items, strict=False):
            setattr(self, name, item)
        return self


_NAMES = {"aminmax": ("min", "max"), "frexp": ("mantissa", "exponent"), "qr": ("Q", "R"), "linalg_qr": ("Q", "R")}


class Mailbox(Lazy):
    """[M, neighbours, ...], the messages of each node, of which nobody knows how many there are; ``node``: the expression of
    one."""

    node: Node

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        if name in _ABOUT:
            return super().__torch_function__(func, types, args, kwargs)
        return _of_messages(name.strip("_"), func, args, kwargs or {})

    def sizes(self) -> Any:
        return _Shape(self)

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
        return 2 + len(self._mailbox.node.shape)


class CannotFold(Exception):
    """What a reduce function does that needs all messages of a node at one time, such as ``'sort' over neighbours``; ``place``:
    the user's line."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what, self.place = what, user_line()


def mailbox(edges: Edges, node: Node) -> Mailbox:
    shape = (edges.plan.num_out, 1, *node.shape)
    lazy: Mailbox = blank(Mailbox, shape, node.dtype, grad=True, device=edges.device, edges=edges, node=node)
    return lazy


class _Maxima(tuple):
    """What ``max(dim)`` gives: the values, and indices that are not there."""

    @property
    def values(self) -> Tensor:
        values: Tensor = self[0]
        return values

    @property
    def indices(self) -> Tensor:
        raise CannotFold("the places of maxima among neighbours")


def _of_messages(name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call gives: messages, or rows [M, ...] where it folds over the neighbours."""
    first = next(value for value in flat((args, kwargs)) if isinstance(value, Mailbox))
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
            return mailbox(first.edges, Softmax(first.node.shape, first.node.dtype, first.node))
        if dim is None or dim < 2:
            raise CannotFold(f"'{name}' over neighbours")
        kwargs["dim"] = dim - 1
    elif name == "einsum":
        return _einsum(first, *args)
    elif name not in _EACH_MESSAGE:
        raise CannotFold(f"'{name}'")
    noted = noted_call(func, *map_values((args, kwargs), lambda value: _beside_messages(value, first)))
    if not isinstance(noted, EdgeRows):
        raise CannotFold(f"'{name}'")
    return mailbox(first.edges, noted.node)


def _each(first: Mailbox, func: Callable[..., Any], *args: Any) -> Node:
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
    if not isinstance(noted, EdgeRows):
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
        return edge_rows(first.edges, value.node)
    if not isinstance(value, Tensor):
        return value
    rows = rows_of(value)
    if rows is None and value.dim() == first.ndim and value.shape[:2] == (1, 1):
        return value[0]  # the same for all messages, also where there is one node
    if rows is not None or (value.dim() == first.ndim and len(value) == len(first) and value.shape[1] == 1):
        if value.dim() < 2 or value.shape[1] != 1 or len(value) != len(first):
            raise CannotFold(f"rows of nodes of shape {tuple(value.shape)} beside their messages")
        return edge_rows(first.edges, first.edges.field("v", value.squeeze(1)))
    if value.dim() > first.ndim - 2 and value.dim() > 1:
        raise CannotFold(f"a tensor of shape {tuple(value.shape)} beside messages")
    return value
