"""Sequential aggregation and rematerialization (the paper's algorithms 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from sargnn.comm.lists import Piece
from sargnn.engine.function import ManualMode
from sargnn.engine.modes.base import Call, Held, HeldRows
from sargnn.engine.modes.partials import partials_backward, partials_forward
from sargnn.engine.reducers.base import Reducer, Saved, Tensors
from sargnn.plan.layer_plan import LayerPlan

Kept = dict[Piece, Tensors]


class Sar(ManualMode):
    """One shard at a time; remote rows are dropped after use and fetched again in backward where the reducer needs them.

    Per rank, with d = prefetch depth; a shard is a piece of a peer's halo rows:

    | | resident beside the layer's own input, output and statistics |
    |---|---|
    | forward | 1 + d received shards, 1 + d send buffers |
    | backward, case 1 (no source rows needed) | 1 + d outgoing and 1 + d incoming shards of gradients |
    | backward, case 2 | 1 + d received shards, 1 + d send buffers, 1 outgoing and 1 incoming shard of gradients |

    Where the plan has partial results, 1 + d requests and answers are on their way, too, each here and there; messages of rows
    are smaller then, so that all share the same room. Rows are posted first, partial results finished after the own shard.
    """

    name = "sar"
    layout = "sharded"
    keep_rows = False
    fetches_again = True
    takes_partials = True

    def forward(self, call: Call, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> tuple[Tensors, Tensors, Kept]:
        plan, reducer, fold = call.plan, call.reducer, call.fold
        assert plan.shards is not None
        keep = self.keep_rows and reducer.needs_src_in_backward and call.training
        kept: Kept = {}
        state = reducer.init(fold, exchanged, dest_local, params)
        partials = partials_forward(call, exchanged, dest_local, params, state)
        for piece, rows in call.exchange.rows(plan.lists, exchanged, keep=keep, exact=reducer.scores):
            reducer.step(fold, plan.shards[piece], rows, dest_local, params, state)
            if piece.peer == plan.rank:
                partials.finish()
            if keep and piece.peer != plan.rank:  # the own rows are saved as such
                kept[piece] = rows
        out, stats = reducer.finish(fold, dest_local, params, state)
        return out, stats, kept

    def backward(self, call: Call, saved: Saved, kept: Kept, grads: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        plan, reducer, fold = call.plan, call.reducer, call.fold
        assert plan.shards is not None
        state = reducer.backward_init(fold, saved, grads)
        if not call.exchanged_needs_grad:
            partials = partials_backward(call, saved, state, None, grads)
            for piece, rows in self._sources(call, saved, kept):
                reducer.backward_step(fold, plan.shards[piece], rows, saved, state, None)
                if piece.peer == plan.rank:
                    partials.finish()
            return ((), *reducer.backward_finish(saved, state))
        d_exchanged = tuple(_gradient_of(call, t, grads) for t in saved.exchanged) or (_gradient_of(call, None, grads),)
        refetch = self.fetches(reducer) > 1
        partials = partials_backward(call, saved, state, d_exchanged, grads)
        with call.exchange.gradients(plan.lists, d_exchanged, beside_rows=refetch, exact=reducer.scores) as returning:
            for piece, rows in self._sources(call, saved, kept):
                shard = plan.shards[piece]
                if piece.peer == plan.rank:
                    reducer.backward_step(fold, shard, rows, saved, state, d_exchanged)
                    partials.finish()  # adds to what the own shard has written
                else:
                    reducer.backward_step(fold, shard, rows, saved, state, returning.buffer(piece))
                    returning.send(piece)
        return (d_exchanged, *reducer.backward_finish(saved, state))

    def _sources(self, call: Call, saved: Saved, kept: Kept) -> Iterator[tuple[Piece, Tensors | None]]:
        """Each shard with its source rows, where the reducer needs them; the own rows first."""
        assert call.plan.shards is not None
        if not call.reducer.needs_src_in_backward:
            for piece in call.plan.shards:
                yield piece, None
        elif self.keep_rows:
            for piece in call.plan.shards:
                yield piece, kept.get(piece, saved.exchanged)
        else:
            yield from call.exchange.rows(call.plan.lists, saved.exchanged, exact=call.reducer.scores)

    def held_rows(self, reducer: Reducer, row_bytes: int, *, typed: bool = False) -> HeldRows:
        return HeldRows(Held(row_bytes if self.keep_rows and reducer.needs_src_in_backward else 0))

    def kept_rows(self, plan: LayerPlan) -> int:
        if self.keep_rows:
            return plan.halo_rows
        # Rows travel while gradients do: one more buffer of each.
        rounds = plan.lists.rounds(plan.rank)
        return max((now.receive_rows + len(now.send) for now in rounds), default=0)


def _gradient_of(call: Call, exchanged: Tensor | None, grads: Tensors) -> Tensor:
    """Memory for the gradient of one exchanged tensor; a case-1 reducer exchanges one, as wide as its output."""
    pool = call.fold.pool
    if exchanged is not None:
        return pool.empty_like(exchanged)
    return pool.empty(call.plan.num_rows, grads[0].shape[1], grads[0])
