"""Partial results in a pass of a sequential mode: begun before the own shard, finished after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sargnn.comm.lists import PartialRound
from sargnn.comm.partial_rounds import PartialRounds
from sargnn.engine.modes.base import Call
from sargnn.engine.reducers.base import Fold, PartialColumns, Saved, Tensors, WithPartials


@dataclass(frozen=True)
class PartialPass:
    """One pass's partial results.

    Attributes:
        rounds: their exchange; None where there are none. merge: folds a round's answers in.
    """

    rounds: PartialRounds | None = None
    merge: Callable[[PartialRound, Tensors], None] | None = None

    def finish(self) -> None:
        """Compute all that peers ask for, and fold in what they answer."""
        if self.rounds is not None and self.merge is not None:
            for now, answers in self.rounds:
                self.merge(now, answers)


def partials_forward(call: Call, exchanged: Tensors, dest_local: Tensors, params: Tensors, state: Any) -> PartialPass:
    """Begin the forward pass's; some of what peers wait for is computed at once."""
    if call.plan.partials is None:
        return PartialPass()
    reducer, fold, columns = _with_partials(call)
    rounds = call.exchange.partials(
        call.plan.partials.lists,
        columns.asked,
        columns.answered,
        lambda now, out: reducer.ask(fold, now, dest_local, params, out),
        lambda piece, asked, out: reducer.serve(fold, piece, exchanged, asked, params, state, out),
        exchanged[0],
    )
    rounds.begin(serve=True)
    return PartialPass(rounds, lambda now, answers: reducer.merge(fold, now, answers, state))


def partials_backward(call: Call, saved: Saved, state: Any, d_exchanged: Tensors | None, grads: Tensors) -> PartialPass:
    """Begin the backward pass's: requests are sent. ``finish`` adds to ``d_exchanged``; None: these are not wanted."""
    if call.plan.partials is None or (d_exchanged is None and not call.reducer.needs_src_in_backward):
        return PartialPass()
    reducer, fold, columns = _with_partials(call)
    rounds = call.exchange.partials(
        call.plan.partials.lists,
        columns.gradients,
        columns.returned,
        lambda now, out: reducer.ask_gradients(fold, now, saved, state, out),
        lambda piece, asked, out: reducer.serve_gradients(fold, piece, asked, saved, state, d_exchanged, out),
        grads[0],
    )
    rounds.begin(serve=False)
    return PartialPass(rounds, lambda now, answers: reducer.merge_gradients(fold, now, answers, state))


def _with_partials(call: Call) -> tuple[WithPartials, Fold[Any], PartialColumns]:
    """Who computes partial results with what, and what travels for them."""
    reducer = call.reducer
    assert isinstance(reducer, WithPartials), "this reducer has no partial results"
    return reducer, call.fold, reducer.partial_columns(call.widths, call.fold.dtype)
