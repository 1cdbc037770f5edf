"""Every kernel against a dense matrix, on small integers, where sums are exact in any order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sargnn.backends import KERNELS
from sargnn.backends.base import Kernel
from sargnn.backends.block import EdgeBlock
from sargnn.backends.choose import CountedOperation, choose_kernel, make_backend, make_kernel, make_operation
from sargnn.backends.operations import MaxOperation, Operation, SumOperation
from sargnn.errors import ConfigError, KernelError
from sargnn.profile import Profile
from tests.backends.blocks import CPU_KERNELS, SHAPES, block_of, integers


@pytest.fixture(params=CPU_KERNELS)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return make_kernel(request.param)


def sums_of(kernel: Kernel) -> SumOperation:
    operation = kernel.operation("sum")
    assert isinstance(operation, SumOperation)
    return operation


def maxima_of(kernel: Kernel) -> MaxOperation:
    operation = kernel.operation("max")
    assert isinstance(operation, MaxOperation)
    return operation


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 3, 16, 33, 100, 130, 257, 300])
@pytest.mark.parametrize("shape", SHAPES)
def test_sum(kernel: Kernel, shape: tuple[int, int, int], width: int, dtype: torch.dtype) -> None:
    block, dense = block_of(*shape)
    matrix, operation = dense.to(dtype), sums_of(kernel)
    src, start = integers(shape[0], width, dtype, 1), integers(shape[1], width, dtype, 2)
    out = start.clone()
    operation.forward(block, src, out)
    assert torch.equal(out, start + matrix @ src)

    grad = integers(shape[1], width, dtype, 3)
    back = torch.full((shape[0], width), float("nan"), dtype=dtype)
    operation.backward(block, grad, back)
    assert torch.equal(back, matrix.T @ grad)

    scale = integers(shape[1], 1, dtype, 4)[:, 0]
    operation.forward(block, src, out, scale)
    assert torch.equal(out, start + matrix @ src + scale[:, None] * (matrix @ src))
    operation.backward(block, grad, back, scale)
    assert torch.equal(back, matrix.T @ (scale[:, None] * grad))

    total = back.clone()
    operation.backward(block, grad, total, add=True)
    assert torch.equal(total, back + matrix.T @ grad)

    if "sum" not in kernel.autograd_operations:  # never asked: domain_parallel refuses it
        return
    leaf = src.clone().requires_grad_()
    result = kernel.autograd_operation("sum")(block, leaf)
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
        block.src_id_rank = order[k * num_src : (k + 1) * num_src]
        blocks.append(block)
        sources.append(integers(num_src, width, dtype, k).div(6, rounding_mode="floor"))  # -2, -1, 0 or 1
    grad = integers(num_dst, width, dtype, 3)

    want = torch.zeros(num_dst, width, dtype=dtype)
    gradients = [torch.zeros(num_src, width, dtype=dtype) for _ in range(2)]
    edges = [
        (k, int(j), int(i)) for k in range(2) for j, i in zip(blocks[k].src, blocks[k].dst_per_edge(), strict=True)
    ]  # fmt: skip
    for i in range(num_dst):
        incoming = sorted({(int(blocks[k].src_id_rank[j]), k, j) for k, j, to in edges if to == i})
        for f in range(width):
            if incoming:
                _, k, j = max(incoming, key=lambda c: (float(sources[c[1]][c[2], f]), -c[0]))
                want[i, f] = sources[k][j, f]
                gradients[k][j, f] += grad[i, f]

    operation = maxima_of(kernel)
    for sequence in ([0, 1], [1, 0]):
        best = torch.full((num_dst, width), -torch.inf, dtype=dtype)
        winner = torch.full((num_dst, width), 2**31 - 1, dtype=torch.int32)
        for k in sequence:
            operation.forward(blocks[k], sources[k], best, winner)
        assert torch.equal(best.masked_fill(winner == 2**31 - 1, 0), want)
        for k in range(2):
            back = torch.full((num_src, width), float("nan"), dtype=dtype)
            operation.backward(blocks[k], grad, winner, back)
            assert torch.equal(back, gradients[k])


@pytest.mark.parametrize("name", ["fused", "reference"])
def test_max_does_not_hide_what_is_not_a_number(name: str) -> None:
    """DGL's own maximum does."""
    operation = maxima_of(make_kernel(name))
    edges = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([0, 0, 1], dtype=torch.int32)
    block = EdgeBlock(*edges, 3, 2)
    best, winner = torch.full((2, 1), -torch.inf), torch.full((2, 1), 2**31 - 1, dtype=torch.int32)
    operation.forward(block, torch.tensor([[torch.nan], [5.0], [torch.nan]]), best, winner)
    operation.forward(block, torch.tensor([[1.0], [2.0], [9.0]]), best, winner)
    assert best.isnan().all()


@pytest.mark.parametrize("shape", SHAPES)
def test_max_autograd(kernel: Kernel, shape: tuple[int, int, int]) -> None:
    if "max" not in kernel.autograd_operations:
        return
    operation = maxima_of(kernel)
    block, _ = block_of(*shape)
    block.src_id_rank = torch.randperm(shape[0], generator=torch.Generator().manual_seed(6)).to(torch.int32)
    leaf = integers(shape[0], 7, torch.float64, 1).div(6, rounding_mode="floor").requires_grad_()
    grad = integers(shape[1], 7, torch.float64, 3)
    result = kernel.autograd_operation("max")(block, leaf)
    result.backward(grad)
    best = torch.full((shape[1], 7), -torch.inf, dtype=torch.float64)
    winner = torch.full((shape[1], 7), 2**31 - 1, dtype=torch.int32)
    operation.forward(block, leaf.detach(), best, winner)
    back = torch.empty_like(leaf)
    operation.backward(block, grad, winner, back)
    assert torch.equal(result.detach(), best.masked_fill(winner == 2**31 - 1, 0))
    assert leaf.grad is not None and torch.equal(leaf.grad, back)


def test_block_lists_only_rows_with_edges() -> None:
    block = EdgeBlock(torch.tensor([0, 1, 1], dtype=torch.int32), torch.tensor([2, 2, 5], dtype=torch.int32), 2, 7)
    assert block.dst_rows is not None and block.dst_rows.tolist() == [2, 5]
    assert block.indptr.tolist() == [0, 2, 3] and block.dst_per_edge().tolist() == [2, 2, 5]
    assert block.t_indptr.tolist() == [0, 1, 3] and block.t_dst.tolist() == [2, 2, 5]


def choose(
    kernel: str, operation: str, dtype: torch.dtype = torch.float32, *, autograd: bool = False, recording: bool = False
) -> Any:
    profile = Profile(recording=recording)
    chosen = choose_kernel(kernel, operation, torch.device("cpu"), dtype, autograd=autograd)
    return make_operation(chosen, operation, profile=profile, autograd=autograd)


PLACES = {
    "fused": "sargnn.backends.cpu.",
    "triton": "sargnn.backends.cuda.",
    "dgl": "sargnn.backends.torch.dgl_",
    "reference": "sargnn.backends.torch.reference",
}


@pytest.mark.parametrize("operation", ["sum", "max", "gat", "gatv2", "dot"])
@pytest.mark.parametrize("name", KERNELS)
def test_every_operation_of_every_kernel_is_chosen(name: str, operation: str) -> None:
    found = choose(name, operation)
    assert isinstance(found, Operation) and type(found).__module__.startswith(PLACES[name])
    assert operation in type(found).__name__.lower()
    assert isinstance(choose(name, operation, recording=True), CountedOperation)
    if make_kernel(name).autograd_operations:
        differentiable = choose(name, operation, autograd=True, recording=True)
        assert differentiable.__module__.startswith(PLACES[name]) and differentiable.__name__ == f"{operation}_autograd"


def test_auto_takes_the_first_kernel_that_can_serve() -> None:
    assert type(choose("auto", "sum")) is type(choose("fused", "sum"))
    assert type(choose("auto", "sum", torch.float16)) is type(choose("reference", "sum"))
    assert choose("auto", "sum", autograd=True) is choose("dgl", "sum", autograd=True)
    assert choose("auto", "sum", torch.float16, autograd=True) is choose("reference", "sum", autograd=True)


def test_reasons_of_each_kernel() -> None:
    with pytest.raises(ConfigError, match="no kernel 'fancy'"):
        choose("fancy", "sum")
    with pytest.raises(KernelError) as caught:
        choose("auto", "convolve", torch.float16)
    text = str(caught.value)
    assert all(f"{name}: " in text for name in KERNELS) and text.count("has no operation 'convolve'") == len(KERNELS)
    assert "float16" in text
    with pytest.raises(KernelError, match="use one_shot") as caught:
        choose("fused", "sum", autograd=True)
    assert str(caught.value).splitlines()[-1].strip() == "allowed: auto, dgl, reference"


HALVED = """
from sargnn.backends.base import Kernel
from sargnn.backends.operations import SumOperation
from sargnn.backends.torch.reference import ReferenceSum, sum_autograd
import torch

class Halved(SumOperation):
    def forward(self, block, src, out, scale=None):
        ReferenceSum().forward(block, src / 2, out, scale)

    def backward(self, block, grad, out, scale=None, *, add=False):
        ReferenceSum().backward(block, grad / 2, out, scale, add=add)

class HalvedKernel(Kernel):
    name = "halved"
    operations = {"sum": Halved}
    autograd_operations = {"sum": lambda block, src: sum_autograd(block, src / 2)}

    def unavailable_reasons(self, device, dtype):
        return [] if dtype == torch.float64 else [f"it knows fp64, not {dtype}"]
"""


def test_a_kernel_in_a_file_holds_its_operations_itself(tmp_path: Path) -> None:
    file = tmp_path / "halved.py"
    file.write_text(HALVED)
    target = f"{file}:HalvedKernel"
    src = torch.tensor([[2.0], [6.0]], dtype=torch.float64)
    block = EdgeBlock(torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0, 0], dtype=torch.int32), 2, 2)
    for recording in (False, True):
        out = torch.zeros(2, 1, dtype=torch.float64)
        choose(target, "sum", torch.float64, recording=recording).forward(block, src, out)
        assert out.tolist() == [[4.0], [0.0]]
    assert choose(target, "sum", torch.float64, autograd=True)(block, src).tolist() == [[4.0], [0.0]]
    with pytest.raises(KernelError, match="it knows fp64, not torch.float32"):
        choose(target, "sum")
    with pytest.raises(KernelError, match="has no operation 'max'"):
        choose(target, "max", torch.float64)


def test_a_kernel_with_a_backend_says_why_it_cannot_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(KernelError, match="kernel=triton cannot run: .*it runs on a GPU, not on cpu"):
        make_backend("triton", torch.device("cpu"))
