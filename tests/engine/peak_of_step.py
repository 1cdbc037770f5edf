"""The memory of one attention step, in a process of its own."""

from __future__ import annotations

import dataclasses
from multiprocessing.connection import Connection

import torch

from sargnn.backends.block import EdgeBlock
from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.reducers.gat import DotAttention, Gat, GatV2
from sargnn.plan.layer_plan import Shard
from sargnn.report.bench.gpu import whole_plan
from sargnn.rng import Draw, Purpose
from sargnn.tracking.memory import PeakMeter, return_freed_memory


def send_peak(pipe: Connection, mode: str, nodes: int, edges: int, heads: int, width: int, operation: str) -> None:
    """Send the peak in bytes, of forward and backward of ``gat``, ``gatv2`` or ``dot``; ``mode``: ``keep_all``, too."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(nodes, (edges,), generator=generator, dtype=torch.int32)
    dst = torch.randint(nodes, (edges,), generator=generator, dtype=torch.int32).sort().values
    keeps = mode == "keep_all"
    engine = Engine(Group.single(), EngineSettings(mode="no_remat" if keeps else mode, keep="all" if keeps else "rows"))
    return_freed_memory()
    block = EdgeBlock(src, dst, nodes, nodes)
    plan = whole_plan(block)
    if engine.mode.layout == "merged":
        plan = dataclasses.replace(plan, shards=None, merged=Shard.whole(-1, block))
    z = torch.randn(nodes, heads * width, generator=generator).requires_grad_()
    el, er = (torch.randn(nodes, heads, generator=generator).requires_grad_() for _ in range(2))
    x = torch.randn(nodes, heads * width, generator=generator).requires_grad_()
    att = torch.randn(heads * width, generator=generator).requires_grad_()
    grad = torch.randn(nodes, heads * width, generator=generator)
    draw = Draw(0, 0, Purpose.ATTENTION_DROPOUT, 0, 0.3)
    peaks = []
    for _ in range(2):  # the first one loads code and makes what is kept with the graph
        engine.pool.reset()
        for leaf in (z, el, er, x, att):
            leaf.grad = None
        meter = PeakMeter.here()
        meter.begin()
        if operation == "gat":
            (out,) = engine.aggregate(plan, Gat(heads, 0.2, draw), (z, el), (er,))
        elif operation == "dot":
            (out,) = engine.aggregate(plan, DotAttention(heads, width**-0.5, draw), (z,), (x,))
        else:
            (out,) = engine.aggregate(plan, GatV2(heads, 0.2, draw), (z,), (x,), (att,))
        out.backward(grad)
        del out
        peaks.append(meter.end())
    pipe.send(peaks[1])
