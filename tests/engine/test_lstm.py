"""The LSTM over neighbours: in what order it reads them, and that batches of nodes change nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.reducers import lstm
from sargnn.models.base import LayerInput
from sargnn.models.sage import LstmLayer
from sargnn.models.stack import LayerSpec
from sargnn.report.bench.gpu import whole_plan

NODES, WIDTH = 40, 3


def block() -> EdgeBlock:
    """The last five nodes have no edge, the first one has 30."""
    generator = torch.Generator().manual_seed(3)
    dst = torch.cat([torch.zeros(30), torch.randint(NODES - 5, (120,), generator=generator)]).int().sort().values
    return EdgeBlock(torch.randint(NODES, (150,), generator=generator, dtype=torch.int32), dst, NODES, NODES)


def outputs(*, training: bool = True, epoch: int = 0, index: int = 0) -> list[Tensor]:
    """Rows and all gradients of a layer on one worker."""
    torch.manual_seed(0)
    layer = LstmLayer(LayerSpec(index=index, last=False, in_width=WIDTH, out_width=4, bias=True)).double().train(training)
    engine = Engine(Group.single(), EngineSettings(mode="sar", dtype=torch.float64))
    engine.epoch = epoch
    x = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    out = layer(engine, whole_plan(block()), LayerInput(x))
    out.square().sum().backward()
    assert torch.equal(out[-5:], x[-5:] @ layer.self.weight.T + layer.self.bias)
    return [one.detach() for one in (out, x.grad, *(p.grad for p in layer.parameters())) if one is not None]


def test_batches_of_nodes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = outputs()
    monkeypatch.setattr(lstm, "EDGES_AT_ONCE", 7)
    for one, other in zip(outputs(), whole, strict=True):
        torch.testing.assert_close(one, other)


def test_the_order_is_drawn_for_each_layer_and_epoch_and_stays_in_evaluation() -> None:
    first = outputs()[0]
    assert torch.equal(first, outputs()[0])
    assert not torch.allclose(first, outputs(epoch=1)[0]) and not torch.allclose(first, outputs(index=1)[0])
    assert torch.equal(first, outputs(training=False, epoch=1)[0])
