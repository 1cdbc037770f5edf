"""The compiled kernel against DGL's SpMM, on one graph, interleaved in one process.

Three columns, because they answer different questions:

| column | from the rows to | what it is |
|---|---|---|
| `dgl` | a new tensor | DGL's `copy_u_sum` or `copy_u_mean`, its formats built beforehand |
| `dgl_fold` | an accumulator | the same, then added to it: what a sequential engine built on DGL has to do |
| `fused` | an accumulator | this project's kernel as the engine calls it: folds straight into the destination rows |
| `fused_fresh` | a new tensor | the same into a new tensor, like for like with `dgl` |

Letters: N nodes, E edges, F features.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sargnn.bench.report import machine, write_plot
from sargnn.config import BenchKernelsConfig
from sargnn.data.dataset import open_dataset
from sargnn.data.prepare import prepare_dataset
from sargnn.interop.dgl import import_dgl
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.dgl import DglKernel, whole_graph
from sargnn.kernels.fused import FusedKernel
from sargnn.partition.order import order_nodes

Row = dict[str, Any]
COLUMNS = ("dgl", "dgl_fold", "fused", "fused_fresh")


def run(config: BenchKernelsConfig) -> tuple[list[Row], Path]:
    """Measure, write ``kernels.json`` and ``kernels.png`` into ``bench_dir``.

    Returns:
        One row per operation and width: medians and quartiles of seconds for each of ``COLUMNS``, and ratios.
    """
    threads = config.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    block = _block(config)
    in_degrees = (block.indptr[1:] - block.indptr[:-1]) if block.dst_rows is None else torch.bincount(
        block.dst_per_edge(), minlength=block.num_dst
    )  # fmt: skip
    rows = [
        _measure(operation, block, in_degrees, width, config) for operation in ("sum", "mean") for width in config.widths
    ]  # fmt: skip
    folder = Path(config.bench_dir)
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "dataset": config.dataset.name, "order": config.order, "nodes": block.num_dst, "edges": block.num_edges,
        "threads": threads, "huge_pages": os.environ.get("THP_MEM_ALLOC_ENABLE") == "1", **machine(),
    }  # fmt: skip
    (folder / "kernels.json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    labels = [f"{row['operation']} {row['width']}" for row in rows]
    series = {name: [row[name]["median_s"] * 1e3 for row in rows] for name in ("dgl", "dgl_fold", "fused")}
    title = f"{config.dataset.name}: {block.num_edges / 1e6:.1f} M edges, {threads} threads"
    write_plot(folder / "kernels.png", labels, series, title=title, y_label="milliseconds, median")
    return rows, folder


def _block(config: BenchKernelsConfig) -> EdgeBlock:
    dataset = open_dataset(prepare_dataset(config.dataset, config.store_dir), verify=False)
    n = dataset.num_nodes
    _, nodes = order_nodes(dataset, np.zeros(n, np.int32), 1, config.order)
    position = np.empty(n, np.int32)
    position[nodes] = np.arange(n, dtype=np.int32)
    destination = position[np.repeat(np.arange(n), np.diff(dataset.indptr))]
    source = position[np.asarray(dataset.indices)]
    order = np.lexsort((source, destination))
    return EdgeBlock(torch.from_numpy(source[order]), torch.from_numpy(destination[order]), n, n)


def _measure(operation: str, block: EdgeBlock, in_degrees: Tensor, width: int, config: BenchKernelsConfig) -> Row:
    dgl, fused = import_dgl(), FusedKernel()
    generator = torch.Generator().manual_seed(config.seed)
    rows = torch.randn(block.num_src, width, generator=generator)
    accumulator = torch.zeros(block.num_dst, width)
    graph = whole_graph(block)
    scale = in_degrees.clamp(min=1).float().reciprocal() if operation == "mean" else None
    stock = dgl.ops.copy_u_mean if operation == "mean" else dgl.ops.copy_u_sum

    def fold_dgl() -> Tensor:
        DglKernel().sum_forward(block, rows, accumulator, scale)
        return accumulator

    def fold_fused() -> Tensor:
        fused.sum_forward(block, rows, accumulator, scale)
        return accumulator

    def fresh_fused() -> Tensor:
        out = torch.zeros(block.num_dst, width)
        fused.sum_forward(block, rows, out, scale)
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
        low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
        row[name] = {"median_s": median(seconds), "quartiles_s": [low, high]}
    row["speedup"] = row["dgl"]["median_s"] / row["fused"]["median_s"]
    row["speedup_fold"] = row["dgl_fold"]["median_s"] / row["fused"]["median_s"]
    row["speedup_fresh"] = row["dgl"]["median_s"] / row["fused_fresh"]["median_s"]
    return row
