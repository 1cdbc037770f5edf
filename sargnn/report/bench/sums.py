"""Sums and means: the compiled kernel against DGL's SpMM, on one graph, interleaved in one process.

Four columns, because they answer different questions:

| column | from the rows to | what it is |
|---|---|---|
| `dgl` | a new tensor | DGL's `copy_u_sum` or `copy_u_mean`, its formats built beforehand |
| `dgl_fold` | an accumulator | the same, then added to it: what a sequential engine built on DGL has to do |
| `fused` | an accumulator | this project's kernel as the engine calls it: folds straight into the destination rows |
| `fused_fresh` | a new tensor | the same into a new tensor, like for like with `dgl` |

Letters: N nodes, E edges, F features.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.cpu.sums import FusedSum
from sargnn.backends.torch.dgl_kernel import whole_graph
from sargnn.backends.torch.dgl_operations import DglSum
from sargnn.interop.dgl import import_dgl
from sargnn.report.bench.report import Row, figure
from sargnn.report.bench.settings import BenchKernelsConfig

COLUMNS = ("dgl", "dgl_fold", "fused", "fused_fresh")


def measure(operation: str, block: EdgeBlock, width: int, config: BenchKernelsConfig) -> Row:
    """One row: medians and quartiles of seconds for each of ``COLUMNS``, and ratios."""
    in_degrees = torch.bincount(block.dst_per_edge(), minlength=block.num_dst)
    dgl, fused, folding = import_dgl(), FusedSum(), DglSum()
    generator = torch.Generator().manual_seed(config.seed)
    rows = torch.randn(block.num_src, width, generator=generator)
    accumulator = torch.zeros(block.num_dst, width)
    graph = whole_graph(block)
    scale = in_degrees.clamp(min=1).float().reciprocal() if operation == "mean" else None
    stock = dgl.ops.copy_u_mean if operation == "mean" else dgl.ops.copy_u_sum

    def fold_dgl() -> Tensor:
        folding.forward(block, rows, accumulator, scale)
        return accumulator

    def fold_fused() -> Tensor:
        fused.forward(block, rows, accumulator, scale)
        return accumulator

    def fresh_fused() -> Tensor:
        out = torch.zeros(block.num_dst, width)
        fused.forward(block, rows, out, scale)
        return out

    calls: dict[str, Callable[[], Tensor]] = {
        "dgl": lambda: stock(graph, rows),
        "dgl_fold": fold_dgl,
        "fused": fold_fused,
        "fused_fresh": fresh_fused,
    }
    torch.testing.assert_close(calls["dgl"](), calls["fused_fresh"](), rtol=1e-4, atol=1e-3)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(config.repeats):
        for name, call in calls.items():
            started = time.perf_counter()
            result = call()
            times[name].append(time.perf_counter() - started)
            del result
    row: Row = {"operation": operation, "width": width}
    for name, seconds in times.items():
        row[name] = figure(seconds)
    row["speedup"] = row["dgl"]["median_s"] / row["fused"]["median_s"]
    row["speedup_fold"] = row["dgl_fold"]["median_s"] / row["fused"]["median_s"]
    row["speedup_fresh"] = row["dgl"]["median_s"] / row["fused_fresh"]["median_s"]
    return row
