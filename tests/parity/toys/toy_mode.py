"""As ``sar``, but all remote rows are there before the first is folded."""

from __future__ import annotations

from torch import Tensor

from sargnn.engine.modes.base import Call
from sargnn.engine.modes.sar import Kept, Sar

Tensors = tuple[Tensor, ...]


class Patient(Sar):
    """Keeps every shard until the end of the forward pass."""

    name = "patient"

    def forward(self, call: Call, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> tuple[Tensors, Tensors, Kept]:
        assert call.plan.shards is not None
        state = call.reducer.init(call.fold, exchanged, dest_local, params)
        for piece, rows in list(call.exchange.rows(call.plan.lists, exchanged, keep=True)):
            call.reducer.step(call.fold, call.plan.shards[piece], rows, dest_local, params, state)
        return *call.reducer.finish(call.fold, dest_local, params, state), {}
