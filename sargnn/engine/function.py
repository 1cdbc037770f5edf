"""The one autograd function: it joins a mode, a reducer and a kernel.

Forward: the mode folds shard after shard through the reducer (paper, algorithm 1), without autograd.
Backward: the mode returns gradients shard by shard (algorithm 2).

| saved for backward | when |
|---|---|
| exchanged, dest_local, params | gradients depend on the source rows (case 2); exchanged is rebuilt where it can be |
| out | gradients depend on it; freed once it was read |
| the reducer's statistics | always |
| fetched rows | as the mode decides |
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.engine.modes.base import Call, Mode
from sargnn.engine.rebuild import ONE_PASS, keep, kept
from sargnn.engine.reducers.base import Saved, Tensors
from sargnn.profile import AGGREGATION


class ManualMode(Mode):
    """A mode that says itself what happens forward and backward; ``Aggregate`` makes it differentiable."""

    @abstractmethod
    def forward(self, call: Call, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> tuple[Tensors, Tensors, Any]:
        """The outputs, the statistics to save, and what else is kept for ``backward``."""

    @abstractmethod
    def backward(self, call: Call, saved: Saved, kept: Any, grads: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        """The gradients of ``exchanged`` (empty if ``call.exchanged_needs_grad`` is false), ``dest_local`` and ``params``."""

    def run(self, call: Call, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        function: type[torch.autograd.Function] = Aggregate
        if call.parts:
            from sargnn.engine.columns import AggregateByColumns

            function = AggregateByColumns
        return function.apply(self, call, len(exchanged), len(dest_local), *exchanged, *dest_local, *params)


class Aggregate(torch.autograd.Function):
    """``out = aggregate(exchanged, dest_local, params)`` under a mode; see the module's text."""

    @staticmethod
    def forward(ctx: Any, mode: ManualMode, call: Call, num_exchanged: int, num_local: int, *tensors: Tensor) -> Tensors:
        first_param = num_exchanged + num_local
        exchanged, dest_local = tensors[:num_exchanged], tensors[num_exchanged:first_param]
        params = tensors[first_param:]
        exchanged = tuple(t.contiguous() for t in exchanged)
        out, stats, kept = mode.forward(call, exchanged, dest_local, params)
        call.fold.plan.release_columns()
        ctx.mark_dirty(*(t for t in dest_local if any(t is o for o in out)))
        ctx.mode, ctx.call, ctx.kept = mode, call, kept
        if not call.reducer.needs_src_in_backward:
            exchanged = dest_local = params = ()
        elif not mode.reads_exchanged_in_backward:
            exchanged = ()
        ctx.sizes = num_exchanged, num_local, len(tensors) - first_param
        ctx.saved_sizes = len(exchanged), len(dest_local), len(params)
        saved = (*exchanged, *dest_local, *params, *stats)
        ctx.has_saved = bool(saved)
        if saved:
            keep(ctx, *saved)
        # An attribute, not a saved tensor: backward frees it half-way. Detached, because a cycle would never be freed.
        needed = out if call.reducer.needs_out_in_backward and call.training else ()
        ctx.out, ctx.out_versions = [call.fold.pool.keep(o) for o in needed], [o._version for o in needed]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        call: Call = ctx.call
        num_exchanged, num_local, num_params = ctx.sizes
        if len(ctx.out) != len(ctx.out_versions):
            raise RuntimeError(ONE_PASS)
        outputs, ctx.out = tuple(give() for give in ctx.out), ()
        if [o._version for o in outputs] != ctx.out_versions:
            raise RuntimeError("an output of aggregate that its gradient needs was written to")
        tensors = list(kept(ctx)) if ctx.has_saved else []

        def take(count: int) -> Tensors:
            taken = tuple(tensors[:count])
            del tensors[:count]
            return taken

        exchanged, dest_local, params = (take(count) for count in ctx.saved_sizes)
        saved = Saved(exchanged, dest_local, params, outputs, tuple(tensors))
        del outputs
        with call.fold.profile.span(AGGREGATION):
            d_exchanged, d_local, d_params = ctx.mode.backward(call, saved, ctx.kept, grads)
        call.fold.plan.release_columns()
        ctx.kept = None
        gradients = (
            *(d_exchanged or (None,) * num_exchanged),
            *(d_local[:num_local] or (None,) * num_local),
            *(d_params or (None,) * num_params),
        )
        return (None, None, None, None, *gradients)
