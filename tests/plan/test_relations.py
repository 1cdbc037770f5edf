"""Plans of single relations, and of all joined, against the whole graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.reducers.sum import Mean, Sum
from sargnn.graph.dataset import Dataset
from sargnn.partition.cut import parts_of
from sargnn.plan.graph import WorkerGraph
from sargnn.plan.layer_plan import LayerPlan
from sargnn.plan.load import PlanSettings
from tests.graphs import assign, small_typed_graph, typed_graph, with_weights
from tests.parity.covering import spread
from tests.pool import pool

GRAPHS = {
    "typed": with_weights(typed_graph(), lowest=-2),
    "sink": small_typed_graph("sink"),
    "one_type": with_weights(small_typed_graph("one_type")),
}
WIDTH = 3


@dataclass(frozen=True)
class Answer:
    """What one rank found on one plan. Rows are named by original ids.

    Attributes:
        sources, destinations: ids of input and output rows. out, mean: sums and means of their in-neighbours' rows.
        gradient: of the input rows. self_rows: ids of the input rows that the output rows are; None where they are other nodes.
        in_degrees, out_degrees, in_weights, out_weights: the plan's. edges: [E, 2], ids. edge_types, weights: [E] or None.
        halo: distinct rows that travel here. sent: rows that travel from here.
    """

    sources: np.ndarray
    destinations: np.ndarray
    out: np.ndarray
    mean: np.ndarray
    gradient: np.ndarray
    self_rows: np.ndarray | None
    in_degrees: np.ndarray
    out_degrees: np.ndarray
    edges: np.ndarray
    edge_types: np.ndarray | None
    weights: np.ndarray | None
    in_weights: np.ndarray | None
    out_weights: np.ndarray | None
    halo: int
    sent: int


def tables(graph: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """A row and an output gradient for every node; whole numbers, so that sums are exact in any order."""
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randint(-9, 9, (graph.num_nodes, WIDTH), generator=generator).double() for _ in range(2))
    return x, grad


def look_at(engine: Engine, plan: LayerPlan, graph: Dataset, types: torch.Tensor | None = None) -> Answer:
    x, grad = tables(graph)
    destinations = next(iter(plan.shards.values()) if plan.shards else iter([plan.merged])).block.dst_ids  # type: ignore[union-attr]
    rows = x[plan.node_ids].requires_grad_()
    (out,) = engine.aggregate(plan, Sum(), (rows,))
    out.backward(grad[destinations])
    (mean,) = engine.aggregate(plan, Mean(), (x[plan.node_ids],))
    sums = plan.weights and (plan.weights.inward, plan.weights.outward)
    optional = types, plan.edge_column("weight") if plan.weighted else None, *(sums or (None, None))
    edge_types, weights, in_weights, out_weights = (None if one is None else one.numpy() for one in optional)
    assert rows.grad is not None and len(plan.edge_ends()[0]) == plan.num_edges
    return Answer(
        sources=plan.node_ids.numpy(),
        destinations=destinations.numpy(),
        out=out.detach().numpy(),
        mean=mean.numpy(),
        gradient=rows.grad.numpy(),
        self_rows=plan.self_rows(plan.node_ids).numpy() if plan.own != () else None,
        in_degrees=plan.in_degrees.numpy(),
        out_degrees=plan.out_degrees.numpy(),
        edges=torch.stack(plan.edge_ends(), 1).numpy(),
        edge_types=edge_types,
        weights=weights,
        in_weights=in_weights,
        out_weights=out_weights,
        halo=plan.halo_rows,
        sent=plan.lists.sent_rows,
    )


def run(
    group: Group, kind: str, mode: str, partitioner: str, wanted: np.ndarray | None
) -> list[tuple[list[Answer], Answer]]:  # fmt: skip
    """Per layer the answers of its relations and of all joined. ``wanted``: ids; None: all rows."""
    graph = GRAPHS[kind]
    part = list(parts_of(graph, assign(graph, partitioner, group.world), group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode, dtype=torch.float64))
    worker = WorkerGraph(
        part,
        engine.exchange,
        PlanSettings(engine.group.rank, engine.mode.layout, message_rows=13, dtype=torch.float64),
        add_self_loops=False,
        by_relation=True,
    )
    flow = worker.whole(2) if wanted is None else worker.flow(np.isin(part.node_ids, wanted), [True, True])
    labelled = part.node_ids[worker.labelled_rows]
    outputs = flow.own_outputs(torch.from_numpy(np.array(part.node_ids))).numpy()
    assert np.array_equal(np.sort(outputs), np.sort(labelled if wanted is None else labelled[np.isin(labelled, wanted)]))
    layers = []
    for plan in flow.plans:
        assert plan.relations is not None and plan.shards is None and plan.merged is None
        joined, types = plan.relations.joined
        assert plan.num_edges == joined.num_edges
        assert plan.relations.joined[0] is joined and torch.equal(joined.node_ids, plan.node_ids)
        layers.append(([look_at(engine, one, graph) for one in plan.relations.plans], look_at(engine, joined, graph, types)))
    return layers


def check(answers: list[Answer], graph: Dataset, relations: list[int], outputs: np.ndarray) -> None:
    """One plan on every rank against the whole graph. ``outputs``: ids of the rows that it computes, on whatever rank."""
    assert graph.relation is not None
    x, grad = (table.numpy() for table in tables(graph))
    source, destination = np.asarray(graph.indices), np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    kept = np.isin(graph.relation, relations)
    source, destination, relation = source[kept], destination[kept], np.asarray(graph.relation)[kept]
    weight = None if graph.columns.weight is None else graph.columns.weight[kept].astype(np.float64)
    in_degrees, out_degrees = (np.bincount(ends, minlength=graph.num_nodes) for ends in (destination, source))
    sums, gradient = np.zeros_like(x), np.zeros_like(x)
    np.add.at(sums, destination, x[source])
    counts = np.isin(destination, outputs)
    np.add.at(gradient, source[counts], grad[destination[counts]])
    assert np.array_equal(np.sort(np.concatenate([answer.destinations for answer in answers])), np.sort(outputs))
    for answer in answers:
        ids, own = answer.destinations, answer.sources
        assert np.array_equal(answer.out, sums[ids])
        np.testing.assert_allclose(answer.mean, sums[ids] / np.maximum(in_degrees[ids], 1)[:, None], rtol=1e-14, atol=1e-14)
        assert np.array_equal(answer.gradient, gradient[own])
        assert np.array_equal(answer.in_degrees, in_degrees[ids]) and np.array_equal(answer.out_degrees, out_degrees[own])
        if answer.self_rows is not None:
            assert np.array_equal(answer.self_rows, ids)
        into = np.isin(destination, ids)
        columns, found = [source, destination], [*answer.edges.T]
        if answer.edge_types is not None:
            columns, found = [*columns, relation], [*found, answer.edge_types]
        if weight is not None:
            columns, found = [*columns, weight], [*found, answer.weights]
            for sums_of, rows, ends in ((answer.in_weights, ids, destination), (answer.out_weights, own, source)):
                assert sums_of is not None
                totals = np.bincount(ends, weights=weight, minlength=graph.num_nodes)
                np.testing.assert_allclose(sums_of, totals[rows], rtol=1e-14, atol=1e-14)
        assert (answer.weights is None) == (answer.in_weights is None) == (answer.out_weights is None) == (weight is None)
        wanted = [column[into].tolist() for column in columns]
        assert sorted(zip(*map(np.ndarray.tolist, found), strict=True)) == sorted(zip(*wanted, strict=True))
        assert answer.halo == len(np.setdiff1d(source[into], own))
    assert sum(answer.halo for answer in answers) == sum(answer.sent for answer in answers)


CASES = spread(["sar", "one_shot"], [1, 2, 3], ["random", "by_type", "empty"], list(GRAPHS), ["whole", "flow"], strength=2)


@pytest.mark.parametrize(("mode", "world", "partitioner", "kind", "rows"), CASES)
def test_each_relation_and_all_joined(mode: str, world: int, partitioner: str, kind: str, rows: str) -> None:
    graph = GRAPHS[kind]
    relations = range(len(graph.schema.relations))
    every = np.arange(graph.num_nodes)
    wanted = None if rows == "whole" else np.flatnonzero(np.asarray(graph.split) == 2)
    ranks = pool(world)(run, kind, mode, partitioner, wanted)
    outputs = [every if wanted is None else wanted]
    if wanted is not None:
        into = np.isin(np.repeat(every, np.diff(graph.indptr)), wanted)
        outputs.insert(0, np.union1d(np.asarray(graph.indices)[into], wanted))
    else:
        outputs.append(every)
    for layer in range(2):
        for r in relations:
            ends = graph.schema.relations[r]
            answers = [rank[layer][0][r] for rank in ranks]
            assert all((answer.self_rows is None) == (ends.source != ends.destination) for answer in answers)
            computed = outputs[layer][graph.schema.types_of(outputs[layer]) == ends.destination]
            check(answers, graph, [r], computed)
        check([rank[layer][1] for rank in ranks], graph, list(relations), outputs[layer])


def test_other_nodes_have_no_own_rows() -> None:
    part = next(parts_of(GRAPHS["typed"], np.zeros(GRAPHS["typed"].num_nodes, np.int32), 1))
    engine = Engine(Group.single(), EngineSettings(mode="sar"))
    graph = WorkerGraph(
        part, engine.exchange, PlanSettings(engine.group.rank, "sharded"), add_self_loops=False, by_relation=True
    )
    plan = graph.whole(1).plans[0]
    writes = part.schema.relations.index(next(one for one in part.schema.relations if one.source != one.destination))
    assert plan.relations is not None
    with pytest.raises(AssertionError, match="another type"):
        plan.relations.plans[writes].self_rows(torch.zeros(90, 1))
    assert plan.relations.plans[writes].relations is None
