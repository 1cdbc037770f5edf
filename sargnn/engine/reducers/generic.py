"""Any message function: the paper's algorithm 2 for messages that are computed in plain PyTorch.

    m_e = f(x_j, y_i, d_e; p)  for every edge e = j -> i        out_i = fold of m_e over the edges into i

Forward, shard after shard and in each a run of edges after the other: f without autograd, then the fold. Backward fetches a
shard's rows again, computes f once more under autograd on each run, turns the gradient of out_i into that of m_e, and asks
autograd for those of x_j, y_i, d_e and p. Nothing of an edge outlives its run, but what was given per edge and its gradient.

With g_i the gradient of out_i:

| fold | out_i | gradient of m_e |
|---|---|---|
| ``SUM`` | sum m_e | g_i |
| ``MAX`` | max m_e by column; 0 without edges; a tie: the smallest original source id, then the first edge | g_i where e won |
| ``SOFTMAX_SUM`` | sum a_e v_e, a_e = exp(l_e) / sum exp(l), m_e = (l_e, v_e) | v: a_e g_i; l: a_e <g_i, v_e - out_i> |
| ``LOG_SUM_EXP`` | log sum exp(m_e); 0 without edges | g_i exp(m_e - out_i) |
| ``EDGES`` | m_e itself, a row per edge | g_e |

Letters: N input rows, M output rows, E edges, S source rows of a shard, K heads.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sargnn.backends.base import Folds
from sargnn.backends.block import EdgeBlock
from sargnn.backends.operations import Operation
from sargnn.engine.reducers.base import Fold, Reducer, Saved, Tensors
from sargnn.engine.reducers.folds import MessageFold
from sargnn.plan.layer_plan import LayerPlan, Shard

_LEAST_BYTES, _MOST_BYTES = 2 << 20, 64 << 20
_COPIES = 6
"""Tables as wide as the fields and messages together that a run under autograd holds at one time, at a guess."""


@dataclass(frozen=True)
class EdgeRun:
    """Edges that are computed at one time, a run of a block's.

    Attributes:
        begin, end: which of the block's edges.
        first: the number of the run's first edge on this worker.
        src, dst: int32 [E], source rows of the shard and output rows; the latter ascend.
        sources, destinations, edges: the fields' rows for each edge, flat, [E, F_t] each.
    """

    block: EdgeBlock
    begin: int
    end: int
    first: int
    src: Tensor
    dst: Tensor
    sources: Tensors = ()
    destinations: Tensors = ()
    edges: Tensors = ()

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def src_ids(self) -> Tensor:
        """int64 [E], original ids."""
        return self.block.src_ids.index_select(0, self.src)

    @property
    def dst_ids(self) -> Tensor:
        """int64 [E], original ids."""
        return self.block.dst_ids.index_select(0, self.dst)

    def column(self, name: str, dtype: torch.dtype) -> Tensor:
        """The block's column of this name, [E, D], read now; fractions in ``dtype``. Raises ``KeyError`` where there is none.

        What is mapped is let go at once, so that a walk over all edges has a run's pages in memory.
        """
        columns = self.block.columns.only((name,)).run(slice(self.begin, self.end))
        rows = columns.tensor(name, self.src.new_empty(0, dtype=dtype))
        columns.release()
        return rows


@dataclass(frozen=True)
class Messages:
    """A message function and what becomes of its messages.

    Attributes:
        compute: messages of a run, [E, ...] each. Called under autograd or not; the same run gives the same messages.
        folds: one for each output; each takes the next ``takes`` messages.
        source_grads, destination_grads, edge_grads: of which fields the gradients are wanted.
        width: columns of all messages and fields together.
        params: tensors beside the fields whose gradients are wanted; ``compute`` reads these very tensors.
    """

    compute: Callable[[EdgeRun], Tensors]
    folds: tuple[MessageFold, ...]
    source_grads: tuple[bool, ...] = ()
    destination_grads: tuple[bool, ...] = ()
    edge_grads: tuple[bool, ...] = ()
    width: int = 1
    params: Tensors = ()


@dataclass
class _Backward:
    """What each fold keeps, and gradients so far: destinations [M, ...], edges [E of the worker, ...]; None if not wanted."""

    folds: list[Any]
    destinations: list[Tensor | None]
    edges: list[Tensor | None]
    params: list[Tensor]


@dataclass
class Generic(Reducer[Operation, list[Any], _Backward]):
    """``exchanged``: the source fields [N, F_t], rows flat; ``dest_local``: the destination fields [M, F_t], then the edge
    fields [E, F_t]; ``params``: ``messages.params``. The outputs are flat, [M, W] or [E, W].
    """

    messages: Messages
    name: str = "generic"
    operation: str = "sum"
    needs_src_in_backward: bool = True
    needs_out_in_backward: bool = False
    linear: bool = False

    def init(self, fold: Fold[Operation], exchanged: Tensors, dest_local: Tensors, params: Tensors) -> list[Any]:
        like = self._like(fold.plan, exchanged, dest_local, params)
        return [message_fold.init(fold.plan, like) for message_fold in self.messages.folds]

    def step(
        self, fold: Fold[Operation], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: list[Any]
    ) -> None:
        for run in self._runs(fold.plan, shard):
            computed = self.messages.compute(self._filled(run, rows, dest_local))
            for message_fold, mine, own in self._shared_out(computed, state):
                message_fold.step(fold.backend.folds, run, mine, own)

    def finish(self, fold: Fold[Operation], dest_local: Tensors, params: Tensors, state: list[Any]) -> tuple[Tensors, Tensors]:
        outs: list[Tensor] = []
        stats: list[Tensor] = []
        for message_fold, own in zip(self.messages.folds, state, strict=True):
            out, kept = message_fold.finish(fold.plan, own)
            outs.append(out)
            stats += kept
        return tuple(outs), tuple(stats)

    def backward_init(self, fold: Fold[Operation], saved: Saved, grads: Tensors) -> _Backward:
        messages, stats = self.messages, list(saved.stats)
        states = []
        for message_fold, grad in zip(messages.folds, grads, strict=True):
            mine, stats = stats[: message_fold.keeps], stats[message_fold.keeps :]
            states.append(message_fold.backward_init(fold.plan, tuple(mine), grad.contiguous()))
        wanted = (*messages.destination_grads, *messages.edge_grads)
        zeros = [torch.zeros_like(t) if want else None for t, want in zip(saved.dest_local, wanted, strict=True)]
        count = len(messages.destination_grads)
        return _Backward(states, zeros[:count], zeros[count:], [torch.zeros_like(p) for p in messages.params])

    def backward_step(
        self, fold: Fold[Operation], shard: Shard, rows: Tensors | None, saved: Saved, state: _Backward, out: Tensors | None
    ) -> None:
        assert rows is not None
        for table in out or ():
            table.zero_()
        for run in self._runs(fold.plan, shard):
            self._backward_run(fold.backend.folds, self._filled(run, rows, saved.dest_local, leaves=True), state, out)

    def _backward_run(self, by: Folds, run: EdgeRun, state: _Backward, out: Tensors | None) -> None:
        messages = self.messages
        with torch.enable_grad():
            computed = messages.compute(run)
        grads: list[Tensor] = []
        for message_fold, mine, own in self._shared_out(computed, state.folds):
            grads += message_fold.backward(run, tuple(m.detach() for m in mine), own)
        wanted: list[Tensor] = []
        if out is not None:
            wanted += [leaf for leaf, want in zip(run.sources, messages.source_grads, strict=True) if want]
        wanted += [leaf for leaf in (*run.destinations, *run.edges) if leaf.requires_grad]
        wanted += messages.params
        pairs = [(m, g.view_as(m)) for m, g in zip(computed, grads, strict=True) if m.requires_grad]
        if not pairs or not wanted:
            return
        gradients = iter(torch.autograd.grad([m for m, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True))
        if out is not None:
            for into, want in zip(out, messages.source_grads, strict=True):
                if want and (grad := next(gradients)) is not None:
                    by.add_to_starts(grad, run.src, into)
        for total in state.destinations:
            if total is not None and (grad := next(gradients)) is not None:
                by.add_to_ends(grad, run.dst, total)
        for total in state.edges:
            if total is not None and (grad := next(gradients)) is not None:
                total[run.first : run.first + len(run)] = grad
        for sums, grad in zip(state.params, gradients, strict=True):
            if grad is not None:
                sums += grad

    def backward_finish(self, saved: Saved, state: _Backward) -> tuple[Tensors, Tensors]:
        local: Any = (*state.destinations, *state.edges)  # None where no gradient is wanted
        return local, tuple(state.params)

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        block = shard.block
        if not block.num_edges:  # a message function need not know what to do
            like = self._like(fold.plan, rows, dest_local, params)
            zero = sum((0 * param.sum() for param in params), like.new_zeros(()))  # gradients of zero, not none
            return tuple(
                message_fold.finish(fold.plan, message_fold.init(fold.plan, like))[0] + zero
                for message_fold in self.messages.folds
            )
        dst = block.dst_per_edge().to(torch.int32)
        whole = EdgeRun(block, 0, block.num_edges, 0, block.src, dst)
        computed = self.messages.compute(self._filled(whole, rows, dest_local))
        return tuple(
            message_fold.plain(fold.backend.folds, fold.plan, whole, mine)
            for message_fold, mine, _ in self._shared_out(computed, self.messages.folds)
        )

    def _shared_out(self, messages: Tensors, states: Sequence[Any]) -> Iterator[tuple[MessageFold, Tensors, Any]]:
        """Each fold with its messages, as [E, W], and its state."""
        at = 0
        for message_fold, state in zip(self.messages.folds, states, strict=True):
            yield message_fold, tuple(_flat(m) for m in messages[at : at + message_fold.takes]), state
            at += message_fold.takes

    def _filled(self, run: EdgeRun, rows: Tensors, dest_local: Tensors, *, leaves: bool = False) -> EdgeRun:
        """The run with its fields' rows; as leaves of a graph of operations where gradients are wanted."""
        messages, count = self.messages, len(self.messages.destination_grads)

        def gathered(tensors: Tensors, of: Tensor | slice, grads: tuple[bool, ...]) -> Tensors:
            taken = tuple(t[of] if isinstance(of, slice) else t.index_select(0, of) for t in tensors)
            if not leaves:
                return taken
            return tuple(t.detach().requires_grad_(grad) for t, grad in zip(taken, grads, strict=True))

        return dataclasses.replace(
            run,
            sources=gathered(rows, run.src, messages.source_grads),
            destinations=gathered(dest_local[:count], run.dst, messages.destination_grads),
            edges=gathered(dest_local[count:], slice(run.first, run.first + len(run)), messages.edge_grads),
        )

    def _runs(self, plan: LayerPlan, shard: Shard) -> Iterator[EdgeRun]:
        """A shard's edges, so many at a time that a run takes no more memory than a fraction of the layer's rows."""
        block = shard.block
        if not block.num_edges:
            return
        first, itemsize = plan.edge_run(shard).start, 8
        room = min(max(plan.num_out * self.messages.width * itemsize // 8, _LEAST_BYTES), _MOST_BYTES)
        size = max(room // (self.messages.width * itemsize * _COPIES), 256)
        dst = block.dst_per_edge().to(torch.int32)
        for begin in range(0, block.num_edges, size):
            end = min(begin + size, block.num_edges)
            yield EdgeRun(block, begin, end, first + begin, block.src[begin:end], dst[begin:end])

    def _like(self, plan: LayerPlan, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> Tensor:
        for tensor in (*exchanged, *dest_local, *params):
            if tensor.is_floating_point():
                return tensor
        return torch.empty(0, device=plan.node_ids.device)


def _flat(messages: Tensor) -> Tensor:
    return messages.reshape(len(messages), math.prod(messages.shape[1:]))
