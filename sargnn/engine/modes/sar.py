"""Sequential aggregation and rematerialization (the paper's algorithms 1 and 2), and the same without rematerialization.

Partial results are begun before the own shard and finished after it, before the peers' rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sargnn.comm.lists import Columns, PartialRound, Piece
from sargnn.comm.partial_rounds import Ask, PartialRounds, Serve
from sargnn.engine.function import ManualMode
from sargnn.engine.modes.base import Call, Held, HeldRows
from sargnn.engine.reducers.base import Fold, PartialColumns, Reducer, Saved, Tensors, WithPartials
from sargnn.plan.layer_plan import LayerPlan
from sargnn.profile import OWN_ROWS, PARTIALS, PEER_ROWS

Kept = dict[Piece, list[Callable[[], Tensor]]]
Merge = Callable[[PartialRound, Tensors], None]


class Sar(ManualMode):
    """One shard at a time; remote rows are dropped after use and fetched again in backward where the reducer needs them.

    Per rank, with d = prefetch depth; a shard is a piece of a peer's halo rows:

    | | resident beside the layer's own input, output and statistics |
    |---|---|
    | forward | 1 + d received shards, 1 + d send buffers |
    | backward, case 1 (no source rows needed) | 1 + d outgoing and 1 + d incoming shards of gradients |
    | backward, case 2 | 1 + d received shards, 1 + d send buffers, 1 outgoing and 1 incoming shard of gradients |

    Where the plan has partial results, 1 + d requests and answers are on their way, too, each here and there; messages of rows
    are smaller then, so that all share the same room.
    """

    name = "sar"
    layout = "sharded"
    keep_rows = False
    fetches_again = True
    takes_partials = True

    def forward(self, call: Call, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> tuple[Tensors, Tensors, Kept]:
        plan, reducer, fold = call.plan, call.reducer, call.fold
        assert plan.shards is not None
        pool, keep = fold.pool, self.keep_rows and reducer.needs_src_in_backward and call.training
        kept: Kept = {}
        state = reducer.init(fold, exchanged, dest_local, params)
        partials = _partials_forward(call, exchanged, dest_local, params, state)
        for piece, rows in call.exchange.rows(plan.lists, exchanged, keep=keep, exact=reducer.scores, given=call.given):
            with _timed(call, piece):
                reducer.step(fold, plan.shards[piece], rows, dest_local, params, state)
            if piece.peer == plan.rank:
                partials.finish()
            if keep and piece.peer != plan.rank:  # the own rows are saved as such
                kept[piece] = [pool.keep(table) for table in rows]
        rows = ()  # of the last piece: its buffer is given back
        out, stats = reducer.finish(fold, dest_local, params, state)
        return out, stats, kept

    def backward(self, call: Call, saved: Saved, kept: Kept, grads: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        plan, reducer, fold = call.plan, call.reducer, call.fold
        assert plan.shards is not None
        state = reducer.backward_init(fold, saved, grads)
        unwritten = [fold.pool.keep(grad) for grad in grads]  # while this rank waits they may go to disk and come back
        if not call.exchanged_needs_grad:
            partials = _partials_backward(call, saved, state, None, grads)
            for piece, rows in self._sources(call, saved, kept):
                with _timed(call, piece):
                    reducer.backward_step(fold, plan.shards[piece], rows, saved, state, None)
                if piece.peer == plan.rank:
                    partials.finish()
            return ((), *reducer.backward_finish(saved, state))
        d_exchanged = tuple(_gradient_of(call, t, grads) for t in saved.exchanged) or (_gradient_of(call, None, grads),)
        refetch = self.fetches(reducer) > 1
        partials = _partials_backward(call, saved, state, d_exchanged, grads)
        with call.exchange.gradients(plan.lists, d_exchanged, beside_rows=refetch, exact=reducer.scores) as returning:
            for piece, rows in self._sources(call, saved, kept, returning.ready):
                shard = plan.shards[piece]
                if piece.peer == plan.rank:
                    with _timed(call, piece):
                        reducer.backward_step(fold, shard, rows, saved, state, d_exchanged)
                    partials.finish()  # adds to what the own shard has written
                    returning.begin()
                else:
                    out = returning.buffer(piece)
                    with _timed(call, piece):
                        reducer.backward_step(fold, shard, rows, saved, state, out)
                    returning.send(piece)
        del unwritten
        return (d_exchanged, *reducer.backward_finish(saved, state))

    def _sources(
        self, call: Call, saved: Saved, kept: Kept, before: Callable[[Piece], None] | None = None
    ) -> Iterator[tuple[Piece, Tensors | None]]:
        """Each shard with its source rows, where the reducer needs them; the own rows first. ``before``: of ``Exchange``."""
        assert call.plan.shards is not None
        if not call.reducer.needs_src_in_backward:
            for piece in call.plan.shards:
                yield piece, None
        elif self.keep_rows:
            for piece in call.plan.shards:
                yield piece, tuple(give() for give in kept[piece]) if piece in kept else saved.exchanged
        else:
            exact = call.reducer.scores
            yield from call.exchange.rows(call.plan.lists, saved.exchanged, exact=exact, before=before)

    def held_rows(self, reducer: Reducer, row_bytes: int, *, typed: bool = False) -> HeldRows:
        return HeldRows(Held(row_bytes if self.keep_rows and reducer.needs_src_in_backward else 0))

    def kept_rows(self, plan: LayerPlan) -> int:
        if self.keep_rows:
            return plan.halo_rows
        # Rows travel while gradients do: one more buffer of each.
        rounds = dataclasses.replace(plan.lists, near=range(0)).rounds(plan.rank)  # all processes choose alike
        return max((now.receive_rows + now.send_rows for now in rounds), default=0)


class NoRemat(Sar):
    """As ``sar``, but fetched rows that the reducer's backward needs are kept: no re-fetch, up to all halo rows resident.

    Mode 2 of the reference library. For case-1 reducers (sum, mean) nothing is needed, so it equals ``sar``. With
    ``keeps_scores`` (``mode.keep=all``) attention keeps the scores of all edges that are aggregated here, too: [E, K] a layer,
    from which a weight is one exponential.
    """

    name = "no_remat"
    keep_rows = True
    fetches_again = False


def _timed(call: Call, piece: Piece) -> AbstractContextManager[None]:
    """Times what is done with a shard, by whose rows it reads."""
    assert call.plan.shards is not None
    shard = call.plan.shards[piece]
    return call.fold.profile.shard(OWN_ROWS if shard.peer == call.plan.rank else PEER_ROWS, shard.num_edges)


def _gradient_of(call: Call, exchanged: Tensor | None, grads: Tensors) -> Tensor:
    """Memory for the gradient of one exchanged tensor; a case-1 reducer exchanges one, as wide as its output."""
    pool = call.fold.pool
    if exchanged is not None:
        return pool.empty_like(exchanged)
    return pool.empty(call.plan.num_rows, grads[0].shape[1], grads[0])


@dataclass(frozen=True)
class _PartialPass:
    """The exchange of one pass's partial results, and what folds a round's answers in; None where there are none."""

    rounds: PartialRounds | None = None
    merge: Merge | None = None

    def finish(self) -> None:
        """Compute all that peers ask for, and fold in what they answer."""
        if self.rounds is not None and self.merge is not None:
            for now, answers in self.rounds:
                self.merge(now, answers)


def _partials_forward(call: Call, exchanged: Tensors, dest_local: Tensors, params: Tensors, state: Any) -> _PartialPass:
    """Begin the forward pass's; some of what peers wait for is computed at once."""
    if call.plan.partials is None:
        return _PartialPass()
    reducer, fold, columns = _with_partials(call)
    return _partials(
        call,
        (columns.asked, columns.answered),
        lambda now, out: reducer.ask(fold, now, dest_local, params, out),
        lambda piece, asked, out: reducer.serve(fold, piece, exchanged, asked, params, state, out),
        lambda now, answers: reducer.merge(fold, now, answers, state),
        exchanged[0],
        serve=True,
    )


def _partials_backward(call: Call, saved: Saved, state: Any, d_exchanged: Tensors | None, grads: Tensors) -> _PartialPass:
    """Begin the backward pass's; ``finish`` adds to ``d_exchanged``, unless it is None: not wanted."""
    if call.plan.partials is None or (d_exchanged is None and not call.reducer.needs_src_in_backward):
        return _PartialPass()
    reducer, fold, columns = _with_partials(call)
    return _partials(
        call,
        (columns.gradients, columns.returned),
        lambda now, out: reducer.ask_gradients(fold, now, saved, state, out),
        lambda piece, asked, out: reducer.serve_gradients(fold, piece, asked, saved, state, d_exchanged, out),
        lambda now, answers: reducer.merge_gradients(fold, now, answers, state),
        grads[0],
        serve=False,
    )


def _partials(
    call: Call, columns: tuple[Columns, Columns], ask: Ask, serves: Serve, merges: Merge, like: Tensor, *, serve: bool
) -> _PartialPass:
    """Begin a pass; what is computed for peers and what of theirs is folded in is timed.

    Args:
        columns: of requests and of answers.
        like: any tensor on the device of the rows.
        serve: as of ``PartialRounds.begin``.
    """
    partials, profile = call.plan.partials, call.fold.profile
    assert partials is not None

    def serve_piece(piece: Piece, asked: Tensors, out: Tensors) -> None:
        shard = partials.shards.get(piece)
        with profile.shard(PARTIALS, 0 if shard is None else shard.num_edges):
            serves(piece, asked, out)

    def merge(now: PartialRound, answers: Tensors) -> None:
        with profile.shard(PARTIALS, 0):
            merges(now, answers)

    rounds = PartialRounds(call.exchange, partials.lists, *columns, ask, serve_piece, like)
    rounds.begin(serve=serve)
    return _PartialPass(rounds, merge)


def _with_partials(call: Call) -> tuple[WithPartials, Fold[Any], PartialColumns]:
    reducer = call.reducer
    assert isinstance(reducer, WithPartials), "this reducer has no partial results"
    return reducer, call.fold, reducer.partial_columns(call.widths, call.fold.dtype)
