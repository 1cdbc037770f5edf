"""Maxima over edges on a GPU, feature by feature, with the rank of the row that each comes from.

Bytes that must move: one row read for each edge; best and winner read and written once. Backward two rows for each edge.

Letters: S source rows, M destination rows, E edges, F features.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cuda import launch
from sargnn.backends.cuda.runs import Runs, walk
from sargnn.backends.cuda.sums import sum_hubs_apart
from sargnn.backends.operations import MaxOperation
from sargnn.backends.walks import finds_edges

_NOBODY = 2**31 - 1


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


def _run(kernel: Any, runs: Runs, rows: Tensor, *tables: Tensor, **settings: bool) -> None:
    """A program for each run and tile of columns of what is read."""
    width = rows.shape[1]
    sizes = launch.tile(width, rows.dtype)
    tiles = -(-width // sizes["COLUMNS"])
    grid = (runs.number * tiles,)
    launch.run(kernel, grid, *runs, rows, *tables, width, tiles, ALL=runs.near is None, **settings, **sizes)


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
