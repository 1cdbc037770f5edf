"""Sums over edges on a GPU: a program for each destination row and tile of columns, by source backward. No atomics.

Bytes that must move, rows of F columns: one row read for each edge, each row written once (read, too, where it is added to).
Beside them 4 bytes an edge for its other end, read again for each tile of 256 columns.

Letters: S source rows, M destination rows, E edges, F features.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cuda import launch
from sargnn.backends.cuda.runs import Runs, Walk, walk
from sargnn.backends.operations import WeightedSumOperation
from sargnn.bf16 import wide


class TritonSum(WeightedSumOperation):
    """Sums of bf16 rows are fp32 tables. Hubs take a row of sums for each 1024 edges while they are summed."""

    lists_sources = True
    writes_sums = True

    def forward(
        self,
        block: EdgeBlock,
        src: Tensor,
        out: Tensor,
        scale: Tensor | None = None,
        *,
        weight: Tensor | None = None,
        add: bool = True,
    ) -> None:
        if not add and block.num_listed < block.num_dst:
            out.zero_()
        if block.num_edges:
            factors = Factors(launch.in_wide(weight, src.dtype), near=launch.in_wide(scale, src.dtype))
            sum_rows(walk(block, "destination"), src, out, factors, add=add)

    def backward(
        self,
        block: EdgeBlock,
        grad: Tensor,
        out: Tensor,
        scale: Tensor | None = None,
        *,
        add: bool = False,
        weight: Tensor | None = None,
    ) -> None:
        assert add or block.src_rows is None, "source rows that are not listed would not be written"
        if not block.num_edges:
            if not add:
                out.zero_()
            return
        places = None if weight is None or weight is block.weight else block.t_edge
        weight = block.t_weight if weight is not None and weight is block.weight else weight
        factors = Factors(launch.in_wide(weight, grad.dtype), places, far=launch.in_wide(scale, grad.dtype))
        sum_rows(walk(block, "source"), grad, out, factors, add=add)

    def weight_gradient(self, block: EdgeBlock, src: Tensor, grad: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        if not block.num_edges:
            return
        by, width = walk(block, "destination"), src.shape[1]
        sizes = launch.tile(width, src.dtype, most=1 << 16)
        tables = src, src.stride(0), grad, grad.stride(0), launch.in_wide(scale, src.dtype), out, width
        for runs in by.of_edges:
            launch.run(_weight_gradients, (runs.number,), *runs, *tables, ALL=runs.near is None, **sizes)


class Factors(NamedTuple):
    """What rows are multiplied with on their way into sums; all in wide numbers, None for ones.

    Attributes:
        weight: [E], of edges.
        places: int32 [E], where in ``weight`` each edge stands; None: in order.
        near: of rows at the ends that are summed into.
        far: of rows that are read.
    """

    weight: Tensor | None = None
    places: Tensor | None = None
    near: Tensor | None = None
    far: Tensor | None = None


NO_FACTORS = Factors()


def sum_rows(by: Walk, src: Tensor, out: Tensor, factors: Factors = NO_FACTORS, *, add: bool) -> None:
    """``out[near] = near_factor * sum of weight * far_factor * src[far]`` over each row's edges; ``add`` to what there is.

    Args:
        src, out: [any, F], rows of which may be parts of wider ones; ``add`` reads ``out``.
    """
    _sum(by.whole, src, out, factors, add=add, into_near=True)
    if by.pieces is not None and by.joins is not None:
        of_pieces = src.new_empty(by.pieces.number, src.shape[1], dtype=wide(src.dtype))
        _sum(by.pieces, src, of_pieces, factors, add=False, into_near=False)
        _sum(by.joins, of_pieces, out, NO_FACTORS, add=add, into_near=True)


def _sum(runs: Runs, src: Tensor, out: Tensor, factors: Factors, *, add: bool, into_near: bool) -> None:
    width = src.shape[1]
    sizes = launch.tile(width, src.dtype)
    tiles = -(-width // sizes["COLUMNS"])
    launch.run(
        _sums,
        (runs.number * tiles,),
        *runs,
        *(src, src.stride(0), out, out.stride(0), width, tiles),
        *factors,
        ALL=runs.near is None,
        INTO_NEAR=into_near,
        ADD=add,
        **sizes,
    )


@triton.jit
def _sums(
    near_rows,
    begin,
    end,
    start,
    far_rows,
    src,
    src_stride,
    out,
    out_stride,
    width,
    tiles,
    weight,
    places,
    near_factors,
    far_factors,
    ALL: tl.constexpr,
    INTO_NEAR: tl.constexpr,
    ADD: tl.constexpr,
    HELD: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One run's sum of one tile of columns, a tile of edges at a time, each tile summed as a tree."""
    run = tl.program_id(0) // tiles
    columns = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    near = run if ALL else tl.load(near_rows + run)
    first, last = tl.load(begin + run), tl.load(end + run)
    total = tl.zeros([COLUMNS], HELD)
    for at in range(first, last, EDGES):
        edges = at + tl.arange(0, EDGES)
        there = edges < last
        far = tl.load(far_rows + edges, mask=there, other=0)
        rows = src + far.to(tl.int64)[:, None] * src_stride + columns[None, :]
        values = tl.load(rows, mask=there[:, None] & inside[None, :], other=0).to(HELD)
        if weight is not None:
            places_of = edges if places is None else tl.load(places + edges, mask=there, other=0)
            values *= tl.load(weight + places_of, mask=there, other=0)[:, None]
        if far_factors is not None:
            values *= tl.load(far_factors + far, mask=there, other=0)[:, None]
        total += tl.sum(values, 0)
    if near_factors is not None:
        total *= tl.load(near_factors + near)
    target = out + (near if INTO_NEAR else run).to(tl.int64) * out_stride + columns
    if ADD:
        total += tl.load(target, mask=inside, other=0).to(HELD)
    tl.store(target, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _weight_gradients(
    near_rows,
    begin,
    end,
    start,
    far_rows,
    src,
    src_stride,
    grad,
    grad_stride,
    factors,
    out,
    width,
    ALL: tl.constexpr,
    HELD: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """``out[e] = factor_i <grad_i, src_j>`` of one run's edges."""
    run = tl.program_id(0)
    columns = tl.arange(0, COLUMNS)
    inside = columns < width
    near = run if ALL else tl.load(near_rows + run)
    first, last = tl.load(begin + run), tl.load(end + run)
    own = tl.load(grad + near.to(tl.int64) * grad_stride + columns, mask=inside, other=0).to(HELD)
    if factors is not None:
        own *= tl.load(factors + near)
    for at in range(first, last, EDGES):
        edges = at + tl.arange(0, EDGES)
        there = edges < last
        far = tl.load(far_rows + edges, mask=there, other=0)
        rows = src + far.to(tl.int64)[:, None] * src_stride + columns[None, :]
        values = tl.load(rows, mask=there[:, None] & inside[None, :], other=0).to(HELD)
        tl.store(out + edges, tl.sum(values * own[None, :], 1).to(out.dtype.element_ty), mask=there)
