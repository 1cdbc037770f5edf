"""Vanilla domain-parallel training: the baseline that everything is compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sargnn.engine.modes.base import Call, Held, HeldRows, Mode
from sargnn.engine.reducers.base import Reducer, Tensors


class DomainParallel(Mode):
    """A differentiable halo exchange, then DGL's operators (PyTorch's without DGL) on the merged graph under plain autograd.

    Resident: everything autograd keeps; for attention that includes tensors of size edges x heads.
    """

    name = "domain_parallel"
    layout = "merged"
    plain_autograd = True
    is_baseline = True

    def held_rows(self, reducer: Reducer, row_bytes: int, *, typed: bool = False) -> HeldRows:
        if typed:  # a table for each type takes the place of what came
            return HeldRows(Held(0, row_bytes, row_bytes))
        # Forward has the rows as they came, and all in one table beside the own ones, of which autograd keeps what backward
        # reads. Backward has the table's gradient, and that of what others return.
        if reducer.needs_src_in_backward:
            return HeldRows(Held(row_bytes, row_bytes, row_bytes), own=Held(row_bytes, 0, 0))
        return HeldRows(Held(0, 2 * row_bytes, row_bytes), own=Held(0, row_bytes, row_bytes))

    def run(self, call: Call, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        plan = call.plan
        assert plan.merged is not None
        rows = arrived = exchanged
        if plan.schema.typed:
            # One table per type, as a user of typed graphs has them.
            rows = _TypedHaloExchange.apply(call, exchanged[0]) if plan.world > 1 else plan.merged_rows.split(exchanged[0])
            arrived = rows
        elif plan.world > 1:
            arrived = _HaloExchange.apply(call, *exchanged)
            rows = tuple(torch.cat([own, halo]) for own, halo in zip(exchanged, arrived, strict=True))
        outs = call.reducer.autograd_forward(call.fold, plan.merged, rows, dest_local, params)
        return _Tied.apply(len(outs), *outs, *arrived, *dest_local) if plan.world > 1 else outs


class _Tied(torch.autograd.Function):
    """Outputs as they are, whose backward reaches all that they could be computed from, also on a worker without edges: others
    wait for its part in the exchanges there.
    """

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tensors:
        ctx.set_materialize_grads(False)
        ctx.rest = len(tensors) - count
        return tuple(out.detach() for out in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, *grads, *[None] * ctx.rest)


class _HaloExchange(torch.autograd.Function):
    """Forward: the peers' rows [H, F_t] of each tensor. Backward: the adjoint, halo gradients return and are added."""

    @staticmethod
    def forward(ctx: Any, call: Call, *exchanged: Tensor) -> Tensors:
        ctx.call = call
        halos = tuple(t.new_empty(call.plan.halo_rows, t.shape[1]) for t in exchanged)
        call.exchange.all_rows(call.plan.lists, exchanged, halos, exact=call.reducer.scores)
        return halos

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        call: Call = ctx.call
        d_exchanged = tuple(g.new_zeros(call.plan.num_rows, g.shape[1]) for g in grads)
        grads = tuple(g.contiguous() for g in grads)
        call.exchange.all_gradients(call.plan.lists, grads, d_exchanged, exact=call.reducer.scores)
        return (None, *d_exchanged)


class _TypedHaloExchange(torch.autograd.Function):
    """The same for rows of several types: own and halo rows side by side, a table [N_t + H_t, F] per type."""

    @staticmethod
    def forward(ctx: Any, call: Call, exchanged: Tensor) -> Tensors:
        ctx.call = call
        halo = exchanged.new_empty(call.plan.halo_rows, exchanged.shape[1])
        call.exchange.all_rows(call.plan.lists, (exchanged,), (halo,))
        return call.plan.merged_rows.by_type(exchanged, halo)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        call: Call = ctx.call
        d_exchanged = call.plan.merged_rows.own_part(grads)
        call.exchange.all_gradients(call.plan.lists, (call.plan.merged_rows.halo_part(grads),), (d_exchanged,))
        return None, d_exchanged
