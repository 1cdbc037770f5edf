"""Norm, ReLU and dropout between two layers: this project's compiled passes beside PyTorch's operators, interleaved.

Four columns, forward and backward together, in training: ``batch`` and ``layer`` norm in one process, as a model's stack calls
them, and the same of PyTorch (``batch_torch``, ``layer_torch``), whose dropout draws other numbers.

Letters: N nodes, F features.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sargnn.backends.memory import Pool
from sargnn.comm.group import Group
from sargnn.engine.norm import DistributedBatchNorm
from sargnn.engine.row_norm import LayerNorm, RowNorm
from sargnn.engine.workspace import Workspace
from sargnn.report.bench.report import Row, figure
from sargnn.report.bench.settings import BenchKernelsConfig
from sargnn.rng import Draw, Purpose

COLUMNS = ("batch", "layer", "batch_torch", "layer_torch")
DROPOUT = 0.5


def measure(nodes: int, width: int, config: BenchKernelsConfig) -> Row:
    """One row: medians and quartiles of seconds for each of ``COLUMNS``, and ratios of medians.

    ``layer_ratio``: the median over the repeats of layer norm's seconds over batch norm's.
    """
    generator = torch.Generator().manual_seed(config.seed)
    x, grad = (torch.randn(nodes, width, generator=generator) for _ in range(2))
    x.requires_grad_()
    group, ids, draw = Group.single(), torch.arange(nodes), Draw(config.seed, 0, Purpose.DROPOUT, 0, DROPOUT)
    work = Workspace(Pool(enabled=True), group.profile)

    def ours(norm: RowNorm) -> Callable[[], Tensor]:
        return lambda: norm.fused(work, x, group, "relu", ids, draw)

    def stock(norm: nn.Module) -> Callable[[], Tensor]:
        return lambda: F.dropout(torch.relu(norm(x)), DROPOUT)

    calls = {
        "batch": ours(DistributedBatchNorm(width)),
        "layer": ours(LayerNorm(width)),
        "batch_torch": stock(nn.BatchNorm1d(width)),
        "layer_torch": stock(nn.LayerNorm(width)),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(config.repeats + 1):  # the first one makes what is made on first use
        for name, call in calls.items():
            x.grad = None
            started = time.perf_counter()
            call().backward(grad)
            if repeat:
                times[name].append(time.perf_counter() - started)
    row: Row = {"operation": "norm", "width": width, **{name: figure(seconds) for name, seconds in times.items()}}
    pairs = sorted(layer / other for layer, other in zip(times["layer"], times["batch"], strict=True))
    row["layer_ratio"] = pairs[len(pairs) // 2]
    for name in ("batch", "layer"):
        row[f"{name}_speedup"] = row[f"{name}_torch"]["median_s"] / row[name]["median_s"]
    return row
