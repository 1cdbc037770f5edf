"""Triton's edge operations, in its interpreter or on a GPU, on awkward blocks: no edges, hubs that are cut, any width."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cuda import launch
from sargnn.backends.cuda.device import TritonKernel
from sargnn.backends.cuda.sums import TritonMax
from sargnn.backends.operations import Attention, AttentionGradients, AttentionInputs, RunningSoftmax
from sargnn.backends.torch.reference import ReferenceDot, ReferenceMax
from sargnn.bf16 import wide
from sargnn.rng import Draw, Purpose
from tests.backends.attention_cases import SHAPES as ATTENTIONS
from tests.backends.attention_cases import expected, make, run
from tests.backends.blocks import block_of, integers
from tests.parity.covering import only, spread

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
SHAPES = [(6, 9, 20), (3, 2, 40), (5, 7, 0), (0, 4, 0)]
"""Sources, destinations, edges; of the second one every row is a hub."""
FEW = {(0, torch.float32), (1, torch.float64), (1, torch.bfloat16), (2, torch.float32), (3, torch.float64)}
"""What is not long: of hubs a wide and a narrow type, of other shapes one."""
CLOSE = {torch.float64: 1e-11, torch.float32: 3e-5, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def hubs_of_few_edges() -> Iterator[None]:
    with patch.object(launch, "LONGEST", 3):
        yield


def shapes_with(dtypes: list[torch.dtype]) -> list[Any]:
    """Cases for ``parametrize``."""
    return [
        pytest.param(shape, dtype, marks=() if (number, dtype) in FEW else pytest.mark.long, id=f"{shape}-{dtype}")
        for number, shape in enumerate(SHAPES)
        for dtype in dtypes
    ]


def block_on(device: str, shape: tuple[int, int, int], seed: int = 0) -> tuple[EdgeBlock, Tensor]:
    block, dense = block_of(*shape, seed=seed)
    block.lay(lambda tensor: tensor.to(device))
    return block, dense.to(device)


def close(result: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    """Whole numbers are summed without rounding; bf16 results are rounded once, which the interpreter does its own way."""
    if result.dtype == torch.bfloat16:
        torch.testing.assert_close(result.double(), want.double(), rtol=2**-7, atol=0)
    else:
        assert torch.equal(result, want.to(result.dtype))


@pytest.mark.parametrize(("shape", "dtype"), shapes_with(DTYPES))
def test_sums(device: str, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    operation: Any = TritonKernel().operation("sum")
    block, dense = block_on(device, shape)
    held, edges = wide(dtype), torch.stack([block.dst_per_edge(), block.src.long()])
    for width in (1, 47, 129, 300) if shape == SHAPES[0] and dtype == torch.float32 else (3,):
        src, grad = (integers(n, width, dtype, 1).to(device) for n in shape[:2])
        start, scale = integers(shape[1], width, held, 2).to(device), integers(shape[1], 1, held, 4)[:, 0].to(device)
        weight = integers(shape[2], 1, held, 5)[:, 0].to(device)
        weights = torch.zeros_like(dense).index_put_((edges[0], edges[1]), weight.double(), accumulate=True)
        out, back = start.clone(), torch.full((shape[0], width), torch.nan, dtype=dtype, device=device)
        operation.forward(block, src, out)
        close(out, start + dense @ src.double(), held)
        operation.forward(block, src, out, scale, weight=weight)
        close(out, start + dense @ src.double() + scale[:, None] * (weights @ src.double()), held)
        operation.forward(block, src, out, add=False)
        close(out, dense @ src.double(), held)
        operation.backward(block, grad, back, scale)
        close(back, dense.T @ (scale[:, None] * grad.double()), dtype)
        operation.backward(block, grad, back, weight=weight)
        close(back, weights.T @ grad.double(), dtype)
        total = back.to(held, copy=True)
        operation.backward(block, grad.to(held), total, add=True)
        close(total, back.double() + dense.T @ grad.double(), held)
        of_weights = torch.full((shape[2],), torch.nan, dtype=held, device=device)
        operation.weight_gradient(block, src, grad, of_weights, scale)
        close(of_weights, ((scale[:, None] * grad.double())[edges[0]] * src.double()[edges[1]]).sum(1), held)


@pytest.mark.parametrize(("shape", "dtype"), shapes_with([torch.float64, torch.float32]))
def test_maxima(device: str, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Two blocks that share destinations, many values alike."""
    order = torch.randperm(2 * shape[0], generator=torch.Generator().manual_seed(6)).to(device, torch.int32)
    for width in (1, 33):
        results = []
        for operation in (TritonMax(), ReferenceMax()):
            best = torch.full((shape[1], width), -torch.inf, dtype=dtype, device=device)
            winner = torch.full((shape[1], width), 2**31 - 1, dtype=torch.int32, device=device)
            blocks = [block_on(device, shape, seed=k)[0] for k in range(2)]
            for k, block in enumerate(blocks):
                block.src_id_rank = order[k * shape[0] : (k + 1) * shape[0]]
                src = integers(shape[0], width, dtype, k).div(6, rounding_mode="floor").to(device)
                operation.forward(block, src, best, winner)
            grad, backs = integers(shape[1], width, dtype, 3).to(device), []
            for block in blocks:
                back = torch.full((shape[0], width), torch.nan, dtype=dtype, device=device)
                operation.backward(block, grad, winner, back)
                backs.append(back.clone())
                operation.backward(block, grad, winner, back, add=True)
                backs.append(back)
            results.append([best, winner, *backs])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_what_is_not_a_number_is_not_hidden(device: str) -> None:
    src, dst = (torch.tensor(ends, dtype=torch.int32, device=device) for ends in ([0, 1, 2], [0, 0, 1]))
    block = EdgeBlock(src, dst, 3, 2)
    best = torch.full((2, 1), -torch.inf, device=device)
    winner = torch.full((2, 1), 2**31 - 1, dtype=torch.int32, device=device)
    for values in ([torch.nan, 5.0, torch.nan], [1.0, 2.0, 9.0]):
        TritonMax().forward(block, torch.tensor(values, device=device)[:, None], best, winner)
    assert best.isnan().all()


@pytest.mark.parametrize(
    ("operation", "shape", "heads", "width", "p", "weighted", "dtype"),
    spread(
        ["gat", "gatv2", "dot", "one_table"],
        [
            ("small", 2, 7, 0.4, True, torch.float64),
            ("small", 1, 5, 0.0, False, torch.float32),
            ("small", 1, 16, 0.4, False, torch.bfloat16),
            ("one", 3, 1, 0.4, False, torch.float32),
            ("no_edges", 1, 3, 0.4, False, torch.float32),
            ("no_rows", 1, 3, 0.4, False, torch.float32),
        ],
    ),
)
def test_attention(
    device: str, operation: str, shape: str, heads: int, width: int, p: float, weighted: bool, dtype: torch.dtype
) -> None:
    assert shape in ATTENTIONS
    case = make(shape, heads, width, p, weighted=weighted, one_table=operation == "one_table")
    if dtype == torch.bfloat16:
        for leaf in case.leaves:
            leaf.data = leaf.data.bfloat16().double()
        case.grad = case.grad.bfloat16().double()
    operation = "dot" if operation == "one_table" else operation
    want, wanted = expected(case, operation)
    out, gradients = run(TritonKernel(), case, operation, dtype, [0, 1], device=device)
    assert out.dtype == wide(dtype)
    size = 1 + max((float(w.abs().max()) for w in wanted if w is not None and w.numel()), default=0.0)
    for result, wish in zip([out, *gradients], [want, *wanted], strict=True):
        if result is not None and wish is not None and wish.numel():
            assert (result.double() - wish).abs().max() <= CLOSE[dtype] * size


@pytest.mark.parametrize("wants_edges", only([True], [True, False]))
def test_rows_of_edges(device: str, wants_edges: bool) -> None:
    """Of products, beside the reference."""
    (block, _), heads, width, of_keys, of_edges = block_on(device, (6, 9, 30)), 2, 5, 3, 4
    generator = torch.Generator().manual_seed(1)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(device)

    sources, q = (normal(6, heads * width), normal(6, heads * of_keys)), normal(9, heads * of_keys)
    f, p, d_sums, grad = (
        normal(30, of_edges),
        normal(9, heads * of_edges),
        normal(9, heads * of_edges),
        normal(9, heads * width),
    )
    attention = Attention(heads, draw=Draw(3, 5, Purpose.ATTENTION_DROPOUT, 2, 0.4), factor=0.7)
    results = []
    operations: list[Any] = [TritonKernel().operation("dot"), ReferenceDot()]
    for operation in operations:
        of_sums = torch.zeros_like(p)
        running = RunningSoftmax.empty(grad, 9, heads, torch.zeros_like(grad))
        running = RunningSoftmax(running.out, running.max_score, running.denominator, of_sums)
        operation.forward(block, attention, AttentionInputs(sources, q, edges=(f, p)), running)
        records = operation.destination_records(None, running, grad)
        into = AttentionGradients(
            tuple(torch.empty_like(table) for table in sources),
            torch.zeros_like(q),
            edges=(torch.zeros_like(p), *([torch.empty_like(f)] if wants_edges else [])),
        )
        inputs = AttentionInputs(sources, q, edges=(f, p, d_sums))
        operation.backward(block, attention, inputs, records, grad, into)
        assert into.sources is not None
        results.append([running.out, of_sums, running.denominator, *into.sources, into.destinations, *into.edges])
    for result, want in zip(results[0], results[1], strict=True):
        torch.testing.assert_close(result, want, rtol=1e-11, atol=1e-11)
