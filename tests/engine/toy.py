"""A reducer of the paper's case 2, for tests: messages that need the source rows, local rows and a parameter.

out_i = l_i * theta * sum of z_j^2 s_j over edges j -> i        z: [N, F], s: [N, 1], l: [M, F], theta: [F]
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sargnn.backends.operations import SumOperation
from sargnn.engine.reducers.base import Fold, Reducer, Saved, Tensors
from sargnn.plan.layer_plan import Shard


class Toy(Reducer[SumOperation, Tensor, Tensors]):
    name = "toy"
    operation = "sum"
    needs_src_in_backward = True

    def init(self, fold: Fold[SumOperation], exchanged: Tensors, dest_local: Tensors, params: Tensors) -> Tensor:
        return exchanged[0].new_zeros(fold.plan.num_out, exchanged[0].shape[1])

    def step(
        self, fold: Fold[SumOperation], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: Tensor
    ) -> None:
        z, s = rows
        fold.operation.forward(shard.block, z.square() * s, state)

    def finish(self, fold: Fold[SumOperation], dest_local: Tensors, params: Tensors, state: Tensor) -> tuple[Tensors, Tensors]:
        return (dest_local[0] * params[0] * state,), (state,)

    def backward_init(self, fold: Fold[SumOperation], saved: Saved, grads: Tensors) -> Tensors:
        (folded,) = saved.stats
        grad = grads[0] * saved.dest_local[0] * saved.params[0]
        return grad, grads[0] * saved.params[0] * folded, (grads[0] * saved.dest_local[0] * folded).sum(0)

    def backward_step(
        self, fold: Fold[SumOperation], shard: Shard, rows: Tensors | None, saved: Saved, state: Tensors, out: Tensors | None
    ) -> None:
        assert rows is not None
        z, s = rows
        if out is not None:
            gathered = z.new_empty(z.shape)
            fold.operation.backward(shard.block, state[0], gathered)
            out[0].copy_(2 * gathered * z * s)
            out[1].copy_((gathered * z.square()).sum(1, keepdim=True))

    def backward_finish(self, saved: Saved, state: Tensors) -> tuple[Tensors, Tensors]:
        return (state[1],), (state[2],)

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        z, s = rows
        return (dest_local[0] * params[0] * fold.operation(shard.block, z.square() * s),)
