"""Message functions as expressions: DGL's built-in ones, known by their attributes so that DGL is not imported, and the user's.

A user's function is called with the rows of a run of edges, as DGL calls it with all edges. Which fields it reads, and which
tensors beside them have gradients, is found by calling it once with two made-up edges.

Letters: E edges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sargnn.engine.reducers.generic import EdgeRun
from sargnn.modules.edges import EdgeTensor
from sargnn.modules.expressions import Call, Field, Item, Node, Where, Written
from sargnn.modules.frames import Frame
from sargnn.modules.user_functions import Reads, captured_tensors

if TYPE_CHECKING:
    from sargnn.modules.graph import ShardedGraph

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
}
_PROBE_EDGES = 2


def is_builtin_message(func: Any) -> bool:
    """Whether it is one of ``dgl.function``'s message functions."""
    return hasattr(func, "out_field") and (hasattr(func, "in_field") or hasattr(func, "binary_op")) and hasattr(func, "name")


def is_builtin_reduce(func: Any) -> bool:
    """Whether it is one of ``dgl.function``'s reduce functions."""
    return hasattr(func, "msg_field") and hasattr(func, "out_field") and hasattr(func, "name")


def describe(func: Any) -> str:
    """A function as a log or an error names it."""
    if is_builtin_message(func) or is_builtin_reduce(func):
        return str(func.name)
    return str(getattr(func, "__qualname__", None) or type(func).__name__)


def message_nodes(graph: ShardedGraph, func: Any) -> dict[str, Node]:
    """The messages' expressions by name.

    Raises:
        ConfigError: a field is not there, or the function gives no messages; with the user's file and line.
    """
    if is_builtin_message(func):
        return {func.out_field: _builtin(graph, func)}
    if not callable(func):
        raise graph.wrong(
            "A message function is neither one of dgl.function nor a function.",
            given=describe(func),
            allowed="such as fn.copy_u('h', 'm'), or a function of edges that gives a mapping",
        )
    return _written(graph, func)


def _builtin(graph: ShardedGraph, func: Any) -> Node:
    places = func.name.split("_")
    if places[0] == "copy":
        return field_node(graph, places[1], func.in_field)
    left, operation, right = places
    first, other = field_node(graph, left, func.lhs_field), field_node(graph, right, func.rhs_field)
    a, b = _aligned(first, other)
    try:
        shape = tuple(torch.broadcast_shapes(a.shape, b.shape))
    except RuntimeError as error:
        raise graph.wrong(
            f"Fields of different shapes meet in '{func.name}'.",
            given=f"'{func.lhs_field}' {first.shape}, '{func.rhs_field}' {other.shape}",
            hint="row shapes must be equal, or 1 where they are not",
        ) from error
    dtype = torch.promote_types(a.dtype, b.dtype)
    if operation == "dot":
        product = Call(shape, dtype, torch.mul, (a, b), {})
        return Call((*shape[:-1], 1), dtype, torch.sum, (product,), {"dim": -1, "keepdim": True})
    return Call(shape, dtype, _OPERATIONS[operation], (a, b), {})


def _aligned(first: Node, other: Node) -> tuple[Node, Node]:
    """With as many dimensions: 1s behind the edges' dimension, as DGL has it."""
    most = max(len(first.shape), len(other.shape))

    def filled(node: Node) -> Node:
        missing = most - len(node.shape)
        if not missing:
            return node
        shape = (*[1] * missing, *node.shape)
        if isinstance(node, Field) and node.where == "e":  # a field it stays, which a fused kernel takes
            return Field(shape, node.dtype, "e", _fill_shape(node.tensor, missing))
        return Call(shape, node.dtype, _fill_shape, (node, missing), {})

    return filled(first), filled(other)


def _fill_shape(rows: Tensor, missing: int) -> Tensor:
    return rows.reshape(len(rows), *[1] * missing, *rows.shape[1:])


def field_node(graph: ShardedGraph, place: str, name: str) -> Node:
    """A field by DGL's letter for where it is: u, v or e. Raises ``ConfigError`` where it is not there."""
    frame = {"u": graph.srcdata, "v": graph.dstdata, "e": graph.edata}[place]
    return as_node(graph, place, frame[name])  # type: ignore[arg-type]


def as_node(graph: ShardedGraph, where: Where, value: Any) -> Node:
    """What a frame holds, as an expression."""
    if isinstance(value, EdgeTensor):
        return value.node
    return graph.field(where, value)


class _Batch:
    """Two made-up edges, or a run of real ones, as DGL shows edges to a message function.

    Attributes:
        src, dst, data: the fields of the edges' sources, of their destinations, and their own; [E, ...] each.
    """

    def __init__(self, src: Mapping[str, Tensor], dst: Mapping[str, Tensor], data: Mapping[str, Tensor], count: int, ids: Any):
        self.src, self.dst, self.data = src, dst, data
        self._count, self._ids = count, ids

    def batch_size(self) -> int:
        """E."""
        return self._count

    def __len__(self) -> int:
        return self._count

    def edges(self) -> tuple[Tensor, Tensor, None]:
        """Original ids of the edges' sources and destinations; edges have none that is the same on any number of workers."""
        source, destination = self._ids()
        return source, destination, None


def _written(graph: ShardedGraph, func: Callable[..., Any]) -> dict[str, Node]:
    reads: list[tuple[Where, str]] = []
    draws = graph.new_draws()
    made: dict[tuple[Where, str], Tensor] = {}

    def example(where: Where, frame: Frame) -> Reads:
        def read(name: str) -> Tensor:
            node = as_node(graph, where, frame[name])
            key = where, name
            if key not in made:
                made[key] = torch.ones(_PROBE_EDGES, *node.shape, dtype=node.dtype, device=graph.device)
                if not node.dtype.is_floating_point:
                    made[key].zero_()
                elif torch.is_grad_enabled():
                    made[key].requires_grad_()
                reads.append(key)
            return made[key]

        return Reads(read, frame)

    def ids() -> tuple[Tensor, Tensor]:
        return torch.zeros(_PROBE_EDGES, dtype=torch.int64), torch.zeros(_PROBE_EDGES, dtype=torch.int64)

    batch = _Batch(example("u", graph.srcdata), example("v", graph.dstdata), example("e", graph.edata), _PROBE_EDGES, ids)
    with graph.paused():
        messages, params = captured_tensors(lambda: func(batch), made.values(), graph.calls_of_edges(draws, None))
    _check_messages(graph, func, messages, _PROBE_EDGES)
    frames = {"u": graph.srcdata, "v": graph.dstdata, "e": graph.edata}
    fields = tuple((where, name, as_node(graph, where, frames[where][name])) for where, name in reads)

    def compute(run: EdgeRun, rows: dict[tuple[str, str], Tensor]) -> Any:
        src, dst, data = ({name: t for (place, name), t in rows.items() if place == where} for where in "uve")
        batch = _Batch(src, dst, data, len(run), lambda: (run.src_ids, run.dst_ids))
        with graph.calls_of_edges(draws, run):
            messages = func(batch)
        _check_messages(graph, func, messages, len(run))
        return messages

    whole = Written((), torch.float32, compute, fields, params)
    return {name: Item(tuple(value.shape[1:]), value.dtype, whole, name) for name, value in messages.items()}


def _check_messages(graph: ShardedGraph, func: Callable[..., Any], messages: Any, edges: int) -> None:
    """Raise ``ConfigError`` unless a message function gave a mapping of tensors with a row per edge."""
    place = graph.place_of(func)
    if not isinstance(messages, Mapping) or not messages:
        raise graph.wrong(
            "A message function gives no messages.",
            given=f"a {type(messages).__name__}",
            place=place,
            allowed="a mapping from names to tensors [edges, ...]",
        )
    for name, value in messages.items():
        if not isinstance(value, Tensor):
            raise graph.wrong(f"The message '{name}' is no tensor.", given=f"a {type(value).__name__}", place=place)
        if not value.dim() or len(value) != edges:
            raise graph.wrong(
                f"The message '{name}' has not one row per edge.",
                place=place,
                given=f"shape {tuple(value.shape)} for {edges} edges",
                hint="messages are [edges, ...], computed edge by edge",
            )
