"""What layers and the stack between them call for everything but aggregation: an interface, a stock and a fused implementation.

The training mode chooses one of the two.

Letters: N input rows, M output rows (the first ones of each type of the input rows), F features, K heads, D head width,
R relations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sargnn.backends.base import ACTIVATIONS, Activation
from sargnn.bf16 import wide
from sargnn.comm.group import Group
from sargnn.engine.grouped import Grouped
from sargnn.engine.linear import AddMapped, Map, linear_blocks, linear_map, linears
from sargnn.engine.modes.base import Mode
from sargnn.engine.norm import norm_act_drop
from sargnn.engine.reducers.base import Tensors
from sargnn.engine.relation_weights import RelationWeights
from sargnn.engine.row_functions import Add, Dropout, Scale, ScaledRows, add_bias, fork, fork_own
from sargnn.engine.row_norm import RowNorm
from sargnn.engine.workspace import Workspace
from sargnn.plan.layer_plan import LayerPlan
from sargnn.profile import NODEWISE
from sargnn.rng import Draw


class RowMap(NamedTuple):
    """Weight [out, in], bias [out] or None; of the output rows only, or of all input rows."""

    weight: Tensor
    bias: Tensor | None
    of_outputs: bool


class Operators(ABC):
    """Linear and node-wise operators of one engine. Both implementations compute the same, to rounding."""

    def __init__(self, group: Group, work: Workspace) -> None:
        self._group, self._work = group, work

    @abstractmethod
    def linear(self, blocks: Sequence[Tensor], weight: Tensor, bias: Tensor | None, onto: Tensor | None = None) -> Tensor:
        """``x W^T + b``, [N, out], of rows x given in blocks of columns [N, in_k]; with ``onto`` the sum of both.

        ``onto``: [N, out], of no further use to the caller; only without a bias.
        """

    @abstractmethod
    def linears(self, plan: LayerPlan, h: Tensor, *maps: RowMap) -> tuple[Tensor, ...]:
        """Several maps of h [N, in]: [M, out] for those of the output rows, [N, out] for the others."""

    @abstractmethod
    def attention_maps(
        self, plan: LayerPlan, h: Tensor, weight: Tensor, attn_src: Tensor, attn_dst: Tensor | None, *own_maps: Tensor
    ) -> tuple[Tensor, ...]:
        """z = W h [N, K D], per head <a_src, z_j> of all rows [N, K] and <a_dst, z_i> of the output rows [M, K], further maps
        of the output rows [M, out].

        Args:
            h: [N, in].
            weight: [K D, in].
            attn_src: [K, D].
            attn_dst: [K, D]; None: the output rows' part is 0.
            own_maps: [out, in].
        """

    @abstractmethod
    def scores(self, h: Tensor, weight: Tensor, attn: Tensor) -> Tensor:
        """``<a, W h_i>`` of each row and head, [N, K].

        Args:
            h: [N, in].
            weight: [K D, in].
            attn: [K, D].
        """

    @abstractmethod
    def self_loop(self, plan: LayerPlan, h: Tensor, weight: Tensor) -> tuple[Tensors, Tensors]:
        """How ``h_i W_0``, h [N, in], W_0 [in, out], joins R-GCN's sums: as a destination's tensor or a parameter."""

    @abstractmethod
    def add_relation_maps(self, plan: LayerPlan, own: Tensor, weights: Tensors, sums: Tensors) -> Tensor:
        """``own_i + sum over r of s_r,i W_r / |N_r(i)|``, [M, out].

        Args:
            own: [M, out], of no further use to the caller.
            weights: tables of ``RelationWeights``.
            sums: per relation [M_r, in]; likewise of no further use where their gradients are wanted.
        """

    @abstractmethod
    def sums_relations_first(self, plan: LayerPlan, mode: Mode, in_width: int, out_width: int, *, keeps_sums: bool) -> bool:
        """Whether R-GCN sums raw rows per relation before it maps them; all ask together. ``keeps_sums``: over the epochs."""

    @abstractmethod
    def fork(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x`` [N, F] for each of two readers."""

    @abstractmethod
    def fork_own(self, plan: LayerPlan, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x`` [N, F] for one reader, and for another the rows of it that the output rows are, [M, F]."""

    @abstractmethod
    def add(self, first: Tensor, other: Tensor, *, reuse: bool = False) -> Tensor:
        """The sum of two tables [N, F]. ``reuse``: the other is of no further use to the caller, and becomes the result."""

    @abstractmethod
    def scale(self, x: Tensor, factor: Tensor | float) -> Tensor:
        """``factor * x`` [N, F] in memory of its own; factor: a number, or a tensor of one."""

    @abstractmethod
    def add_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """``x + b``; x [N, F] is of no further use to the caller."""

    def with_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """``x + b`` [N, F] in memory of its own; x itself without a bias."""
        return x if bias is None else add_bias(self._work.rows, x, bias)

    def scaled_rows(self, rows: Tensor, factors: Tensor, *, reuse: bool = False) -> Tensor:
        """``factors_i rows_i`` [N, F], in the rows' dtype; factors [N, 1], without gradients, are in what sums of such rows are
        held in. ``reuse``: ``rows`` are of no further use to the caller, and become the result.
        """
        if rows.dtype != factors.dtype and rows.is_contiguous():
            scaled: Tensor = ScaledRows.apply(rows, factors.view(-1), self._work, reuse)
            return scaled
        return rows.mul_(factors) if reuse else (rows * factors).to(rows.dtype)

    def dropout(self, x: Tensor, ids: Tensor, draw: Draw | None) -> Tensor:
        """Rows [N, F] dropped by a draw; unchanged where there is none. ids: int64 [N], original ids."""
        return x if draw is None else Dropout.apply(x, ids, draw, self._work)

    @abstractmethod
    def norm_act_drop(
        self,
        x: Tensor | Grouped,
        norm: RowNorm | None,
        activation: str,
        ids: Tensor,
        draw: Draw | None,
        bounds: tuple[int, ...],
        counted: Tensor | None = None,
    ) -> Tensor:
        """Norm, activation and dropout of rows [N, F]; in training all workers must call it where there is a norm.

        Args:
            x: of no further use to the caller where it is in groups.
            activation: ``relu``, ``elu`` or, behind a norm, ``none``.
            ids: int64 [N], original ids.
            draw: None drops nothing.
            bounds: T + 1, the rows of each type.
            counted: uint8 [N], 1 for rows that statistics over rows are taken of; None: of all.
        """


class StockOperators(Operators):
    """Operators as a user of PyTorch and DGL has them: what the baseline mode runs.

    Nothing is fused, rebuilt or taken from a pool. Only random masks and batch norm's sums over workers are this project's.
    """

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
        self, plan: LayerPlan, h: Tensor, weight: Tensor, attn_src: Tensor, attn_dst: Tensor | None, *own_maps: Tensor
    ) -> tuple[Tensor, ...]:
        z = linear_map(self._work, h, weight, None)
        by_head = z.view(len(z), *attn_src.shape)
        of_sources = (by_head * attn_src).sum(2)
        own = (linear_map(self._work, plan.self_rows(h), own_map, None) for own_map in own_maps)
        if attn_dst is None:
            return z, of_sources, z.new_zeros(plan.num_out, len(attn_src)), *own
        return z, of_sources, (plan.self_rows(by_head) * attn_dst).sum(2), *own

    def scores(self, h: Tensor, weight: Tensor, attn: Tensor) -> Tensor:
        return (linear_map(self._work, h, weight, None).view(len(h), *attn.shape) * attn).sum(2)

    def self_loop(self, plan: LayerPlan, h: Tensor, weight: Tensor) -> tuple[Tensors, Tensors]:
        return (plan.self_rows(h) @ weight.to(h.dtype),), ()

    def add_relation_maps(self, plan: LayerPlan, own: Tensor, weights: Tensors, sums: Tensors) -> Tensor:
        by_type, of_relation = plan.by_type(own), RelationWeights(weights)
        for r in range(len(plan.schema.relations)):
            destination = plan.schema.relations[r].destination
            if plan.out_type in (None, destination):
                mean = (sums[r] * plan.relation_scale(r, wide(own.dtype))[:, None]).to(own.dtype)
                by_type[destination] = by_type[destination] + mean @ of_relation[r].to(own.dtype)
        return plan.in_one_table(by_type)

    def sums_relations_first(self, plan: LayerPlan, mode: Mode, in_width: int, out_width: int, *, keeps_sums: bool) -> bool:
        """As DGL's ``GraphConv`` chooses: the narrower side is mapped to last."""
        return in_width <= out_width

    def fork(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x

    def fork_own(self, plan: LayerPlan, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, plan.self_rows(x)

    def add(self, first: Tensor, other: Tensor, *, reuse: bool = False) -> Tensor:
        return first + other

    def scale(self, x: Tensor, factor: Tensor | float) -> Tensor:
        return (x * factor).to(x.dtype)

    def add_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self.with_bias(x, bias)

    def norm_act_drop(
        self,
        x: Tensor | Grouped,
        norm: RowNorm | None,
        activation: str,
        ids: Tensor,
        draw: Draw | None,
        bounds: tuple[int, ...],
        counted: Tensor | None = None,
    ) -> Tensor:
        assert isinstance(x, Tensor), "a baseline mode makes no groups"
        with self._work.profile.span(NODEWISE):
            h = ACTIVATIONS[activation](x if norm is None else norm(x, self._group, bounds, counted))
        return self.dropout(h, ids, draw)


class FusedOperators(Operators):
    """One pass over memory where stock operators take several, one saved table where they save more.

    Norm, activation and dropout run in one pass (``engine.norm``) whose result is computed again in backward
    (``engine.rebuild``); results are written into memory from the engine's pool; sums are added in place.
    """

    def __init__(self, group: Group, work: Workspace) -> None:
        super().__init__(group, work)
        self._stock = StockOperators(group, work)

    def linear(self, blocks: Sequence[Tensor], weight: Tensor, bias: Tensor | None, onto: Tensor | None = None) -> Tensor:
        assert onto is None or bias is None
        return linear_blocks(self._work, blocks, weight, bias, onto)

    def linears(self, plan: LayerPlan, h: Tensor, *maps: RowMap) -> tuple[Tensor, ...]:
        counts = (plan.num_out if row_map.of_outputs else plan.num_rows for row_map in maps)
        return linears(self._work, h, *(Map(m.weight, m.bias, count) for m, count in zip(maps, counts, strict=True)))

    def attention_maps(
        self, plan: LayerPlan, h: Tensor, weight: Tensor, attn_src: Tensor, attn_dst: Tensor | None, *own_maps: Tensor
    ) -> tuple[Tensor, ...]:
        """<a, W h> = <W^T a, h>: taken from h, so that nothing else of the size of z is held, forward or backward."""
        vectors = (attn_src,) if attn_dst is None else (attn_src, attn_dst)
        counts = plan.num_rows, plan.num_out
        scores = (_score_map(weight, a, count) for a, count in zip(vectors, counts, strict=False))
        own = (Map(own_map, None, plan.num_out) for own_map in own_maps)
        z, of_sources, *rest = linears(self._work, h, Map(weight, None, plan.num_rows), *scores, *own)
        if attn_dst is None:
            rest.insert(0, of_sources.new_zeros(plan.num_out, len(attn_src)))
        return z, of_sources, *rest

    def scores(self, h: Tensor, weight: Tensor, attn: Tensor) -> Tensor:
        return linears(self._work, h, _score_map(weight, attn, len(h)))[0]

    def self_loop(self, plan: LayerPlan, h: Tensor, weight: Tensor) -> tuple[Tensors, Tensors]:
        return (), (weight,)

    def add_relation_maps(self, plan: LayerPlan, own: Tensor, weights: Tensors, sums: Tensors) -> Tensor:
        out: Tensor = AddMapped.apply(self._work, plan, own, len(weights), *weights, *sums)
        return out

    def sums_relations_first(self, plan: LayerPlan, mode: Mode, in_width: int, out_width: int, *, keeps_sums: bool) -> bool:
        """True if the sums, over all workers, have no more rows than backward would need without them."""
        sums, sources = sum(map(plan.num_into, range(len(plan.schema.relations)))), mode.kept_rows(plan)
        if keeps_sums:
            sources = max(sources, plan.num_rows)  # sums that are taken once may be as large as the rows themselves
        sums, sources = self._group.sum_(torch.tensor([sums, sources])).tolist()
        return sums <= sources

    def fork(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return fork(self._work.pool, x)

    def fork_own(self, plan: LayerPlan, x: Tensor) -> tuple[Tensor, Tensor]:
        return fork_own(self._work.pool, plan, x)

    def add(self, first: Tensor, other: Tensor, *, reuse: bool = False) -> Tensor:
        total: Tensor = Add.apply(first, other, None if reuse else self._work.pool)
        return total

    def scale(self, x: Tensor, factor: Tensor | float) -> Tensor:
        out: Tensor = Scale.apply(x, factor, self._work)
        return out

    def add_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return x if bias is None else add_bias(self._work.rows, x, bias, in_place=True)

    def norm_act_drop(
        self,
        x: Tensor | Grouped,
        norm: RowNorm | None,
        activation: str,
        ids: Tensor,
        draw: Draw | None,
        bounds: tuple[int, ...],
        counted: Tensor | None = None,
    ) -> Tensor:
        if norm is None:
            return norm_act_drop(self._work, self._group, x, Activation(activation, ids, draw))
        if isinstance(x, Grouped) and not (norm.fuses and norm.reads_groups):
            x = x.joined(self._work.pool)
        if not norm.fuses:
            return self._stock.norm_act_drop(x, norm, activation, ids, draw, bounds, counted)
        return norm.fused(self._work, x, self._group, activation, ids, draw, bounds, counted)


def _score_map(weight: Tensor, attn: Tensor, rows: int) -> Map:
    """W^T a per head, which maps the first rows to their scores. weight: [K D, in], attn: [K, D]."""
    by_head = weight.view(*attn.shape, weight.shape[1])
    return Map(torch.einsum("hk,hki->hi", attn, by_head), None, rows, scores=True)
