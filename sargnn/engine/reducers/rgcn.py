"""R-GCN's aggregation, mapping rows before or after they are summed, whichever is less work edge block by edge block.

    out_i = l_i + h_i W_0 + sum over relations r of (1 / |N_r(i)|) sum over edges j -> i of r of h_j W_r

|N_r(i)| counts the edges of r into i in the whole graph. Of a graph with edge weights h_j counts w_e times, and their sum takes
the place of |N_r(i)|. Nothing but h and the weights is saved: in backward the rows are fetched again (case 2), for

    d h_j += (1 / |N_r(i)|) g_i W_r^T        d W_r += h_j^T g_i / |N_r(i)|        d W_0 = h^T g        d l = g

A block of edges from S source rows to A rows maps either before the sum, S rows of width ``out``, or after it, A rows of
width ``in`` which backward sums up again. Blocks are cut so that these are no more rows than a message holds; beside them
nothing of size rows x features is held.

A partial result is a row of width ``out`` over all relations, mapped after the sums where the sources are, with the
destination's 1 / |N_r(i)|; its gradient is g_i. Nothing is fetched for these edges, neither forward nor backward. Where the
plan joins peers' rows to the own ones (``Joint``), a row is mapped once for both: forward computes all of them before the
first is sent, backward waits until the last gradient is there.

``RelationSum`` sums raw rows per relation, for who maps them afterwards (``aggregate_first``):

    out_r,i = sum over edges e = j -> i of relation r of w_e h_j        d h_j = sum over r and edges e = j -> i of w_e g_r,i

Linear, so no row is fetched again (case 1) and nothing is saved here; who maps the sums keeps them for the maps' gradients,
R tables in all.

Letters: N input rows, M output rows, M_r those of relation r's destination type, S source rows and A destination rows of a
block, R relations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sargnn.backends.operations import SumOperation
from sargnn.bf16 import wide
from sargnn.comm.lists import Column, PartialRound, Piece
from sargnn.engine.reducers.base import (
    Fold,
    PartialColumns,
    Reducer,
    Saved,
    Tensors,
    WithPartials,
    check_weights,
    partials_of,
    served_shard,
    weight_argument,
)
from sargnn.engine.relation_weights import RelationGradients, RelationWeights
from sargnn.engine.workspace import widened, zero_sums
from sargnn.plan.layer_plan import Joint, LayerPlan, RelationBlock, Shard

_Fold = Fold[SumOperation]
_Part = tuple[RelationBlock, Tensor, Tensor]
"""A block, the table that its destination rows lie in (sums or gradients), and 1 / |N_r(i)| of each."""


@dataclass
class _Scratch:
    """Two tables that are written to again and again: fresh memory costs more than the arithmetic."""

    tables: dict[tuple[str, torch.dtype], Tensor] = field(default_factory=dict)

    def take(self, name: str, rows: int, width: int, like: Tensor) -> Tensor:
        """[rows, width], not initialised."""
        key = name, like.dtype
        table = self.tables.get(key)
        if table is None or table.numel() < rows * width:
            self.tables.pop(key, None)
            table = self.tables[key] = like.new_empty(rows * width)
        return table[: rows * width].view(rows, width)


@dataclass
class _Together:
    """Peers' output rows that are aggregated with the own ones, their sums or gradients so far; pieces that are left."""

    table: Tensor
    left: int


@dataclass
class _Sums:
    """A forward pass: outputs so far [M, out], and the relations' weights.

    ``together`` is None before the own rows are aggregated, and where no peer's are with them.
    """

    rows: Tensor
    weights: RelationWeights
    scratch: _Scratch
    together: _Together | None = None
    own_done: bool = False


@dataclass
class _Gradients:
    """A backward pass: the gradient of the outputs [M, out], this worker's d W and d W_0 so far.

    ``together`` is None before the first gradient of such rows has come.
    """

    rows: Tensor
    weights: RelationWeights
    scratch: _Scratch
    d_weights: RelationGradients
    d_loop: Tensor | None
    together: _Together | None = None


class Rgcn(Reducer[SumOperation, _Sums, _Gradients], WithPartials):
    """``exchanged`` is (h [N, in],), ``dest_local`` (l [M, out],) or empty, ``params`` those of ``RelationWeights``, and
    W_0 [in, out] or nothing.

    l becomes the accumulator and the output; it must be of no further use to the caller. Saves h and the weights.

    Args:
        width: ``out``.
        bases: the weights are made of bases.
    """

    name = "rgcn"
    operation = "sum"
    needs_src_in_backward = True

    def __init__(self, width: int, *, bases: bool) -> None:
        self.width, self._tables = width, 1 + bases

    def _weights(self, params: Tensors) -> tuple[RelationWeights, Tensor | None]:
        """And W_0."""
        return RelationWeights(params[: self._tables]), params[-1] if len(params) > self._tables else None

    def init(self, fold: _Fold, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> _Sums:
        check_weights(fold.plan, fold.operation, weighted=True)
        width = self.width
        assert params[0].shape[2] == width
        total = (
            widened(fold.pool, dest_local[0]) if dest_local else zero_sums(fold.pool, fold.plan.num_out, width, exchanged[0])
        )
        return _Sums(total, self._weights(params)[0], _Scratch())

    def step(self, fold: _Fold, shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: _Sums) -> None:
        (h,), (_, loop) = rows, self._weights(params)
        if loop is not None:
            with fold.linear():
                for src, out, n in shard.own:
                    fold.backend.rows.add_product(state.rows[out : out + n], h[src : src + n], loop)
        if shard.peer != fold.plan.rank:
            self._add(fold, h, state, _own_parts(fold.plan, shard, state))
        elif not state.own_done:
            self._add_own(fold, shard, h, state)

    def _add_own(self, fold: _Fold, shard: Shard, h: Tensor, state: _Sums) -> None:
        """Aggregate own rows, for the own output rows and for peers' that are joined to them."""
        state.own_done, joint = True, _joint_of(fold)
        if joint is None:
            self._add(fold, h, state, _own_parts(fold.plan, shard, state))
        else:
            state.together = _Together(zero_sums(fold.pool, joint.num_rows, self.width, h), len(joint.rows))
            self._add(fold, h, state, _joint_parts(fold, state))

    def _add(self, fold: _Fold, h: Tensor, state: _Sums, parts: Iterable[_Part]) -> None:
        """Add means of mapped rows, block by block; the blocks of one run of sources map it once."""
        scratch = state.scratch
        held: tuple[int, int] | None = None  # of which relation and run the scratch holds the mapped rows
        for part, total, scale in parts:
            weight = state.weights[part.relation]
            if part.map_sources:
                mapped = scratch.take("mapped", part.block.num_src, self.width, h)
                if held != (part.relation, part.first_src):
                    held = part.relation, part.first_src
                    with fold.linear():
                        fold.backend.rows.product(h[part.src], weight, mapped)
                fold.operation.forward(part.block, mapped, total, scale, **_weight(part))
                continue
            held = None
            gathered = _gather_means(fold, part, h, scale, scratch)
            with fold.linear():
                if part.rows is None:
                    fold.backend.rows.add_product(total, gathered, weight)
                else:
                    mapped = scratch.take("mapped", part.block.num_dst, self.width, h)
                    fold.backend.moves.add(total, part.rows, fold.backend.rows.product(gathered, weight, mapped))

    def finish(self, fold: _Fold, dest_local: Tensors, params: Tensors, state: _Sums) -> tuple[Tensors, Tensors]:
        return (fold.narrowed(state.rows, *dest_local),), ()

    def backward_init(self, fold: _Fold, saved: Saved, grads: Tensors) -> _Gradients:
        weights, loop = self._weights(saved.params)
        d_loop = None if loop is None else torch.zeros_like(loop)
        return _Gradients(grads[0].contiguous(), weights, _Scratch(), RelationGradients(weights), d_loop)

    def backward_step(
        self, fold: _Fold, shard: Shard, rows: Tensors | None, saved: Saved, state: _Gradients, out: Tensors | None
    ) -> None:
        assert rows is not None
        (h,), (_, loop) = rows, self._weights(saved.params)
        d_h = None if out is None else out[0].zero_()
        if loop is not None and state.d_loop is not None:
            with fold.linear():
                for src, first, n in shard.own:
                    grad = state.rows[first : first + n]
                    fold.backend.rows.add_transposed_product(state.d_loop, h[src : src + n], grad)
                    if d_h is not None:
                        fold.backend.rows.add_product(d_h[src : src + n], grad, loop.T)
        if shard.peer != fold.plan.rank or _joint_of(fold) is None:
            self._add_gradients(fold, h, state, d_h, _own_parts(fold.plan, shard, state))

    def _add_gradients(self, fold: _Fold, h: Tensor, state: _Gradients, d_h: Tensor | None, parts: Iterable[_Part]) -> None:
        """Add the gradients of rows and weights, block by block; of blocks that map one run of sources together."""
        waiting: tuple[RelationBlock, Tensor] | None = None

        def take_back() -> None:
            """The gradients of mapped rows go through the map."""
            nonlocal waiting
            if waiting is not None:
                (part, d_mapped), waiting = waiting, None
                weight, d_weight = state.weights[part.relation], state.d_weights[part.relation]
                with fold.linear():
                    fold.backend.rows.add_transposed_product(d_weight, h[part.src], d_mapped)
                    if d_h is not None:
                        fold.backend.rows.add_product(d_h[part.src], d_mapped, weight.T)

        for part, grad, scale in parts:
            if part.map_sources:
                goes_on = waiting is not None and (waiting[0].relation, waiting[0].first_src) == (part.relation, part.first_src)
                if not goes_on:
                    take_back()
                d_mapped = state.scratch.take("more" if goes_on else "mapped", part.block.num_src, self.width, h)
                fold.operation.backward(part.block, grad, d_mapped, scale, **_weight(part))
                if waiting is None:
                    waiting = part, d_mapped
                else:
                    waiting[1].add_(d_mapped)
                continue
            take_back()
            gathered = _gather_means(fold, part, h, scale, state.scratch)
            if part.rows is not None:
                chosen = state.scratch.take("mapped", part.block.num_dst, self.width, h)
                grad = torch.index_select(grad, 0, part.rows, out=chosen)
            weight, d_weight = state.weights[part.relation], state.d_weights[part.relation]
            with fold.linear():
                fold.backend.rows.add_transposed_product(d_weight, gathered, grad)
                if d_h is None:
                    continue
                d_gathered = fold.backend.rows.product(grad, weight.T, gathered)
                d_gathered = fold.backend.rows.scale(d_gathered, scale)
            fold.operation.backward(part.block, d_gathered, d_h[part.src], add=True, **_weight(part))
        take_back()

    def backward_finish(self, saved: Saved, state: _Gradients) -> tuple[Tensors, Tensors]:
        return (state.rows,), (*state.d_weights.finish(), *(() if state.d_loop is None else (state.d_loop,)))

    def partial_columns(self, widths: tuple[int, ...], rows: torch.dtype) -> PartialColumns:
        columns = (Column(self.width, rows),)
        return PartialColumns(answered=columns, gradients=columns)

    def serve(
        self, fold: _Fold, piece: Piece, exchanged: Tensors, asked: Tensors, params: Tensors, state: _Sums, out: Tensors
    ) -> None:
        (h,), (rows,), joint = exchanged, out, _joint_of(fold)
        if joint is not None and piece in joint.rows:
            if not state.own_done:
                assert fold.plan.shards is not None
                self._add_own(fold, fold.plan.shards[Piece(fold.plan.rank, 0)], h, state)
            assert state.together is not None
            rows.copy_(state.together.table[joint.rows[piece]])
            state.together.left -= 1
            if not state.together.left:
                state.together = None
            return
        total = zero_sums(fold.pool, len(rows), self.width, rows) if rows.dtype == torch.bfloat16 else rows.zero_()
        self._add(fold, h, state, ((part, total, scale) for part, scale in _served(fold, piece)))
        if total is not rows:
            rows.copy_(total)

    def merge(self, fold: _Fold, now: PartialRound, answers: Tensors, state: _Sums) -> None:
        fold.backend.moves.add(state.rows, now.wanted, answers[0])

    def ask_gradients(self, fold: _Fold, now: PartialRound, saved: Saved, state: _Gradients, out: Tensors) -> None:
        fold.backend.moves.take(state.rows, now.wanted, out[0])

    def serve_gradients(
        self,
        fold: _Fold,
        piece: Piece,
        asked: Tensors,
        saved: Saved,
        state: _Gradients,
        d_exchanged: Tensors | None,
        out: Tensors,
    ) -> None:
        (h,), (grad,), joint = saved.exchanged, asked, _joint_of(fold)
        d_h = None if d_exchanged is None else d_exchanged[0]
        if joint is None or piece not in joint.rows:
            parts: Iterable[_Part] = ((part, grad, scale) for part, scale in _served(fold, piece))
            self._add_gradients(fold, h, state, d_h, parts)
            return
        if state.together is None:
            state.together = _Together(fold.pool.empty(joint.num_rows, self.width, grad), len(joint.rows))
        state.together.table[joint.rows[piece]] = grad
        state.together.left -= 1
        if not state.together.left:
            self._add_gradients(fold, h, state, d_h, _joint_parts(fold, state))
            state.together = None

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        check_weights(fold.plan, fold.operation, weighted=True)
        (total,), (weights, _) = dest_local, self._weights(params)
        sums = fold.plan.by_type(total)
        for part in shard.relations:
            relation = fold.plan.schema.relations[part.relation]
            mapped = rows[relation.source] @ weights[part.relation].to(total.dtype)
            scale = fold.plan.relation_scale(part.relation, wide(mapped.dtype))
            mean = (fold.operation(part.block, mapped, **_weight(part)) * scale[:, None]).to(total.dtype)
            sums[relation.destination] = sums[relation.destination] + mean
        return (fold.plan.in_one_table(sums),)


class RelationSum(Reducer[SumOperation, list[Tensor], Tensors]):
    """``exchanged`` is (h [N, F],); the outputs are [M_r, F], one per relation, zeros where it has no edges."""

    name = "relation_sum"
    operation = "sum"
    needs_src_in_backward = False
    linear = True
    no_partials = "a sum for each relation would travel for every node"

    def init(self, fold: _Fold, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> list[Tensor]:
        (h,) = exchanged
        check_weights(fold.plan, fold.operation, weighted=True)
        plan = fold.plan
        return [zero_sums(fold.pool, plan.num_into(r), h.shape[1], h) for r in range(len(plan.schema.relations))]

    def step(self, fold: _Fold, shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: list[Tensor]) -> None:
        for part in shard.relations:
            total, h = _run(state, part), rows[0][part.src]
            if part.rows is None:
                fold.operation.forward(part.block, h, total, **_weight(part))
            else:
                gathered = total.new_zeros(part.block.num_dst, h.shape[1])
                fold.operation.forward(part.block, h, gathered, **_weight(part))
                fold.backend.moves.add(total, part.rows, gathered)

    def finish(self, fold: _Fold, dest_local: Tensors, params: Tensors, state: list[Tensor]) -> tuple[Tensors, Tensors]:
        for r in range(len(state)):  # of bf16 rows each relation's fp32 sums go before the next one's are rounded
            state[r] = fold.narrowed(state[r])
        return tuple(state), ()

    def backward_init(self, fold: _Fold, saved: Saved, grads: Tensors) -> Tensors:
        return tuple(grad.contiguous() for grad in grads)

    def backward_step(
        self, fold: _Fold, shard: Shard, rows: Tensors | None, saved: Saved, state: Tensors, out: Tensors | None
    ) -> None:
        if out is None:
            return
        out[0].zero_()
        for part in shard.relations:
            grad = _run(state, part)
            if part.rows is not None:
                grad = grad.index_select(0, part.rows)
            fold.operation.backward(part.block, grad, out[0][part.src], add=True, **_weight(part))

    def backward_finish(self, saved: Saved, state: Tensors) -> tuple[Tensors, Tensors]:
        return (), ()

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        sources = [relation.source for relation in fold.plan.schema.relations]
        check_weights(fold.plan, fold.operation, weighted=True)
        by_relation = {p.relation: fold.operation(p.block, rows[sources[p.relation]], **_weight(p)) for p in shard.relations}
        nothing = rows[0].new_zeros(0, rows[0].shape[1])
        return tuple(by_relation.get(r, nothing) for r in range(len(sources)))


def _scale_of(plan: LayerPlan, part: RelationBlock, state: _Sums | _Gradients) -> Tensor:
    """[A], 1 / |N_r(i)| of the block's destination rows."""
    run = slice(part.out_in_type, part.out_in_type + part.num_out)
    scale = plan.relation_scale(part.relation, wide(state.rows.dtype), run)
    return scale if part.rows is None else scale[part.rows.long()]


def _own_parts(plan: LayerPlan, shard: Shard, state: _Sums | _Gradients) -> Iterator[_Part]:
    return ((part, state.rows[part.out], _scale_of(plan, part, state)) for part in shard.relations)


def _joint_of(fold: Fold[Any]) -> Joint | None:
    return None if fold.plan.partials is None else fold.plan.partials.joint


def _joint_parts(fold: _Fold, state: _Sums | _Gradients) -> Iterator[_Part]:
    """The joint blocks end among the own output rows or in the table of peers' rows."""
    joint = _joint_of(fold)
    assert joint is not None and state.together is not None
    for part, scale in zip(joint.shard.relations, joint.scales, strict=True):
        if scale is None:
            yield part, state.rows[part.out], _scale_of(fold.plan, part, state)
        else:
            yield part, state.together.table, scale


def _served(fold: _Fold, piece: Piece) -> Iterator[tuple[RelationBlock, Tensor]]:
    """The blocks of edges into a piece of a peer's rows, and 1 / |N_r(i)| of each block's destination rows, [A]."""
    return zip(served_shard(fold, piece).relations, partials_of(fold).scales[piece], strict=True)


def _weight(part: RelationBlock) -> dict[str, Any]:
    return weight_argument(part.block, weighted=True)


def _gather_means(fold: _Fold, part: RelationBlock, h: Tensor, scale: Tensor, scratch: _Scratch) -> Tensor:
    """[A, in]: means of source rows."""
    gathered = scratch.take("gathered", part.block.num_dst, h.shape[1], h).zero_()
    fold.operation.forward(part.block, h[part.src], gathered, scale, **_weight(part))
    return gathered


def _run(tables: Sequence[Tensor], part: RelationBlock) -> Tensor:
    """The rows of a relation's table that the block's edges end in."""
    return tables[part.relation][part.out_in_type : part.out_in_type + part.num_out]
