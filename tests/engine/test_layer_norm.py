"""Fused layer norm, activation and dropout against PyTorch's own operators, what it saves, and rows of equal entries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sargnn import native
from sargnn.comm.group import Group
from sargnn.engine.linear import linear_map
from sargnn.engine.row_norm import LayerNorm
from sargnn.engine.workspace import Workspace
from sargnn.rng import Draw, Purpose, dropout_mask
from tests.engine.rows import inputs

GROUP: Any = object()
"""No worker is asked for anything: whatever it were called for would raise."""


def layer_of(weight: Tensor, bias: Tensor) -> LayerNorm:
    """With these parameters, [F] or [T, F]."""
    layer = LayerNorm(weight.shape[-1], num_types=1 if weight.dim() == 1 else len(weight)).to(weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("activation", ["relu", "elu"])
@pytest.mark.parametrize("width", [1, 7, 32])
@pytest.mark.parametrize("rows", [1, 255, 257, 700])
def test_against_plain_operators(rows: int, width: int, activation: str, p: float, fused: bool) -> None:
    x, weight, bias, ids, d_out = inputs(rows, width, torch.float64)
    draw = Draw(3, 5, Purpose.DROPOUT, 1, p) if p else None
    plain, mine = x.clone().requires_grad_(), x.clone().requires_grad_()
    stock, layer = nn.LayerNorm(width).double(), layer_of(weight, bias)
    stock.load_state_dict(layer.state_dict())
    want = getattr(F, activation)(stock(plain))
    got = layer.fused(Workspace(), mine, GROUP, activation, ids, draw) if fused else getattr(F, activation)(layer(mine, GROUP))
    if draw is not None:
        mask = dropout_mask(ids, width, draw) / (1 - p)
        want = want * mask
        got = got if fused else got * mask
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    want.backward(d_out)
    got.backward(d_out)
    for mine_, theirs in ((mine, plain), (layer.weight, stock.weight), (layer.bias, stock.bias)):
        torch.testing.assert_close(mine_.grad, theirs.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("fused", [True, False])
def test_each_type_has_its_own(fused: bool) -> None:
    """Also where a type has no rows: then its parameters get no gradient but zeros."""
    x, _, _, ids, d_out = inputs(60, 5, torch.float64)
    generator = torch.Generator().manual_seed(2)
    weight, bias = (torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    layer, bounds, leaf, plain = layer_of(weight, bias), (0, 20, 20, 60), x.clone().requires_grad_(), x.clone().requires_grad_()
    pieces = [nn.LayerNorm(5).double() for _ in range(3)]
    for t, piece in enumerate(pieces):
        piece.load_state_dict({"weight": weight[t], "bias": bias[t]})
    want = F.elu(torch.cat([pieces[0](plain[:20]), pieces[2](plain[20:])]))
    got = layer.fused(Workspace(), leaf, GROUP, "elu", ids, None, bounds) if fused else F.elu(layer(leaf, GROUP, bounds))
    torch.testing.assert_close(got, want)
    want.backward(d_out)
    got.backward(d_out)
    torch.testing.assert_close(leaf.grad, plain.grad)
    assert layer.weight.grad is not None and layer.bias.grad is not None
    for t, piece in enumerate(pieces):
        for mine, theirs in ((layer.weight.grad, piece.weight.grad), (layer.bias.grad, piece.bias.grad)):
            torch.testing.assert_close(mine[t], torch.zeros(5).double() if theirs is None else theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_equal_entries_are_normalised_to_zeros(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, 0.1, -3.7, 1e4, 1e-30, 65537.0 / 3], dtype=dtype)
    leaf = values[:, None].repeat(1, 37).requires_grad_()
    layer = layer_of(torch.full((37,), 2.0, dtype=dtype), torch.full((37,), 0.25, dtype=dtype))
    out = layer.fused(Workspace(), leaf, GROUP, "relu", torch.arange(6), None)
    assert torch.equal(out, torch.full_like(out, 0.25))
    out.backward(torch.randn(6, 37, generator=torch.Generator().manual_seed(0), dtype=dtype))
    assert leaf.grad is not None and leaf.grad.isfinite().all()


def test_statistics_survive_a_large_offset() -> None:
    """fp32 with a mean 10,000 times the deviation: sums of squares would lose it all."""
    x = (1e4 + torch.randn(500, 300, generator=torch.Generator().manual_seed(1))).float()
    out = layer_of(torch.ones(300), torch.full((300,), 5.0)).fused(Workspace(), x, GROUP, "relu", torch.arange(500), None)
    want = F.layer_norm(x.double(), (300,)) + 5
    torch.testing.assert_close(out.double(), want.clamp(min=0), rtol=0, atol=2e-3)  # the mean itself has 1e-3 of rounding


def test_one_tensor_is_saved_and_a_linear_map_behind_it_keeps_none() -> None:
    x, weight, bias, ids, _ = inputs(500, 64, torch.float32)
    x.requires_grad_()
    layer, linear = layer_of(weight, bias), nn.Linear(64, 8)
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    draw = Draw(0, 0, Purpose.DROPOUT, 0, 0.5)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = layer.fused(Workspace(), x, Group.single(), "elu", ids, draw)
        out = linear_map(Workspace(), hidden, linear.weight, linear.bias)
    large = [tensor for tensor in saved if tensor.numel() >= x.numel()]
    assert len(large) == 1 and large[0].data_ptr() == x.data_ptr()
    rows = hidden.detach().clone()
    out.square().sum().backward()
    torch.testing.assert_close(linear.weight.grad, 2 * out.detach().T @ rows)


def test_what_it_is_rebuilt_from_must_not_change() -> None:
    x, weight, bias, ids, _ = inputs(50, 8, torch.float32)
    layer, linear = layer_of(weight, bias), nn.Linear(8, 2)
    out = linear_map(
        Workspace(), layer.fused(Workspace(), x.requires_grad_(), GROUP, "relu", ids, None), linear.weight, linear.bias
    )  # fmt: skip
    with torch.no_grad():
        layer.weight.mul_(2)
    with pytest.raises(AssertionError, match="written to"):
        out.sum().backward()


def test_sums_over_rows_do_not_depend_on_the_number_of_threads() -> None:
    x, weight, bias, ids, d_out = inputs(3000, 20, torch.float32)
    found = []
    before = native.num_threads()
    try:
        for threads in (1, 3):
            native.set_threads(threads)
            layer, leaf = layer_of(weight, bias), x.clone().requires_grad_()
            layer.fused(Workspace(), leaf, GROUP, "elu", ids, None).backward(d_out)
            found.append([leaf.grad, layer.weight.grad, layer.bias.grad])
    finally:
        native.set_threads(before)
    for one, other in zip(found[0], found[-1], strict=True):
        assert one is not None and other is not None and torch.equal(one, other)
