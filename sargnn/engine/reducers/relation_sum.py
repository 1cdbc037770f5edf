"""Sums of raw rows per relation: R-GCN's aggregation before its maps (``aggregate_first``).

    out_r,i = sum over edges j -> i of relation r of h_j        d h_j = sum over r and edges j -> i of g_r,i

Linear, so no row is fetched again (case 1) and nothing is saved here; who maps the sums keeps them for the maps' gradients,
R tables in all.

Letters: N input rows, M_r output rows of relation r's destination type.
"""

from __future__ import annotations

from torch import Tensor

from sargnn.comm.rows import add_rows
from sargnn.engine.pool import POOL
from sargnn.engine.reducers.base import Reducer, Saved, Tensors
from sargnn.kernels.base import Kernel
from sargnn.shards.plan import LayerPlan, RelationBlock, Shard


class RelationSum(Reducer):
    """``sent`` is (h [N, F],); the outputs are [M_r, F], one per relation, zeros where it has no edges."""

    name = "relation_sum"
    operation = "sum"
    needs_src_in_backward = False
    linear = True

    def init(self, plan: LayerPlan, sent: Tensors, local: Tensors, params: Tensors) -> Tensors:
        return tuple(POOL.zeros(len(degrees), sent[0].shape[1], sent[0]) for degrees in plan.relation_degrees)

    def step(self, kernel: Kernel, shard: Shard, rows: Tensors, local: Tensors, params: Tensors, state: Tensors) -> None:
        for part in shard.relations:
            total, h = _run(state, part), rows[0][part.src]
            if part.rows is None:
                kernel.sum_forward(part.block, h, total)
            else:
                gathered = h.new_zeros(part.block.num_dst, h.shape[1])
                kernel.sum_forward(part.block, h, gathered)
                add_rows(total, part.rows, gathered)

    def finish(self, plan: LayerPlan, local: Tensors, params: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return state, ()

    def backward_init(self, plan: LayerPlan, kernel: Kernel, saved: Saved, grads: Tensors) -> Tensors:
        return tuple(grad.contiguous() for grad in grads)

    def backward_step(
        self, kernel: Kernel, shard: Shard, rows: Tensors | None, saved: Saved, state: Tensors, out: Tensors | None
    ) -> None:
        if out is None:
            return
        out[0].zero_()
        for part in shard.relations:
            error = _run(state, part)
            if part.rows is not None:
                error = error.index_select(0, part.rows)
            kernel.sum_backward(part.block, error, out[0][part.src], add=True)

    def backward_finish(self, saved: Saved, state: Tensors) -> tuple[Tensors, Tensors]:
        return (), ()

    def autograd_forward(
        self, plan: LayerPlan, kernel: Kernel, shard: Shard, rows: Tensors, local: Tensors, params: Tensors
    ) -> Tensors:
        sources = [relation.source for relation in plan.schema.relations]
        by_relation = {p.relation: kernel.sum_autograd(p.block, rows[sources[p.relation]]) for p in shard.relations}
        nothing = rows[0].new_zeros(0, rows[0].shape[1])
        return tuple(by_relation.get(r, nothing) for r in range(len(sources)))


def _run(tables: Tensors, part: RelationBlock) -> Tensor:
    return tables[part.relation][part.out_in_type : part.out_in_type + part.num_out]
