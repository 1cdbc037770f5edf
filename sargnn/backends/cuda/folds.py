"""Messages folded into rows, and rows moved between tables and messages, on a GPU: no atomics, no waiting.

Sums over runs of edges: a program adds up the edges of each row among its own edges. A row that goes on in the next ones is
written by the program in which it begins; what the others have of it they hand over, and a second pass adds that in order. So
sums have the same bits in every run.

Letters: E edges of a run, M output rows, A arriving rows, R rows of a message, W or F columns, K heads, D columns of a head.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cuda import launch
from sargnn.backends.cuda.launch import WORDS, drawn, walk
from sargnn.backends.torch.backend import TorchFolds, TorchMoves
from sargnn.bf16 import wide
from sargnn.rng import Draw

_EDGES_EACH = 128
"""Edges of a program that sums."""
_DRAWN = 32
"""Edges that a program draws for at a time."""


class CudaFolds(TorchFolds):
    """Maxima and merges are PyTorch's."""

    def add_to_ends(self, values: Tensor, rows: Tensor, out: Tensor) -> None:
        _add(values, rows, out)

    def add_to_starts(self, values: Tensor, rows: Tensor, out: Tensor) -> None:
        ascending, order = torch.sort(rows, stable=True)
        _add(values, ascending, out, order=order)

    def fold_softmax(self, logits: Tensor, values: Tensor, rows: Tensor, largest: Tensor, total: Tensor, out: Tensor) -> None:
        at = rows.long()
        most = largest.scatter_reduce(0, at[:, None].expand_as(logits), logits, "amax")
        before = torch.where(total == 0, 0, torch.exp(largest - most))
        weight = torch.where(logits == -torch.inf, 0, torch.exp(logits - most[at]))
        _add(weight, rows, total.mul_(before))
        out.view(*before.shape, values.shape[1] // before.shape[1]).mul_(before[:, :, None])
        _add(values, rows, out, weight=weight)
        largest.copy_(most)

    def merge_maxima(self, rows: Tensor, values: Tensor, places: Tensor, ranks: Tensor, best: Tensor, winner: Tensor) -> None:
        at, known = rows.long(), (places >= 0) & (places < len(ranks))
        rank = torch.where(known, _entries(ranks, places), self.no_rank)
        held, who = best[at], winner[at]
        better = (known & ((values > held) | ((values == held) & (rank < who)))) | values.isnan()
        best[at], winner[at] = torch.where(better, values, held), torch.where(better, rank, who)

    def take_winners(self, winner: Tensor, rows: Tensor, ranks: Tensor, out: Tensor) -> None:
        wanted = winner[rows.long()]
        at = torch.searchsorted(ranks, wanted)
        there = (at < len(ranks)) & (_entries(ranks, at) == wanted)
        out.copy_(torch.where(there, at, self.no_rank))

    def drop_factors(self, block: EdgeBlock, draw: Draw, dtype: torch.dtype) -> Tensor:
        factors = torch.empty(block.num_edges, dtype=dtype, device=block.src.device)
        *words, keep = launch.words(draw)
        by = walk(block, "forward")
        ids, sizes = (block.src_ids, block.dst_ids), {"KEEP": keep, "EDGES": _DRAWN, "num_warps": 1}
        for runs in by.of_edges:
            launch.run(_drop_factors, (runs.number,), *runs, *ids, factors, *words, ALL=runs.near is None, **sizes)
        return factors


class CudaMoves(TorchMoves):
    def take(self, source: Tensor, rows: Tensor, out: Tensor) -> Tensor:
        _move(source.contiguous(), rows, out, add=False)
        return out

    def add(self, target: Tensor, rows: Tensor, values: Tensor) -> None:
        _move(values.contiguous(), rows, target, add=True)


def _entries(ranks: Tensor, places: Tensor) -> Tensor:
    """``ranks[places]``, anything for places that are not there."""
    return ranks[places.clamp(0, len(ranks) - 1).long()] if len(ranks) else torch.full_like(places, -1)


def _add(values: Tensor, rows: Tensor, out: Tensor, *, order: Tensor | None = None, weight: Tensor | None = None) -> None:
    """``out[rows[e]] += weight[e] values[order[e]]``, a weight [E, K] for each head's columns. ``rows``: int32 [E], ascending;
    ``order``: int64 [E]; None: as they are."""
    assert out.is_contiguous()
    edges, width = values.shape
    heads = 1 if weight is None else weight.shape[1]
    sizes = launch.tile(width, out.dtype) | {"EACH": _EDGES_EACH}
    pieces, tiles = triton.cdiv(edges, _EDGES_EACH), triton.cdiv(width, sizes["COLUMNS"])
    carried = out.new_empty(pieces, width, dtype=wide(out.dtype))
    of_edges = values.contiguous(), order, weight, heads, max(1, width // heads)
    launch.run(_sums, (pieces * tiles,), *of_edges, rows, out, carried, edges, width, tiles, **sizes)
    if pieces > 1:
        launch.run(_carried_sums, ((pieces - 1) * tiles,), rows, out, carried, edges, width, tiles, **sizes)


def _move(source: Tensor, rows: Tensor, out: Tensor, *, add: bool) -> None:
    assert out.is_contiguous()
    width, sizes = source.shape[1], launch.tile(source.shape[1], out.dtype)
    tiles = triton.cdiv(width, sizes["COLUMNS"])
    grid = (triton.cdiv(len(rows), sizes["EDGES"]) * tiles,)
    launch.run(_moved, grid, source, rows, out, len(rows), width, tiles, ADD=add, **sizes)


@triton.jit(do_not_specialize=["edges"])
def _sums(
    values,
    order,
    weight,
    heads,
    head_width,
    rows,
    out,
    carried,
    edges,
    width,
    tiles,
    HELD: tl.constexpr,
    EACH: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Sums of the edges of each row among ``EACH`` edges, a tile of edges at a time: added to the row, or handed over where it
    began before them. Bytes: values, rows; each row of out twice."""
    piece = tl.program_id(0) // tiles
    columns = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    at = piece * EACH
    last = tl.minimum(at + EACH, edges)
    before = tl.load(rows + at - 1, mask=at > 0, other=-1)
    while at < last:
        row = tl.load(rows + at)
        total = tl.zeros([COLUMNS], HELD)
        taken = EDGES
        while taken == EDGES:
            e = at + tl.arange(0, EDGES)
            there = e < last
            there &= tl.load(rows + e, mask=there, other=-1) == row
            mask = there[:, None] & inside[None, :]
            places = e.to(tl.int64) if order is None else tl.load(order + e, mask=there, other=0)
            value = tl.load(values + places[:, None] * width + columns[None, :], mask=mask, other=0).to(HELD)
            if weight is not None:
                of_head = weight + e.to(tl.int64)[:, None] * heads + (columns // head_width)[None, :]
                value *= tl.load(of_head, mask=mask, other=0)
            total += tl.sum(value, 0)
            taken = tl.sum(there.to(tl.int32), 0)
            at += taken
        if row == before:
            tl.store(carried + piece.to(tl.int64) * width + columns, total, mask=inside)
        else:
            target = out + row.to(tl.int64) * width + columns
            total += tl.load(target, mask=inside, other=0).to(HELD)
            tl.store(target, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["edges"])
def _carried_sums(
    rows,
    out,
    carried,
    edges,
    width,
    tiles,
    HELD: tl.constexpr,
    EACH: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """What later programs have handed over of a row that begins among the edges of one. Bytes: what was handed over; out twice
    where it was."""
    piece = tl.program_id(0) // tiles
    columns = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    first, behind = piece * EACH, (piece + 1) * EACH
    row = tl.load(rows + behind - 1)
    if (tl.load(rows + first - 1, mask=first > 0, other=-1) != row) & (tl.load(rows + behind) == row):
        target = out + row.to(tl.int64) * width + columns
        total = tl.load(target, mask=inside, other=0).to(HELD)
        at = piece + 1
        taken = EDGES
        while taken == EDGES:
            piece_here = at + tl.arange(0, EDGES)
            there = piece_here * EACH < edges
            there &= tl.load(rows + piece_here * EACH, mask=there, other=-1) == row
            mask = there[:, None] & inside[None, :]
            sums = carried + piece_here.to(tl.int64)[:, None] * width + columns[None, :]
            total += tl.sum(tl.load(sums, mask=mask, other=0), 0)
            taken = tl.sum(there.to(tl.int32), 0)
            at += taken
        tl.store(target, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=WORDS)
def _drop_factors(
    near_rows,
    begin,
    end,
    start,
    far_rows,
    src_ids,
    dst_ids,
    out,
    seed: tl.uint32,
    epoch: tl.uint32,
    tag: tl.uint32,
    threshold: tl.uint32,
    ALL: tl.constexpr,
    KEEP: tl.constexpr,
    EDGES: tl.constexpr,
):
    """What one run's edges are multiplied with. Bytes for each edge: its source, the source's id, and the factor."""
    run = tl.program_id(0)
    destination = tl.load(dst_ids + (run if ALL else tl.load(near_rows + run)))
    last = tl.load(end + run)
    for at in range(tl.load(begin + run), last, EDGES):
        edges = at + tl.arange(0, EDGES)
        there = edges < last
        source = tl.load(src_ids + tl.load(far_rows + edges, mask=there, other=0), mask=there, other=0)
        words = drawn(source, destination, tl.zeros_like(edges), tag, seed, epoch)
        tl.store(out + edges, tl.where(words >= threshold, tl.full([EDGES], KEEP, out.dtype.element_ty), 0), mask=there)


@triton.jit(do_not_specialize=["size"])
def _moved(
    source,
    rows,
    out,
    size,
    width,
    tiles,
    ADD: tl.constexpr,
    HELD: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A tile of ``out[r] = source[rows[r]]``, or of ``out[rows[r]] += source[r]``. Bytes: the rows, once, and 4 of each's
    number; those that are added to twice."""
    columns = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    r = (tl.program_id(0) // tiles) * EDGES + tl.arange(0, EDGES)
    there = r < size
    mask = there[:, None] & (columns < width)[None, :]
    of_message = r.to(tl.int64)[:, None] * width + columns[None, :]
    of_table = tl.load(rows + r, mask=there, other=0).to(tl.int64)[:, None] * width + columns[None, :]
    if ADD:
        value = tl.load(source + of_message, mask=mask, other=0).to(HELD)
        value += tl.load(out + of_table, mask=mask, other=0).to(HELD)
        tl.store(out + of_table, value.to(out.dtype.element_ty), mask=mask)
    else:
        value = tl.load(source + of_table, mask=mask, other=0)
        tl.store(out + of_message, value.to(out.dtype.element_ty), mask=mask)
