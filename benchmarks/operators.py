"""The compiled kernel against DGL's and PyTorch's operators, on one graph, interleaved in one process.

Without DGL its columns are those of PyTorch's operators (``kernel=reference``); ``about`` names whose they are.

Letters: N nodes, E edges, F features.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import attention
from benchmarks.figures import Row, figure, stock_kernel, write_bars
from benchmarks.kernels import BenchKernelsConfig
from sargnn.backends.block import EdgeBlock
from sargnn.backends.choose import make_kernel
from sargnn.backends.memory import Pool
from sargnn.comm.group import Group
from sargnn.engine.norm import DistributedBatchNorm
from sargnn.engine.row_norm import LayerNorm, RowNorm
from sargnn.engine.workspace import Workspace
from sargnn.graph.edge_columns import NO_COLUMNS, WEIGHT, EdgeColumns
from sargnn.native import set_threads
from sargnn.report.bench.gpu import whole_block
from sargnn.report.bench.settings import machine
from sargnn.rng import Draw, Purpose
from sargnn.tracking.memory import return_freed_memory

DROPOUT = 0.5


def run(config: BenchKernelsConfig) -> dict[str, list[Row]]:
    """Measure; write ``kernels.json``, and ``kernels.png`` or ``attention.png`` for what was measured, into ``bench_dir``.

    Returns:
        A row for each operation and width: ``rows`` of sums and means, ``weighted``, ``attention``, ``norms``.
    """
    threads = config.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    set_threads(threads)
    return_freed_memory()
    block = whole_block(config.dataset, config.store_dir, config.order)
    folder = Path(config.bench_dir)
    folder.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {
        "dataset": config.dataset.name,
        "order": config.order,
        "nodes": block.num_dst,
        "edges": block.num_edges,
        "stock": stock_kernel(),
        "threads": threads,
        "huge_pages": os.environ.get("THP_MEM_ALLOC_ENABLE") == "1",
        "copy_bytes_per_s": _copy_bandwidth(),
        **machine(),
    }
    title = f"{config.dataset.name}: {block.num_edges / 1e6:.1f} M edges, {threads} threads"
    operations = [name for name in config.operations if name in ("sum", "mean")]
    rows = [measure_sums(operation, block, width, config) for operation in operations for width in config.widths]
    weighed = [measure_weighted(block, width, config) for width in config.widths if "weighted" in config.operations]
    attended = [attention.measure(block, heads, config) for heads in config.heads] if "gat" in config.operations else []
    normed = [measure_norms(block.num_dst, width, config) for width in config.widths if "norm" in config.operations]
    results = {"rows": rows, "weighted": weighed, "attention": attended, "norms": normed}
    (folder / "kernels.json").write_text(json.dumps({"about": about, **results}, indent=1) + "\n")
    if rows:
        labels = [f"{row['operation']} {row['width']}" for row in rows]
        series = {name: [row[name]["median_s"] * 1e3 for row in rows] for name in ("stock", "stock_fold", "fused")}
        write_bars(folder / "kernels.png", labels, {"milliseconds, median": series}, title=title)
    if attended:
        attention.plot(folder / "attention.png", attended, title)
    return results


def _copy_bandwidth() -> float:
    """Bytes per second, read and written, of copying 256 MB in memory; the best of five."""
    source = torch.ones(1 << 26)
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(5):
        started = time.perf_counter()
        target.copy_(source)
        best = max(best, 2 * source.numel() * 4 / (time.perf_counter() - started))
    return best


def _measure(
    repeats: int, calls: Mapping[str, Callable[[], object]], reset: Callable[[], object] = lambda: None
) -> dict[str, list[float]]:
    """Seconds of each call, in turns; a first turn makes what is made on first use, and is not counted.

    Args:
        reset: done before each call, outside of its time.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            reset()
            started = time.perf_counter()
            result = call()
            if repeat:
                times[name].append(time.perf_counter() - started)
            del result
    return times


def _row(operation: str, width: int, times: dict[str, list[float]]) -> Row:
    return {"operation": operation, "width": width, **{name: figure(seconds) for name, seconds in times.items()}}


def _median_ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    """The median over the repeats of one call's seconds over another's."""
    ratios = sorted(own / other for own, other in zip(times[name], times[base], strict=True))
    return ratios[len(ratios) // 2]


def measure_sums(operation: str, block: EdgeBlock, width: int, config: BenchKernelsConfig) -> Row:
    """Sums or means: medians and quartiles of seconds for each column, and ratios. The columns answer different questions:

    | column | from the rows to | what it is |
    |---|---|---|
    | `stock` | a new tensor | DGL's `copy_u_sum`, divided for means, its formats built beforehand; or PyTorch's `index_add` |
    | `stock_fold` | an accumulator | the same, then added to it: what a sequential engine built on DGL has to do |
    | `fused` | an accumulator | this project's kernel as the engine calls it: folds straight into the destination rows |
    | `fused_fresh` | a new tensor | the same into a new tensor, like for like with `stock` |
    """
    in_degrees = torch.bincount(block.dst_per_edge(), minlength=block.num_dst)
    fused, folding = (make_kernel(name).operation("sum") for name in ("fused", stock_kernel()))
    stock_sum = make_kernel(stock_kernel()).autograd_operation("sum")
    generator = torch.Generator().manual_seed(config.seed)
    rows = torch.randn(block.num_src, width, generator=generator)
    accumulator = torch.zeros(block.num_dst, width)
    scale = in_degrees.clamp(min=1).float().reciprocal() if operation == "mean" else None

    def stock() -> Tensor:
        out = stock_sum(block, rows)
        return out if scale is None else out.mul_(scale[:, None])

    def fresh_fused() -> Tensor:
        out = torch.zeros(block.num_dst, width)
        fused.forward(block, rows, out, scale)
        return out

    torch.testing.assert_close(stock(), fresh_fused(), rtol=1e-4, atol=1e-3)
    times = _measure(
        config.repeats,
        {
            "stock": stock,
            "stock_fold": lambda: folding.forward(block, rows, accumulator, scale),
            "fused": lambda: fused.forward(block, rows, accumulator, scale),
            "fused_fresh": fresh_fused,
        },
    )
    row = _row(operation, width, times)
    row["speedup"] = row["stock"]["median_s"] / row["fused"]["median_s"]
    row["speedup_fold"] = row["stock_fold"]["median_s"] / row["fused"]["median_s"]
    row["speedup_fresh"] = row["stock"]["median_s"] / row["fused_fresh"]["median_s"]
    return row


def measure_weighted(block: EdgeBlock, width: int, config: BenchKernelsConfig) -> Row:
    """Sums with edge weights, forward and backward together: medians and quartiles of seconds for each column.

    | column | what it is |
    |---|---|
    | `sum` | this project's kernel as the engine calls it: folded into destination rows, their gradient sent to sources |
    | `weighted` | the same with the graph's edge weights |
    | `stock` | DGL's `u_mul_e_sum` with the weights, or PyTorch's, under autograd, into new tensors |

    ``ratio``: the median over the repeats of the seconds with weights over those without. ``speedup``: stock median over ours.
    """
    generator = torch.Generator().manual_seed(config.seed)
    block.columns = EdgeColumns.of({WEIGHT: torch.rand(block.num_edges, generator=generator)})
    block.__dict__.pop("t_weight", None)
    rows, grad = (torch.randn(n, width, generator=generator) for n in (block.num_src, block.num_dst))
    out, d_rows = torch.zeros(block.num_dst, width), torch.empty(block.num_src, width)
    fused, stock_sum = make_kernel("fused").operation("sum"), make_kernel(stock_kernel()).autograd_operation("sum")

    def ours(weight: Tensor | None) -> None:
        fused.forward(block, rows, out, weight=weight)
        fused.backward(block, grad, d_rows, weight=weight)

    def stock() -> Tensor:
        leaf = rows.detach().requires_grad_()
        stock_sum(block, leaf, block.weight).backward(grad)
        assert leaf.grad is not None
        return leaf.grad

    calls: dict[str, Callable[[], object]] = {"sum": lambda: ours(None), "weighted": lambda: ours(block.weight), "stock": stock}
    times = _measure(config.repeats, calls)
    ours(block.weight)
    torch.testing.assert_close(d_rows, stock(), rtol=1e-4, atol=1e-3)
    row = _row("weighted", width, times)
    row["ratio"] = _median_ratio(times, "weighted", "sum")
    row["speedup"] = row["stock"]["median_s"] / row["weighted"]["median_s"]
    block.columns = NO_COLUMNS
    return row


def measure_norms(nodes: int, width: int, config: BenchKernelsConfig) -> Row:
    """Norm, ReLU and dropout between two layers, forward and backward together, in training: medians, quartiles, ratios.

    ``batch`` and ``layer`` norm in one process, as a model's stack calls them, and the same of PyTorch (``batch_torch``,
    ``layer_torch``), whose dropout draws other numbers. ``layer_ratio``: the median over the repeats of layer norm's seconds
    over batch norm's.
    """
    generator = torch.Generator().manual_seed(config.seed)
    x, grad = (torch.randn(nodes, width, generator=generator) for _ in range(2))
    x.requires_grad_()
    group, ids, draw = Group.single(), torch.arange(nodes), Draw(config.seed, 0, Purpose.DROPOUT, 0, DROPOUT)
    work = Workspace(Pool(enabled=True), group.profile)

    def ours(norm: RowNorm) -> Callable[[], object]:
        return lambda: norm.fused(work, x, group, "relu", ids, draw).backward(grad)

    def stock(norm: nn.Module) -> Callable[[], object]:
        return lambda: F.dropout(torch.relu(norm(x)), DROPOUT).backward(grad)

    times = _measure(
        config.repeats,
        {
            "batch": ours(DistributedBatchNorm(width)),
            "layer": ours(LayerNorm(width)),
            "batch_torch": stock(nn.BatchNorm1d(width)),
            "layer_torch": stock(nn.LayerNorm(width)),
        },
        reset=lambda: setattr(x, "grad", None),
    )
    row = _row("norm", width, times)
    row["layer_ratio"] = _median_ratio(times, "layer", "batch")
    for name in ("batch", "layer"):
        row[f"{name}_speedup"] = row[f"{name}_torch"]["median_s"] / row[name]["median_s"]
    return row
