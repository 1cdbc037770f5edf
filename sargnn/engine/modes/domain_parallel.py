"""Vanilla domain-parallel training: the baseline that everything is compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sargnn.engine.modes.base import Call, Mode
from sargnn.engine.reducers.base import Tensors


class DomainParallel(Mode):
    """A differentiable halo exchange, then DGL's operators on the merged graph under plain autograd.

    Resident: everything autograd keeps; for attention that includes tensors of size edges x heads.
    """

    name = "domain_parallel"
    layout = "merged"
    kernels = ("dgl", "reference")
    lean = False

    def run(self, call: Call, sent: Tensors, local: Tensors, params: Tensors) -> Tensors:
        plan = call.plan
        assert plan.merged is not None
        rows = sent
        if plan.schema.typed:
            # One table per type, as a user of typed graphs has them.
            rows = _TypedHaloExchange.apply(call, sent[0]) if plan.world > 1 else plan.merged_rows.split(sent[0])
        elif plan.world > 1:
            halos = _HaloExchange.apply(call, *sent)
            rows = tuple(torch.cat([own, halo]) for own, halo in zip(sent, halos, strict=True))
        return call.reducer.autograd_forward(plan, call.operation, plan.merged, rows, local, params)


class _HaloExchange(torch.autograd.Function):
    """Forward: the peers' rows [H, F_t] for each sent tensor. Backward: the adjoint, halo errors go home and are added."""

    @staticmethod
    def forward(ctx: Any, call: Call, *sent: Tensor) -> Tensors:
        ctx.call = call
        ctx.widths = [t.shape[1] for t in sent]
        halos = tuple(t.new_empty(call.plan.halo_rows, t.shape[1]) for t in sent)
        call.exchange.all_rows(call.plan.lists, sent, halos)
        return halos

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor | None, ...]:
        call: Call = ctx.call
        d_sent = tuple(errors[0].new_zeros(call.plan.num_rows, width) for width in ctx.widths)
        call.exchange.all_errors(call.plan.lists, tuple(e.contiguous() for e in errors), d_sent)
        return (None, *d_sent)


class _TypedHaloExchange(torch.autograd.Function):
    """The same for rows of several types: own and halo rows side by side, a table [N_t + H_t, F] per type."""

    @staticmethod
    def forward(ctx: Any, call: Call, sent: Tensor) -> Tensors:
        ctx.call = call
        halo = sent.new_empty(call.plan.halo_rows, sent.shape[1])
        call.exchange.all_rows(call.plan.lists, (sent,), (halo,))
        return call.plan.merged_rows.by_type(sent, halo)

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor | None, ...]:
        call: Call = ctx.call
        d_sent = call.plan.merged_rows.own_part(errors)
        call.exchange.all_errors(call.plan.lists, (call.plan.merged_rows.halo_part(errors),), (d_sent,))
        return None, d_sent
