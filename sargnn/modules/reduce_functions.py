"""Reduce functions: DGL's built-in ones, and the user's, folded shard by shard or called with all messages of a node.

The second is for what needs them at one time, such as a sequence model over neighbours, and for modes that hold all rows. As
DGL does it: nodes with as many edges are taken together, their messages are [nodes, edges, ...], a node's in the order of the
sources' original ids, so that they come alike on any number of workers. Nodes without edges get zeros. Nothing of the calls is
kept: backward calls the function again, under autograd (``one_shot``). Nothing here knows how messages came about.

Letters: M output rows, E edges, B nodes that are taken together, D edges of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sargnn.backends.operations import Operation
from sargnn.engine.reducers.base import Fold, Reducer, Saved, Tensors
from sargnn.engine.reducers.generic import EdgeRun, Messages
from sargnn.errors import SargnnError, nearest
from sargnn.modules.edge_calls import CannotFold, Mailbox, mailbox
from sargnn.modules.expressions import Node, Program, decode, encode
from sargnn.modules.message_functions import Batch, EdgeCalls, Reads, captured_tensors, describe, is_builtin_reduce
from sargnn.modules.session import paused
from sargnn.plan.layer_plan import Shard
from sargnn.rng import Draw

if TYPE_CHECKING:
    from sargnn.modules.dgl_graph import ShardedGraph

_FOLDS = ("sum", "mean", "max", "min")
_PROBE_NODES = _PROBE_EDGES = 2


class NodeBatch(Batch):
    """Nodes as DGL shows them to a function of nodes: ``data`` are their fields, [M, ...] each."""

    def __init__(self, data: Mapping[str, Any], mailbox: Mapping[str, Any], count: int, ids: Tensor) -> None:
        super().__init__(count)
        self.data, self.mailbox, self._ids = data, mailbox, ids

    def nodes(self) -> Tensor:
        """int64 [M], original ids."""
        return self._ids


def reduced(graph: ShardedGraph, messages: dict[str, Node], func: Any, called: str) -> dict[str, Tensor]:
    """What a reduce function gives, by field: rows [M, ...], zeros for nodes without edges.

    Args:
        messages: the messages' expressions by name.
        called: what the log calls the message function.

    Raises:
        ConfigError: there is no such message, it gives no mapping, or cannot be folded in a mode that holds not all rows.
    """

    def message(name: str) -> Node:
        if name not in messages:
            raise graph.session.wrong(
                f"A reduce function reads the message '{name}', which the message function does not give.",
                allowed=nearest(name, messages) or list(messages),
            )
        return messages[name]

    if is_builtin_reduce(func):
        if func.name not in _FOLDS:
            raise graph.session.wrong(f"There is no reduce function '{func.name}'.", allowed=_FOLDS)
        return {func.out_field: graph.folded(func.name, message(func.msg_field), f"update_all({called}, {func.name})")}
    if not callable(func):
        raise graph.session.wrong(
            "A reduce function is neither one of dgl.function nor a function.",
            given=describe(func),
            allowed="such as fn.sum('m', 'h'), or a function of nodes that gives a mapping",
        )
    messages_of_nodes = Reads(lambda name: mailbox(graph.bare, message(name)), messages)
    session, mode = graph.session, graph.session.engine.mode
    folds_rows, session.calls.folds_rows = session.calls.folds_rows, False
    try:
        fields = func(NodeBatch(graph.dstdata, messages_of_nodes, graph.number_of_dst_nodes(), graph.destination_ids()))
        _check(graph, func, fields)
        if session.calls.folds_rows:
            raise session.wrong(
                "A reduce function folds over nodes, and gets those of one in-degree at a time.",
                given=describe(func),
                place=session.place_of(func),
                allowed="folds over a node's messages; over nodes after update_all",
            )
        session.calls.folds_rows = folds_rows
    except SargnnError:
        raise
    except Exception as error:
        if isinstance(error, CannotFold):
            what, place = error.what, error.place
        else:  # the function met messages that are not there
            what, place = f"all messages of a node ({type(error).__name__}: {error})", session.place_of_error(error)
        if mode.layout != "merged":
            raise session.wrong(
                f"A reduce function cannot be folded shard by shard: it needs {what}.",
                given=f"{describe(func)}, mode={mode.name}",
                place=place,
                allowed="sum, mean, max, min, logsumexp and softmax over dim=1, and what takes each message by itself",
                hint="mode=one_shot and mode=domain_parallel hold all rows and run it as it is",
            ) from error
        session.note(f"{describe(func)}: called with all messages of each node, because it needs {what}")
        return _gather_and_reduce(graph, messages, func)
    with paused():
        connected = (graph.plan.in_degrees > 0).view(-1)
        if bool(connected.all()):
            return dict(fields)
        return {
            name: torch.where(connected.view(-1, *[1] * (rows.dim() - 1)), rows, rows.new_zeros(()))
            for name, rows in fields.items()
        }


def _check(graph: ShardedGraph, func: Callable[..., Any], fields: Any) -> None:
    """Raise ``ConfigError`` unless a reduce function gave a mapping of tensors with a row per node."""
    place, count = graph.session.place_of(func), graph.number_of_dst_nodes().own
    if not isinstance(fields, Mapping) or not fields:
        raise graph.session.wrong(
            "A reduce function gives no rows.",
            given=f"a {type(fields).__name__}",
            place=place,
            allowed="a mapping from names to tensors [nodes, ...]",
        )
    for name, value in fields.items():
        if isinstance(value, Mailbox):
            raise graph.session.wrong(
                f"The field '{name}' of a reduce function is not folded over the neighbours.",
                place=place,
                hint="such as nodes.mailbox['m'].sum(1)",
            )
        if not isinstance(value, Tensor) or not value.dim() or len(value) != count:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise graph.session.wrong(
                f"The field '{name}' of a reduce function has not one row per node.",
                given=f"{shape} for {count} nodes",
                place=place,
            )


def _gather_and_reduce(graph: ShardedGraph, messages: dict[str, Node], func: Callable[..., Any]) -> dict[str, Tensor]:
    """Rows [M, ...] by field. The graph's mode holds all rows."""
    reads: dict[str, Tensor] = {}

    def example(name: str) -> Tensor:
        if name not in reads:
            value = graph.dstdata[name]
            made = torch.ones(_PROBE_NODES, *value.shape[1:], dtype=value.dtype, device=graph.device)
            reads[name] = made.requires_grad_() if made.is_floating_point() and torch.is_grad_enabled() else made
        return reads[name]

    mailbox = {
        name: torch.ones(_PROBE_NODES, _PROBE_EDGES, *node.shape, dtype=node.dtype, device=graph.device)
        for name, node in messages.items()
    }
    batch = NodeBatch(Reads(example, graph.dstdata), mailbox, _PROBE_NODES, torch.zeros(_PROBE_NODES, dtype=torch.int64))
    session, draws = graph.session, dict[int, Draw]()
    with paused():
        probed, params = captured_tensors(lambda: func(batch), reads.values(), EdgeCalls(session, draws, None))
    names, shapes = list(probed), [tuple(tensor.shape[1:]) for tensor in probed.values()]
    program = Program(list(messages.values()), graph.dtype)
    nodes = tuple(graph.dstdata[name] for name in reads)
    sources, destinations, edges = program.fields("u"), program.fields("v"), program.fields("e")
    kinds = tuple((tensor.dtype, tuple(tensor.shape[1:])) for tensor in nodes)
    read_names, message_names = list(reads), list(messages)

    def call(rows: Tensors, fields: Tensors, ids: Tensor) -> Tensors:
        data = {
            name: field.view(len(field), *shape) if dtype.is_floating_point else decode(field, dtype, shape)
            for name, field, (dtype, shape) in zip(read_names, fields, kinds, strict=True)
        }
        batch = NodeBatch(data, dict(zip(message_names, rows, strict=True)), len(ids), ids)
        with EdgeCalls(session, draws, None):
            given = func(batch)
        return tuple(given[name].flatten(1) if given[name].dim() > 1 else given[name][:, None] for name in names)

    widths, node_grads = [torch.Size(shape).numel() for shape in shapes], [tensor.requires_grad for tensor in nodes]
    reducer = Gathered(program.messages(()), call, node_grads, widths, params)
    local = (*destinations, *(encode(tensor, graph.dtype) for tensor in nodes), *edges)
    outs = graph.aggregate(reducer, sources, local, reducer.params)
    return {name: out.view(len(out), *shape) for name, out, shape in zip(names, outs, shapes, strict=True)}


@dataclass(frozen=True)
class _Bucket:
    """Nodes with D edges each: int64 [B], their output rows, their edges node by node, and int64 [B D], numbers of these."""

    rows: Tensor
    run: EdgeRun
    edges: Tensor
    degree: int


@dataclass
class _Backward:
    grads: Tensors
    local: list[Tensor]
    params: list[Tensor]


class Gathered(Reducer[Operation, list[Tensor], _Backward]):
    """Calls a function with all messages of nodes.

    ``exchanged``: source fields, flat; ``dest_local``: destination fields of the messages, fields of the nodes, edge fields.

    Args:
        call: the reduce function: messages [B, D, ...], node fields [B, ...] and the nodes' original ids to rows [B, W].
        node_grads: which node fields are differentiable.
        params: what ``call`` reads beside its arguments.
    """

    name = "gathered"
    operation = "sum"
    needs_src_in_backward = True

    def __init__(
        self,
        messages: Messages,
        call: Callable[[Tensors, Tensors, Tensor], Tensors],
        node_grads: list[bool],
        widths: list[int],
        params: Tensors,
    ) -> None:
        self.messages, self.call, self.node_grads, self.widths = messages, call, node_grads, widths
        self.params = (*messages.params, *(p for p in params if all(p is not q for q in messages.params)))

    def init(self, fold: Fold[Operation], exchanged: Tensors, dest_local: Tensors, params: Tensors) -> list[Tensor]:
        like = (*exchanged, *dest_local)[0]
        return [like.new_zeros(fold.plan.num_out, width) for width in self.widths]

    def step(
        self, fold: Fold[Operation], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: list[Tensor]
    ) -> None:
        for bucket in _buckets(shard):
            computed, _ = self._called(bucket, rows, dest_local, leaves=False)
            for total, part in zip(state, computed, strict=True):
                total[bucket.rows] = part

    def finish(
        self, fold: Fold[Operation], dest_local: Tensors, params: Tensors, state: list[Tensor]
    ) -> tuple[Tensors, Tensors]:
        return tuple(state), ()

    def backward_init(self, fold: Fold[Operation], saved: Saved, grads: Tensors) -> _Backward:
        return _Backward(grads, [torch.zeros_like(t) for t in saved.dest_local], [torch.zeros_like(p) for p in self.params])

    def backward_step(
        self, fold: Fold[Operation], shard: Shard, rows: Tensors | None, saved: Saved, state: _Backward, out: Tensors | None
    ) -> None:
        assert rows is not None
        for gradient in out or ():
            gradient.zero_()
        for bucket in _buckets(shard):
            with torch.enable_grad():
                computed, leaves = self._called(bucket, rows, saved.dest_local, leaves=True)
            pairs = [(part, grad[bucket.rows]) for part, grad in zip(computed, state.grads, strict=True) if part.requires_grad]
            wanted = [*(leaf for leaf, _ in leaves if leaf.requires_grad), *self.params]
            if not pairs or not wanted:
                continue
            parts, grads = zip(*pairs, strict=True)
            gradients = iter(torch.autograd.grad(parts, wanted, grads, allow_unused=True))
            targets = [*(out or [None] * len(rows)), *state.local]
            for (leaf, index), target in zip(leaves, targets, strict=True):
                if leaf.requires_grad and (grad := next(gradients)) is not None and target is not None:
                    fold.backend.folds.add_to_starts(grad, index.to(torch.int32), target)
            for total, grad in zip(state.params, gradients, strict=True):
                if grad is not None:
                    total += grad

    def backward_finish(self, saved: Saved, state: _Backward) -> tuple[Tensors, Tensors]:
        return tuple(state.local), tuple(state.params)

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        like = (*rows, *dest_local)[0]
        outs = [like.new_zeros(fold.plan.num_out, width) for width in self.widths]
        for bucket in _buckets(shard):
            computed, _ = self._called(bucket, rows, dest_local, leaves=False)
            outs = [out.index_copy(0, bucket.rows, part) for out, part in zip(outs, computed, strict=True)]
        return tuple(outs)

    def _called(
        self, bucket: _Bucket, rows: Tensors, local: Tensors, *, leaves: bool
    ) -> tuple[Tensors, list[tuple[Tensor, Tensor]]]:
        """A bucket's rows [B, W], and the fields' rows that they were computed from, with the rows' numbers."""
        messages, run = self.messages, bucket.run
        count, nodes = len(messages.destination_grads), len(self.node_grads)
        taken: list[tuple[Tensor, Tensor]] = []

        def take(tensors: Tensors, index: Tensor, grads: Sequence[bool]) -> Tensors:
            picked = [tensor.index_select(0, index) for tensor in tensors]
            if leaves:
                picked = [leaf.detach().requires_grad_(grad) for leaf, grad in zip(picked, grads, strict=True)]
            taken.extend((leaf, index) for leaf in picked)
            return tuple(picked)

        sources = take(rows, run.src, messages.source_grads)
        destinations = take(local[:count], run.dst, messages.destination_grads)
        fields = take(local[count : count + nodes], bucket.rows, self.node_grads)
        edges = take(local[count + nodes :], bucket.edges, messages.edge_grads)
        computed = messages.compute(dataclasses.replace(run, sources=sources, destinations=destinations, edges=edges))
        boxes = tuple(message.reshape(len(bucket.rows), bucket.degree, *message.shape[1:]) for message in computed)
        return self.call(boxes, fields, run.block.dst_ids.index_select(0, bucket.rows)), taken


def _buckets(shard: Shard) -> Iterator[_Bucket]:
    """Nodes by their number of edges; each node's edges by its sources' original ids."""
    block = shard.block
    dst = block.dst_per_edge()
    rank = block.src_id_rank.index_select(0, block.src).long()
    order = torch.argsort(dst * (int(rank.max()) + 1 if len(rank) else 1) + rank, stable=True)
    degrees = (block.indptr[1:] - block.indptr[:-1]).long()
    listed = torch.arange(block.num_dst) if block.dst_rows is None else block.dst_rows.long()
    for degree in torch.unique(degrees).tolist():
        if degree == 0:
            continue
        which = torch.nonzero(degrees == degree)[:, 0]
        at = block.indptr[:-1].long()[which][:, None] + torch.arange(degree)
        edges = order[at.flatten()]
        rows = listed[which]
        run = EdgeRun(block, 0, len(edges), 0, block.src[edges], torch.repeat_interleave(rows, degree).to(torch.int32))
        yield _Bucket(rows, run, edges, degree)
