"""Distributed batch norm against ``torch.nn.BatchNorm1d`` on all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.engine.norm import DistributedBatchNorm
from sargnn.engine.workspace import Workspace
from tests.pool import pool

ROWS, WIDTH = 60, 7
BOUNDS = {1: [0, 60], 2: [0, 1, 60], 4: [0, 20, 20, 59, 60]}  # uneven, one rank without rows


def data(offset: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64) + offset
    return x, torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)


def run(group: Group, offset: float) -> dict[str, Any]:
    x, grad = data(offset)
    own = slice(BOUNDS[group.world][group.rank], BOUNDS[group.world][group.rank + 1])
    norm = DistributedBatchNorm(WIDTH).double()
    torch.nn.init.constant_(norm.weight, 1.5)
    leaf = x[own].clone().requires_grad_()
    out = norm(leaf, group)
    out.backward(grad[own])
    grads = [p.grad for p in norm.parameters()]
    for g in grads:
        assert g is not None
        group.sum_(g)
    norm.eval()
    answer = [out, leaf.grad, norm(x[own], group), *grads, norm.running_mean, norm.running_var]
    return {"tensors": [t.detach().numpy() for t in answer if t is not None]}


@pytest.mark.parametrize("offset", [0.0, 1e5])  # a large mean is where E[x^2] - E[x]^2 would fail
@pytest.mark.parametrize("world", [1, 2, 4])
def test_equals_batch_norm(world: int, offset: float) -> None:
    x, grad = data(offset)
    stock = torch.nn.BatchNorm1d(WIDTH).double()
    torch.nn.init.constant_(stock.weight, 1.5)
    leaf = x.clone().requires_grad_()
    out = stock(leaf)
    out.backward(grad)
    stock.eval()
    assert leaf.grad is not None and stock.weight.grad is not None and stock.bias.grad is not None
    by_row = [out.detach(), leaf.grad, stock(x).detach()]
    shared = [stock.weight.grad, stock.bias.grad, stock.running_mean, stock.running_var]
    ranks = pool(world)(run, offset)
    tolerance = 1e-9 if offset == 0 else 1e-6  # fp64 with a mean of 1e5 keeps 11 digits of the deviations
    for index, want in enumerate(by_row):
        found = np.concatenate([answer["tensors"][index] for answer in ranks])
        np.testing.assert_allclose(found, want.numpy(), rtol=tolerance, atol=tolerance)
    for index, value in enumerate(shared, start=3):
        for answer in ranks:
            assert value is not None
            np.testing.assert_allclose(answer["tensors"][index], value.numpy(), rtol=tolerance, atol=tolerance)


def test_a_type_without_rows_keeps_its_running_statistics() -> None:
    """As in a layer of a message-flow graph that computes none of its rows."""
    norm = DistributedBatchNorm(WIDTH, num_types=3).double()
    x, _ = data(0.0)
    norm(x, Group.single(), (0, 20, 20, 60))
    assert torch.equal(norm.running_mean[1], torch.zeros(WIDTH).double()) and torch.equal(
        norm.running_var[1], torch.ones(WIDTH).double()
    )
    plain = torch.nn.BatchNorm1d(WIDTH).double()
    plain(x[20:])
    assert plain.running_var is not None
    assert torch.allclose(norm.running_var[2], plain.running_var)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fused", [False, True])
def test_a_column_that_is_constant_up_to_rounding(dtype: torch.dtype, fused: bool) -> None:
    """Normalised to 0, so y is beta whatever the rounding's sign, and no gradient flows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=generator, dtype=dtype)
    x[:, 1] = 0.1 * (1 + torch.finfo(dtype).eps * torch.randint(-4, 5, (300,), generator=generator))
    x[:, 2] = 0
    x[:, 3] = 1e4 + x[:, 3]
    norm, leaf = DistributedBatchNorm(4).to(dtype), x.clone().requires_grad_()
    torch.nn.init.constant_(norm.bias, 0.25)
    if fused:
        out = norm.fused(Workspace(), leaf, Group.single(), "elu", torch.arange(300), None)
    else:
        out = torch.nn.functional.elu(norm(leaf, Group.single()))
    grad = torch.randn(300, 4, generator=generator, dtype=dtype)
    out.backward(grad)
    assert leaf.grad is not None
    assert (out[:, 1] == 0.25).all() and (leaf.grad[:, 1] == 0).all()
    assert (out[:, 2] == 0.25).all() and (leaf.grad[:, 2] == 0).all()
    for column in (0, 3):
        assert out[:, column].std() > 0.5 and leaf.grad[:, column].abs().max() > 0


def test_columns_that_are_all_zero_are_normalised_as_ever() -> None:
    stock, norm = torch.nn.BatchNorm1d(3).double(), DistributedBatchNorm(3).double()
    grad = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    leaves = [torch.zeros(20, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    stock(leaves[0]).backward(grad)
    norm(leaves[1], Group.single()).backward(grad)
    assert leaves[0].grad is not None and leaves[1].grad is not None and leaves[0].grad.abs().max() > 1
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("deviation", [0.02, 0.3, 3.0])
def test_bf16_rows_whose_columns_lie_around_a_mean_are_normalised(deviation: float, fused: bool) -> None:
    """As PyTorch's batch norm does; its statistics are not bf16, nor are the gradients of its parameters."""
    generator = torch.Generator().manual_seed(1)
    x = (torch.randn(20_000, 24, generator=generator) * deviation + 1).to(torch.bfloat16)
    grad = torch.randn(20_000, 24, generator=generator).to(torch.bfloat16)
    stock, ours = torch.nn.BatchNorm1d(24), DistributedBatchNorm(24)
    wanted = stock(leaf := x.float().requires_grad_())
    wanted.backward(grad.float())
    mine = x.clone().requires_grad_()
    if fused:
        found = ours.fused(Workspace(), mine, Group.single(), "elu", torch.arange(len(x)), None)
        wanted = torch.nn.functional.elu(wanted)
    else:
        found = ours(mine, Group.single())
    assert found.dtype == torch.bfloat16 and ours.running_mean.dtype == torch.float32
    torch.testing.assert_close(found.float(), wanted.detach(), rtol=2**-7, atol=2**-7)
    torch.testing.assert_close(ours.running_mean, stock.running_mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.running_var, stock.running_var, rtol=1e-5, atol=1e-7)
    if not fused:
        found.backward(grad)
        assert (
            mine.grad is not None and leaf.grad is not None and ours.weight.grad is not None and stock.weight.grad is not None
        )
        scale = leaf.grad.abs().max()
        torch.testing.assert_close(mine.grad.float() / scale, leaf.grad / scale, rtol=2**-6, atol=2**-6)
        torch.testing.assert_close(ours.weight.grad, stock.weight.grad, rtol=1e-2, atol=0.01 * 20_000**0.5)
    ours.eval()
    assert ours(x, Group.single()).dtype == torch.bfloat16


COUNTED = torch.arange(ROWS) % 3 != 1
"""Of the rows those that statistics are taken of; the others are copies."""


def run_with_copies(group: Group, fused: bool) -> dict[str, Any]:
    x, grad = data(0.5)
    own = slice(BOUNDS[group.world][group.rank], BOUNDS[group.world][group.rank + 1])
    norm, counted = DistributedBatchNorm(WIDTH).double(), COUNTED[own].to(torch.uint8)
    torch.nn.init.constant_(norm.weight, 1.5)
    leaf, ids = x[own].clone().requires_grad_(), torch.arange(len(x[own]))
    bounds = (0, len(leaf))
    if fused:
        out = norm.fused(Workspace(), leaf, group, "elu", ids, None, bounds, counted)
    else:
        out = torch.nn.functional.elu(norm(leaf, group, bounds, counted))
    out.backward(grad[own])
    assert norm.weight.grad is not None and norm.bias.grad is not None and leaf.grad is not None
    shared = [group.sum_(norm.weight.grad), group.sum_(norm.bias.grad), norm.running_mean, norm.running_var]
    return {"rows": [out.detach().numpy(), leaf.grad.numpy()], "shared": [one.numpy() for one in shared]}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_copies(world: int, fused: bool) -> None:
    """Statistics of some rows, through which the gradients of all rows flow back to these: autograd, told nothing of that."""
    x, grad = data(0.5)
    leaf, weight = x.clone().requires_grad_(), torch.full((WIDTH,), 1.5, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(WIDTH, dtype=torch.float64, requires_grad=True)
    variance, mean = torch.var_mean(leaf[COUNTED], 0, correction=0)
    out = torch.nn.functional.elu(weight * (leaf - mean) * (variance + 1e-5).rsqrt() + bias)
    out.backward(grad)
    assert leaf.grad is not None and weight.grad is not None and bias.grad is not None
    count = int(COUNTED.sum())
    running = [0.1 * mean.detach(), 0.9 + 0.1 * variance.detach() * count / (count - 1)]
    answers = pool(world)(run_with_copies, fused)
    for index, want in enumerate((out.detach(), leaf.grad)):
        found = np.concatenate([answer["rows"][index] for answer in answers])
        np.testing.assert_allclose(found, want.numpy(), rtol=1e-11, atol=1e-12)
    for index, one in enumerate((weight.grad, bias.grad, *running)):
        for answer in answers:
            np.testing.assert_allclose(answer["shared"][index], one.numpy(), rtol=1e-11, atol=1e-12)
