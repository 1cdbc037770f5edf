"""Reduce functions that need all messages of a node at one time, such as a sequence model over neighbours.

For modes that hold all rows. As DGL does it: nodes with as many edges are taken together, their messages are [nodes, edges,
...], a node's in the order of the sources' original ids, so that they come alike on any number of workers. Nodes without edges
get zeros. Nothing of the calls is kept: backward calls the function again, under autograd (``one_shot``).

Letters: M output rows, E edges, B nodes that are taken together, D edges of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sargnn.engine.reducers.base import Fold, Reducer, Saved, Tensors
from sargnn.engine.reducers.generic import EdgeRun, Messages
from sargnn.kernels.base import AutogradOperation, Operation
from sargnn.kernels.fused.edge_loops import add_to_starts
from sargnn.modules.expressions import Node, Program, decode, encode
from sargnn.modules.user_functions import Reads, captured_tensors
from sargnn.shards.plan import LayerPlan, Shard

if TYPE_CHECKING:
    from sargnn.modules.graph import ShardedGraph

_PROBE_NODES = _PROBE_EDGES = 2
Call = Callable[[Tensors, Tensors, Tensor], Tensors]
"""Messages [B, D, ...], node fields [B, ...] and the nodes' original ids to rows [B, W]."""


def gather_and_reduce(graph: ShardedGraph, messages: dict[str, Node], func: Callable[..., Any]) -> dict[str, Tensor]:
    """Rows [M, ...] by field. The graph's mode holds all rows."""
    from sargnn.modules.reduce import NodeBatch

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
    nobody = torch.zeros(_PROBE_NODES, dtype=torch.int64)
    draws = graph.new_draws()
    with graph.paused():
        probed, params = captured_tensors(
            lambda: func(NodeBatch(Reads(example, graph.dstdata), mailbox, _PROBE_NODES, nobody)),
            reads.values(),
            graph.calls_of_edges(draws, None),
        )
    names, shapes = list(probed), [tuple(tensor.shape[1:]) for tensor in probed.values()]
    program = Program(list(messages.values()), graph.dtype)
    nodes = tuple(graph.dstdata[name] for name in reads)
    sources, destinations, edges = program.sources, program.destinations, program.edges
    kinds = tuple((tensor.dtype, tuple(tensor.shape[1:])) for tensor in nodes)
    read_names, message_names = list(reads), list(messages)

    def call(rows: Tensors, fields: Tensors, ids: Tensor) -> Tensors:
        data = {
            name: field.view(len(field), *shape) if dtype.is_floating_point else decode(field, dtype, shape)
            for name, field, (dtype, shape) in zip(read_names, fields, kinds, strict=True)
        }
        batch = NodeBatch(data, dict(zip(message_names, rows, strict=True)), len(ids), ids)
        with graph.calls_of_edges(draws, None):
            given = func(batch)
        return tuple(given[name].flatten(1) if given[name].dim() > 1 else given[name][:, None] for name in names)

    reducer = Gathered(
        program.messages(()),
        call,
        tuple(tensor.requires_grad for tensor in nodes),
        tuple(torch.Size(shape).numel() for shape in shapes),
        tuple(params),
    )
    local = (*destinations, *(encode(tensor, graph.dtype) for tensor in nodes), *edges)
    outs = graph.aggregate(reducer, sources, local, reducer.params)
    return {name: out.view(len(out), *shape) for name, out, shape in zip(names, outs, shapes, strict=True)}


@dataclass(frozen=True)
class _Bucket:
    """Nodes with as many edges.

    Attributes:
        rows: int64 [B], output rows. run: their edges, node by node. edges: int64 [B D], numbers of the edges. degree: D.
    """

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
        messages: the message function. call: the reduce function. node_grads: which node fields are differentiable.
        widths: of the outputs. params: what ``call`` reads beside its arguments.
    """

    name = "gathered"
    operation = "sum"
    needs_src_in_backward = True

    def __init__(
        self, messages: Messages, call: Call, node_grads: tuple[bool, ...], widths: tuple[int, ...], params: Tensors
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
            wanted = [leaf for leaf, _ in leaves if leaf.requires_grad]
            if not pairs or not (wanted or self.params):
                continue
            gradients = iter(
                torch.autograd.grad(
                    [part for part, _ in pairs], [*wanted, *self.params], [g for _, g in pairs], allow_unused=True
                )
            )
            targets = [*(out or [None] * len(rows)), *state.local]
            for (leaf, index), target in zip(leaves, targets, strict=True):
                if leaf.requires_grad and (grad := next(gradients)) is not None and target is not None:
                    add_to_starts(grad, index.to(torch.int32), target)
            for total, grad in zip(state.params, gradients, strict=True):
                if grad is not None:
                    total += grad

    def backward_finish(self, saved: Saved, state: _Backward) -> tuple[Tensors, Tensors]:
        return tuple(state.local), tuple(state.params)

    def autograd_forward(
        self, plan: LayerPlan, operation: AutogradOperation, shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors
    ) -> Tensors:
        like = (*rows, *dest_local)[0]
        outs = [like.new_zeros(plan.num_out, width) for width in self.widths]
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

        def take(tensors: Tensors, index: Tensor, grads: tuple[bool, ...]) -> Tensors:
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
