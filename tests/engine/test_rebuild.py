"""Linear maps keep no input that can be computed again, and notice when it cannot."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sargnn.backends.base import Activation
from sargnn.comm.group import Group
from sargnn.engine.linear import Map, linear_blocks, linear_map, linears
from sargnn.engine.norm import norm_act_drop
from sargnn.engine.workspace import Workspace
from sargnn.rng import Draw, Purpose

DRAW = Draw(0, 0, Purpose.DROPOUT, 0, 0.5)
MAPS = ["linear", "blocks", "linears"]
WORK = Workspace()


def rows() -> Tensor:
    return torch.randn(300, 40, generator=torch.Generator().manual_seed(0)).requires_grad_()


def active(x: Tensor) -> Tensor:
    return norm_act_drop(WORK, Group.single(), x, Activation("elu", torch.arange(len(x)), DRAW))


def apply(kind: str, h: Tensor, layers: list[nn.Linear]) -> Tensor:
    if kind == "linear":
        return linear_map(WORK, h, layers[0].weight, layers[0].bias)
    if kind == "blocks":
        return linear_blocks(WORK, [h], layers[0].weight, layers[0].bias)
    return torch.cat(linears(WORK, h, *(Map(layer.weight, layer.bias, len(h)) for layer in layers)), 1)


def layers() -> list[nn.Linear]:
    torch.manual_seed(1)
    return [nn.Linear(40, 30), nn.Linear(40, 20)]


@pytest.mark.parametrize("kind", MAPS)
def test_the_input_is_not_kept(kind: str) -> None:
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    x, maps = rows(), layers()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        apply(kind, active(x), maps)
    large = [tensor for tensor in saved if tensor.numel() >= x.numel()]
    assert len(large) == 1 and large[0].data_ptr() == x.data_ptr()


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("kind", MAPS)
def test_gradients(kind: str, written: bool) -> None:
    """Against PyTorch's own layers; also where somebody wrote to the rows, which cannot be rebuilt then."""

    def gradients(plain: bool) -> list[Tensor]:
        x, maps = rows(), layers()
        h = active(x)
        if written:
            h = h.mul_(2) if not plain else 2 * h
        if plain:
            count = 2 if kind == "linears" else 1
            out = torch.cat([layer(h) for layer in maps[:count]], 1)
        else:
            out = apply(kind, h, maps)
        out.square().sum().backward()
        leaves = [x, *(p for layer in maps for p in layer.parameters())]
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    for ours, theirs in zip(gradients(plain=False), gradients(plain=True), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def test_a_second_backward_pass_is_refused() -> None:
    loss = apply("linear", active(rows()), layers()).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="retain_graph"):
        loss.backward()
