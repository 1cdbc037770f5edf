"""Every kernel against a dense matrix, on small integers, where sums are exact in any order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sargnn.errors import ConfigError, KernelError
from sargnn.kernels import KERNELS
from sargnn.kernels.base import Kernel
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.dispatch import choose_kernel
from sargnn.resolve import resolve

SHAPES = [(6, 9, 20), (1, 1, 1), (5, 7, 0), (40, 3, 100), (3, 40, 30), (0, 4, 0), (4, 0, 0)]


def block_of(num_src: int, num_dst: int, num_edges: int, seed: int = 0) -> tuple[EdgeBlock, Tensor]:
    """A random block with parallel edges, and its dense matrix [D, S]."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(max(num_src, 1), (num_edges,), generator=generator, dtype=torch.int32)
    dst = torch.randint(max(num_dst, 1), (num_edges,), generator=generator, dtype=torch.int32).sort().values
    dense = torch.zeros(num_dst, num_src, dtype=torch.float64)
    if num_edges:
        dense.index_put_((dst.long(), src.long()), torch.ones(()).double(), accumulate=True)
    return EdgeBlock(src, dst, num_src, num_dst), dense


def integers(rows: int, width: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randint(-9, 9, (rows, width), generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    one: Kernel = resolve("kernel", KERNELS, request.param)()
    return one


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 3, 16, 33, 100, 130, 257, 300])
@pytest.mark.parametrize("shape", SHAPES)
def test_sum(kernel: Kernel, shape: tuple[int, int, int], width: int, dtype: torch.dtype) -> None:
    block, dense = block_of(*shape)
    matrix = dense.to(dtype)
    src, start = integers(shape[0], width, dtype, 1), integers(shape[1], width, dtype, 2)
    out = start.clone()
    kernel.sum_forward(block, src, out)
    assert torch.equal(out, start + matrix @ src)

    grad = integers(shape[1], width, dtype, 3)
    back = torch.full((shape[0], width), float("nan"), dtype=dtype)
    kernel.sum_backward(block, grad, back)
    assert torch.equal(back, matrix.T @ grad)

    scale = integers(shape[1], 1, dtype, 4)[:, 0]
    kernel.sum_forward(block, src, out, scale)
    assert torch.equal(out, start + matrix @ src + scale[:, None] * (matrix @ src))
    kernel.sum_backward(block, grad, back, scale)
    assert torch.equal(back, matrix.T @ (scale[:, None] * grad))

    total = back.clone()
    kernel.sum_backward(block, grad, total, add=True)
    assert torch.equal(total, back + matrix.T @ grad)

    if kernel.name == "fused":  # never asked: domain_parallel refuses it
        return
    leaf = src.clone().requires_grad_()
    result = kernel.sum_autograd(block, leaf)
    assert torch.equal(result.detach(), matrix @ src)
    result.backward(grad)
    assert leaf.grad is not None and torch.equal(leaf.grad, matrix.T @ grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 5, 33])
@pytest.mark.parametrize("shape", SHAPES)
def test_max(kernel: Kernel, shape: tuple[int, int, int], width: int, dtype: torch.dtype) -> None:
    """Two blocks with the same destinations, folded in either order, against a loop; values tie often."""
    num_src, num_dst, num_edges = shape
    order = torch.randperm(2 * num_src, generator=torch.Generator().manual_seed(6)).to(torch.int32)
    blocks, sources = [], []
    for k in range(2):
        block, _ = block_of(num_src, num_dst, num_edges, seed=k)
        block.src_order = order[k * num_src : (k + 1) * num_src]
        blocks.append(block)
        sources.append(integers(num_src, width, dtype, k).div(6, rounding_mode="floor"))  # -2, -1, 0 or 1
    grad = integers(num_dst, width, dtype, 3)

    want = torch.zeros(num_dst, width, dtype=dtype)
    errors = [torch.zeros(num_src, width, dtype=dtype) for _ in range(2)]
    edges = [
        (k, int(j), int(i)) for k in range(2) for j, i in zip(blocks[k].src, blocks[k].dst_per_edge(), strict=True)
    ]  # fmt: skip
    for i in range(num_dst):
        incoming = sorted({(int(blocks[k].src_order[j]), k, j) for k, j, to in edges if to == i})
        for f in range(width):
            if incoming:
                _, k, j = max(incoming, key=lambda c: (float(sources[c[1]][c[2], f]), -c[0]))
                want[i, f] = sources[k][j, f]
                errors[k][j, f] += grad[i, f]

    for sequence in ([0, 1], [1, 0]):
        best = torch.full((num_dst, width), -torch.inf, dtype=dtype)
        winner = torch.full((num_dst, width), 2**31 - 1, dtype=torch.int32)
        for k in sequence:
            kernel.max_forward(blocks[k], sources[k], best, winner)
        assert torch.equal(best.masked_fill(winner == 2**31 - 1, 0), want)
        for k in range(2):
            back = torch.full((num_src, width), float("nan"), dtype=dtype)
            kernel.max_backward(blocks[k], grad, winner, back)
            assert torch.equal(back, errors[k])


@pytest.mark.parametrize("name", ["fused", "reference"])
def test_max_does_not_hide_what_is_not_a_number(name: str) -> None:
    """DGL's own maximum does."""
    kernel: Kernel = resolve("kernel", KERNELS, name)()
    edges = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([0, 0, 1], dtype=torch.int32)
    block = EdgeBlock(*edges, 3, 2)
    best, winner = torch.full((2, 1), -torch.inf), torch.full((2, 1), 2**31 - 1, dtype=torch.int32)
    kernel.max_forward(block, torch.tensor([[torch.nan], [5.0], [torch.nan]]), best, winner)
    kernel.max_forward(block, torch.tensor([[1.0], [2.0], [9.0]]), best, winner)
    assert best.isnan().all()


@pytest.mark.parametrize("shape", SHAPES)
def test_max_autograd(kernel: Kernel, shape: tuple[int, int, int]) -> None:
    if kernel.name == "fused":
        return
    block, _ = block_of(*shape)
    block.src_order = torch.randperm(shape[0], generator=torch.Generator().manual_seed(6)).to(torch.int32)
    leaf = integers(shape[0], 7, torch.float64, 1).div(6, rounding_mode="floor").requires_grad_()
    grad = integers(shape[1], 7, torch.float64, 3)
    result = kernel.max_autograd(block, leaf)
    result.backward(grad)
    best = torch.full((shape[1], 7), -torch.inf, dtype=torch.float64)
    winner = torch.full((shape[1], 7), 2**31 - 1, dtype=torch.int32)
    kernel.max_forward(block, leaf.detach(), best, winner)
    back = torch.empty_like(leaf)
    kernel.max_backward(block, grad, winner, back)
    assert torch.equal(result.detach(), best.masked_fill(winner == 2**31 - 1, 0))
    assert leaf.grad is not None and torch.equal(leaf.grad, back)


def test_block_lists_only_rows_with_edges() -> None:
    block = EdgeBlock(torch.tensor([0, 1, 1], dtype=torch.int32), torch.tensor([2, 2, 5], dtype=torch.int32), 2, 7)
    assert block.dst_rows is not None and block.dst_rows.tolist() == [2, 5]
    assert block.indptr.tolist() == [0, 2, 3] and block.dst_per_edge().tolist() == [2, 2, 5]
    assert block.t_indptr.tolist() == [0, 1, 3] and block.t_dst.tolist() == [2, 2, 5]


def test_choice_and_reasons() -> None:
    cpu = torch.device("cpu")
    assert choose_kernel("auto", "sum", cpu, torch.float32, ["fused", "dgl", "reference"]).name == "fused"
    assert choose_kernel("auto", "sum", cpu, torch.float32, ["dgl", "reference"]).name == "dgl"
    assert choose_kernel("auto", "sum", cpu, torch.float16, ["dgl", "reference"]).name == "reference"
    with pytest.raises(ConfigError, match="no kernel 'fancy'"):
        choose_kernel("fancy", "sum", cpu, torch.float32, ["dgl"])
    with pytest.raises(KernelError) as caught:
        choose_kernel("auto", "convolve", cpu, torch.float16, ["dgl"])
    text = str(caught.value)
    assert "dgl: " in text and "reference: " in text and "convolve" in text and "float16" in text
