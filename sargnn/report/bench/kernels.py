"""The compiled kernel against DGL's operators, on one graph, interleaved in one process."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sargnn.backends.block import EdgeBlock
from sargnn.errors import ConfigError
from sargnn.graph.dataset import open_dataset
from sargnn.partition.order import order_nodes
from sargnn.report.bench import attention, norms, sums, weighted
from sargnn.report.bench.report import Row, machine, write_plot
from sargnn.report.bench.settings import BenchKernelsConfig
from sargnn.sources.prepare import prepare_dataset
from sargnn.tracking.memory import return_freed_memory


@dataclass(frozen=True)
class Results:
    """Attributes:
    sums, weighted, attention, norms: rows of ``measure`` in the modules of ``bench`` that are called so.
    folder: where they were written.
    """

    sums: list[Row]
    weighted: list[Row]
    attention: list[Row]
    norms: list[Row]
    folder: Path


def run(config: BenchKernelsConfig) -> Results:
    """Measure; write ``kernels.json``, and ``kernels.png`` or ``attention.png`` for what was measured, into ``bench_dir``."""
    threads = config.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    return_freed_memory()
    block = _block(config)
    folder = Path(config.bench_dir)
    folder.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {
        "dataset": config.dataset.name,
        "order": config.order,
        "nodes": block.num_dst,
        "edges": block.num_edges,
        "threads": threads,
        "huge_pages": os.environ.get("THP_MEM_ALLOC_ENABLE") == "1",
        "copy_bytes_per_s": _copy_bandwidth(),
        **machine(),
    }
    title = f"{config.dataset.name}: {block.num_edges / 1e6:.1f} M edges, {threads} threads"
    operations = [name for name in config.operations if name in ("sum", "mean")]
    rows = [sums.measure(operation, block, width, config) for operation in operations for width in config.widths]
    weighed = [weighted.measure(block, width, config) for width in config.widths if "weighted" in config.operations]
    attended = [attention.measure(block, heads, config) for heads in config.heads] if "gat" in config.operations else []
    normed = [norms.measure(block.num_dst, width, config) for width in config.widths if "norm" in config.operations]
    content = {"about": about, "rows": rows, "weighted": weighed, "attention": attended, "norms": normed}
    (folder / "kernels.json").write_text(json.dumps(content, indent=1) + "\n")
    if rows:
        labels = [f"{row['operation']} {row['width']}" for row in rows]
        series = {name: [row[name]["median_s"] * 1e3 for row in rows] for name in ("dgl", "dgl_fold", "fused")}
        write_plot(folder / "kernels.png", labels, series, title=title, y_label="milliseconds, median")
    if attended:
        attention.plot(folder / "attention.png", attended, title)
    return Results(rows, weighed, attended, normed, folder)


def _block(config: BenchKernelsConfig) -> EdgeBlock:
    dataset = open_dataset(prepare_dataset(config.dataset, config.store_dir), verify=False)
    if dataset.schema.typed:
        raise ConfigError("Kernels are measured on homogeneous graphs.", hint="dataset.homogenize=true drops the types")
    n = dataset.num_nodes
    _, nodes = order_nodes(dataset, np.zeros(n, np.int32), 1, config.order)
    position = np.empty(n, np.int32)
    position[nodes] = np.arange(n, dtype=np.int32)
    destination = position[np.repeat(np.arange(n), np.diff(dataset.indptr))]
    source = position[np.asarray(dataset.indices)]
    order = np.lexsort((source, destination))
    return EdgeBlock(torch.from_numpy(source[order]), torch.from_numpy(destination[order]), n, n)


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
