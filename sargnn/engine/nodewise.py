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

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.backends.base import Activation
from sargnn.bf16 import wide
from sargnn.comm.group import Group
from sargnn.engine.rebuild import rebuilt_by
from sargnn.engine.row_norm import type_runs
from sargnn.engine.workspace import Workspace
from sargnn.profile import NODEWISE
from sargnn.rng import Draw


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
        after: Activation,
        group: Group,
        work: Workspace,
    ) -> Tensor:
        ctx.save_for_backward(x, norm.mean, norm.inv_std, slope, shift)
        ctx.norm, ctx.after, ctx.group, ctx.work = norm, after, group, work
        ctx.shape = None if weight is None else weight.shape
        return _pass(work, x, norm, slope, shift, after)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, inv_std, slope, shift = ctx.saved_tensors
        norm: Norm = ctx.norm
        work: Workspace = ctx.work
        sums = torch.zeros(2, *mean.shape, dtype=torch.float64, device=mean.device)
        with work.profile.span(NODEWISE):
            work.profile.work(NODEWISE, 3 * x.numel() * x.element_size())
            d_x, grad = work.pool.empty_like(x), grad.contiguous()
            for t, rows in norm.runs:
                sums[0, t], sums[1, t] = work.rows.norm_act_drop_backward(
                    grad[rows], x[rows], slope[t], shift[t], mean[t], inv_std[t], ctx.after.of(rows), d_x[rows]
                )
        if ctx.shape is None:
            return (d_x, *[None] * 8)
        d_bias, d_weight = (total.to(mean.dtype).view(ctx.shape) for total in sums)
        means = (ctx.group.sum_(sums.clone()) / norm.counts.clamp(min=1)[:, None]).to(mean.dtype)
        with work.profile.span(NODEWISE):
            work.profile.work(NODEWISE, 3 * x.numel() * x.element_size())
            for t, rows in norm.runs:
                counted = None if norm.counted is None else norm.counted[rows]
                work.rows.norm_backward(d_x[rows], x[rows], mean[t], inv_std[t], slope[t], means[0, t], means[1, t], counted)
        return (d_x, d_weight, d_bias, *[None] * 6)


def _pass(work: Workspace, x: Tensor, norm: Norm, slope: Tensor, shift: Tensor, after: Activation) -> Tensor:
    """y."""
    with work.profile.span(NODEWISE):
        work.profile.work(NODEWISE, 2 * x.numel() * x.element_size())
        out = work.pool.empty_like(x)
        for t, rows in norm.runs:
            work.rows.norm_act_drop(x[rows], slope[t], shift[t], after.of(rows), out[rows])
    return out


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
    """Normalise, activate and drop the rows of ``x`` in one pass.

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
            norm = Norm(shift, slope, torch.zeros(1, dtype=torch.float64, device=x.device), (0, len(x)))
        else:
            slope = weight.view_as(norm.mean) * norm.inv_std
            shift = bias.view_as(norm.mean) - norm.mean * slope
    after = Activation(activation, ids, draw)
    out = _Fused.apply(x, weight, bias, norm, slope, shift, after, group, work)
    if not out.requires_grad:
        return out
    kept, version = x.detach(), x._version

    def rebuild() -> Tensor:
        assert kept._version == version, "what rows are rebuilt from was written to"
        return _pass(work, kept, norm, slope, shift, after)

    return rebuilt_by(out, rebuild)
