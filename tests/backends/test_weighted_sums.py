"""Sums with a weight for each edge, of every kernel, against a dense matrix; on small integers, where sums are exact."""

from __future__ import annotations

import pytest
import torch

from sargnn.backends.choose import make_kernel, make_operation
from sargnn.backends.operations import ScaledSumOperation, WeightedSumOperation
from sargnn.graph.edge_columns import EdgeColumns
from sargnn.profile import AGGREGATION, REST, Profile
from tests.backends.blocks import CPU_KERNELS, SHAPES, block_of, integers
from tests.parity.covering import spread


def sums_of(name: str) -> WeightedSumOperation:
    operation = make_kernel(name).operation("sum")
    assert isinstance(operation, WeightedSumOperation) and operation.takes_weights
    return operation


@pytest.mark.parametrize(
    ("name", "number", "width", "dtype", "own"),
    spread(
        CPU_KERNELS,
        range(len(SHAPES)),
        [1, 3, 16, 33, 130, 257, 300],
        [torch.float32, torch.float64],
        [False, True],
        strength=2,
    ),
)
def test_weighted_sum(name: str, number: int, width: int, dtype: torch.dtype, own: bool) -> None:
    """Weights of either sign and 0. ``own``: they are the block's, which it also has in the order of its sources."""
    num_src, num_dst, num_edges = shape = SHAPES[number]
    block, _ = block_of(*shape)
    weight = integers(num_edges, 1, dtype, 5)[:, 0]
    block.columns = EdgeColumns.of({"weight": weight if own else None})
    ends = block.dst_per_edge(), block.src.long()
    matrix = torch.zeros(num_dst, num_src, dtype=dtype).index_put_(ends, weight, accumulate=True)
    src, start, grad = (integers(n, width, dtype, seed) for seed, n in enumerate((num_src, num_dst, num_dst), 1))
    scale = integers(num_dst, 1, dtype, 4)[:, 0]
    operation = sums_of(name)
    for factors, factor in ((None, torch.ones(num_dst, 1, dtype=dtype)), (scale, scale[:, None])):
        out = start.clone()
        operation.forward(block, src, out, factors, weight=weight)
        assert torch.equal(out, start + factor * (matrix @ src))
        back = torch.full((num_src, width), float("nan"), dtype=dtype)
        operation.backward(block, grad, back, factors, weight=weight)
        assert torch.equal(back, matrix.T @ (factor * grad))
        d_weight = torch.full((num_edges,), float("nan"), dtype=dtype)
        operation.weight_gradient(block, src, grad, d_weight, factors)
        assert torch.equal(d_weight, ((factor * grad)[ends[0]] * src[ends[1]]).sum(1))
    total = back.clone()
    operation.backward(block, grad, total, add=True, weight=weight)
    assert torch.equal(total, back + matrix.T @ grad)

    kernel = make_kernel(name)
    if "sum" not in kernel.autograd_operations:
        return
    leaves = src.clone().requires_grad_(), weight.clone().requires_grad_()
    result = kernel.autograd_operation("sum")(block, *leaves)
    assert torch.equal(result.detach(), matrix @ src)
    result.backward(grad)
    assert leaves[0].grad is not None and torch.equal(leaves[0].grad, matrix.T @ grad)
    assert leaves[1].grad is not None and torch.equal(leaves[1].grad, (grad[ends[0]] * src[ends[1]]).sum(1))


def test_places_of_edges_by_source() -> None:
    block, _ = block_of(40, 30, 200)
    assert block.t_edge.dtype == torch.int32
    assert torch.equal(block.dst_per_edge()[block.t_edge.long()].to(torch.int32), block.t_dst)
    assert torch.equal(block.src[block.t_edge.long()], block.src.sort().values)


def test_weighted_sums_are_counted() -> None:
    profile = Profile(recording=True)
    operation = make_operation(make_kernel("reference"), "sum", profile=profile)
    assert operation.takes_weights
    block, _ = block_of(6, 9, 20)
    src, out, weight = torch.ones(6, 4), torch.zeros(9, 4), torch.ones(20)
    with profile.span(REST):
        operation.forward(block, src, out, weight=weight)
    forward = profile.done[AGGREGATION]
    assert forward == (20 + 2 * block.num_listed) * 4 * 4
    with profile.span(REST):
        operation.weight_gradient(block, src, out, torch.empty(20))
    assert profile.done[AGGREGATION] - forward == (20 + block.num_listed) * 4 * 4


@pytest.mark.parametrize(
    ("name", "number", "blocks", "part", "dtype"),
    spread(CPU_KERNELS, range(len(SHAPES)), [1, 7, 8, 19], [1, 5, 16, 33], [torch.float32, torch.float64], strength=2),
)
def test_scaled_sum(name: str, number: int, blocks: int, part: int, dtype: torch.dtype) -> None:
    """Rows times a vector of each edge's kind, of which one has no edge."""
    num_src, num_dst, num_edges = shape = SHAPES[number]
    block, _ = block_of(*shape)
    kinds = torch.randint(3, (num_edges,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    w, width = integers(4, part, dtype, 2), blocks * part
    z, start, grad = (integers(n, width, dtype, seed) for seed, n in enumerate((num_src, num_dst, num_dst), 3))
    operation = make_kernel(name).operation("scaled_sum")
    assert isinstance(operation, ScaledSumOperation)
    given = [tensor.clone().requires_grad_() for tensor in (z, w)]
    messages = given[0].view(num_src, blocks, part)[block.src.long()] * given[1][kinds.long()][:, None]
    wanted = start.index_add(0, block.dst_per_edge(), messages.reshape(num_edges, width))
    d_z, d_w = torch.autograd.grad(wanted, given, grad, allow_unused=True)
    out = start.clone()
    operation.forward(block, z, w, kinds, out)
    assert torch.equal(out, wanted.detach())
    back, of_kinds = torch.full_like(z, float("nan")), torch.ones_like(w)
    operation.backward(block, z, w, kinds, grad, back, of_kinds)
    assert torch.equal(back, d_z) and torch.equal(of_kinds, 1 + d_w)
    total = back.clone()
    operation.backward(block, z, w, kinds, grad, total, of_kinds, add=True)
    assert torch.equal(total, 2 * d_z)
    operation.backward(block, z, w, kinds, grad, None, of_kinds)
    assert torch.equal(of_kinds, 1 + 3 * d_w)
    if (kernel := make_kernel(name)).autograd_operations.get("scaled_sum"):
        assert torch.equal(kernel.autograd_operation("scaled_sum")(block, z, w, kinds), (wanted - start).detach())
