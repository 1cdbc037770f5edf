"""One-shot aggregation (mode 3 of the reference library)."""

from __future__ import annotations

import torch

from sargnn.engine.function import ManualMode
from sargnn.engine.modes.base import Call
from sargnn.engine.reducers.base import Saved, Tensors


class OneShot(ManualMode):
    """All remote rows in one round, one aggregation over the merged graph; backward likewise in one round.

    Resident beside input and output: the merged rows [N + H, F] during forward, kept for backward only where the
    reducer needs source rows; their errors [N + H, F] during backward.
    """

    name = "one_shot"
    layout = "merged"

    def forward(self, call: Call, sent: Tensors, local: Tensors, params: Tensors) -> tuple[Tensors, Tensors, Tensors | None]:
        plan, reducer = call.plan, call.reducer
        assert plan.merged is not None
        rows = tuple(t.new_empty(plan.num_rows + plan.halo_rows, t.shape[1]) for t in sent)
        for merged, own in zip(rows, sent, strict=True):
            merged[: plan.num_rows] = own
        call.exchange.all_rows(plan.lists, sent, tuple(merged[plan.num_rows :] for merged in rows))
        state = reducer.init(plan, sent, local, params)
        reducer.step(call.kernel, plan.merged.block, rows, local, params, state)
        out, stats = reducer.finish(plan, local, params, state)
        return out, stats, rows if reducer.needs_src_in_backward and call.training else None

    def backward(self, call: Call, saved: Saved, kept: Tensors | None, grads: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        plan, reducer = call.plan, call.reducer
        assert plan.merged is not None
        state = reducer.backward_init(plan, call.kernel, saved, grads)
        total = plan.num_rows + plan.halo_rows
        widths = [t.shape[1] for t in saved.sent] or [grads[0].shape[1]]
        errors = tuple(grads[0].new_empty(total, width) for width in widths) if call.sent_needs_grad else None
        reducer.backward_step(call.kernel, plan.merged.block, kept, saved, state, errors)
        if errors is None:
            return ((), *reducer.backward_finish(saved, state))
        d_sent = tuple(error[: plan.num_rows].clone(memory_format=torch.contiguous_format) for error in errors)
        call.exchange.all_errors(plan.lists, tuple(error[plan.num_rows :] for error in errors), d_sent)
        return (d_sent, *reducer.backward_finish(saved, state))
