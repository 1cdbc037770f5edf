"""Batch normalisation over the rows of all workers.

    forward   mu = mean over all rows, var = mean of (x - mu)^2 over all rows
              y = gamma (x - mu) / sqrt(var + eps) + beta
    backward  dx = gamma / sqrt(var + eps) (g - mean(g) - xhat mean(g xhat)), means over all rows
              d gamma = sum(g xhat), d beta = sum(g): this worker's sums, completed by the step's all-reduce

Statistics are stable: each worker sends its count, mean and sum of squared deviations, and these are combined in rank
order in fp64 (Chan, Golub and LeVeque, 1979). One gather forward, one all-reduce of 2 F numbers backward.

Letters: N own rows, F features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sargnn.comm.group import Group
from sargnn.engine.nodewise import Norm, norm_act_drop
from sargnn.rng import Draw
from sargnn.spans import NODEWISE, span


def global_moments(x: Tensor, group: Group, *, fused: bool = False) -> tuple[Tensor, Tensor, float]:
    """Mean and biased variance over the rows of all workers, fp64 [F] each, and the number of rows.

    Args:
        x: [N, F]; N may be 0 on some ranks, not on all.
        fused: take the worker's own moments in one compiled pass (CPU).
    """
    n, width = x.shape
    own = torch.zeros(2 * width + 1, dtype=torch.float64, device=x.device)
    if n:
        own[0] = n
        if fused:
            from sargnn.kernels.cpu_nodewise import moments

            with span(NODEWISE):
                own_mean, own_squares = moments(x.numpy())
            own[1 : width + 1], own[width + 1 :] = torch.from_numpy(own_mean), torch.from_numpy(own_squares)
        else:
            variance, local_mean = torch.var_mean(x, 0, correction=0)
            own[1 : width + 1], own[width + 1 :] = local_mean, variance.double() * n
    count, mean, squares = 0.0, own.new_zeros(width), own.new_zeros(width)
    for part in group.gather(own):
        part_count = float(part[0])
        if part_count == 0:
            continue
        total = count + part_count
        shift = part[1 : width + 1] - mean
        squares += part[width + 1 :] + shift.square() * (count * part_count / total)
        mean += shift * (part_count / total)
        count = total
    return mean, squares / max(count, 1.0), count


class _Normalise(torch.autograd.Function):
    """Training-time normalisation in PyTorch's own operators. Saves its input and two vectors."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inv_std: Tensor, count: float, group: Group
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, inv_std)
        ctx.count, ctx.group = count, group
        slope = inv_std * weight
        return torch.addcmul(bias - mean * slope, x, slope)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inv_std = ctx.saved_tensors
        with span(NODEWISE):
            normalised = (x - mean).mul_(inv_std)
            d_bias, d_weight = grad.sum(0), (grad * normalised).sum(0)
        sums = ctx.group.sum_(torch.cat([d_bias, d_weight]).double()) / max(ctx.count, 1.0)
        with span(NODEWISE):
            mean_grad, mean_product = sums.to(x.dtype).split(len(d_bias))
            d_x = (grad - mean_grad).sub_(normalised.mul_(mean_product)).mul_(inv_std * weight)
        return d_x, d_weight, d_bias, None, None, None, None


class DistributedBatchNorm(nn.Module):
    """``torch.nn.BatchNorm1d`` over the rows of all workers: same parameters, buffers, momentum and eps.

    Args:
        num_features: F.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def statistics(self, x: Tensor, group: Group, *, fused: bool = False) -> Norm:
        """What ``x`` [N, F] is normalised with. In training every rank must call it, also one without rows."""
        if not self.training:
            return Norm(self.running_mean, (self.running_var + self.eps).rsqrt(), 0.0)
        with torch.no_grad():
            mean, variance, count = global_moments(x.detach(), group, fused=fused)
            unbiased = variance * (count / max(count - 1.0, 1.0))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
            return Norm(mean.to(x.dtype), (variance + self.eps).rsqrt().to(x.dtype), count)

    def forward(self, x: Tensor, group: Group) -> Tensor:
        """Normalise ``x`` [N, F] in PyTorch's own operators."""
        norm = self.statistics(x, group)
        if not self.training:
            slope = norm.inv_std * self.weight
            return torch.addcmul(self.bias - norm.mean * slope, x, slope)
        return _Normalise.apply(x, self.weight, self.bias, norm.mean, norm.inv_std, norm.count, group)

    def fused(self, x: Tensor, group: Group, activation: str, ids: Tensor, draw: Draw | None) -> Tensor:
        """Normalise, activate and drop ``x`` [N, F] in one compiled pass (CPU); see ``engine.nodewise``."""
        norm = self.statistics(x, group, fused=True)
        return norm_act_drop(x, self.weight, self.bias, norm, activation, ids, draw, group)
