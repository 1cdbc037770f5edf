"""Sums and means with a weight for each edge: outputs and all gradients against dense matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.reducers.sum import WeightedMean, WeightedSum
from sargnn.errors import KernelError
from sargnn.partition.cut import parts_of
from sargnn.plan.load import PlanSettings, load_plan
from tests.graphs import assign, nasty_graph
from tests.parity.cases import PAIRS
from tests.parity.covering import spread
from tests.pool import pool

TOYS = Path(__file__).parents[1] / "parity" / "toys"
GRAPH = nasty_graph(120, seed=4)
WIDTH = 18
REDUCERS: dict[str, type[WeightedSum]] = {"sum": WeightedSum, "mean": WeightedMean}


def weight_of(source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
    """A weight of either sign that goes by the ids of an edge's ends."""
    return torch.sin(3.0 * source.double() + 0.7 * destination.double())


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = GRAPH.num_nodes, WIDTH
    rows, grad = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return rows, grad


def run(
    group: Group, reducer: str, mode: str, kernel: str, partitioner: str, learned: bool, constant: bool
) -> dict[str, Any]:  # fmt: skip
    part = list(parts_of(GRAPH, assign(GRAPH, partitioner, group.world), group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode, kernel=kernel, dtype=torch.float64))
    plan = load_plan(part, PlanSettings(group.rank, engine.mode.layout, message_rows=13))
    x, grad = inputs()
    ends = plan.edge_ends()
    weight = weight_of(*ends).requires_grad_(learned)
    rows = x[plan.node_ids].requires_grad_(not constant)
    group.traffic.reset()
    (out,) = engine.aggregate(plan, REDUCERS[reducer](learned=learned), (rows,), (weight,))
    if learned or not constant:
        out.backward(grad[plan.node_ids])
    widths = group.traffic.sent_bytes // 8
    fetched = engine.mode.fetches(REDUCERS[reducer](learned=learned)) if learned or not constant else 1
    assert widths == WIDTH * (fetched * plan.lists.sent_rows + (0 if constant else plan.halo_rows))
    return {
        "ids": plan.node_ids.numpy(),
        "ends": torch.stack(ends, 1).numpy(),
        "out": out.detach().numpy(),
        "d_rows": None if rows.grad is None else rows.grad.numpy(),
        "d_weight": None if weight.grad is None else weight.grad.numpy(),
    }


CASES = spread(
    list(REDUCERS), PAIRS, [1, 2], ["random", "empty"], [(False, False), (True, False), (True, True)], strength=2
)  # fmt: skip


@pytest.mark.parametrize(("reducer", "mode", "kernel", "world", "partitioner", "learned", "constant"), CASES)
def test_parity(
    reducer: str, mode: str, kernel: str, world: int, partitioner: str, learned: bool, constant: bool
) -> None:  # fmt: skip
    """``learned``: the weights have a gradient. ``constant``: the rows have none."""
    x, grad = inputs()
    source = torch.from_numpy(np.asarray(GRAPH.indices)).long()
    destination = torch.from_numpy(np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr)))
    n = GRAPH.num_nodes
    matrix = torch.zeros(n, n, dtype=torch.float64)
    matrix.index_put_((destination, source), weight_of(source, destination), accumulate=True)
    scale = torch.ones(n, 1, dtype=torch.float64)
    if reducer == "mean":
        scale = torch.bincount(destination, minlength=n).clamp(min=1).double().reciprocal()[:, None]
    want = scale * (matrix @ x)
    d_rows = matrix.T @ (scale * grad)
    for answer in pool(world)(run, reducer, mode, kernel, partitioner, learned, constant):
        ids, (sources, destinations) = answer["ids"], answer["ends"].T
        np.testing.assert_allclose(answer["out"], want.numpy()[ids], rtol=1e-10, atol=1e-10)
        assert (answer["d_rows"] is None) == constant and (answer["d_weight"] is None) == (not learned)
        if not constant:
            np.testing.assert_allclose(answer["d_rows"], d_rows.numpy()[ids], rtol=1e-10, atol=1e-10)
        if learned:
            d_weight = ((scale * grad)[destinations] * x[sources]).sum(1)
            np.testing.assert_allclose(answer["d_weight"], d_weight.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mode", ["sar", "domain_parallel"])
def test_kernels_that_take_no_weights_say_so(mode: str) -> None:
    engine = Engine(Group.single(), EngineSettings(mode=mode, kernel=f"{TOYS}/toy_kernel.py:Dense", dtype=torch.float64))
    part = next(parts_of(GRAPH, assign(GRAPH, "random", 1), 1))
    plan = load_plan(part, PlanSettings(0, engine.mode.layout))
    rows = torch.zeros(plan.num_rows, 2, dtype=torch.float64)
    with pytest.raises(KernelError, match="without weights"):
        engine.aggregate(plan, WeightedSum(learned=False), (rows,), (torch.zeros(plan.num_edges, dtype=torch.float64),))
