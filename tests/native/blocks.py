"""Calls of the library's sums, without a graph: edges at random, and the same with dense matrices."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sargnn.backends.cpu.sums import _edge_dots, _sums
from sargnn.native import Edges, Entry


def random_edges(rows: int, sources: int, count: int, chunks: int = 4, seed: int = 0) -> Edges:
    """`count` edges of `rows` destinations, some of which have none, cut into chunks of rows."""
    draw = np.random.default_rng(seed)
    ends = np.sort(draw.integers(0, rows, count))
    offsets = np.searchsorted(ends, np.arange(rows + 1)).astype(np.int32)
    bounds = np.unique(np.linspace(0, rows, chunks + 1).astype(np.int64))
    return Edges(bounds, None, offsets, draw.integers(0, sources, count).astype(np.int32))


def matrix(edges: Edges, sources: int, weight: Tensor | None = None) -> Tensor:
    """[M, S], fp64: how often each source is added to each destination, or by which factors."""
    _, _, offsets, others = edges.arrays
    out = torch.zeros(len(offsets) - 1, sources, dtype=torch.float64)
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    values = torch.ones(len(others), dtype=torch.float64) if weight is None else weight.double()
    return out.index_put_((torch.from_numpy(rows), torch.from_numpy(others).long()), values, accumulate=True)


def sum_rows(edges: Edges, src: Tensor | list[Tensor], weight: Tensor | None = None, of: str | None = None) -> Tensor:
    """Sums of source rows, [M, F], with the library of this name."""
    first = src if isinstance(src, Tensor) else src[0]
    out = torch.empty(len(edges.arrays[2]) - 1, first.shape[1], dtype=first.dtype)
    Entry(_sums.name, *_sums.declared, of=of)(edges, src, None, None, weight, None, out, None, False)
    return out


def dot_rows(edges: Edges, src: Tensor | list[Tensor], grad: Tensor, of: str | None = None) -> Tensor:
    """Products of each edge's rows, [E]."""
    out = torch.empty(edges.count, dtype=torch.float32 if grad.dtype == torch.bfloat16 else grad.dtype)
    Entry(_edge_dots.name, *_edge_dots.declared, of=of)(edges, src, grad, None, out)
    return out
