"""Maximum over in-neighbours, feature by feature."""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.engine.pool import POOL
from sargnn.engine.reducers.base import Reducer, Saved, Tensors
from sargnn.kernels.base import Kernel
from sargnn.shards.plan import LayerPlan, Shard

_NONE = torch.iinfo(torch.int32).max


class Max(Reducer):
    """``out_if = max of z_jf over edges j -> i``; isolated destinations give zeros. ``local`` is empty.

    A tie goes to the smallest original source id. Backward: ``d z_jf = sum of g_if over the i that j won``: case 1.
    Saves the winners, int32 [M, F], as places in the order of original ids: no row is fetched again.
    """

    name = "max"
    operation = "max"
    needs_src_in_backward = False
    linear = False

    def init(self, plan: LayerPlan, sent: Tensors, local: Tensors, params: Tensors) -> tuple[Tensor, Tensor]:
        shape = plan.num_out, sent[0].shape[1]
        best, winner = POOL.empty(*shape, sent[0]), POOL.empty(*shape, sent[0].new_empty(0, dtype=torch.int32))
        return best.fill_(-torch.inf), winner.fill_(_NONE)

    def step(
        self,
        kernel: Kernel,
        shard: Shard,
        rows: Tensors,
        local: Tensors,
        params: Tensors,
        state: tuple[Tensor, Tensor],
    ) -> None:
        kernel.max_forward(shard.block, rows[0], *state)

    def finish(self, plan: LayerPlan, local: Tensors, params: Tensors, state: tuple[Tensor, Tensor]) -> tuple[Tensors, Tensors]:
        best, winner = state
        isolated = plan.in_degrees == 0  # a destination without edges has no winner in any feature
        return (best.masked_fill_(isolated[:, None], 0),), (winner,)

    def backward_init(self, plan: LayerPlan, kernel: Kernel, saved: Saved, grads: Tensors) -> Tensor:
        return grads[0].contiguous()

    def backward_step(
        self, kernel: Kernel, shard: Shard, rows: Tensors | None, saved: Saved, state: Tensor, out: Tensors | None
    ) -> None:
        if out is not None:
            kernel.max_backward(shard.block, state, saved.stats[0], out[0])

    def backward_finish(self, saved: Saved, state: Tensor) -> tuple[Tensors, Tensors]:
        return (), ()

    def autograd_forward(
        self, plan: LayerPlan, kernel: Kernel, shard: Shard, rows: Tensors, local: Tensors, params: Tensors
    ) -> Tensors:
        return (kernel.max_autograd(shard.block, rows[0]),)
