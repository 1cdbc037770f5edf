"""What happens to rows between two layers, fused: batch norm over all workers, activation and dropout.

    forward   y = drop(act(slope x + shift)), slope = gamma / sqrt(var + eps), shift = beta - mu slope
    backward  g = drop(gradient of y) act'(slope x + shift)
              dx = slope (g - mean(g) - xhat mean(g xhat)), means over the rows of all workers (of copies of
              rows: slope g, see ``engine.norm``)
              d gamma = sum(g xhat), d beta = sum(g): this worker's sums

Saves ONE tensor, x; everything else is computed again, and the mask is drawn again. ``dx`` holds g on the way, so that nothing
else of size N x F is held. Without a norm: slope 1, shift 0, and dx = g. A linear map that reads y rebuilds it in backward
(``engine.rebuild``), so that y is not kept either. Rows of several node types have a norm each: theirs are runs of rows.

Letters: N own rows, F features, T node types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.bf16 import array_of, number, wide
from sargnn.comm.group import Group
from sargnn.engine.activations import ACTIVATION_CODES
from sargnn.engine.rebuild import rebuilt_by
from sargnn.engine.row_norm import type_runs
from sargnn.engine.workspace import Workspace
from sargnn.profile import NODEWISE
from sargnn.rng import Draw, Purpose


@dataclass(frozen=True)
class Norm:
    """Batch norms' statistics for one call, in the dtype of the rows, fp32 for bf16 rows: [T, F] each.

    Attributes:
        counts: fp64 [T], rows of each type over all workers that statistics are taken of.
        bounds: T + 1, the own rows of each type.
        counted: uint8 [N], 1 for own rows that statistics are taken of; None: of all.
    """

    mean: Tensor
    inv_std: Tensor
    counts: Tensor
    bounds: tuple[int, ...]
    counted: Tensor | None = None

    @property
    def runs(self) -> list[tuple[int, slice]]:
        """The types that have rows here, with their rows."""
        return type_runs(self.bounds)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        norm: Norm,
        slope: Tensor,
        shift: Tensor,
        activation: str,
        ids: Tensor,
        draw: Draw | None,
        group: Group,
        work: Workspace,
    ) -> Tensor:
        ctx.save_for_backward(x, norm.mean, norm.inv_std, slope, shift)
        ctx.norm, ctx.activation, ctx.ids, ctx.draw = norm, activation, ids, draw
        ctx.group, ctx.work = group, work
        ctx.shape = None if weight is None else weight.shape
        return _pass(work, x, norm, slope, shift, activation, ids, draw)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from sargnn.kernels.fused.nodewise_loops import EVERY, norm_act_drop_backward, norm_backward

        x, mean, inv_std, slope, shift = ctx.saved_tensors
        norm: Norm = ctx.norm
        work: Workspace = ctx.work
        sums = torch.zeros(2, *mean.shape, dtype=torch.float64)
        with work.profile.span(NODEWISE):
            work.profile.work(NODEWISE, 3 * x.numel() * x.element_size())
            d_x, grad = work.pool.empty_like(x), grad.contiguous()
            for t, rows in norm.runs:
                type_sums = norm_act_drop_backward(
                    array_of(grad[rows]),
                    array_of(x[rows]),
                    slope[t].numpy(),
                    shift[t].numpy(),
                    mean[t].numpy(),
                    inv_std[t].numpy(),
                    ACTIVATION_CODES[ctx.activation],
                    ctx.ids[rows].numpy(),
                    words_of(ctx.draw, x),
                    array_of(d_x[rows]),
                )
                for total, type_sum in zip(sums, type_sums, strict=True):
                    total[t] = torch.from_numpy(type_sum)
        if ctx.shape is None:
            return (d_x, *[None] * 10)
        d_bias, d_weight = (total.to(mean.dtype).view(ctx.shape) for total in sums)
        means = (ctx.group.sum_(sums.clone()) / norm.counts.clamp(min=1)[:, None]).to(mean.dtype)
        with work.profile.span(NODEWISE):
            work.profile.work(NODEWISE, 3 * x.numel() * x.element_size())
            for t, rows in norm.runs:
                norm_backward(
                    array_of(d_x[rows]),
                    array_of(x[rows]),
                    mean[t].numpy(),
                    inv_std[t].numpy(),
                    slope[t].numpy(),
                    means[0, t].numpy(),
                    means[1, t].numpy(),
                    EVERY if norm.counted is None else norm.counted[rows].numpy(),
                )
        return (d_x, d_weight, d_bias, *[None] * 8)


def _pass(
    work: Workspace, x: Tensor, norm: Norm, slope: Tensor, shift: Tensor, activation: str, ids: Tensor, draw: Draw | None
) -> Tensor:
    """y."""
    from sargnn.kernels.fused.nodewise_loops import norm_act_drop

    with work.profile.span(NODEWISE):
        work.profile.work(NODEWISE, 2 * x.numel() * x.element_size())
        out = work.pool.empty_like(x)
        for t, rows in norm.runs:
            norm_act_drop(
                array_of(x[rows]),
                slope[t].numpy(),
                shift[t].numpy(),
                ACTIVATION_CODES[activation],
                ids[rows].numpy(),
                *words_of(draw, x),
                array_of(out[rows]),
            )
    return out


def words_of(draw: Draw | None, like: Tensor) -> tuple[Any, ...]:
    """A draw as the compiled loops take it: seed, epoch, tag, threshold, what kept elements are multiplied with."""
    if draw is None:
        draw = Draw(0, 0, Purpose.DROPOUT, 0, 0.0)
    words = (np.uint64(word) for word in (draw.seed, draw.epoch, draw.tag, draw.threshold))
    return (*words, number(draw.scale, like.dtype))


def norm_act_drop(
    work: Workspace,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    norm: Norm | None,
    activation: str,
    ids: Tensor,
    draw: Draw | None,
    group: Group,
) -> Tensor:
    """Normalise, activate and drop the rows of ``x`` in one pass, on a CPU.

    Args:
        x: [N, F], contiguous, fp32, fp64 or bf16.
        weight, bias: gamma, beta [F] or [T, F]; None without a norm.
        norm: the statistics; None without a norm.
        activation: ``relu`` or ``elu``.
        ids: int64 [N], the rows' original ids. draw: None drops nothing.
    """
    with torch.no_grad():
        if norm is None or weight is None or bias is None:
            weight = bias = None
            slope = x.new_ones(1, x.shape[1], dtype=wide(x.dtype))
            shift = torch.zeros_like(slope)
            norm = Norm(shift, slope, torch.zeros(1, dtype=torch.float64), (0, len(x)))
        else:
            slope = weight.view_as(norm.mean) * norm.inv_std
            shift = bias.view_as(norm.mean) - norm.mean * slope
    out = _Fused.apply(x, weight, bias, norm, slope, shift, activation, ids, draw, group, work)
    if not out.requires_grad:
        return out
    kept, version = x.detach(), x._version

    def rebuild() -> Tensor:
        assert kept._version == version, "what rows are rebuilt from was written to"
        return _pass(work, kept, norm, slope, shift, activation, ids, draw)

    return rebuilt_by(out, rebuild)
