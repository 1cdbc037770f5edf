"""A CPU with tiles for bf16 (AMX) where there is none: what they multiply, PyTorch multiplies in fp32, of rounded entries."""

from __future__ import annotations

import pytest
from torch import Tensor

from sargnn.backends.cpu import rows, tile_products
from sargnn.cpu import has_tiles


def rounded(x: Tensor) -> Tensor:
    return x.detach().bfloat16().float()


def multiply(x: Tensor, w: Tensor, out: Tensor, bias: Tensor | None = None, *, add: bool = False) -> float:
    product = rounded(x) @ rounded(w) + (0 if bias is None else bias.detach())
    out.copy_(out + product if add else product)
    return 2.0 * len(x) * x.shape[1] * w.shape[1]


def sum_of_products(x: Tensor, g: Tensor) -> Tensor:
    assert x.dtype == g.dtype
    return rounded(x).T @ rounded(g)


def emulate_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products on tiles are taken as above; on a CPU that has tiles, by those."""
    if has_tiles():
        return
    monkeypatch.setattr(rows, "has_tiles", lambda: True)
    monkeypatch.setattr(tile_products, "multiply", multiply)
    monkeypatch.setattr(tile_products, "sum_of_products", sum_of_products)
