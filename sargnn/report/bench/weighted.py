"""Sums with edge weights beside sums without, and DGL's, forward and backward together, interleaved in one process.

| column | what it is |
|---|---|
| `sum` | this project's kernel as the engine calls it: folded into destination rows, and their gradient sent to the sources |
| `weighted` | the same with the graph's edge weights |
| `dgl` | DGL's `u_mul_e_sum` with the weights, under autograd, into new tensors |

Letters: N nodes, E edges, F features.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.sums import FusedSum
from sargnn.backends.torch.dgl_operations import sum_autograd
from sargnn.graph.edge_columns import NO_COLUMNS, WEIGHT, EdgeColumns
from sargnn.report.bench.report import Row, figure
from sargnn.report.bench.settings import BenchKernelsConfig

COLUMNS = ("sum", "weighted", "dgl")


def measure(block: EdgeBlock, width: int, config: BenchKernelsConfig) -> Row:
    """One row: medians and quartiles of seconds for each of ``COLUMNS``.

    ``ratio``: the median over the repeats of the seconds with weights over those without. ``speedup``: DGL's median over ours.
    """
    generator = torch.Generator().manual_seed(config.seed)
    block.columns = EdgeColumns.of({WEIGHT: torch.rand(block.num_edges, generator=generator)})
    block.__dict__.pop("t_weight", None)
    rows, grad = (torch.randn(n, width, generator=generator) for n in (block.num_src, block.num_dst))
    out, d_rows, fused = torch.zeros(block.num_dst, width), torch.empty(block.num_src, width), FusedSum()

    def ours(weight: Tensor | None) -> None:
        fused.forward(block, rows, out, weight=weight)
        fused.backward(block, grad, d_rows, weight=weight)

    def stock() -> Tensor:
        leaf = rows.detach().requires_grad_()
        sum_autograd(block, leaf, block.weight).backward(grad)
        assert leaf.grad is not None
        return leaf.grad

    calls: dict[str, Callable[[], object]] = {"sum": lambda: ours(None), "weighted": lambda: ours(block.weight), "dgl": stock}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(config.repeats + 1):  # the first one makes what is made on first use
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if repeat:
                times[name].append(time.perf_counter() - started)
    ours(block.weight)
    torch.testing.assert_close(d_rows, stock(), rtol=1e-4, atol=1e-3)
    row: Row = {"operation": "weighted", "width": width, **{name: figure(seconds) for name, seconds in times.items()}}
    pairs = sorted(with_weights / other for with_weights, other in zip(times["weighted"], times["sum"], strict=True))
    row["ratio"] = pairs[len(pairs) // 2]
    row["speedup"] = row["dgl"]["median_s"] / row["weighted"]["median_s"]
    block.columns = NO_COLUMNS
    return row
