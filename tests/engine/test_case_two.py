"""Modes with a reducer that needs source rows in backward and sends two tensors in one message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.modes import MODES
from sargnn.engine.reducers.sum import Sum
from sargnn.partition.cut import parts_of
from sargnn.plan.load import PlanSettings, load_plan
from sargnn.resolve import resolve
from tests.engine.toy import Toy
from tests.graphs import assign, nasty_graph
from tests.parity.covering import spread
from tests.parity.oracle import adjacency
from tests.pool import pool

GRAPH = nasty_graph(120, seed=4)
WIDTH = 6


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    n = GRAPH.num_nodes
    shapes = [(n, WIDTH), (n, 1), (n, WIDTH), (WIDTH,), (n, WIDTH)]  # z, s, l, theta, gradient
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def run(group: Group, mode: str, partitioner: str, depth: int, constant: bool, message_rows: int) -> dict[str, Any]:
    assignment = assign(GRAPH, partitioner, group.world)
    part = list(parts_of(GRAPH, assignment, group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode, kernel="dgl", prefetch_depth=depth, dtype=torch.float64))
    plan = load_plan(part, PlanSettings(group.rank, engine.mode.layout, message_rows=message_rows))
    z, s, local, theta, grad = inputs()
    own = plan.node_ids
    leaves = [t[own].clone() for t in (z, s, local)] + [theta.clone()]
    for leaf in leaves[2:] if constant else leaves:
        leaf.requires_grad_()
    group.traffic.reset()
    (out,) = engine.aggregate(plan, Toy(), tuple(leaves[:2]), (leaves[2],), (leaves[3],))
    out.backward(grad[own])
    sent = group.traffic.sent_bytes
    predicted = engine.mode.wire_bytes(plan, Toy(), (WIDTH, 1), torch.float64, exchanged_needs_grad=not constant)
    planned = plan.lists.buffer_bytes(plan.rank, (WIDTH + 1) * 8, depth, refetch=engine.mode.fetches(Toy()) > 1)
    assert leaves[3].grad is not None
    group.sum_(leaves[3].grad)
    return {
        "ids": own.numpy(),
        "out": out.detach().numpy(),
        "grads": [None if leaf.grad is None else leaf.grad.numpy() for leaf in leaves],
        "sent": sent,
        "predicted": predicted,
        "held_bytes": engine.exchange.most_held,
        "planned_bytes": planned,
    }


@pytest.mark.parametrize(
    ("mode", "world", "partitioner", "depth", "message_rows", "constant"),
    spread(list(MODES), [1, 2, 4], ["metis", "empty", "apart"], [0, 1, 3], [2**31, 5, 13], [False, True], strength=2),
)
def test_parity(mode: str, world: int, partitioner: str, depth: int, message_rows: int, constant: bool) -> None:
    z, s, local, theta, grad = inputs()
    leaves = [t.clone().requires_grad_() for t in (z, s, local, theta)]
    wanted = leaves[2] * leaves[3] * (adjacency(GRAPH, False) @ (leaves[0].square() * leaves[1]))
    wanted.backward(grad)
    ranks = pool(world)(run, mode, partitioner, depth, constant, message_rows)
    for answer in ranks:
        ids = answer["ids"]
        np.testing.assert_allclose(answer["out"], wanted.detach().numpy()[ids], rtol=1e-12, atol=1e-12)
        for index, leaf in enumerate(leaves):
            found = answer["grads"][index]
            if constant and index < 2:
                assert found is None
                continue
            assert leaf.grad is not None
            want = leaf.grad.numpy() if index == 3 else leaf.grad.numpy()[ids]
            np.testing.assert_allclose(found, want, rtol=1e-11, atol=1e-11)
        assert answer["sent"] == answer["predicted"]
        assert answer["held_bytes"] <= answer["planned_bytes"]


def test_sar_fetches_twice_and_no_remat_once() -> None:
    sar, kept = resolve("mode", MODES, "sar")(), resolve("mode", MODES, "no_remat")()
    assert sar.fetches(Toy()) == 2 and kept.fetches(Toy()) == 1


def _constant_rows(group: Group, mode: str) -> Tensor:
    """Sum of rows without a gradient onto own rows with one: the gradient of the own rows."""
    part = list(parts_of(GRAPH, assign(GRAPH, "random", group.world), group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode, dtype=torch.float64))
    plan = load_plan(part, PlanSettings(group.rank, engine.mode.layout))
    own = torch.ones(plan.num_rows, 3, dtype=torch.float64, requires_grad=True)
    rows = torch.full((plan.num_rows, 3), 2.0, dtype=torch.float64)
    (out,) = engine.aggregate(plan, Sum(), (rows,), (own * 1,))
    assert torch.equal(out.detach(), 1 + 2 * plan.in_degrees[:, None].double().expand_as(out))
    (3 * out).sum().backward()
    assert own.grad is not None
    return own.grad


@pytest.mark.parametrize("mode", MODES)
def test_rows_without_a_gradient_beside_own_rows_with_one(mode: str) -> None:
    for grad in pool(2)(_constant_rows, mode):
        assert (grad == 3).all()
