"""Norm, activation, dropout and linear map of a module: PyTorch's numbers, one table from forward to backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from sargnn.modules.calls import StockCalls
from sargnn.rng import Draw, Purpose, dropout_mask
from tests.modules.fake import calls_on, rows

COUNT, WIDTH, P = 300, 40, 0.5
IDS = torch.randperm(4 * COUNT, generator=torch.Generator().manual_seed(1))[:COUNT]
MASK = dropout_mask(IDS, WIDTH, Draw(3, 5, Purpose.DROPOUT, 0, P)) / (1 - P)

Drop = Callable[[Tensor], Tensor]


class Layers(nn.Module):
    """What follows an input that needs gradients; ``drop`` is called where the module drops."""

    def __init__(self, steps: str) -> None:
        super().__init__()
        self.steps = steps.split()
        self.norm = nn.BatchNorm1d(WIDTH, affine="plain" not in self.steps)
        self.map = nn.Linear(WIDTH, 24)
        if self.norm.affine:
            nn.init.uniform_(self.norm.weight, 0.5, 1.5)
            nn.init.uniform_(self.norm.bias, -0.5, 0.5)

    def watch(self, h: Tensor) -> None:
        """Called with each result."""

    def forward(self, x: Tensor, drop: Drop) -> Tensor:
        h = x * 2
        self.watch(h)
        for step in self.steps:
            before = h
            if step in ("norm", "map"):
                h = getattr(self, step)(h)
            elif step == "drop":
                h = drop(h)
            elif step == "write":
                h = h.mul_(3)
            elif step == "matmul":
                h = h @ self.map.weight.t()
            elif step == "residual":
                h = before + 3 * x
            elif step == "twice":
                h = self.map(h) + self.map(h)
            elif step != "plain":
                h = ACTIVATIONS[step](h)
            self.watch(h)
        return h


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "torch.relu": torch.relu, "x.relu": lambda x: x.relu(), "relu_": lambda x: x.relu_(),
    "nn.ReLU_": nn.ReLU(inplace=True), "elu": F.elu, "nn.ELU": nn.ELU(), "elu2": lambda x: F.elu(x, 2.0), "tanh": torch.tanh,
}  # fmt: skip
CASES = [
    "norm relu drop map", "norm torch.relu drop map", "norm x.relu drop matmul", "norm elu drop map", "norm nn.ELU map",
    "norm relu_ drop map", "norm nn.ReLU_ map", "norm relu map", "norm map", "norm drop map", "norm tanh drop map",
    "norm elu2 drop map", "relu drop map", "relu map", "elu drop map", "elu map", "nn.ReLU_ drop map", "drop map", "map",
    "matmul", "plain norm relu drop map", "norm relu drop twice", "norm relu residual norm relu drop map", "norm relu drop",
    "norm", "norm write relu drop map", "elu write drop map", "norm relu drop write map", "norm write map",
]  # fmt: skip


def results(steps: str, mode: str) -> tuple[list[Tensor], StockCalls]:
    torch.manual_seed(0)
    module, x, calls = Layers(steps).double(), rows(COUNT, WIDTH, grad=True), calls_on(IDS, mode=mode)
    with calls:
        out = module(x, lambda h: F.dropout(h, P))
    out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype))
    return [out, x.grad, *(p.grad for p in module.parameters() if p.grad is not None), *module.norm.buffers()], calls


@pytest.mark.parametrize("mode", ["sar", "domain_parallel"])
@pytest.mark.parametrize("steps", CASES)
def test_against_plain_pytorch(steps: str, mode: str) -> None:
    """Values, gradients and running statistics, which move once."""
    torch.manual_seed(0)
    module, x = Layers(steps).double(), rows(COUNT, WIDTH, grad=True)
    want = module(x, lambda h: h * MASK)
    want.backward(torch.randn(want.shape, generator=torch.Generator().manual_seed(2), dtype=want.dtype))
    plain = [want, x.grad, *(p.grad for p in module.parameters() if p.grad is not None), *module.norm.buffers()]
    ours, _ = results(steps, mode)
    assert len(ours) == len(plain)
    for mine, theirs in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("steps", "fused", "plain"), [
    ("norm relu drop map", 1, 3), ("norm elu drop map", 1, 3), ("norm relu map", 1, 2), ("norm relu_ drop map", 1, 3),
    ("norm nn.ReLU_ map", 1, 2), ("norm map", 1, 2), ("norm drop map", 1, 2), ("relu drop map", 1, 2), ("relu map", 1, 1),
    ("elu drop map", 1, 2), ("elu map", 1, 2), ("drop map", 1, 1), ("norm relu drop twice", 1, 3),
    ("norm relu drop matmul", 1, 3), ("norm relu residual norm relu drop map", 2, 5),
])  # fmt: skip
def test_tables_held_for_backward(steps: str, fused: int, plain: int) -> None:
    """Of the input and the results up to the last one, by whatever holds them; ``plain`` counts no masks."""
    assert held_tables(steps, "sar") == fused
    assert held_tables(steps, "domain_parallel") == plain


def held_tables(steps: str, mode: str) -> int:
    tables: list[StorageWeakRef] = []

    def drop(h: Tensor) -> Tensor:
        return F.dropout(h, P)

    class Watched(Layers):
        def watch(self, h: Tensor) -> None:
            if h.shape[1] == WIDTH:
                tables.append(StorageWeakRef(h.untyped_storage()))

    torch.manual_seed(0)
    module, x = Watched(steps).double(), rows(COUNT, WIDTH, grad=True)
    with calls_on(IDS, mode=mode):
        out = module(x, drop)
    assert out.requires_grad
    own = x.untyped_storage()._cdata
    return len({ref.cdata for ref in tables if not ref.expired() and ref.cdata != own})


@pytest.mark.parametrize("keep", [False, True])
def test_who_waits_for_a_gradient_between_stages_gets_it(keep: bool) -> None:
    """A stage that is made straight from an earlier one's input would pass it by."""
    module, x = nn.BatchNorm1d(WIDTH).double(), rows(COUNT, WIDTH, grad=True)
    heard: list[Tensor] = []
    with calls_on(IDS):
        h = F.relu(module(x))
        if keep:
            h.retain_grad()
        else:
            h.register_hook(heard.append)
        out = F.dropout(h, P)
    out.sum().backward()
    torch.testing.assert_close(h.grad if keep else heard[0], MASK.double(), rtol=1e-12, atol=1e-12)
