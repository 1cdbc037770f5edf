"""Reduce functions: DGL's built-in ones, and the user's, folded shard by shard or called with all messages of a node.

Letters: M output rows, E edges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sargnn.errors import SargnnError, nearest
from sargnn.modules.expressions import Node
from sargnn.modules.functions import describe, is_builtin_reduce
from sargnn.modules.gathered import gather_and_reduce
from sargnn.modules.mailbox import CannotFold, Mailbox

if TYPE_CHECKING:
    from sargnn.modules.graph import ShardedGraph

FOLDS = ("sum", "mean", "max", "min")


class NodeBatch:
    """Nodes as DGL shows them to a reduce function: all of them.

    Attributes:
        data: fields of the nodes, [M, ...] each. mailbox: their messages by name.
    """

    def __init__(self, data: Mapping[str, Any], mailbox: Mapping[str, Any], count: int, ids: Tensor) -> None:
        self.data, self.mailbox = data, mailbox
        self._count, self._ids = count, ids

    def batch_size(self) -> int:
        """M."""
        return self._count

    def __len__(self) -> int:
        return self._count

    def nodes(self) -> Tensor:
        """int64 [M], original ids."""
        return self._ids


def reduced(graph: ShardedGraph, messages: dict[str, Node], func: Any, called: str) -> dict[str, Tensor]:
    """What a reduce function gives, by field: rows [M, ...], zeros for nodes without edges.

    Args:
        messages: the messages' expressions by name. called: what the log calls the message function.

    Raises:
        ConfigError: there is no such message, it gives no mapping, or cannot be folded in a mode that holds not all rows.
    """
    if is_builtin_reduce(func):
        if func.name not in FOLDS:
            raise graph.wrong(f"There is no reduce function '{func.name}'.", allowed=FOLDS)
        node = _message(graph, messages, func.msg_field)
        return {func.out_field: graph.folded([(func.name, node)], f"update_all({called}, {func.name})")[0]}
    if not callable(func):
        raise graph.wrong(
            "A reduce function is neither one of dgl.function nor a function.",
            given=describe(func),
            allowed="such as fn.sum('m', 'h'), or a function of nodes that gives a mapping",
        )
    return _written(graph, messages, func)


def _message(graph: ShardedGraph, messages: Mapping[str, Node], name: str) -> Node:
    if name not in messages:
        raise graph.wrong(
            f"A reduce function reads the message '{name}', which the message function does not give.",
            allowed=nearest(name, messages) or list(messages),
        )
    return messages[name]


class _Messages(Mapping[str, Any]):
    """The mailbox: messages by name."""

    def __init__(self, graph: ShardedGraph, messages: Mapping[str, Node]) -> None:
        self._graph, self._messages = graph, messages

    def __getitem__(self, name: str) -> Mailbox:
        return Mailbox(self._graph, _message(self._graph, self._messages, name))

    def __iter__(self) -> Any:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)


def _written(graph: ShardedGraph, messages: dict[str, Node], func: Callable[..., Any]) -> dict[str, Tensor]:
    ids = graph.destination_ids()
    batch = NodeBatch(graph.dstdata, _Messages(graph, messages), int(graph.number_of_dst_nodes()), ids)
    try:
        fields = func(batch)
        _check(graph, func, fields)
    except SargnnError:
        raise
    except Exception as error:
        reason = error if isinstance(error, CannotFold) else _not_traced(graph, error)
        if not graph.holds_all_rows:
            raise graph.wrong(
                f"A reduce function cannot be folded shard by shard: it needs {reason.what}.",
                given=f"{describe(func)}, mode={graph.mode_name}",
                place=reason.place,
                allowed="sum, mean, max, min, logsumexp and softmax over dim=1, and what takes each message by itself",
                hint="mode=one_shot and mode=domain_parallel hold all rows and run it as it is",
            ) from error
        graph.note(f"{describe(func)}: called with all messages of each node, because it needs {reason.what}")
        return gather_and_reduce(graph, messages, func)
    connected = (graph.plan.in_degrees > 0).view(-1)
    if bool(connected.all()):
        return dict(fields)
    return {name: _where(connected, rows) for name, rows in fields.items()}


def _not_traced(graph: ShardedGraph, error: Exception) -> CannotFold:
    """What stopped a reduce function that met messages that are not there."""
    return CannotFold(f"all messages of a node ({type(error).__name__}: {error})", graph.place_of_error(error))


def _where(connected: Tensor, rows: Tensor) -> Tensor:
    """Rows [M, ...], zeros where a node has no messages."""
    return torch.where(connected.view(-1, *[1] * (rows.dim() - 1)), rows, rows.new_zeros(()))


def _check(graph: ShardedGraph, func: Callable[..., Any], fields: Any) -> None:
    """Raise ``ConfigError`` unless a reduce function gave a mapping of tensors with a row per node."""
    place, count = graph.place_of(func), int(graph.number_of_dst_nodes())
    if not isinstance(fields, Mapping) or not fields:
        raise graph.wrong(
            "A reduce function gives no rows.",
            given=f"a {type(fields).__name__}",
            place=place,
            allowed="a mapping from names to tensors [nodes, ...]",
        )
    for name, value in fields.items():
        if isinstance(value, Mailbox):
            raise graph.wrong(
                f"The field '{name}' of a reduce function is not folded over the neighbours.",
                place=place,
                hint="such as nodes.mailbox['m'].sum(1)",
            )
        if not isinstance(value, Tensor) or not value.dim() or len(value) != count:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise graph.wrong(
                f"The field '{name}' of a reduce function has not one row per node.",
                given=f"{shape} for {count} nodes",
                place=place,
            )
