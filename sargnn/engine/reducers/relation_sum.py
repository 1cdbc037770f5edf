"""Sums of raw rows per relation: R-GCN's aggregation before its maps (``aggregate_first``).

    out_r,i = sum over edges e = j -> i of relation r of w_e h_j        d h_j = sum over r and edges e = j -> i of w_e g_r,i

w_e is the graph's edge weight, 1 where it has none.

Linear, so no row is fetched again (case 1) and nothing is saved here; who maps the sums keeps them for the maps' gradients,
R tables in all.

Letters: N input rows, M_r output rows of relation r's destination type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sargnn.backends.operations import SumOperation
from sargnn.engine.reducers.base import Fold, Reducer, Saved, Tensors
from sargnn.engine.reducers.edge_weights import check_weights, weight_argument
from sargnn.engine.rounding import zero_sums
from sargnn.plan.layer_plan import RelationBlock, Shard


class RelationSum(Reducer[SumOperation, list[Tensor], Tensors]):
    """``exchanged`` is (h [N, F],); the outputs are [M_r, F], one per relation, zeros where it has no edges."""

    name = "relation_sum"
    operation = "sum"
    needs_src_in_backward = False
    linear = True
    no_partials = "a sum for each relation would travel for every node"

    def init(self, fold: Fold[SumOperation], exchanged: Tensors, dest_local: Tensors, params: Tensors) -> list[Tensor]:
        (h,) = exchanged
        check_weights(fold.plan, fold.operation, weighted=True)
        return [zero_sums(fold.pool, len(degrees), h.shape[1], h) for degrees in fold.plan.relation_degrees]

    def step(
        self, fold: Fold[SumOperation], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: list[Tensor]
    ) -> None:
        for part in shard.relations:
            total, h = _run(state, part), rows[0][part.src]
            if part.rows is None:
                fold.operation.forward(part.block, h, total, **weight_argument(part.block, weighted=True))
            else:
                gathered = total.new_zeros(part.block.num_dst, h.shape[1])
                fold.operation.forward(part.block, h, gathered, **weight_argument(part.block, weighted=True))
                fold.backend.moves.add(total, part.rows, gathered)

    def finish(
        self, fold: Fold[SumOperation], dest_local: Tensors, params: Tensors, state: list[Tensor]
    ) -> tuple[Tensors, Tensors]:
        for r in range(len(state)):  # of bf16 rows each relation's fp32 sums go before the next one's are rounded
            state[r] = fold.narrowed(state[r])
        return tuple(state), ()

    def backward_init(self, fold: Fold[SumOperation], saved: Saved, grads: Tensors) -> Tensors:
        return tuple(grad.contiguous() for grad in grads)

    def backward_step(
        self,
        fold: Fold[SumOperation],
        shard: Shard,
        rows: Tensors | None,
        saved: Saved,
        state: Tensors,
        out: Tensors | None,
    ) -> None:
        if out is None:
            return
        out[0].zero_()
        for part in shard.relations:
            grad = _run(state, part)
            if part.rows is not None:
                grad = grad.index_select(0, part.rows)
            weight = weight_argument(part.block, weighted=True)
            fold.operation.backward(part.block, grad, out[0][part.src], add=True, **weight)

    def backward_finish(self, saved: Saved, state: Tensors) -> tuple[Tensors, Tensors]:
        return (), ()

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        sources = [relation.source for relation in fold.plan.schema.relations]
        check_weights(fold.plan, fold.operation, weighted=True)
        by_relation = {
            p.relation: fold.operation(p.block, rows[sources[p.relation]], **weight_argument(p.block, weighted=True))
            for p in shard.relations
        }
        nothing = rows[0].new_zeros(0, rows[0].shape[1])
        return tuple(by_relation.get(r, nothing) for r in range(len(sources)))


def _run(tables: Sequence[Tensor], part: RelationBlock) -> Tensor:
    """The rows of a relation's table that the block's edges end in."""
    return tables[part.relation][part.out_in_type : part.out_in_type + part.num_out]
