"""Batch norm in a module, over the rows of all workers, against ``nn.BatchNorm1d`` on all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sargnn.comm.group import Group
from sargnn.modules.tag import Rows, tagged
from tests.modules.fake import calls_on, rows
from tests.pool import pool

COUNT, WIDTH = 61, 6
CUTS = {1: (0, COUNT), 3: (0, 40, 40, COUNT)}  # one worker without rows
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {}, "no parameters": {"affine": False}, "no running statistics": {"track_running_stats": False},
    "cumulative": {"momentum": None}, "momentum and eps": {"momentum": 0.3, "eps": 0.1},
}  # fmt: skip
SHAPES = {"table": (COUNT, WIDTH), "channels": (COUNT, WIDTH, 5)}


def module(setting: str) -> nn.BatchNorm1d:
    norm = nn.BatchNorm1d(WIDTH, **SETTINGS[setting]).double()
    if norm.affine:
        with torch.no_grad():
            norm.weight.copy_(torch.linspace(0.5, 2, WIDTH))
            norm.bias.copy_(torch.linspace(-1, 1, WIDTH))
    return norm


def data(shape: tuple[int, ...], seed: int) -> Tensor:
    return 3 + 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def steps(norm: nn.BatchNorm1d, parts: list[tuple[Tensor, Tensor]], call: Any) -> list[np.ndarray]:
    """Two steps and an evaluation: outputs and gradients by row, then the parameters' gradients and the buffers."""
    found: list[Any] = []
    for x, grad in parts:
        leaf = x.clone().requires_grad_()
        out = call(norm, leaf)
        out.backward(grad)
        found += [out, leaf.grad]
    norm.eval()
    found.append(call(norm, parts[0][0]))
    found += [p.grad for p in norm.parameters()] + [b for b in norm.buffers() if b.dim()]
    return [one.detach().numpy() for one in found]


def run(group: Group, setting: str, shape: tuple[int, ...], kind: str, mode: str) -> list[np.ndarray]:
    own = slice(*CUTS[group.world][group.rank : group.rank + 2])
    norm, calls = module(setting), calls_on(torch.arange(COUNT)[own], group=group, mode=mode)

    def call(norm: nn.BatchNorm1d, x: Tensor) -> Tensor:
        with calls:
            return norm(tagged(x, Rows(kind)))  # type: ignore[arg-type]

    found = steps(norm, [(data(shape, seed)[own], data(shape, seed + 2)[own]) for seed in (0, 1)], call)
    for p in norm.parameters():
        assert p.grad is not None
        group.sum_(p.grad)  # in the memory that was returned
    return found


@pytest.mark.parametrize(("setting", "shape", "kind", "mode"), [
    *((setting, "table", "nodes", "sar") for setting in SETTINGS),
    ("default", "table", "nodes", "domain_parallel"), ("default", "channels", "nodes", "sar"),
    ("cumulative", "channels", "nodes", "domain_parallel"), ("default", "table", "edges", "sar"),
])  # fmt: skip
@pytest.mark.parametrize("world", [1, 3])
def test_equals_batch_norm_on_all_rows(world: int, setting: str, shape: str, kind: str, mode: str) -> None:
    norm, size = module(setting), SHAPES[shape]
    want = steps(norm, [(data(size, seed), data(size, seed + 2)) for seed in (0, 1)], lambda norm, x: norm(x))
    ranks = pool(world)(run, setting, size, kind, mode)
    by_row = 5 if norm.track_running_stats else 4
    for index in range(by_row):
        found = np.concatenate([rank[index] for rank in ranks])
        np.testing.assert_allclose(found, want[index], rtol=1e-12, atol=1e-12)
    if norm.track_running_stats:
        assert len(want) == len(ranks[0])
    for index in range(5, len(want)):
        for rank in ranks:
            np.testing.assert_allclose(rank[index], want[index], rtol=1e-12, atol=1e-12)


def fused_steps(group: Group) -> list[np.ndarray]:
    own = slice(*CUTS[group.world][group.rank : group.rank + 2])
    norm, x = module("default"), data((COUNT, WIDTH), 0)[own].clone().requires_grad_()
    with calls_on(torch.arange(COUNT)[own], group=group):
        out = F.dropout(F.relu(norm(tagged(x, Rows("nodes")))), 0.5)
    out.backward(data((COUNT, WIDTH), 2)[own])
    grads = [group.sum_(p.grad) for p in norm.parameters() if p.grad is not None]
    assert x.grad is not None and norm.running_mean is not None and norm.running_var is not None
    return [one.detach().numpy() for one in (out, x.grad, *grads, norm.running_mean, norm.running_var)]


def test_three_workers_drop_and_normalise_as_one() -> None:
    (one,) = pool(1)(fused_steps)
    three = pool(3)(fused_steps)
    for index, want in enumerate(one):
        by_row = want.shape[0] == COUNT
        for found in [np.concatenate([rank[index] for rank in three])] if by_row else [rank[index] for rank in three]:
            np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-12)


def test_a_column_that_is_constant_up_to_rounding() -> None:
    """As the engine's own norm has it: y is beta and no gradient flows, with and without an activation after it."""
    x = rows(300, 2)
    with torch.no_grad():
        x[:, 1] = 0.1 * (
            1 + torch.finfo(x.dtype).eps * torch.randint(-4, 5, (300,), generator=torch.Generator().manual_seed(0))
        )
    for activation in (F.relu, torch.tanh):
        leaf, norm = tagged(x.clone().requires_grad_(), Rows("nodes")), nn.BatchNorm1d(2).double()
        with calls_on(torch.arange(300)):
            out = activation(norm(leaf))
        out.backward(rows(300, 2, seed=1))
        assert leaf.grad is not None
        assert (out[:, 1] == 0).all() and (leaf.grad[:, 1] == 0).all() and leaf.grad[:, 0].abs().max() > 0


def test_what_is_the_same_on_all_workers_is_pytorchs_own() -> None:
    table = torch.randn(7, WIDTH, dtype=torch.float64)
    want = module("default")(table)
    with calls_on(torch.arange(3)):
        assert torch.equal(module("default")(table), want)


def test_a_wrong_width_is_pytorchs_own_message() -> None:
    with calls_on(torch.arange(4)), pytest.raises(RuntimeError, match="running_mean should contain 3 elements"):
        module("default")(rows(4, 3))
