"""How a plan numbers its worker's edges."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

from sargnn.comm.lists import Piece
from sargnn.partition.cut import parts_of
from sargnn.plan.layer_plan import Shard
from sargnn.plan.load import Layout, PlanSettings, edge_positions, load_plan, with_self_loops
from tests.graphs import assign, nasty_graph

GRAPH = nasty_graph(150, seed=1)


@pytest.mark.parametrize("message_rows", [2**31, 9])
@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("layout", get_args(Layout))
def test_edges_are_numbered_shard_by_shard(layout: Layout, world: int, loops: bool, message_rows: int) -> None:
    parts = list(parts_of(GRAPH, assign(GRAPH, "random", world), world))
    found = []
    for rank, given in enumerate(parts):
        part = with_self_loops(given, rank) if loops else given
        plan = load_plan(part, PlanSettings(rank, layout, message_rows=message_rows))
        sources, destinations = plan.edge_ends()
        assert sources.dtype == destinations.dtype == torch.int64
        assert len(sources) == plan.num_edges == len(part.edge_src)
        runs = plan.edge_runs()
        shards: dict[Piece, Shard] = plan.shards or {Piece(-1, 0): plan.merged}  # type: ignore[dict-item]
        assert list(runs) == list(shards)
        first = 0
        for piece, run in runs.items():
            block = shards[piece].block
            assert run == plan.edge_run(shards[piece]) == slice(first, first + block.num_edges)
            assert torch.equal(sources[run], block.src_ids[block.src.long()])
            assert torch.equal(destinations[run], block.dst_ids[block.dst_per_edge()])
            first = run.stop
        assert first == plan.num_edges

        positions = edge_positions(part, plan)
        assert np.array_equal(np.sort(positions), np.arange(plan.num_edges))
        halo_first = np.repeat(part.halo_offsets[:-1], np.diff(part.edge_offsets))
        local = np.repeat(np.arange(world) == rank, np.diff(part.edge_offsets))
        ids = np.concatenate([part.node_ids, part.halo_ids])
        source_ids = ids[np.where(local, part.edge_src, len(part.node_ids) + halo_first + part.edge_src)]
        assert np.array_equal(source_ids[positions], sources.numpy())
        assert np.array_equal(part.node_ids[part.edge_dst][positions], destinations.numpy())
        found.append(torch.stack([sources, destinations], 1).numpy())
    source, destination = np.asarray(GRAPH.indices), np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr))
    if loops:
        other, every = source != destination, np.arange(GRAPH.num_nodes)
        source, destination = np.concatenate([source[other], every]), np.concatenate([destination[other], every])
    assert sorted(map(tuple, np.concatenate(found))) == sorted(zip(source, destination, strict=True))
