"""Sharing out cut edges: covers of least weight, every edge on exactly one side, no rank with many more."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.comm.lists import Piece
from sargnn.partition.cut import parts_of
from sargnn.plan.cover import (
    EDGE_S_PER_BYTE,
    HANDLING_S_PER_BYTE,
    MESSAGE_S,
    MOST_EDGES,
    Costs,
    Share,
    choose_edges,
    least_cover,
    shares_of,
)
from sargnn.plan.layer_plan import RelationBlock
from sargnn.plan.load import PlanSettings
from sargnn.plan.partials import load_shared_plan
from tests.graphs import assign, nasty_graph, typed_graph
from tests.pool import pool

GRAPHS = {"plain": nasty_graph(), "typed": typed_graph(0)}


@pytest.mark.parametrize("messages", [0.0, 1.5])
@pytest.mark.parametrize("edge", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.6, 2.0])
def test_a_cover_weighs_least(ratio: float, edge: float, messages: float) -> None:
    """Against all covers of small graphs, with parallel edges among them; edges of partial results and messages weigh, too."""
    share = Share(ratio, 1.0, edge=edge, messages=messages)
    random = np.random.default_rng(3)
    for _ in range(60):
        sources, destinations, edges = random.integers(1, 7), random.integers(1, 7), random.integers(1, 15)
        src, dst = random.integers(0, sources, edges), random.integers(0, destinations, edges)

        def weight(chosen: Any, src: np.ndarray = src, dst: np.ndarray = dst) -> float:
            covered = np.array(chosen, bool)
            served = ~covered[src]
            more = edge * served.sum() + messages * served.any()
            return float(len(np.unique(src[~served])) + ratio * len(np.unique(dst[served])) + more)

        least = min(weight(chosen) for chosen in product((0, 1), repeat=int(sources)))
        cover = least_cover(src, dst, int(sources), share)
        assert weight(cover) == pytest.approx(least)
        assert np.array_equal(cover, least_cover(src, dst, int(sources), share))


def _ends(one: RelationBlock) -> list[tuple[int, int, int]]:
    """(relation, original source, original destination) of a block's edges."""
    block = one.block
    ends = zip(block.src.tolist(), block.dst_per_edge().tolist(), strict=True)
    return [(one.relation, int(block.src_ids[s]), int(block.dst_ids[d])) for s, d in ends]


def _edges(group: Group, kind: str, partitioner: str, share: Share | None) -> dict[str, Any]:
    graph = GRAPHS[kind]
    part = list(parts_of(graph, assign(graph, partitioner, group.world), group.world))[group.rank]
    plan = load_shared_plan(part, PlanSettings(group.rank, "sharded", message_rows=9), group, share)
    found = [e for shard in (plan.shards or {}).values() for one in shard.relations for e in _ends(one)]
    served = []
    wanted: list[tuple[int, list[int]]] = []
    if plan.partials is not None:
        for shard in plan.partials.shards.values():
            for one in shard.relations:
                assert one.block.src_rows is not None and torch.equal(one.block.src.unique(), one.block.src_rows)
                served += _ends(one)
        joint = plan.partials.joint
        if joint is not None:
            blocks = list(zip(joint.shard.relations, joint.scales, strict=True))
            own = (plan.shards or {})[Piece(group.rank, 0)].relations
            assert {id(one) for one, scale in blocks if scale is None} == {id(one) for one in own}
            served += [e for one, scale in blocks if scale is not None for e in _ends(one)]
        out_ids = plan.self_rows(plan.node_ids)
        wanted = [(q, out_ids[rows.long()].tolist()) for q, rows in enumerate(plan.partials.lists.wanted_rows)]
    return {
        "found": found, "served": served, "wanted": wanted, "num_edges": plan.num_edges, "halo": plan.halo_rows,
        "served_rows": [] if plan.partials is None else plan.partials.lists.served_rows,
        "degrees": [d.tolist() for d in plan.relation_degrees],
    }  # fmt: skip


@pytest.mark.parametrize("ratio", [None, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("partitioner", ["metis", "random", "empty", "apart"])
@pytest.mark.parametrize("kind", list(GRAPHS))
def test_every_edge_is_on_one_side(kind: str, partitioner: str, ratio: float | None) -> None:
    ranks = pool(4)(_edges, kind, partitioner, Share(ratio, 1.0))
    whole = pool(4)(_edges, kind, partitioner, None)
    assert sorted(e for one in ranks for e in (*one["found"], *one["served"])) == sorted(
        e for one in whole for e in one["found"]
    )
    for one, post in zip(ranks, whole, strict=True):
        assert one["num_edges"] == post["num_edges"] and one["degrees"] == post["degrees"]
        if ratio is None:
            assert one["halo"] == 0
        elif post["num_edges"]:
            assert len(one["found"]) + len(one["served"]) <= max(1.1, MOST_EDGES) * post["num_edges"] + 8  # it is a small graph
    for p, one in enumerate(ranks):
        for q, ids in one["wanted"]:
            assert len(ids) == ranks[q]["served_rows"][p]
            assert {d for _, _, d in ranks[q]["served"]} >= set(ids)


def _shared_out(group: Group, own: int) -> int:
    """How many of 100 edges into rank 0, two from rank 1 for each row, rank 1 aggregates beside ``own`` edges into its rows."""
    into = [(np.arange(100), np.arange(100) // 2) if group.rank == 0 else (np.arange(own), np.arange(own))]
    edges = [(np.zeros(0, np.int64),) * 2, *into]
    return int(choose_edges(group, edges, [0, 100], Share(1.5, 1.0))[1].sum())


@pytest.mark.parametrize(("own", "moved"), [(10, 0), (1000, 0), (2000, 100)])
def test_no_rank_aggregates_many_more_edges_than_end_in_its_rows(own: int, moved: int) -> None:
    """A partial result is cheaper than two rows; they stay with rank 0 where rank 1 has too few edges of its own for that."""
    assert pool(2)(_shared_out, own) == [moved, 0]


def test_layers_share_a_cover() -> None:
    costs = [
        Costs(300, 100, request=(100, 0), answer=(100, 0)),
        None,
        Costs(309, 100, request=(100, 5), answer=(100, 5)),
        Costs(100, 100, request=(100, 0), answer=(0, 0)),
    ]
    first, none, third, last = shares_of("least", costs)
    assert none is None and first is third and first is not last
    assert first is not None and first.edge == first.messages == 0
    assert shares_of("post", costs) == [None] * 4
    pre = shares_of("pre", costs)
    assert pre[0] is pre[3] and pre[0] is not None and pre[0].ratio is None and pre[1] is None


def test_the_slower_the_network_the_more_partial_results() -> None:
    """A row of 1,000 bytes and three messages, by what 1e6 and 1e9 bytes a second make of an edge and of a message."""
    costs = [Costs(3000, 1000, request=(10, 1000), answer=(1000, 0))]
    (slow,), (fast,), (least,) = shares_of("fastest", costs, 1e6), shares_of("fastest", costs, 1e9), shares_of("least", costs)
    assert slow is not None and fast is not None and least is not None
    assert slow.ratio == fast.ratio == least.ratio == pytest.approx(2010 / 3000)
    for share, rate in ((slow, 1e6), (fast, 1e9)):
        source_s = 3000 * (1 / rate + HANDLING_S_PER_BYTE)
        assert share.edge == pytest.approx(1000 * EDGE_S_PER_BYTE / source_s)
        assert share.messages == pytest.approx(3 * MESSAGE_S / source_s)
