"""Messages that read no source row: nothing travels, and every shard is folded in every mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sargnn.backends.operations import SumOperation
from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.modes import MODES
from sargnn.engine.reducers.base import Fold, Reducer, Saved, Tensors
from sargnn.partition.cut import parts_of
from sargnn.plan.layer_plan import Shard
from sargnn.plan.load import PlanSettings, load_plan
from tests.graphs import assign, nasty_graph
from tests.pool import pool

GRAPH = nasty_graph(120, seed=4)
WIDTH = 3


class OwnPerEdge(Reducer[SumOperation, Tensor, Tensors]):
    """``out_i = sum of l_i over edges j -> i``, as case 1 or 2; ``exchanged`` has no columns."""

    name = "own_per_edge"
    operation = "sum"

    def __init__(self, case: int) -> None:
        self.needs_src_in_backward = case == 2

    def init(self, fold: Fold[SumOperation], exchanged: Tensors, dest_local: Tensors, params: Tensors) -> Tensor:
        return torch.zeros_like(dest_local[0])

    def step(
        self, fold: Fold[SumOperation], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors, state: Tensor
    ) -> None:
        assert rows[0].shape == (shard.num_src, 0)
        state += dest_local[0] * _degrees(shard, state)

    def finish(self, fold: Fold[SumOperation], dest_local: Tensors, params: Tensors, state: Tensor) -> tuple[Tensors, Tensors]:
        return (state,), ()

    def backward_init(self, fold: Fold[SumOperation], saved: Saved, grads: Tensors) -> Tensors:
        return grads[0], torch.zeros_like(grads[0])

    def backward_step(
        self, fold: Fold[SumOperation], shard: Shard, rows: Tensors | None, saved: Saved, state: Tensors, out: Tensors | None
    ) -> None:
        assert out is None and (rows is not None) == self.needs_src_in_backward
        state[1].add_(state[0] * _degrees(shard, state[0]))

    def backward_finish(self, saved: Saved, state: Tensors) -> tuple[Tensors, Tensors]:
        return (state[1],), ()

    def autograd_forward(self, fold: Fold[Any], shard: Shard, rows: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        return (dest_local[0] * _degrees(shard, dest_local[0]) + rows[0].sum(),)


def _degrees(shard: Shard, like: Tensor) -> Tensor:
    return torch.bincount(shard.block.dst_per_edge(), minlength=len(like)).to(like.dtype)[:, None]


def run(group: Group, mode: str, case: int, wanted: bool) -> dict[str, Any]:
    part = list(parts_of(GRAPH, assign(GRAPH, "random", group.world), group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode, dtype=torch.float64))
    plan = load_plan(part, PlanSettings(group.rank, engine.mode.layout, message_rows=13))
    nothing = torch.empty(plan.num_rows, 0, dtype=torch.float64, requires_grad=wanted)
    own = plan.node_ids[:, None].double().repeat(1, WIDTH).requires_grad_()
    group.traffic.reset()
    (out,) = engine.aggregate(plan, OwnPerEdge(case), (nothing,), (own,))
    (2 * out).sum().backward()
    assert own.grad is not None
    return {
        "ids": plan.node_ids.numpy(), "out": out.detach().numpy(), "grad": own.grad.numpy(), "sent": group.traffic.sent_bytes
    }  # fmt: skip


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("case", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_messages_without_source_rows(mode: str, case: int, wanted: bool, world: int) -> None:
    """``wanted``: rows without columns that ask for a gradient have none."""
    degrees = np.diff(GRAPH.indptr)[:, None].astype(float)
    for answer in pool(world)(run, mode, case, wanted):
        ids = answer["ids"]
        assert np.array_equal(answer["out"], np.broadcast_to(degrees[ids] * ids[:, None], answer["out"].shape))
        assert np.array_equal(answer["grad"], np.broadcast_to(2 * degrees[ids], answer["grad"].shape))
        assert answer["sent"] == 0
