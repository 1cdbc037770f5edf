"""One-shot aggregation (mode 3 of the reference library)."""

from __future__ import annotations

from sargnn.engine.function import ManualMode
from sargnn.engine.modes.base import Call, Held, HeldRows
from sargnn.engine.reducers.base import Reducer, Saved, Tensors


class OneShot(ManualMode):
    """All remote rows are fetched, then one aggregation over the merged graph; backward likewise.

    Resident beside input and output: the merged rows [N + H, F] during forward, kept for backward only where the
    reducer needs source rows; their gradients [N + H, F] during backward.
    """

    name = "one_shot"
    layout = "merged"
    reads_exchanged_in_backward = False

    def held_rows(self, reducer: Reducer, row_bytes: int, *, typed: bool = False) -> HeldRows:
        return HeldRows(Held(row_bytes if reducer.needs_src_in_backward else 0, row_bytes, row_bytes))

    def forward(
        self, call: Call, exchanged: Tensors, dest_local: Tensors, params: Tensors
    ) -> tuple[Tensors, Tensors, Tensors | None]:
        plan, reducer, fold = call.plan, call.reducer, call.fold
        assert plan.merged is not None
        rows = tuple(t.new_empty(plan.num_rows + plan.halo_rows, t.shape[1]) for t in exchanged)
        halos = tuple(plan.merged_rows.room_for_halo(merged) for merged in rows)
        call.exchange.all_rows(plan.lists, exchanged, halos, exact=reducer.scores)
        for merged, own, halo in zip(rows, exchanged, halos, strict=True):
            plan.merged_rows.fill(merged, own, halo)
        del halos
        state = reducer.init(fold, exchanged, dest_local, params)
        reducer.step(fold, plan.merged, rows, dest_local, params, state)
        out, stats = reducer.finish(fold, dest_local, params, state)
        return out, stats, rows if reducer.needs_src_in_backward and call.training else None

    def backward(self, call: Call, saved: Saved, kept: Tensors | None, grads: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        plan, reducer, fold = call.plan, call.reducer, call.fold
        assert plan.merged is not None
        state = reducer.backward_init(fold, saved, grads)
        total = plan.num_rows + plan.halo_rows
        likes = kept or grads[:1]
        d_rows = tuple(like.new_empty(total, like.shape[1]) for like in likes) if call.exchanged_needs_grad else None
        reducer.backward_step(fold, plan.merged, kept, saved, state, d_rows)
        if d_rows is None:
            return ((), *reducer.backward_finish(saved, state))
        by_type = [plan.merged_rows.split(table) for table in d_rows]
        d_exchanged = tuple(plan.merged_rows.own_part(pieces) for pieces in by_type)
        halos = tuple(plan.merged_rows.halo_part(pieces) for pieces in by_type)
        call.exchange.all_gradients(plan.lists, halos, d_exchanged, exact=reducer.scores)
        return (d_exchanged, *reducer.backward_finish(saved, state))
