"""Sums and maxima over edges on a GPU: a program for each destination row and tile of columns, by source backward. No atomics.

Bytes that must move, rows of F columns: one row read for each edge, each row written once (read, too, where it is added to).
Beside them 4 bytes an edge for its other end, read again for each tile of 256 columns. Maxima have the rank of the row that
each comes from: best and winner are read and written once, and backward reads two rows for each edge.

Letters: S source rows, M destination rows, E edges, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cuda import launch
from sargnn.backends.cuda.launch import Runs, Walk, walk
from sargnn.backends.operations import MaxOperation
from sargnn.backends.walks import Direction, Factors, WalkedSum, finds_edges
from sargnn.bf16 import wide

NO_FACTORS = Factors()
_NOBODY = 2**31 - 1


class TritonSum(WalkedSum):
    """Sums of bf16 rows are fp32 tables. Hubs take a row of sums for each 1024 edges while they are summed."""

    writes_sums = True

    def sum_rows(
        self, block: EdgeBlock, direction: Direction, rows: Tensor, out: Tensor, factors: Factors, *, add: bool
    ) -> None:
        sum_rows(walk(block, direction), rows, out, factors, add=add)

    def weight_gradient(self, block: EdgeBlock, src: Tensor, grad: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        if not block.num_edges:
            return
        by, width = walk(block, "forward"), src.shape[1]
        sizes = launch.tile(width, src.dtype, most=1 << 16)
        tables = src, src.stride(0), grad, grad.stride(0), launch.in_wide(scale, src.dtype), out, width
        for runs in by.of_edges:
            launch.run(_weight_gradients, (runs.number,), *runs, *tables, ALL=runs.near is None, **sizes)


def sum_rows(by: Walk, src: Tensor, out: Tensor, factors: Factors = NO_FACTORS, *, add: bool) -> None:
    """``WalkedSum.sum_rows``. Rows of ``src`` and ``out``, [any, F], may be parts of wider ones; ``add`` reads ``out``."""
    weight, near, far = (launch.in_wide(factor, src.dtype) for factor in (factors.weight, factors.near, factors.far))
    factors = Factors(weight, factors.places, near, far)

    def sum_runs(runs: Runs, out: list[Tensor], *, add: bool, into_near: bool) -> None:
        _sum(runs, src, out[0], factors, add=add, into_near=into_near)

    sum_hubs_apart(by, [out], sum_runs, add=add)


def sum_hubs_apart(by: Walk, out: list[Tensor], sum_runs: Callable[..., None], *, add: bool) -> None:
    """Sum whole rows, then pieces of hubs into rows of their own and these for each hub.

    Args:
        out: what is written or, with ``add``, added to; rows may be parts of wider ones.
        sum_runs: called with runs, tables to sum into, ``add``, and ``into_near``: whether these have a row for each near end,
            not for each run.
    """
    sum_runs(by.whole, out, add=add, into_near=True)
    if by.pieces is not None and by.joins is not None:
        of_pieces = [table.new_empty(by.pieces.number, table.shape[1], dtype=wide(table.dtype)) for table in out]
        sum_runs(by.pieces, of_pieces, add=False, into_near=False)
        for parts, table in zip(of_pieces, out, strict=True):
            _sum(by.joins, parts, table, NO_FACTORS, add=add, into_near=True)


def _sum(runs: Runs, src: Tensor, out: Tensor, factors: Factors, *, add: bool, into_near: bool) -> None:
    _run(_sums, runs, src, src.stride(0), out, out.stride(0), *factors, INTO_NEAR=into_near, ADD=add)


def _run(kernel: Any, runs: Runs, rows: Tensor, *tables: Tensor | int | None, **settings: bool) -> None:
    """A program for each run and tile of columns of what is read."""
    width = rows.shape[1]
    sizes = launch.tile(width, rows.dtype)
    tiles = -(-width // sizes["COLUMNS"])
    grid = (runs.number * tiles,)
    launch.run(kernel, grid, *runs, rows, *tables, width, tiles, ALL=runs.near is None, **settings, **sizes)


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
    weight,
    places,
    near_factors,
    far_factors,
    width,
    tiles,
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


class TritonMax(MaxOperation):
    """A row that is not a number wins over all. Hubs take a row of maxima for each 1024 edges while they are folded."""

    lists_sources = True

    def forward(self, block: EdgeBlock, src: Tensor, best: Tensor, winner: Tensor) -> None:
        if not block.num_edges:
            return
        by, ranks = walk(block, "forward"), block.src_id_rank
        _fold(by.whole, src, ranks, best, winner, into_near=True)
        if by.pieces is not None and by.joins is not None:
            of_pieces = best.new_full((by.pieces.number, best.shape[1]), -torch.inf)
            winners = torch.full_like(of_pieces, _NOBODY, dtype=torch.int32)
            _fold(by.pieces, src, ranks, of_pieces, winners, into_near=False)
            _fold(by.joins, of_pieces, winners, best, winner, into_near=True)

    def backward(self, block: EdgeBlock, grad: Tensor, winner: Tensor, out: Tensor, *, add: bool = False) -> None:
        def sum_runs(runs: Runs, out: list[Tensor], *, add: bool, into_near: bool) -> None:
            tables = grad, winner, block.src_id_rank, out[0]
            _run(_max_gradients, runs, *tables, ADD=add, INTO_NEAR=into_near)

        if finds_edges(block, (out,), add=add):
            sum_hubs_apart(walk(block, "backward"), [out], sum_runs, add=add)


def _fold(runs: Runs, src: Tensor, ranks: Tensor, best: Tensor, winner: Tensor, *, into_near: bool) -> None:
    """``ranks``: int32 [S], of rows, or [S, F], of their features."""
    _run(_maxima, runs, src, ranks, best, winner, INTO_NEAR=into_near, BY_FEATURE=ranks.dim() == 2)


@triton.jit
def _maxima(
    near_rows,
    begin,
    end,
    start,
    far_rows,
    src,
    ranks,
    best,
    winner,
    width,
    tiles,
    ALL: tl.constexpr,
    INTO_NEAR: tl.constexpr,
    BY_FEATURE: tl.constexpr,
    HELD: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Fold one run's rows into a row of running maxima; of equal values the smallest rank wins."""
    run = tl.program_id(0) // tiles
    columns = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    near = run if ALL else tl.load(near_rows + run)
    first, last = tl.load(begin + run), tl.load(end + run)
    target = (near if INTO_NEAR else run).to(tl.int64) * width + columns
    most = tl.load(best + target, mask=inside, other=0).to(HELD)
    who = tl.load(winner + target, mask=inside, other=0)
    for at in range(first, last, EDGES):
        edges = at + tl.arange(0, EDGES)
        there = edges < last
        far = tl.load(far_rows + edges, mask=there, other=0)
        mask = there[:, None] & inside[None, :]
        places = far.to(tl.int64)[:, None] * width + columns[None, :]
        values = tl.load(src + places, mask=mask, other=-float("inf")).to(HELD)
        nan = values != values
        top = tl.max(tl.where(nan, -float("inf"), values), 0)
        lost = tl.max(nan.to(tl.int32), 0) > 0
        if BY_FEATURE:
            rank = tl.load(ranks + places, mask=mask, other=2147483647)
        else:
            rank = tl.load(ranks + far, mask=there, other=2147483647)[:, None] + tl.zeros([EDGES, COLUMNS], tl.int32)
        wins = tl.where(lost[None, :], nan, values == top[None, :]) & there[:, None]
        first_rank = tl.min(tl.where(wins, rank, 2147483647), 0)
        better = lost | (top > most) | ((top == most) & (first_rank < who))
        most = tl.where(lost, float("nan"), tl.where(better, top, most))
        who = tl.where(better, first_rank, who)
    tl.store(best + target, most.to(best.dtype.element_ty), mask=inside)
    tl.store(winner + target, who, mask=inside)


@triton.jit
def _max_gradients(
    near_rows,
    begin,
    end,
    start,
    far_rows,
    grad,
    winner,
    ranks,
    out,
    width,
    tiles,
    ALL: tl.constexpr,
    INTO_NEAR: tl.constexpr,
    ADD: tl.constexpr,
    HELD: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The sum of the gradients of the features that one source row has won; of parallel edges the first counts."""
    run = tl.program_id(0) // tiles
    columns = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    near = run if ALL else tl.load(near_rows + run)
    first, last, row_start = tl.load(begin + run), tl.load(end + run), tl.load(start + run)
    rank = tl.load(ranks + near)
    total = tl.zeros([COLUMNS], HELD)
    for at in range(first, last, EDGES):
        edges = at + tl.arange(0, EDGES)
        there = edges < last
        far = tl.load(far_rows + edges, mask=there, other=0)
        before = tl.load(far_rows + edges - 1, mask=there & (edges > row_start), other=-1)
        mask = (there & (far != before))[:, None] & inside[None, :]
        places = far.to(tl.int64)[:, None] * width + columns[None, :]
        won = tl.load(winner + places, mask=mask, other=-1) == rank
        total += tl.sum(tl.load(grad + places, mask=mask & won, other=0).to(HELD), 0)
    target = out + (near if INTO_NEAR else run).to(tl.int64) * width + columns
    if ADD:
        total += tl.load(target, mask=inside, other=0).to(HELD)
    tl.store(target, total.to(out.dtype.element_ty), mask=inside)
