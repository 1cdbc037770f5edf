"""Reversible blocks against the same blocks under plain autograd: gradients, rounding over many blocks, and what is kept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sargnn.models.reversible import Half, reversible

ROWS, WIDTH = 40, 6


def halves(depth: int, dtype: torch.dtype) -> list[tuple[Half, Half]]:
    torch.manual_seed(0)
    maps = [nn.Sequential(nn.LayerNorm(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(dtype) for _ in range(2 * depth)]
    both = [Half.of(module, [module]) for module in maps]
    return list(zip(both[::2], both[1::2], strict=True))


def plain(blocks: list[tuple[Half, Half]], rows: Tensor) -> Tensor:
    a, b = rows.chunk(2, 1)
    for f, g in blocks:
        a = a + f.run(b)
        b = b + g.run(a)
    return torch.cat([a, b], 1)


def gradients(out: Tensor, rows: Tensor, blocks: list[tuple[Half, Half]]) -> list[Tensor]:
    wanted = [rows, *(parameter for block in blocks for half in block for parameter in half.parameters)]
    return list(torch.autograd.grad(out.square().mean(), wanted))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 1e-3)])
def test_gradients_of_112_blocks(dtype: torch.dtype, tolerance: float) -> None:
    """Equal to autograd's but for rounding, which grows with the blocks."""
    blocks = halves(112, dtype)
    rows = torch.randn(ROWS, 2 * WIDTH, dtype=dtype, requires_grad=True)
    out, wanted = reversible(blocks, rows), plain(blocks, rows)
    assert torch.equal(out, wanted)
    for own, other in zip(gradients(out, rows, blocks), gradients(wanted, rows, blocks), strict=True):
        assert float((own - other).abs().max()) <= tolerance * float(other.abs().max())


def test_one_table_is_kept() -> None:
    """What autograd holds does not grow with the blocks."""

    def kept(depth: int) -> int:
        total: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            if not isinstance(tensor, nn.Parameter):
                total[tensor.data_ptr()] = tensor.numel()
            return tensor

        blocks, rows = halves(depth, torch.float64), torch.randn(ROWS, 2 * WIDTH, dtype=torch.float64, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            reversible(blocks, rows)
        return sum(total.values())

    assert kept(1) == kept(30) == 2 * ROWS * WIDTH


def test_backward_runs_once() -> None:
    blocks, rows = halves(2, torch.float64), torch.randn(ROWS, 2 * WIDTH, dtype=torch.float64, requires_grad=True)
    loss = reversible(blocks, rows).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError):
        loss.backward()
