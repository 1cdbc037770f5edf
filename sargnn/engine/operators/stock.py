"""Operators as a user of PyTorch and DGL has them: what the baseline mode runs.

Nothing is fused, rebuilt or taken from a pool. Only random masks and batch norm's sums over workers are this project's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sargnn.bf16 import wide
from sargnn.engine.activations import ACTIVATIONS
from sargnn.engine.linear import linear_map
from sargnn.engine.modes.base import Mode
from sargnn.engine.operators.base import Operators, RowMap
from sargnn.engine.reducers.base import Tensors
from sargnn.engine.row_norm import RowNorm
from sargnn.plan.layer_plan import LayerPlan
from sargnn.profile import NODEWISE
from sargnn.rng import Draw


class StockOperators(Operators):
    """See ``Operators``; ``work`` has a pool that hands out fresh memory."""

    def linear(self, blocks: Sequence[Tensor], weight: Tensor, bias: Tensor | None, onto: Tensor | None = None) -> Tensor:
        assert onto is None or bias is None
        x = blocks[0] if len(blocks) == 1 else torch.cat(tuple(blocks), 1)
        mapped = linear_map(self._work, x, weight, bias)
        return mapped if onto is None else onto + mapped

    def linears(self, plan: LayerPlan, h: Tensor, *maps: RowMap) -> tuple[Tensor, ...]:
        return tuple(
            linear_map(self._work, plan.self_rows(h) if row_map.of_outputs else h, row_map.weight, row_map.bias)
            for row_map in maps
        )

    def attention_maps(
        self, plan: LayerPlan, h: Tensor, weight: Tensor, attn_src: Tensor, attn_dst: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        z = linear_map(self._work, h, weight, None)
        by_head = z.view(len(z), *attn_src.shape)
        of_sources = (by_head * attn_src).sum(2)
        if attn_dst is None:
            return z, of_sources, z.new_zeros(plan.num_out, len(attn_src))
        return z, of_sources, (plan.self_rows(by_head) * attn_dst).sum(2)

    def self_loop(self, plan: LayerPlan, h: Tensor, weight: Tensor) -> tuple[Tensors, Tensors]:
        return (plan.self_rows(h) @ weight.to(h.dtype),), ()

    def add_relation_maps(self, plan: LayerPlan, own: Tensor, weights: Tensor, sums: Tensors) -> Tensor:
        by_type = plan.by_type(own)
        for r, weight in enumerate(weights.unbind(0)):
            destination = plan.schema.relations[r].destination
            if plan.out_type in (None, destination):
                mean = (sums[r] * plan.relation_scale(r, wide(own.dtype))[:, None]).to(own.dtype)
                by_type[destination] = by_type[destination] + mean @ weight.to(own.dtype)
        return plan.in_one_table(by_type)

    def sums_relations_first(self, plan: LayerPlan, mode: Mode, in_width: int, out_width: int, *, keeps_sums: bool) -> bool:
        """As DGL's ``GraphConv`` chooses: the narrower side is mapped to last."""
        return in_width <= out_width

    def fork(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x

    def fork_own(self, plan: LayerPlan, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, plan.self_rows(x)

    def add(self, first: Tensor, other: Tensor) -> Tensor:
        return first + other

    def scale(self, x: Tensor, factor: Tensor | float) -> Tensor:
        return (x * factor).to(x.dtype)

    def add_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self.with_bias(x, bias)

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
        with self._work.profile.span(NODEWISE):
            h = ACTIVATIONS[activation](x if norm is None else norm(x, self._group, bounds, counted))
        return self.dropout(h, ids, draw)
