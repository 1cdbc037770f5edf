"""Plans with some of a plan's edges, or with other self-loops; the rows and the messages stay those of the plan.

A worker makes them from its own plan: a self-loop's both ends are its own row, and edges that are left out are nobody else's.

Letters: M output rows, E edges of this worker.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock, EndIds, keep_edges
from sargnn.comm.lists import Piece
from sargnn.plan.layer_plan import LayerPlan, Shard

Loops = Literal["without", "each", "only"]
"""Edges without self-loops; these and one self-loop of each output row; nothing but self-loops."""


def are_loops(plan: LayerPlan) -> Tensor:
    """bool [E], which edges of a plan of one relation are self-loops."""
    sources, destinations = plan.edge_ends()
    return sources == destinations


def with_edges(plan: LayerPlan, kept: Tensor) -> tuple[LayerPlan, Tensor]:
    """A plan of one relation with some of its edges, bool [E], which its degrees count; and int64, each edge's old number."""
    assert plan.partials is None
    runs = plan.edge_runs()
    new = {}
    for piece, shard in _shards(plan).items():
        some = kept[runs[piece]]
        new[piece] = shard if bool(some.all()) else Shard.whole(shard.peer, keep_edges(shard.block, some))
    return _replaced(plan, new), torch.nonzero(kept)[:, 0]


def with_loops(plan: LayerPlan, loops: Loops) -> tuple[LayerPlan, Tensor]:
    """The plan with other self-loops, and each edge's old number, int64; -1: a new self-loop.

    ``plan`` is of one relation whose ends are nodes of one type.
    """
    made, positions = with_edges(plan, are_loops(plan) if loops == "only" else ~are_loops(plan))
    if loops != "each":
        return _counting_sources(made, plan, loops), positions
    shards, runs = _shards(made), made.edge_runs()
    piece = next(piece for piece in shards if piece.peer in (plan.rank, -1))
    block, run = shards[piece].block, runs[piece]
    rows = torch.arange(block.num_dst, dtype=torch.int32, device=block.src.device)
    src, dst = torch.cat([block.src, _own_rows(plan, rows)]), torch.cat([block.dst_per_edge().to(torch.int32), rows])
    order = torch.argsort(dst, stable=True)
    ids = EndIds(block.src_ids, block.dst_ids, block.src_id_rank)
    added = torch.full((len(rows),), -1, dtype=torch.int64, device=rows.device)
    places = torch.cat([torch.arange(block.num_edges, device=rows.device), added])[order]
    columns = block.columns.take(places) if block.columns else block.columns
    looped = Shard.whole(shards[piece].peer, EdgeBlock(src[order], dst[order], block.num_src, block.num_dst, ids, columns))
    own = torch.cat([positions[run], torch.full((len(rows),), -1, device=positions.device)])[order]
    looped_plan = _counting_sources(_replaced(made, {**shards, piece: looped}), plan, loops)
    return looped_plan, torch.cat([positions[: run.start], own, positions[run.stop :]])


def _counting_sources(made: LayerPlan, plan: LayerPlan, loops: Loops) -> LayerPlan:
    """With the degrees of sources, which self-loops change like those of destinations; where all rows are both."""
    if plan.num_rows != plan.num_out or len(plan.out_degrees) != plan.num_rows:
        return made
    out_degrees = made.in_degrees if loops == "only" else plan.out_degrees + made.in_degrees - plan.in_degrees
    return dataclasses.replace(made, out_degrees=out_degrees)


def _own_rows(plan: LayerPlan, rows: Tensor) -> Tensor:
    """Which source row of the own block each output row is."""
    own = torch.empty_like(rows)
    for at, first, count in plan.own_runs():
        own[first : first + count] = torch.arange(at, at + count, dtype=rows.dtype, device=rows.device)
    return own


def _shards(plan: LayerPlan) -> dict[Piece, Shard]:
    if plan.shards is not None:
        return dict(plan.shards)
    assert plan.merged is not None
    return {piece: plan.merged for piece in plan.edge_runs()}


def _replaced(plan: LayerPlan, shards: dict[Piece, Shard]) -> LayerPlan:
    """Degrees of sources are not known without asking other workers, so that they are left out."""
    degrees = torch.zeros_like(plan.in_degrees)
    for shard in shards.values():
        degrees += torch.bincount(shard.block.dst_per_edge(), minlength=plan.num_out)
    new = dataclasses.replace(
        plan,
        shards=None if plan.shards is None else shards,
        merged=None if plan.shards is not None else next(iter(shards.values())),
        in_degrees=degrees,
        out_degrees=plan.out_degrees[:0],
        relation_degrees=(degrees,),
    )
    return new
