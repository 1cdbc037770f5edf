"""Fused operators: one pass over memory where stock operators take several, one saved table where they save more.

Norm, activation and dropout run in one pass (``engine.nodewise``) whose result is computed again in backward instead
of being kept (``engine.rebuild``); results are written into memory from the engine's pool; sums are added in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.engine.bias import add_bias
from sargnn.engine.fork import add, fork, fork_own
from sargnn.engine.linear import Map, linear_blocks, linears
from sargnn.engine.modes.base import Mode
from sargnn.engine.nodewise import norm_act_drop
from sargnn.engine.operators.base import Operators, RowMap
from sargnn.engine.operators.stock import StockOperators
from sargnn.engine.reducers.base import Tensors
from sargnn.engine.relation_maps import add_mapped
from sargnn.engine.row_norm import RowNorm
from sargnn.engine.scale import scale
from sargnn.engine.workspace import Workspace
from sargnn.plan.layer_plan import LayerPlan
from sargnn.rng import Draw


class FusedOperators(Operators):
    """See ``Operators``."""

    def __init__(self, group: Group, work: Workspace) -> None:
        super().__init__(group, work)
        self._stock = StockOperators(group, work)

    def linear(self, blocks: Sequence[Tensor], weight: Tensor, bias: Tensor | None, onto: Tensor | None = None) -> Tensor:
        assert onto is None or bias is None
        return linear_blocks(self._work, blocks, weight, bias, onto)

    def linears(self, plan: LayerPlan, h: Tensor, *maps: RowMap) -> tuple[Tensor, ...]:
        sized_maps = (
            Map(row_map.weight, row_map.bias, plan.num_out if row_map.of_outputs else plan.num_rows) for row_map in maps
        )
        return linears(self._work, h, *sized_maps)

    def attention_maps(
        self, plan: LayerPlan, h: Tensor, weight: Tensor, attn_src: Tensor, attn_dst: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """<a, W h> = <W^T a, h>: taken from h, so that nothing else of the size of z is held, forward or backward."""
        by_head = weight.view(*attn_src.shape, weight.shape[1])
        vectors = (attn_src,) if attn_dst is None else (attn_src, attn_dst)
        scores = (
            Map(torch.einsum("hk,hki->hi", a, by_head), None, count, scores=True)
            for a, count in zip(vectors, (plan.num_rows, plan.num_out), strict=False)
        )
        z, of_sources, *rest = linears(self._work, h, Map(weight, None, plan.num_rows), *scores)
        return z, of_sources, rest[0] if rest else of_sources.new_zeros(plan.num_out, len(attn_src))

    def self_loop(self, plan: LayerPlan, h: Tensor, weight: Tensor) -> tuple[Tensors, Tensors]:
        return (), (weight,)

    def add_relation_maps(self, plan: LayerPlan, own: Tensor, weights: Tensor, sums: Tensors) -> Tensor:
        return add_mapped(self._work, plan, own, weights, sums)

    def sums_relations_first(self, plan: LayerPlan, mode: Mode, in_width: int, out_width: int, *, keeps_sums: bool) -> bool:
        """True if the sums, over all workers, have no more rows than backward would need without them."""
        sums, sources = sum(len(degrees) for degrees in plan.relation_degrees), mode.kept_rows(plan)
        if keeps_sums:
            sources = max(sources, plan.num_rows)  # sums that are taken once may be as large as the rows themselves
        sums, sources = self._group.sum_(torch.tensor([sums, sources])).tolist()
        return sums <= sources

    def fork(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return fork(self._work.pool, x)

    def fork_own(self, plan: LayerPlan, x: Tensor) -> tuple[Tensor, Tensor]:
        return fork_own(self._work.pool, plan, x)

    def add(self, first: Tensor, other: Tensor) -> Tensor:
        return add(self._work.pool, first, other)

    def scale(self, x: Tensor, factor: Tensor | float) -> Tensor:
        return scale(self._work, x, factor)

    def add_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return x if bias is None else add_bias(self._work.rows, x, bias, in_place=True)

    def norm_act_drop(
        self,
        x: Tensor,
        norm: RowNorm | None,
        activation: str,
        ids: Tensor,
        draw: Draw | None,
        bounds: tuple[int, ...],
        counted: Tensor | None = None,
    ) -> Tensor:
        if norm is None:
            return norm_act_drop(self._work, x, None, None, None, activation, ids, draw, self._group)
        if not norm.fuses:
            return self._stock.norm_act_drop(x, norm, activation, ids, draw, bounds, counted)
        return norm.fused(self._work, x, self._group, activation, ids, draw, bounds, counted)
