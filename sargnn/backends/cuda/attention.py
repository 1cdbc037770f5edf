"""Attention on a GPU, for the three scorings: a program folds one head of one row's edges. No atomics.

Forward by destination, as an online softmax that goes on from block to block (``RunningSoftmax``). Backward by source, where a
program also writes the gradient of each edge's score, one head at a time, for the sums over destinations that follow: 4 bytes
an edge, and the only thing of the size of the edges. The equations are in ``sargnn.engine.reducers.gat``.

Rows that must move for each edge, of one head's columns (``_rows`` of the operations): gat one each way; gatv2 one forward, of
backward's three one is read by destination; products of two tables two forward, four backward, two of one table one and three.
Beside them 4 bytes an edge and head for its other end, and what el, er, m, 1 / s and delta take.

Letters: S source rows, M destination rows, E edges, K heads, D columns of a head, C columns of a head of keys, F columns of an
edge's row.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import triton
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cuda import attention_gradients as gradients
from sargnn.backends.cuda import attention_kernels as kernels
from sargnn.backends.cuda import launch
from sargnn.backends.cuda.launch import Runs, Walk, walk
from sargnn.backends.cuda.sums import sum_hubs_apart, sum_rows
from sargnn.backends.operations import (
    Attention,
    AttentionInputs,
    DotOperation,
    GatOperation,
    GatV2Operation,
    RunningSoftmax,
)
from sargnn.backends.walks import AttentionBackward, Factors, WalkedAttention

_ROWS_EACH = 64
"""Destination rows of a program that sums the gradient of att over them."""


@dataclass(frozen=True)
class _Heads:
    """K, D, C, 0 where scores read no rows, or the values, and F, 0 where edges have no rows."""

    heads: int
    width: int
    keys: int = 0
    edges: int = 0

    def tiles(self) -> dict[str, int]:
        """Powers of two that values, keys and edges' rows fit into, and the warps for them."""
        sizes = {"D_TILE": self.width, "C_TILE": self.keys, "F_TILE": self.edges}
        tiles = {name: triton.next_power_of_2(max(1, size)) for name, size in sizes.items()}
        return tiles | {"num_warps": launch.warps_of(max(tiles.values()))}

    def constants(self, kind: int, attention: Attention, like: torch.dtype) -> dict[str, Any]:
        tiles = self.tiles()
        widest = max(tiles["D_TILE"], tiles["C_TILE"], tiles["F_TILE"])
        return tiles | {
            "K": self.heads,
            "D": self.width,
            "C": self.keys,
            "F": self.edges,
            "KIND": kind,
            "SLOPE": attention.negative_slope,
            "FACTOR": attention.factor,
            "DROPS": attention.draw is not None,
            "KEEP": attention.scale,
            "HELD": launch.held(like),
            "EDGES": launch.edges_of(widest, tiles["num_warps"], like),
        }


class _TritonAttention(WalkedAttention):
    """Hubs take a row and its softmax for each 1024 edges while they are folded."""

    kind: ClassVar[int]

    def fold(self, block: EdgeBlock, attention: Attention, inputs: AttentionInputs, running: RunningSoftmax) -> None:
        by, sizes = walk(block, "forward"), _sizes(attention, inputs)
        self._fold(block, by.whole, attention, inputs, running, into_near=True)
        if by.pieces is not None and by.joins is not None:
            pieces = by.pieces.number
            of_pieces = RunningSoftmax.empty(running.out, pieces, attention.heads)
            if running.edge_out is not None:
                of_edges = running.edge_out.new_empty(pieces, running.edge_out.shape[1])
                of_pieces = RunningSoftmax(of_pieces.out, of_pieces.max_score, of_pieces.denominator, of_edges)
            self._fold(block, by.pieces, attention, inputs, of_pieces, into_near=False)
            tiles = sizes.tiles()
            del tiles["C_TILE"]  # a merge reads no keys
            constants = {"ALL": False, "K": sizes.heads, "D": sizes.width, "F": sizes.edges} | tiles
            grid, held = (by.joins.number * sizes.heads,), launch.held(running.out.dtype)
            launch.run(kernels.join, grid, *by.joins, *_tensors(of_pieces), *_tensors(running), HELD=held, **constants)

    def _fold(
        self,
        block: EdgeBlock,
        runs: Runs,
        attention: Attention,
        inputs: AttentionInputs,
        running: RunningSoftmax,
        *,
        into_near: bool,
    ) -> None:
        like, sizes = inputs.sources[0], _sizes(attention, inputs)
        launch.run(
            kernels.attend,
            (runs.number * sizes.heads,),
            *runs,
            *_rows(inputs),
            *_edge_rows(inputs)[:2],
            launch.in_wide(inputs.weight, like.dtype),
            *_tensors(running),
            *(block.src_ids, block.dst_ids, *launch.words(attention.draw)[:4]),
            ALL=runs.near is None,
            INTO_NEAR=into_near,
            **sizes.constants(self.kind_of(inputs), attention, like.dtype),
        )

    def kind_of(self, inputs: AttentionInputs) -> int:
        return self.kind

    def destination_records(self, er: Tensor | None, running: RunningSoftmax, grad: Tensor) -> Tensor:
        num_dst, heads = running.max_score.shape
        records = running.max_score.new_empty(num_dst, 4 * heads)
        width, out = running.out.shape[1] // max(heads, 1), running.out
        sizes = {"D": width, "TILE": triton.next_power_of_2(max(width, 1)), "K": heads}
        tables = None if er is None else er.contiguous(), out, running.max_score, running.denominator, grad.contiguous()
        launch.run(kernels.records, (num_dst * heads,), *tables, records, HELD=launch.held(out.dtype), **sizes)
        return records

    def send_back(self, back: AttentionBackward) -> None:
        inputs, num_edges = back.inputs, back.block.num_edges
        packed = back.records.view(len(back.records), 4, back.attention.heads).permute(2, 0, 1).contiguous()
        d_scores = packed.new_empty(num_edges)
        weights = packed.new_empty(num_edges if inputs.edges else 0)
        weight = None if inputs.weight is None else back.block.by_source(inputs.weight)
        for number in range(back.attention.heads):
            given = {**vars(back), "records": packed[number]}
            head = _Head(**given, weight=weight, head=number, kind=self.kind_of(inputs))
            head.by_source(d_scores, weights)
            head.of_edges(d_scores, weights)
            self._by_destination(head, d_scores)

    @abstractmethod
    def _by_destination(self, back: _Head, d_scores: Tensor) -> None:
        """Add the gradient of the destinations' part of one head. ``d_scores``: [E], in the order of ``block.src``; of ``dot``
        multiplied with its factor."""


@dataclass(frozen=True)
class _Head(AttentionBackward):
    """One head's backward pass: ``records`` are [M, 4], er, m, 1 / s and delta; ``weight``, [E], is in the order of
    ``block.t_dst``; None: ones."""

    weight: Tensor | None
    head: int
    kind: int

    def columns(self, table: Tensor) -> Tensor:
        """This head's, of a table with all heads' columns."""
        width = table.shape[-1] // self.attention.heads
        return table[..., self.head * width : (self.head + 1) * width]

    def by_source(self, d_scores: Tensor, weights: Tensor) -> None:
        """Gradients of the sources, and of each edge's score, [E]; with edges' rows also its weight after dropout, [E]."""
        mine = [self.columns(gradient) for gradient in self.into.sources or ()]
        sum_hubs_apart(walk(self.block, "backward"), mine, partial(self._by_source, d_scores, weights), add=self.add)

    def _by_source(
        self, d_scores: Tensor, weights: Tensor, runs: Runs, into: list[Tensor], *, add: bool, into_near: bool
    ) -> None:
        block, inputs, attention, like = self.block, self.inputs, self.attention, self.inputs.sources[0]
        f, p, d_sums = _edge_rows(inputs)
        targets = [(gradient, gradient.stride(0)) for gradient in into] + [(None, 0)] * (2 - len(into))
        constants = _sizes(attention, inputs).constants(self.kind, attention, like.dtype)
        if self.kind == kernels.ONE_TABLE:  # it holds two rows of an edge that are as wide as z
            constants["EDGES"] = max(2, constants["EDGES"] // 2)
        launch.run(
            gradients.attend_backward,
            (runs.number,),
            *runs,
            *(block.t_edge, *_rows(inputs), f, p, d_sums, launch.in_wide(self.weight, like.dtype), self.records, self.grad),
            *(*targets[0], *targets[1], d_scores, weights if inputs.edges else None),
            *(block.src_ids, block.dst_ids, *launch.words(attention.draw)[:4]),
            self.head,
            ALL=runs.near is None,
            INTO_NEAR=into_near,
            ADD=add,
            **constants,
        )

    def of_edges(self, d_scores: Tensor, weights: Tensor) -> None:
        """Add the gradient of p, and that of f where it is wanted: written by the first head, added to by the others."""
        if not self.inputs.edges:
            return
        (f, p, d_sums), (d_p, *d_f), block = self.inputs.edges, self.into.edges, self.block
        by = walk(block, "forward")
        numbers = torch.arange(block.num_edges, dtype=torch.int32, device=f.device)
        of_edges = Walk(by.whole._replace(far=numbers), by.pieces and by.pieces._replace(far=numbers), by.joins)
        sum_rows(of_edges, f, self.columns(d_p), Factors(d_scores), add=True)
        for gradient in d_f:
            width = f.shape[1]
            tables = self.columns(p), p.stride(0), self.columns(d_sums), d_sums.stride(0), weights, d_scores, gradient, width
            for runs in by.of_edges:
                flags, sizes = {"ALL": runs.near is None, "ADD": self.head > 0}, launch.tile(width, f.dtype, most=1 << 16)
                launch.run(gradients.edge_row_gradients, (runs.number,), *runs, *tables, **flags, **sizes)


class TritonGat(_TritonAttention, GatOperation):
    kind = kernels.GAT

    def _by_destination(self, back: _Head, d_scores: Tensor) -> None:
        block = back.block
        runs = Runs(block.dst_rows, block.indptr[:-1], block.indptr[1:], block.indptr, block.src)
        d_er = back.columns(back.into.destinations)
        constants = {"ALL": runs.near is None, "HELD": launch.held(d_er.dtype), "EDGES": 64, "num_warps": 1}
        launch.run(gradients.edge_sums, (runs.number,), *runs, d_scores, d_er, d_er.stride(0), **constants)


class TritonGatV2(_TritonAttention, GatV2Operation):
    kind = kernels.GATV2

    def _by_destination(self, back: _Head, d_scores: Tensor) -> None:
        by, inputs, attention = walk(back.block, "forward"), back.inputs, back.attention
        assert inputs.att is not None and back.into.att is not None
        z, x, d_x = back.columns(inputs.sources[0]), back.columns(inputs.destinations), back.columns(back.into.destinations)
        att, d_att = back.columns(inputs.att), back.columns(back.into.att)
        tile = launch.tile(z.shape[1], z.dtype, most=1 << 16)
        edges = max(2, tile["EDGES"] // 2)  # the row's and att's sums take registers, too
        constants = tile | {"EDGES": edges, "SLOPE": attention.negative_slope, "EACH": _ROWS_EACH}

        def sum_runs(runs: Runs, out: list[Tensor], *, add: bool, into_near: bool) -> None:
            programs = -(-runs.number // _ROWS_EACH)
            sums = d_x.new_empty(programs, z.shape[1])
            rows = z, z.stride(0), x, x.stride(0), att, d_scores
            tables = *rows, out[0], out[0].stride(0), sums, z.shape[1], runs.number
            flags = {"ALL": runs.near is None, "INTO_NEAR": into_near}
            launch.run(gradients.gatv2_destinations, (programs,), *runs, *tables, **flags, **constants)
            d_att.add_(sums.sum(0, dtype=torch.float64).to(d_att.dtype))

        sum_hubs_apart(by, [d_x], sum_runs, add=True)


class TritonDot(_TritonAttention, DotOperation):
    takes_edge_rows = True

    def kind_of(self, inputs: AttentionInputs) -> int:
        return kernels.ONE_TABLE if len(inputs.sources) == 1 else kernels.DOT

    def _by_destination(self, back: _Head, d_scores: Tensor) -> None:
        keys, d_q = back.columns(back.inputs.sources[-1]), back.columns(back.into.destinations)
        sum_rows(walk(back.block, "forward"), keys, d_q, Factors(d_scores), add=True)


def _sizes(attention: Attention, inputs: AttentionInputs) -> _Heads:
    heads, sources = attention.heads, inputs.sources
    width = sources[0].shape[1] // heads
    keys = sources[1].shape[1] // heads if len(sources) == 2 else 0
    return _Heads(heads, width, keys, inputs.edges[0].shape[1] if inputs.edges else 0)


def _rows(inputs: AttentionInputs) -> tuple[Tensor | None, ...]:
    """Values, what else scores read of the sources and the destinations, and att."""
    sources = inputs.sources
    return sources[0], sources[1] if len(sources) == 2 else None, inputs.destinations.contiguous(), inputs.att


def _edge_rows(inputs: AttentionInputs) -> tuple[Tensor | None, ...]:
    """f, p and the gradient of the sums of f, as far as there are some."""
    return (*inputs.edges, *[None] * (3 - len(inputs.edges)))


def _tensors(running: RunningSoftmax) -> tuple[Tensor | None, ...]:
    return running.out, running.max_score, running.denominator, running.edge_out
