"""Sequential aggregation and rematerialization (the paper's algorithms 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from sargnn.engine.function import ManualMode
from sargnn.engine.modes.base import Call
from sargnn.engine.reducers.base import Reducer, Saved, Tensors

Kept = dict[int, Tensors]


class Sar(ManualMode):
    """One shard at a time; remote rows are dropped after use and fetched again in backward where the reducer needs them.

    Per rank, with d = prefetch depth and shards of at most H_max rows:

    | | resident beside the layer's own input, output and statistics |
    |---|---|
    | forward | 1 + d received shards, 1 + d send buffers |
    | backward, case 1 (no source rows needed) | 1 + d outgoing and 1 + d incoming shards of errors |
    | backward, case 2 | 1 + d received shards, 1 + d send buffers, 1 outgoing and 1 incoming shard of errors |
    """

    name = "sar"
    layout = "sharded"
    keep_rows = False

    def forward(self, call: Call, sent: Tensors, local: Tensors, params: Tensors) -> tuple[Tensors, Tensors, Kept]:
        plan, reducer = call.plan, call.reducer
        assert plan.shards is not None
        keep = self.keep_rows and reducer.needs_src_in_backward and call.training
        kept: Kept = {}
        state = reducer.init(plan, sent, local, params)
        for peer, rows in call.exchange.rows(plan.lists, sent, keep=keep):
            reducer.step(call.kernel, plan.shards[peer].block, rows, local, params, state)
            if keep:
                kept[peer] = rows
        out, stats = reducer.finish(plan, local, params, state)
        return out, stats, kept

    def backward(self, call: Call, saved: Saved, kept: Kept, grads: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        plan, reducer = call.plan, call.reducer
        assert plan.shards is not None
        state = reducer.backward_init(plan, saved, grads)
        if not call.sent_needs_grad:
            for peer, rows in self._sources(call, saved, kept):
                reducer.backward_step(call.kernel, plan.shards[peer].block, rows, saved, state, None)
            return ((), *reducer.backward_finish(saved, state))
        d_sent = tuple(_error_like(call, t, grads) for t in saved.sent) or (_error_like(call, None, grads),)
        refetch = reducer.needs_src_in_backward
        with call.exchange.errors(plan.lists, d_sent, beside_rows=refetch) as errors:
            for peer, rows in self._sources(call, saved, kept):
                block = plan.shards[peer].block
                if peer == plan.rank:
                    reducer.backward_step(call.kernel, block, rows, saved, state, d_sent)
                else:
                    reducer.backward_step(call.kernel, block, rows, saved, state, errors.buffer(peer))
                    errors.send(peer)
        return (d_sent, *reducer.backward_finish(saved, state))

    def _sources(self, call: Call, saved: Saved, kept: Kept) -> Iterator[tuple[int, Tensors | None]]:
        """Each peer with its source rows, where the reducer needs them; the own rank first."""
        plan = call.plan
        if not call.reducer.needs_src_in_backward:
            for k in range(plan.world):
                yield (plan.rank - k) % plan.world, None
        elif self.keep_rows:
            for k in range(plan.world):
                peer = (plan.rank - k) % plan.world
                yield peer, kept[peer]
        else:
            yield from call.exchange.rows(plan.lists, saved.sent)

    def fetches(self, reducer: Reducer) -> int:
        return 2 if reducer.needs_src_in_backward and not self.keep_rows else 1


def _error_like(call: Call, sent: Tensor | None, grads: Tensors) -> Tensor:
    """Room for the error of one sent tensor; a case-1 reducer sends one, as wide as its output."""
    if sent is not None:
        return sent.new_empty(sent.shape)
    return grads[0].new_empty(call.plan.num_rows, grads[0].shape[1])
