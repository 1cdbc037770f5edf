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
@pytest.mark.parametrize("width", [1, 3, 16, 33])
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

    leaf = src.clone().requires_grad_()
    result = kernel.sum_autograd(block, leaf)
    assert torch.equal(result.detach(), matrix @ src)
    result.backward(grad)
    assert leaf.grad is not None and torch.equal(leaf.grad, matrix.T @ grad)


def test_block_lists_only_rows_with_edges() -> None:
    block = EdgeBlock(torch.tensor([0, 1, 1], dtype=torch.int32), torch.tensor([2, 2, 5], dtype=torch.int32), 2, 7)
    assert block.dst_rows is not None and block.dst_rows.tolist() == [2, 5]
    assert block.indptr.tolist() == [0, 2, 3] and block.dst_per_edge().tolist() == [2, 2, 5]
    assert block.t_indptr.tolist() == [0, 1, 3] and block.t_dst.tolist() == [2, 2, 5]


def test_choice_and_reasons() -> None:
    cpu = torch.device("cpu")
    assert choose_kernel("auto", "sum", cpu, torch.float32, ["dgl", "reference"]).name == "dgl"
    assert choose_kernel("auto", "sum", cpu, torch.float16, ["dgl", "reference"]).name == "reference"
    with pytest.raises(ConfigError, match="no kernel 'fancy'"):
        choose_kernel("fancy", "sum", cpu, torch.float32, ["dgl"])
    with pytest.raises(KernelError) as caught:
        choose_kernel("auto", "convolve", cpu, torch.float16, ["dgl"])
    text = str(caught.value)
    assert "dgl: " in text and "reference: " in text and "convolve" in text and "float16" in text
