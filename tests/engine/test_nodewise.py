"""Fused norm, activation and dropout against PyTorch's own operators, and what it saves."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sargnn.backends.base import Activation
from sargnn.backends.cpu.rows import CpuRows
from sargnn.comm.group import Group
from sargnn.engine.norm import DistributedBatchNorm, norm_act_drop
from sargnn.engine.workspace import Workspace
from sargnn.rng import Draw, Purpose, dropout_mask
from tests.engine.rows import inputs

ROWS = [1, 2, 255, 256, 257, 700]


@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("activation", ["relu", "elu"])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("width", [1, 7, 32])
@pytest.mark.parametrize("rows", ROWS)
def test_against_plain_operators(rows: int, width: int, norm: bool, activation: str, p: float) -> None:
    x, weight, bias, ids, d_out = inputs(rows, width, torch.float64)
    draw = Draw(3, 5, Purpose.DROPOUT, 1, p) if p else None
    plain, mine = x.clone().requires_grad_(), x.clone().requires_grad_()
    layer = DistributedBatchNorm(width).double()
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    h = F.batch_norm(plain, None, None, w, b, training=True) if norm and rows > 1 else plain
    if norm and rows == 1:  # PyTorch refuses one row; its normalised value is 0
        h = (plain - plain) * w + b
    want = getattr(F, activation)(h)
    if draw is not None:
        want = want * dropout_mask(ids, width, draw) / (1 - p)
    if norm:
        got = layer.fused(Workspace(), mine, Group.single(), activation, ids, draw)
    else:
        got = norm_act_drop(Workspace(), Group.single(), mine, Activation(activation, ids, draw))
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    want.backward(d_out)
    got.backward(d_out)
    torch.testing.assert_close(mine.grad, plain.grad, rtol=1e-9, atol=1e-9)
    if norm:
        torch.testing.assert_close(layer.weight.grad, w.grad, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(layer.bias.grad, b.grad, rtol=1e-9, atol=1e-9)


def test_statistics_survive_a_large_offset() -> None:
    """fp32 with a mean 10,000 times the deviation: sums of squares would lose it all."""
    x = (1e4 + torch.randn(5000, 3, generator=torch.Generator().manual_seed(1))).float()
    norm = DistributedBatchNorm(3).statistics(x, Group.single(), by=CpuRows())
    torch.testing.assert_close(norm.inv_std[0], x.double().var(0, correction=0).rsqrt().float(), rtol=1e-5, atol=0)
    torch.testing.assert_close(norm.mean[0], x.double().mean(0).float(), rtol=1e-7, atol=0)


@pytest.mark.parametrize("norm", [True, False])
def test_one_tensor_is_saved(norm: bool) -> None:
    x, _, _, ids, _ = inputs(500, 64, torch.float32)
    x.requires_grad_()
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        draw = Draw(0, 0, Purpose.DROPOUT, 0, 0.5)
        if norm:
            DistributedBatchNorm(64).fused(Workspace(), x, Group.single(), "relu", ids, draw)
        else:
            norm_act_drop(Workspace(), Group.single(), x, Activation("relu", ids, draw))
    large = [tensor for tensor in saved if tensor.numel() >= x.numel()]
    assert len(large) == 1 and large[0].data_ptr() == x.data_ptr()
