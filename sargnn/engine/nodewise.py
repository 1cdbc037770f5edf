"""What happens to rows between two layers, fused: batch norm over all workers, activation and dropout.

    forward   y = drop(act(slope x + shift)), slope = gamma / sqrt(var + eps), shift = beta - mu slope
    backward  g = drop(error) act'(slope x + shift)
              dx = slope (g - mean(g) - xhat mean(g xhat)), means over the rows of all workers
              d gamma = sum(g xhat), d beta = sum(g): this worker's sums

Saves ONE tensor, x; everything else is computed again, and the mask is drawn again. ``dx`` holds g on the way, so that nothing
else of size N x F is held. Without a norm: slope 1, shift 0, and dx = g. A linear map that reads y rebuilds it in backward
(``engine.rebuild``), so that y is not kept either.

Letters: N own rows, F features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.comm.group import Group
from sargnn.engine.rebuild import rebuilt_by
from sargnn.rng import Draw, Purpose
from sargnn.spans import NODEWISE, span

ACTIVATION_CODES = {"relu": 0, "elu": 1}


@dataclass(frozen=True)
class Norm:
    """A batch norm's statistics for one call, in the dtype of the rows: [F] each. ``count``: rows over all workers."""

    mean: Tensor
    inv_std: Tensor
    count: float


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm | None, slope: Tensor, shift: Tensor,
        activation: str, ids: Tensor, draw: Draw | None, group: Group,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, *(() if norm is None else (norm.mean, norm.inv_std, slope, shift)))
        ctx.norm, ctx.activation, ctx.ids, ctx.draw, ctx.group = norm, activation, ids, draw, group
        return _pass(x, slope, shift, activation, ids, draw)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from sargnn.kernels.cpu_nodewise import norm_act_drop_backward, norm_backward

        x, *vectors = ctx.saved_tensors
        with span(NODEWISE):
            zeros, ones = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
            mean, inv_std, slope, shift = vectors or (zeros, ones, ones, zeros)
            d_x = torch.empty_like(x)
            sums = norm_act_drop_backward(
                grad.contiguous().numpy(), x.numpy(), slope.numpy(), shift.numpy(), mean.numpy(), inv_std.numpy(),
                ACTIVATION_CODES[ctx.activation], ctx.ids.numpy(), _words(ctx.draw, x), d_x.numpy(),
            )  # fmt: skip
            d_bias, d_weight = (torch.from_numpy(total) for total in sums)
        if not vectors:
            return (d_x, *[None] * 9)
        means = ctx.group.sum_(torch.cat([d_bias, d_weight])) / max(ctx.norm.count, 1.0)
        with span(NODEWISE):
            mean_error, mean_product = means.to(x.dtype).split(x.shape[1])
            norm_backward(
                d_x.numpy(), x.numpy(), mean.numpy(), inv_std.numpy(), slope.numpy(),
                mean_error.numpy(), mean_product.numpy(),
            )  # fmt: skip
        return (d_x, d_weight.to(x.dtype), d_bias.to(x.dtype), *[None] * 7)


def _pass(x: Tensor, slope: Tensor, shift: Tensor, activation: str, ids: Tensor, draw: Draw | None) -> Tensor:
    """y."""
    from sargnn.kernels.cpu_nodewise import norm_act_drop

    with span(NODEWISE):
        out = torch.empty_like(x)
        norm_act_drop(
            x.detach().numpy(), slope.numpy(), shift.numpy(), ACTIVATION_CODES[activation], ids.numpy(), *_words(draw, x),
            out.numpy(),
        )  # fmt: skip
    return out


def _words(draw: Draw | None, like: Tensor) -> tuple[Any, ...]:
    """A draw as the compiled loops take it: seed, epoch, tag, threshold, what kept elements are multiplied with."""
    if draw is None:
        draw = Draw(0, 0, Purpose.DROPOUT, 0, 0.0)
    words = (np.uint64(word) for word in (draw.seed, draw.epoch, draw.tag, draw.threshold))
    return (*words, like.numpy().dtype.type(draw.scale))


def norm_act_drop(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm | None, activation: str, ids: Tensor,
    draw: Draw | None, group: Group,
) -> Tensor:  # fmt: skip
    """Normalise, activate and drop the rows of ``x`` in one pass, on a CPU.

    Args:
        x: [N, F], contiguous, fp32 or fp64.
        weight, bias: gamma, beta [F]; None without a norm.
        norm: the statistics; None without a norm.
        activation: ``relu`` or ``elu``.
        ids: int64 [N], the rows' original ids. draw: None drops nothing.
    """
    with torch.no_grad():
        if norm is None or weight is None or bias is None:
            weight = bias = norm = None
            slope, shift = x.new_ones(x.shape[1]), x.new_zeros(x.shape[1])
        else:
            slope = weight * norm.inv_std
            shift = bias - norm.mean * slope
    out = _Fused.apply(x, weight, bias, norm, slope, shift, activation, ids, draw, group)
    if not out.requires_grad:
        return out
    kept, version = x.detach(), x._version

    def rebuild() -> Tensor:
        assert kept._version == version, "what rows are rebuilt from was written to"
        return _pass(kept, slope, shift, activation, ids, draw)

    return rebuilt_by(out, rebuild)
