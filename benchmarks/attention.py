"""Attention: the compiled kernel against DGL's or PyTorch's operators, from (rows, scores) to the output and all its gradients.

DGL's side is what its ``GATConv`` runs after its linear map: ``u_add_v``, LeakyReLU, ``edge_softmax``, ``u_mul_e_sum``, under
autograd. Ours is ``Engine.aggregate`` in one process, under autograd too. Formats are built beforehand.

Letters: N nodes, K heads, D head width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.figures import Row, figure, stock_kernel, write_bars
from benchmarks.kernels import BenchKernelsConfig
from sargnn.backends.block import EdgeBlock
from sargnn.backends.choose import make_kernel
from sargnn.backends.operations import Attention
from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.reducers.gat import Gat
from sargnn.report.bench.gpu import whole_plan
from sargnn.tracking.memory import peak_bytes, reset_peak, resident_bytes

SLOPE = 0.2
PARTS = ("forward", "backward", "total")


class _Gradient(torch.autograd.Function):
    """Gives the rows a fixed gradient and keeps nothing: an operator that does not need them for it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, given: Tensor) -> Tensor:
        ctx.given = given
        return rows.new_zeros(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.given, None


def measure(block: EdgeBlock, heads: int, config: BenchKernelsConfig) -> Row:
    """One row: per side medians and quartiles of each of ``PARTS``, and peak memory.

    ``peak_bytes`` is above what is resident before forward (graph, rows, scores and the output's gradient), with the output
    let go after forward; ``peak_held_bytes`` with the output held by the caller until the end.
    """
    width = config.head_width
    generator = torch.Generator().manual_seed(config.seed)
    rows = torch.randn(block.num_src, heads * width, generator=generator).requires_grad_()
    el, er = (torch.randn(block.num_src, heads, generator=generator).requires_grad_() for _ in range(2))
    grad_out = torch.randn(block.num_dst, heads * width, generator=generator)
    leaves = (rows, el, er)
    engine = Engine(Group.single(), EngineSettings(mode="sar", kernel="fused"))
    plan, reducer = whole_plan(block), Gat(heads, SLOPE)
    stock = make_kernel(stock_kernel()).autograd_operation("gat")
    sides = {
        "stock": lambda: stock(block, Attention(heads, SLOPE), *leaves),
        "fused": lambda: engine.aggregate(plan, reducer, (rows, el), (er,))[0],
    }
    _check(sides, leaves, grad_out)
    times: dict[str, dict[str, list[float]]] = {side: {part: [] for part in PARTS} for side in sides}
    peaks: dict[str, list[int]] = {side: [] for side in sides}
    held: dict[str, int] = {}
    for _ in range(config.repeats):
        for side, forward in sides.items():
            seconds, peak = _once(forward, leaves, grad_out, hold=False)
            for part, value in zip(PARTS, (*seconds, sum(seconds)), strict=True):
                times[side][part].append(value)
            peaks[side].append(peak)
    for side, forward in sides.items():
        held[side] = _once(forward, leaves, grad_out, hold=True)[1]
    row: Row = {"operation": "gat", "heads": heads, "width": width}
    for side in sides:
        row[side] = {part: figure(seconds) for part, seconds in times[side].items()}
        row[side] |= {"peak_bytes": sorted(peaks[side])[len(peaks[side]) // 2], "peak_held_bytes": held[side]}
    row["speedup"] = {part: row["stock"][part]["median_s"] / row["fused"][part]["median_s"] for part in PARTS}
    for name in ("peak", "peak_held"):  # of a graph so small that no memory is asked for there is no ratio
        base = row["stock"][f"{name}_bytes"]
        row[f"{name}_ratio"] = row["fused"][f"{name}_bytes"] / base if base else None
    row["gathered_bytes"] = block.num_edges * heads * width * rows.element_size()
    return row


def _once(
    forward: Callable[[], Tensor], leaves: Sequence[Tensor], grad_out: Tensor, *, hold: bool
) -> tuple[tuple[float, float], int]:
    for leaf in leaves:
        leaf.grad = None
    before = resident_bytes()
    reset_peak()
    started = time.perf_counter()
    out = forward()
    middle = time.perf_counter()
    loss = _Gradient.apply(out, grad_out)
    held = out if hold else None
    del out
    loss.backward()
    ended = time.perf_counter()
    del held
    return (middle - started, ended - middle), peak_bytes() - before


def _check(sides: dict[str, Callable[[], Tensor]], leaves: Sequence[Tensor], grad_out: Tensor) -> None:
    """Both sides give the same output and gradients; also what each makes on first use is made."""
    answers = []
    for forward in sides.values():
        for leaf in leaves:
            leaf.grad = None
        out = forward()
        out.backward(grad_out)
        answers.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for actual, want in zip(*answers, strict=True):
        assert actual is not None and want is not None
        torch.testing.assert_close(actual, want, rtol=1e-3, atol=1e-4 * float(want.abs().max()))


def plot(path: Path, rows: Sequence[Row], title: str) -> None:
    """Seconds of forward and backward, and peak memory, for both sides and each number of heads."""
    sides = {"stock": "stock", "sargnn": "fused"}
    panels: dict[str, dict[str, list[float]]] = {
        f"{part}, seconds, median": {name: [row[side][part]["median_s"] for row in rows] for name, side in sides.items()}
        for part in PARTS[:2]
    }
    panels["peak memory, MB"] = {name: [row[side]["peak_bytes"] / 1e6 for row in rows] for name, side in sides.items()}
    labels = [f"{row['heads']} x {row['width']}" for row in rows]
    write_bars(path, labels, panels, title=f"Attention on {title}", x="heads x features")
