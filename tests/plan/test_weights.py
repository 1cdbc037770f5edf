"""Every edge keeps its weight, whichever plan it is in, and sums of weights are those of the whole graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.graph.dataset import Dataset
from sargnn.graph.typed import homogenize
from sargnn.partition.cut import parts_of
from sargnn.partition.part import one_type, with_columns
from sargnn.plan.graph import WorkerGraph
from sargnn.plan.layer_plan import LayerPlan
from sargnn.plan.load import PlanSettings, load_plan
from tests.graphs import assign, nasty_graph, small_typed_graph, typed_graph, with_weights
from tests.parity.covering import spread
from tests.pool import pool

GRAPHS = {
    "nasty": with_weights(nasty_graph(150, seed=1), lowest=-1),
    "typed": with_weights(typed_graph()),
    "one type": with_weights(small_typed_graph("one_type")),
}
Edge = tuple[int, int, int, float]


def edges_of(plan: LayerPlan) -> list[Edge]:
    """Source, destination, relation and weight of all edges of a plan of a whole graph, by original ids; forwards and back."""
    forwards, back = [], []
    for shard in [plan.merged] if plan.shards is None else list(plan.shards.values()):
        assert shard is not None
        for part in shard.relations:
            block = part.block
            assert block.weight is not None and block.weight.dtype == torch.float64
            ends = block.src_ids[block.src.long()], block.dst_ids[block.dst_per_edge()]
            forwards += [(*one, part.relation, w) for *one, w in zip(*map(list_of, (*ends, block.weight)), strict=True)]
            sources = torch.repeat_interleave(torch.arange(block.num_src), block.t_indptr.diff())
            ends = block.src_ids[sources], block.dst_ids[block.t_dst.long()]
            back += [(*one, part.relation, w) for *one, w in zip(*map(list_of, (*ends, block.t_weight)), strict=True)]
    assert sorted(forwards) == sorted(back)
    return forwards


def list_of(tensor: torch.Tensor) -> list[Any]:
    return tensor.tolist()


def look_at(plan: LayerPlan, part_ids: np.ndarray) -> dict[str, Any]:
    assert plan.weights is not None
    return {
        "edges": edges_of(plan),
        "in": dict(zip(part_ids[: plan.num_out].tolist(), plan.weights.inward.tolist(), strict=False)),
        "out": dict(zip(plan.node_ids.tolist(), plan.weights.outward.tolist(), strict=True)),
        "relations": [(plan.out_of(r), list_of(one)) for r, one in enumerate(plan.weights.by_relation)],
    }


def run(group: Group, kind: str, mode: str, loops: bool, wanted: np.ndarray | None) -> list[dict[str, Any]]:
    """What the first layer's plan of two has on this rank, and the ids of its output rows."""
    graph = GRAPHS[kind]
    part = list(parts_of(graph, assign(graph, "random", group.world), group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode, dtype=torch.float64))
    worker = WorkerGraph(
        part,
        engine.exchange,
        PlanSettings(engine.group.rank, engine.mode.layout, message_rows=13, dtype=torch.float64),
        add_self_loops=loops,
    )
    flow = worker.whole(2) if wanted is None else worker.flow(np.isin(part.node_ids, wanted), [True, True])
    assert all(one.weighted for one in flow.plans)
    plan = flow.plans[0]
    own = torch.cat([plan.node_ids[at : at + n] for at, _, n in plan.own_runs()]).numpy()
    return [look_at(plan, own) | {"ids": own}]


def ends_of(graph: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sources, destinations, relations and weights."""
    assert graph.columns.weight is not None
    destination = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    relation = np.zeros(graph.num_edges, np.uint8) if graph.relation is None else np.asarray(graph.relation)
    return np.asarray(graph.indices), destination, relation, graph.columns.weight.astype(np.float64)


CASES = spread(["sar", "one_shot"], [1, 3], [("nasty", False), ("nasty", True), ("typed", False)], ["whole", "flow"])


@pytest.mark.parametrize(("mode", "world", "kind", "loops", "rows"), CASES)
def test_plans_have_the_weights_of_the_data(mode: str, world: int, kind: str, loops: bool, rows: str) -> None:
    graph = GRAPHS[kind]
    wanted = None if rows == "whole" else np.flatnonzero(np.asarray(graph.split) == 2)
    ranks = [one for (one,) in pool(world)(run, kind, mode, loops, wanted)]
    source, destination, relation, weight = ends_of(graph)
    if loops:
        other, every = source != destination, np.arange(graph.num_nodes)
        source, destination = np.concatenate([source[other], every]), np.concatenate([destination[other], every])
        relation = np.zeros(len(source), np.uint8)
        weight = np.concatenate([weight[other], np.ones(len(every))])
    computed = np.concatenate([one["ids"] for one in ranks])
    assert wanted is None or len(computed) < graph.num_nodes
    into = np.isin(destination, computed)
    columns = (source, destination, relation, weight)
    data = sorted(zip(*(column[into].tolist() for column in columns), strict=True))
    assert sorted(edge for one in ranks for edge in one["edges"]) == data
    totals = {"in": destination, "out": source}
    for name, ends in totals.items():
        sums = np.bincount(ends, weights=weight, minlength=graph.num_nodes)
        for one in ranks:
            np.testing.assert_allclose([sums[node] - x for node, x in one[name].items()], 0, atol=1e-13)
    for one in ranks:
        for r, (rows_of, found) in enumerate(one["relations"]):
            own = relation == r
            sums = np.bincount(destination[own], weights=weight[own], minlength=graph.num_nodes)
            np.testing.assert_allclose(found, sums[one["ids"][rows_of]], atol=1e-13)


@pytest.mark.parametrize("kind", ["typed", "one type"])
def test_edges_between_labelled_nodes_keep_their_weights(kind: str) -> None:
    """What Correct & Smooth reads of a typed graph, also where several relations join these nodes."""
    graph = GRAPHS[kind]
    labelled = graph.schema.node_types.index("paper")
    found = []
    for rank, part in enumerate(parts_of(graph, assign(graph, "random", 3), 3)):
        alone = one_type(part, rank, labelled)
        plan = load_plan(alone, PlanSettings(rank, "sharded", dtype=torch.float64))
        found += edges_of(plan)
        assert alone.weights is not None and plan.weights is not None
        ends = [edge for edge in edges_of(plan)]
        for node, total in zip(alone.node_ids.tolist(), plan.weights.inward.tolist(), strict=True):
            assert total == pytest.approx(sum(w for _, into, _, w in ends if into == node))
    source, destination, _, weight = ends_of(graph)
    kept = (graph.schema.types_of(source) == labelled) & (graph.schema.types_of(destination) == labelled)
    wanted = zip(source[kept].tolist(), destination[kept].tolist(), [0] * int(kept.sum()), weight[kept].tolist(), strict=True)
    assert sorted(found) == sorted(wanted)


def test_weights_stay_when_types_are_dropped() -> None:
    typed = with_weights(small_typed_graph("features"))
    assert homogenize(typed).columns is typed.columns


def test_a_part_without_its_weights() -> None:
    """What a run is given whose configuration does not want them, or whose model reads none."""
    weighted, plain = (
        next(parts_of(graph, np.zeros(150, np.int32), 1)) for graph in (GRAPHS["nasty"], nasty_graph(150, seed=1))
    )
    stripped = with_columns(weighted, [])
    assert weighted.weighted and not stripped.weighted and vars(stripped).keys() == vars(plain).keys()
    for name, value in vars(plain).items():
        assert name in ("schema", "features") or np.array_equal(getattr(stripped, name), value), name
    plan = load_plan(stripped, PlanSettings(0, "sharded"))
    assert not plan.weighted and plan.weights is None
