"""The messages of a node as a reduce function of the user's sees them, without their being there: [nodes, neighbours, ...].

A reduce function is called once, for all nodes, with such messages. What it does with each message by itself becomes a part of
the message's expression; what it folds over the neighbours (sum, mean, maximum, minimum, logsumexp, softmax) is folded shard by
shard there and then. What cannot be folded raises ``CannotFold``.

Letters: M output rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from sargnn.modules.edges import EdgeTensor, OfEdges, noted_call, set_operators
from sargnn.modules.expressions import map_values
from sargnn.modules.rows import rows_of, user_line

_FOLDED = {"sum": "sum", "mean": "mean", "amax": "max", "max": "max", "amin": "min", "min": "min", "logsumexp": "logsumexp"}
_WITH_DIMENSION = frozenset(
    "sum mean amax amin max min norm logsumexp softmax log_softmax unsqueeze squeeze cat concat stack select narrow".split()
)


class CannotFold(Exception):
    """What a reduce function does that needs all messages of a node at one time.

    Args:
        what: such as ``'sort' over neighbours``. place: the user's file and line.
    """

    def __init__(self, what: str, place: str) -> None:
        super().__init__(what)
        self.what, self.place = what, place


class Maxima(tuple):
    """What ``max(dim)`` gives: the values, and indices that are not there."""

    @property
    def values(self) -> Tensor:
        values: Tensor = self[0]
        return values

    @property
    def indices(self) -> Tensor:
        raise CannotFold("the places of maxima among neighbours", user_line())


class Mailbox(OfEdges):
    """Messages [M, neighbours, ...], as an expression over edges.

    Args:
        graph: whose messages. node: a message's expression, [E, ...].
    """

    leading = 2

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(Tensor, name):
            raise AttributeError(name)
        attribute = getattr(Tensor, name)
        if not callable(attribute):
            raise CannotFold(f"'{name}' of a node's messages", user_line())
        return lambda *args, **kwargs: _call(attribute, (self, *args), kwargs)

    @property
    def shape(self) -> Any:
        return _Shape(self)

    def __len__(self) -> int:
        return int(self.graph.number_of_dst_nodes())


class _Shape:
    """The shape of messages; how many neighbours there are differs from node to node."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def __getitem__(self, at: Any) -> Any:
        whole = [self._mailbox.graph.number_of_dst_nodes(), None, *self._mailbox.node.shape]
        size = whole[at]
        if size is None or (isinstance(size, list) and None in size):
            raise CannotFold("the number of a node's neighbours", user_line())
        return tuple(size) if isinstance(size, list) else size

    def __iter__(self) -> Any:
        raise CannotFold("the number of a node's neighbours", user_line())

    def __len__(self) -> int:
        return self._mailbox.ndim


def _call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call gives: messages, or rows [M, ...] where it folds over the neighbours."""
    first = _first(args, kwargs)
    name = str(getattr(func, "__name__", func)).strip("_")
    if name in _WITH_DIMENSION:
        dim, args, kwargs = _dimension(name, args, kwargs, first.ndim)
        if dim == 1 and name in _FOLDED:
            return _folded(first, name, kwargs)
        if dim == 1 and name == "softmax":
            return Mailbox(first.graph, EdgeTensor(first.graph, first.node).softmax_over_edges().node)
        if dim is None or dim < 2:
            raise CannotFold(f"'{name}' over neighbours", user_line())
        kwargs["dim"] = dim - 1
    elif name not in _PLAIN:
        raise CannotFold(f"'{name}'", user_line())
    changed = map_values((args, kwargs), lambda value: _as_edges(value, first))
    noted = noted_call(func, *changed)
    if not isinstance(noted, EdgeTensor):
        raise CannotFold(f"'{name}'", user_line())
    return Mailbox(first.graph, noted.node)


_PLAIN = frozenset(
    """add radd sub rsub mul rmul div true_divide truediv rtruediv neg negative abs exp log log1p sqrt rsqrt pow rpow square
    relu leaky_relu elu gelu silu selu celu tanh sigmoid softplus clamp clip minimum maximum where eq ne lt le gt ge float
    double type_as to contiguous clone detach linear layer_norm matmul masked_fill""".split()
)


def _first(args: Any, kwargs: Any) -> Mailbox:
    mailboxes: list[Mailbox] = []
    map_values((args, kwargs), lambda value: mailboxes.append(value) if isinstance(value, Mailbox) else None)
    return mailboxes[0]


def _dimension(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], ndim: int
) -> tuple[int | None, tuple[Any, ...], dict[str, Any]]:
    """The dimension that a call names, counted from the front, and the call without it."""
    kwargs = dict(kwargs)
    dim = kwargs.pop("dim", kwargs.pop("axis", None))
    if dim is None and len(args) > 1 and name not in ("norm",):
        dim, args = args[1], (args[0], *args[2:])
    if isinstance(dim, (tuple, list)) and len(dim) == 1:
        dim = dim[0]
    if not isinstance(dim, int):
        return None, args, kwargs
    return dim % (ndim + (name in ("unsqueeze", "stack"))), args, kwargs


def _folded(mailbox: Mailbox, name: str, kwargs: dict[str, Any]) -> Any:
    """Rows [M, ...] of a fold over the neighbours."""
    graph = mailbox.graph
    (rows,) = graph.folded([(_FOLDED[name], mailbox.node)], f"'{name}' of a reduce function")
    if kwargs.get("keepdim"):
        rows = rows.unsqueeze(1)
    return Maxima((rows, None)) if name in ("max", "min") else rows


def _as_edges(value: Any, first: Mailbox) -> Any:
    """An argument for the same call on edges."""
    if isinstance(value, Mailbox):
        return EdgeTensor(first.graph, value.node)
    if not isinstance(value, Tensor):
        return value
    if rows_of(value) is None and value.dim() == first.ndim and value.shape[:2] == (1, 1):
        return value[0]  # the same for all messages, also where there is one node
    if rows_of(value) is not None or (value.dim() == first.ndim and len(value) == len(first) and value.shape[1] == 1):
        if value.dim() < 2 or value.shape[1] != 1 or len(value) != len(first):
            raise CannotFold(f"rows of nodes of shape {tuple(value.shape)} beside their messages", user_line())
        return EdgeTensor(first.graph, first.graph.field("v", value.squeeze(1)))
    if value.dim() > first.ndim - 2 and value.dim() > 1:
        raise CannotFold(f"a tensor of shape {tuple(value.shape)} beside messages", user_line())
    return value


set_operators(Mailbox, _call, "add radd sub rsub mul rmul truediv rtruediv pow rpow neg abs eq ne lt le gt ge matmul getitem")
