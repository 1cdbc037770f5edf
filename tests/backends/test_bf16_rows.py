"""Kernels on bf16 rows against fp64 on the same rows, rounded where the kernel rounds: at most one unit in the last place.

Beyond half a unit only what fp32 sums lose, which shows where terms cancel: each bound adds a part of the terms' own sum.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sargnn.backends.base import Activation
from sargnn.backends.block import EdgeBlock
from sargnn.backends.choose import make_kernel, make_operation
from sargnn.backends.cpu.folds import CpuMoves
from sargnn.backends.cpu.rows import CpuRows, _add_table
from sargnn.comm.group import Group
from sargnn.engine.norm import DistributedBatchNorm, norm_act_drop
from sargnn.engine.workspace import Workspace
from sargnn.graph.edge_columns import EdgeColumns
from sargnn.profile import Profile
from sargnn.rng import Draw, Purpose
from tests.backends.attention_cases import expected, make, run
from tests.backends.blocks import SHAPES, block_of

BF16 = torch.bfloat16
OF_SUMS = 2.0**-20
"""Of the sum of the terms' sizes: what an fp32 sum of some hundred of them may lose, and more."""
KERNELS = ("fused", "reference")
WIDTHS = (1, 7, 15, 16, 17, 100, 130, 257)


def ulp(wanted: Tensor) -> Tensor:
    """The unit in the last place of bf16 numbers of this size."""
    return 2.0 ** (torch.floor(torch.log2(wanted.abs().clamp(min=1e-30))) - 7)


def assert_rounded(found: Tensor, wanted: Tensor, terms: Tensor | float = 0.0, units: float = 0.5) -> None:
    """``found`` is bf16 and within ``units`` of ``wanted``, fp64, and of what sums of such terms lose."""
    assert found.dtype == BF16 and found.isfinite().all()
    apart = (found.double() - wanted).abs()
    assert (apart <= units * ulp(wanted) + OF_SUMS * terms + 1e-30).all()


def rows(count: int, width: int, seed: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)).to(dtype)


def operation_of(name: str, kernel: str) -> Any:
    return make_operation(make_kernel(kernel), name, profile=Profile(recording=False), dtype=BF16)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("shape", [*SHAPES, (300, 200, 6000)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_sums(kernel: str, shape: tuple[int, int, int], width: int, weighted: bool) -> None:
    block, dense = block_of(*shape)
    operation, src, grad = operation_of("sum", kernel), rows(shape[0], width, 1), rows(shape[1], width, 2)
    scale = torch.rand(shape[1], generator=torch.Generator().manual_seed(3)) + 0.5
    given: dict[str, Any] = {}
    if weighted:
        weight = torch.randn(block.num_edges, generator=torch.Generator().manual_seed(4))
        block.columns = EdgeColumns.of({"weight": weight})
        given = {"weight": block.weight}
        dense = torch.zeros_like(dense).index_put_((block.dst_per_edge(), block.src.long()), weight.double(), accumulate=True)
    matrix = scale.double()[:, None] * dense
    wanted, terms = matrix @ src.double(), matrix.abs() @ src.double().abs()

    sums = torch.zeros(shape[1], width)
    operation.forward(block, src, sums, scale, **given)
    assert ((sums.double() - wanted).abs() <= OF_SUMS * terms + 1e-30).all()

    into = torch.zeros(shape[1], width, dtype=BF16)
    operation.forward(block, src, into, scale, **given)
    assert_rounded(into, wanted, terms)

    back = torch.full((shape[0], width), torch.nan, dtype=BF16)
    operation.backward(block, grad, back, scale, **given)
    d_src, d_terms = matrix.T @ grad.double(), matrix.abs().T @ grad.double().abs()
    assert_rounded(back, d_src, d_terms)

    if weighted:
        d_weight = torch.empty(block.num_edges)
        operation.weight_gradient(block, src, grad, d_weight, scale)
        ends = block.dst_per_edge(), block.src.long()
        products = scale.double()[ends[0], None] * grad.double()[ends[0]] * src.double()[ends[1]]
        assert ((d_weight.double() - products.sum(1)).abs() <= OF_SUMS * products.abs().sum(1) + 1e-30).all()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("width", [16, 17, 100, 257])
def test_sums_in_two_halves_are_the_sums_in_one(width: int, weighted: bool) -> None:
    """Over several blocks: the same to the last bit as fp32 sums that are rounded once."""
    operation = operation_of("sum", "fused")
    assert operation.splits_sums
    start, scale = rows(200, width, 1), torch.rand(200, generator=torch.Generator().manual_seed(3)) + 0.5
    whole, upper, lower = start.float(), start.clone(), torch.zeros(200, width, dtype=torch.int16)
    for k in range(4):
        block, _ = block_of(300, 200, 900, seed=k)
        block.columns = EdgeColumns.of(
            {"weight": torch.randn(900, generator=torch.Generator().manual_seed(k)) if weighted else None}
        )
        given = {"weight": block.weight} if weighted else {}
        operation.forward(block, rows(300, width, 10 + k), whole, scale, **given)
        operation.forward(block, rows(300, width, 10 + k), upper, scale, lower=lower, **given)
    CpuRows().join_halves(upper, lower)
    assert torch.equal(upper, whole.to(BF16))


def test_rounding_is_to_nearest_even() -> None:
    """Of every upper half with lower halves around a tie; not a number stays so, infinities too."""
    upper = np.arange(1 << 16, dtype=np.uint32)
    for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        number = torch.from_numpy(((upper << 16) | low).view(np.float32))
        halves = torch.from_numpy(upper.astype(np.uint16).view(np.int16)).view(BF16).clone().view(256, 256)
        CpuRows().join_halves(halves, torch.full((256, 256), low, dtype=torch.int32).to(torch.int16))
        wanted = number.to(BF16).view(256, 256)
        assert torch.equal(halves.isnan(), wanted.isnan())
        assert torch.equal(halves.nan_to_num(7.0), wanted.nan_to_num(7.0))
        packed = CpuMoves().take(number.view(256, 256), torch.arange(256, dtype=torch.int32), torch.empty(256, 256, dtype=BF16))
        assert torch.equal(packed.nan_to_num(7.0), wanted.nan_to_num(7.0))
    ones = 1 + torch.arange(128) / 128
    ends = torch.tensor([[0, 0], [0, 1]], dtype=torch.int32)
    back, grad = torch.empty(1, 128, dtype=BF16), torch.stack([ones, torch.full((128,), 2.0**-8)]).to(BF16)
    operation_of("sum", "fused").backward(EdgeBlock(ends[0], ends[1], 1, 2), grad, back)  # by vectors
    assert torch.equal(back[0], (ones + 2.0**-8).to(BF16))


def test_passes_beside_fp32_numbers() -> None:
    table, scale, total = rows(300, 33, 1), torch.rand(300), torch.randn(300, 33)
    wanted = (table.float() * scale[:, None]).to(BF16)
    assert torch.equal(CpuRows().scale(table.clone(), scale), wanted)
    added = total + table.float()
    _add_table(total, table)
    assert torch.equal(total, added)
    which = torch.randperm(300)[:100].to(torch.int32)
    target, values = rows(300, 33, 2), rows(100, 33, 3)
    wanted = target.float()
    wanted[which.long()] += values.float()
    CpuMoves().add(target, which, values)
    assert torch.equal(target, wanted.to(BF16))


@pytest.mark.parametrize("kernel", KERNELS)
def test_maxima(kernel: str) -> None:
    """Nothing is computed, so nothing is rounded; gradients are sums of those that arrive."""
    block, dense = block_of(40, 30, 200)
    block.src_id_rank = torch.randperm(40, generator=torch.Generator().manual_seed(6)).to(torch.int32)
    src, operation, grad = rows(40, 33, 1), operation_of("max", kernel), rows(30, 33, 2)
    best, winner = torch.full((30, 33), -torch.inf, dtype=BF16), torch.full((30, 33), 2**31 - 1, dtype=torch.int32)
    operation.forward(block, src, best, winner)
    reached = dense.sum(1) > 0
    wanted = torch.where(dense[:, :, None] > 0, src.double()[None], -torch.inf).amax(1)
    assert torch.equal(best[reached].double(), wanted[reached])
    back = torch.full((40, 33), torch.nan, dtype=BF16)
    operation.backward(block, grad, winner, back)
    won = winner[:, None, :] == block.src_id_rank[None, :, None]
    gradient = torch.where(won & (dense[:, :, None] > 0), grad.double()[:, None], 0.0)
    assert_rounded(back, gradient.sum(0), gradient.abs().sum(0))


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", ["small", "no_edges", "hub", "fan"])
@pytest.mark.parametrize("operation", ["gat", "gatv2", "dot"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_attention(kernel: str, operation: str, shape: str, weighted: bool, p: float) -> None:
    """Rows of 3 heads of 20; scores, statistics and the sums so far are fp32."""
    case = make(shape, 3, 20, p, weighted=weighted)
    for leaf in (*case.z, case.x, *case.keys, case.q, case.grad):
        leaf.data = leaf.data.to(BF16).double()
    for leaf in (*case.el, case.er, case.att):
        leaf.data = leaf.data.float().double()
    case.weights = None if case.weights is None else [one.float().double() for one in case.weights]
    want, wanted = expected(case, operation)
    on_bf16: Any = SimpleNamespace(operation=partial(operation_of, kernel=kernel))
    out, grads = run(on_bf16, case, operation, BF16, [0, 1])
    assert out.dtype == torch.float32
    size = 1 + float(want.abs().max()) if want.numel() else 1.0
    assert (out.double() - want).abs().max() <= 3e-5 * size if want.numel() else True
    largest = 1 + max((float(one.abs().max()) for one in wanted if one is not None and one.numel()), default=0.0)
    for number, (found, wish) in enumerate(zip(grads, wanted, strict=True)):
        if wish is None or found is None or not wish.numel():
            continue
        if found.dtype == BF16:  # in the rows' gradients those through the scores meet, which fp32 sums have gone through
            assert_rounded(found, wish, 64 * largest, units=1.0)
        else:
            assert (found.double() - wish).abs().max() <= 5e-5 * largest, number


@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("activation", ["relu", "elu"])
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("count", "width"), [(1, 7), (255, 16), (700, 33)])
def test_between_layers(count: int, width: int, normed: bool, activation: str, p: float) -> None:
    """Norm, activation and dropout of bf16 rows against the same of the rows in fp64."""
    x, d_out = (3 * rows(count, width, 1).float() + 1).to(BF16), rows(count, width, 2)
    ids, draw = torch.randperm(10 * count)[:count], Draw(3, 5, Purpose.DROPOUT, 1, p) if p else None
    found = {}
    for dtype in (BF16, torch.float64):
        leaf, layer = (
            x.detach().clone().to(dtype).requires_grad_(),
            DistributedBatchNorm(width).to(torch.float32 if dtype == BF16 else dtype),
        )
        with torch.no_grad():
            layer.weight.copy_(torch.linspace(0.5, 2, width))
            layer.bias.copy_(torch.linspace(-1, 1, width))
        if normed:
            out = layer.fused(Workspace(), leaf, Group.single(), activation, ids, draw)
        else:
            out = norm_act_drop(Workspace(), Group.single(), leaf, Activation(activation, ids, draw))
        out.backward(d_out.to(dtype))
        assert leaf.grad is not None
        found[dtype] = out.detach(), leaf.grad, layer.weight.grad, layer.bias.grad
    half, whole = found[BF16], found[torch.float64]
    assert_rounded(half[0], whole[0], 8.0)
    # dx = slope (g - mean - xhat mean): g on its way is a bf16 row, and the difference of such is rounded again.
    assert (half[1].double() - whole[1]).abs().max() <= 2.0**-7 * (1 + float(whole[1].abs().max()))
    for mine, wish in zip(half[2:], whole[2:], strict=True):
        if mine is not None and wish is not None:
            assert mine.dtype == torch.float32
            torch.testing.assert_close(mine.double(), wish, rtol=1e-3, atol=1e-3 * count**0.5)
