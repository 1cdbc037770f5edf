"""A reducer of the paper's case 2, for tests: messages that need the source rows, local rows and a parameter.

out_i = l_i * theta * sum of z_j^2 s_j over edges j -> i        z: [N, F], s: [N, 1], l: [M, F], theta: [F]
"""

from __future__ import annotations

from torch import Tensor

from sargnn.engine.reducers.base import Reducer, Saved, Tensors
from sargnn.kernels.base import Kernel
from sargnn.shards.plan import LayerPlan, Shard


class Toy(Reducer):
    name = "toy"
    operation = "sum"
    needs_src_in_backward = True

    def init(self, plan: LayerPlan, sent: Tensors, local: Tensors, params: Tensors) -> Tensor:
        return sent[0].new_zeros(plan.num_out, sent[0].shape[1])

    def step(self, kernel: Kernel, shard: Shard, rows: Tensors, local: Tensors, params: Tensors, state: Tensor) -> None:
        z, s = rows
        kernel.sum_forward(shard.block, z.square() * s, state)

    def finish(self, plan: LayerPlan, local: Tensors, params: Tensors, state: Tensor) -> tuple[Tensors, Tensors]:
        return (local[0] * params[0] * state,), (state,)

    def backward_init(self, plan: LayerPlan, kernel: Kernel, saved: Saved, grads: Tensors) -> Tensors:
        (folded,) = saved.stats
        error = grads[0] * saved.local[0] * saved.params[0]
        return error, grads[0] * saved.params[0] * folded, (grads[0] * saved.local[0] * folded).sum(0)

    def backward_step(
        self, kernel: Kernel, shard: Shard, rows: Tensors | None, saved: Saved, state: Tensors, out: Tensors | None
    ) -> None:
        assert rows is not None
        z, s = rows
        if out is not None:
            gathered = z.new_empty(z.shape)
            kernel.sum_backward(shard.block, state[0], gathered)
            out[0].copy_(2 * gathered * z * s)
            out[1].copy_((gathered * z.square()).sum(1, keepdim=True))

    def backward_finish(self, saved: Saved, state: Tensors) -> tuple[Tensors, Tensors]:
        return (state[1],), (state[2],)

    def autograd_forward(
        self, plan: LayerPlan, kernel: Kernel, shard: Shard, rows: Tensors, local: Tensors, params: Tensors
    ) -> Tensors:
        z, s = rows
        return (local[0] * params[0] * kernel.sum_autograd(shard.block, z.square() * s),)
