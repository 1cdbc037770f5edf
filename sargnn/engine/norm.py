"""Batch normalisation over the rows of all workers.

    forward   mu = mean over all rows, var = mean of (x - mu)^2 over all rows
              y = gamma (x - mu) / sqrt(var + eps) + beta
    backward  dx = gamma / sqrt(var + eps) (g - mean(g) - xhat mean(g xhat)), means over all rows
              d gamma = sum(g xhat), d beta = sum(g): this worker's sums, completed by the step's all-reduce

Statistics are stable: each worker sends its count, mean and sum of squared deviations, and these are combined in rank
order in fp64 (Chan, Golub and LeVeque, 1979). One gather forward, one all-reduce of 2 F numbers backward. Rows of T node types
have statistics and parameters for each type, in the same messages.

A column that is the same in all rows up to rounding has rounding noise for deviations, whose sign would decide activations.
Where var_f < ROUNDING(dtype)^2 mean over columns f' of mu_f'^2, the column is taken as constant: its normalised values
are 0, y is beta, and no gradient flows to x. 1 / sqrt(var + eps) becomes 0 for this, so every implementation does the same.
The noise of a column is that of the terms it is summed from, which are as large in all columns; its own mean may be small by
cancellation.

**Copies of rows.** A server that preloads (``partition.preload``) computes rows of other servers' nodes, too. A node counts
once in the statistics: M rows c of all workers count, and mu, var are functions of these alone, while y_c = gamma xhat_c + beta
holds for every row c of every worker, copies among them. So with s = 1 / sqrt(var + eps), xhat_c = s (x_c - mu) and g_c = d
loss / d y_c,

    d loss / d mu  = - gamma s sum over ALL rows of g_c
    d loss / d var = - gamma s^2 / 2 sum over ALL rows of g_c xhat_c
    d mu / d x_c   = 1 / M,   d var / d x_c = 2 (x_c - mu) / M        where c counts, else 0

(d var / d mu = 0: deviations from the mean of counted rows sum to 0), and together

    dx_c = gamma s (g_c - [sum of g] / M - xhat_c [sum of g xhat] / M)     where c counts
    dx_c = gamma s g_c                                                     of all others
    d gamma = sum over ALL rows of g_c xhat_c,   d beta = sum over ALL rows of g_c

with both sums over all rows of all workers: what differs from rows that all count is whom the statistics' share goes to, and M.

**One pass** normalises, activates and drops the rows, also without a norm:

    forward   y = drop(act(slope x + shift)), slope = gamma / sqrt(var + eps), shift = beta - mu slope
    backward  g = drop(gradient of y) act'(slope x + shift), then dx as above; without a norm slope is 1, shift 0, and dx = g

It saves ONE tensor, x; everything else is computed again, and the mask is drawn again. ``dx`` holds g on the way, so that
nothing else of size N x F is held. A linear map that reads y rebuilds it in backward (``engine.rebuild``), so that y is not
kept either. Rows of several node types have a norm each: theirs are runs of rows.

Letters: N own rows, F features, T node types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.backends.base import Activation, NormVectors, Rows
from sargnn.backends.memory import Pool
from sargnn.bf16 import wide
from sargnn.comm.group import Group
from sargnn.engine.grouped import Grouped, own_moments
from sargnn.engine.rebuild import rebuilt_by, rebuilt_from
from sargnn.engine.row_norm import RowNorm, type_runs
from sargnn.engine.workspace import Workspace
from sargnn.profile import NODEWISE
from sargnn.rng import Draw

ROUNDING = {torch.float32: 2.0**-17, torch.float64: 2.0**-46, torch.bfloat16: 2.0**-7}
"""Deviations below this fraction of the columns' means are noise: 64 machine epsilons of fp32 and fp64, where up to 3.4 were
measured, and one of bf16: there a column that deviates by so little has two or three values, and one by more is data."""
_CHUNK_ROWS = 8192


@dataclass(frozen=True)
class Norm:
    """Batch norms' statistics for one call, in the dtype of the rows, fp32 for bf16 rows: [T, F] each.

    Attributes:
        mean: over all rows that count.
        inv_std: 1 / sqrt(var + eps), 0 where the variance is rounding noise.
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
        return type_runs(self.bounds)


def global_moments(
    x: Tensor | Grouped, group: Group, bounds: tuple[int, ...], counted: Tensor | None = None, *, by: Rows | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and biased variance over the rows of all workers, fp64 [T, F] each, and the numbers of rows, fp64 [T].

    Args:
        x: [N, F]; a type may have no rows on some ranks, or on all: then mean and variance are 0.
        bounds: T + 1, the rows of each type.
        counted: uint8 [N], 1 for rows that count; None: all do.
        by: what takes the worker's own moments; None: PyTorch's own operators.
    """
    own = _own_moments(x, group, bounds, counted, by)
    width = own.shape[1] // 2
    total = group.fold(own, _combined)
    return total[:, 1 : width + 1], total[:, width + 1 :] / total[:, :1].clamp(min=1), total[:, 0]


def _own_moments(x: Tensor | Grouped, group: Group, bounds: tuple[int, ...], counted: Tensor | None, by: Rows | None) -> Tensor:
    """Fp64 [T, 2 F + 1], of this worker's rows; arguments as of ``global_moments``."""
    if isinstance(x, Grouped):
        assert x.moments is not None
        return x.moments
    if by is not None:
        with group.profile.span(NODEWISE):
            group.profile.work(NODEWISE, x.numel() * x.element_size())
            return own_moments(x, by, bounds, counted)
    own = torch.zeros(len(bounds) - 1, 2 * x.shape[1] + 1, dtype=torch.float64, device=x.device)
    for t, rows in type_runs(bounds):
        counting = x[rows] if counted is None else x[rows][counted[rows].bool()]
        # Of bf16 rows PyTorch's results would be bf16.
        chunks = (counting,) if wide(x.dtype) == x.dtype else (chunk.float() for chunk in counting.split(_CHUNK_ROWS))
        own[t] = _combined([_moments(chunk) for chunk in chunks])[0]
    return own


def _moments(rows: Tensor) -> Tensor:
    """Count, mean, sum of squared deviations, fp64 [1, 2 F + 1]."""
    if not len(rows):
        return torch.zeros(1, 2 * rows.shape[1] + 1, dtype=torch.float64, device=rows.device)
    variance, mean = torch.var_mean(rows, 0, correction=0)
    return torch.cat([mean.new_full((1,), len(rows)).double(), mean.double(), variance.double() * len(rows)])[None]


def _combined(parts: Sequence[Tensor]) -> Tensor:
    """The same of all parts together, fp64 [T, 2 F + 1], added in their order."""
    combined, *others = parts
    width = combined.shape[1] // 2
    mean = slice(1, width + 1)
    combined = combined.clone()
    for part in others:
        total = combined[:, :1] + part[:, :1]
        share = part[:, :1] / total.clamp(min=1)
        shift = part[:, mean] - combined[:, mean]
        combined[:, width + 1 :] += part[:, width + 1 :] + shift.square() * (combined[:, :1] * share)
        combined[:, mean] += shift * share
        combined[:, :1] = total
    return combined


def batch_statistics(
    x: Tensor | Grouped,
    group: Group,
    bounds: tuple[int, ...],
    eps: float,
    running: tuple[Tensor, Tensor] | None,
    momentum: float,
    *,
    counted: Tensor | None = None,
    by: Rows | None = None,
) -> Norm:
    """What ``x`` [N, F] is normalised with in training; every rank must call it, also one without rows. Without autograd.

    ``running``: mean and variance [T, F] that are moved by ``momentum`` towards these, in place. ``bounds``, ``counted``,
    ``by``: as of ``global_moments``, of contiguous rows.
    """
    with torch.no_grad():
        mean, variance, counts = global_moments(x, group, bounds, counted, by=by)
        if running is not None:
            unbiased = variance * (counts / (counts - 1).clamp(min=1))[:, None]
            # A type without rows in this layer says nothing about its statistics.
            weight = ((counts > 0).to(running[0].dtype) * momentum)[:, None]
            for moved, now in zip(running, (mean, unbiased), strict=True):
                moved.lerp_(now.to(moved.dtype), weight)
        noise = variance < ROUNDING[x.dtype] ** 2 * mean.square().mean(1, keepdim=True)
        inv_std = (variance + eps).rsqrt().masked_fill(noise, 0)
        held = wide(x.dtype)
        return Norm(mean.to(held), inv_std.to(held), counts, bounds, counted)


class _Normalise(torch.autograd.Function):
    """Training-time normalisation in PyTorch's own operators. Saves its input and two vectors per type."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: Norm, group: Group, pool: Pool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.norm, ctx.group, ctx.pool = norm, group, pool
        return apply_norm(x, weight, bias, norm, pool)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        norm: Norm = ctx.norm
        sums = norm.mean.new_zeros(2, *norm.mean.shape)
        normalised = ctx.pool.empty_like(x)
        with ctx.group.profile.span(NODEWISE):
            for t, rows in norm.runs:
                torch.sub(x[rows], norm.mean[t], out=normalised[rows]).mul_(norm.inv_std[t])
                sums[0, t] = grad[rows].sum(0, dtype=sums.dtype)
                sums[1, t] = (grad[rows] * normalised[rows]).sum(0, dtype=sums.dtype)
        d_bias, d_weight = (total.clone().view_as(weight) for total in sums)
        means = (ctx.group.sum_(sums.double()) / norm.counts.clamp(min=1)[:, None]).to(sums.dtype)
        with ctx.group.profile.span(NODEWISE):
            d_x, slope = ctx.pool.empty_like(x), norm.inv_std * weight.view_as(norm.mean)
            for t, rows in norm.runs:
                correction, shift = normalised[rows].mul_(means[1, t]), means[0, t]
                if norm.counted is not None:
                    mask = norm.counted[rows, None].to(sums.dtype)
                    correction, shift = correction.mul_(mask), shift * mask
                torch.sub(grad[rows], shift, out=d_x[rows]).sub_(correction).mul_(slope[t])
        return d_x, d_weight, d_bias, None, None, None


def apply_norm(x: Tensor, weight: Tensor, bias: Tensor, norm: Norm, pool: Pool) -> Tensor:
    """``gamma (x - mu) / sqrt(var + eps) + beta`` [N, F], without autograd."""
    slope, shift = _map(weight, bias, norm)
    out = pool.empty_like(x)
    for t, rows in norm.runs:
        torch.addcmul(shift[t], x[rows], slope[t], out=out[rows])
    return out


def normalise(x: Tensor, weight: Tensor, bias: Tensor, norm: Norm, group: Group, pool: Pool | None = None) -> Tensor:
    """``x`` [N, F] normalised with the statistics of its own batch; gradients pass through these too. ``weight``, ``bias``:
    gamma, beta [F] or [T, F].
    """
    out: Tensor = _Normalise.apply(x, weight, bias, norm, group, pool or Pool(enabled=False))
    return out


def _map(weight: Tensor, bias: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """slope and shift [T, F]: y = slope x + shift."""
    slope = norm.inv_std * weight.view_as(norm.mean)
    return slope, bias.view_as(norm.mean) - norm.mean * slope


@dataclass(frozen=True)
class _Pass:
    """What one pass is to do with its rows; without a norm with mean 0 and deviation 1. ``slope``, ``shift``: [T, F].
    ``heard``: a user's hook may hold the gradient of what comes out.
    """

    work: Workspace
    group: Group
    norm: Norm
    slope: Tensor
    shift: Tensor
    after: Activation
    heard: bool = False

    def forward(self, x: Tensor | Grouped) -> Tensor:
        if isinstance(x, Grouped):
            x = out = x.together(self.work.pool)
        else:
            out = self.work.pool.empty_like(x)
        with self.work.profile.span(NODEWISE):
            self.work.profile.work(NODEWISE, 2 * x.numel() * x.element_size())
            for t, rows in self.norm.runs:
                self.work.rows.norm_act_drop(x[rows], self.slope[t], self.shift[t], self.after.of(rows), out[rows])
        return out


class _Fused(torch.autograd.Function):
    """``grouped``: the rows, of which ``x`` is the stand-in; None: x is the rows."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, made: _Pass, grouped: Grouped | None
    ) -> Tensor:
        vectors = made.norm.mean, made.norm.inv_std, made.slope, made.shift
        ctx.save_for_backward(*vectors, *(() if grouped is not None else (x,)))
        ctx.made, ctx.shape, ctx.grouped = made, None if weight is None else weight.shape, grouped
        return made.forward(x if grouped is None else grouped)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        made: _Pass = ctx.made
        norm, work = made.norm, made.work
        mean, inv_std, slope, shift, *saved = ctx.saved_tensors
        grouped, ctx.grouped = ctx.grouped, None
        x = saved[0] if grouped is None else grouped.together(work.pool)
        sums = torch.zeros(2, *mean.shape, dtype=torch.float64, device=mean.device)
        with work.profile.span(NODEWISE):
            work.profile.work(NODEWISE, 3 * x.numel() * x.element_size())
            # Where nothing else holds the gradient its memory serves: each number is read before it is written to.
            d_x = grad if not made.heard and work.pool.is_only_holder(grad) else work.pool.empty_like(x)
            grad = grad.contiguous()
            for t, rows in norm.runs:
                vectors = NormVectors(slope[t], shift[t], mean[t], inv_std[t])
                sums[0, t], sums[1, t] = work.rows.norm_act_drop_backward(
                    grad[rows], x[rows], vectors, made.after.of(rows), d_x[rows]
                )
        del grad
        if ctx.shape is None:
            return d_x, None, None, None, None
        d_bias, d_weight = (total.to(mean.dtype).view(ctx.shape) for total in sums)
        if grouped is not None:
            del x  # its groups lie on disk while this rank waits
        means = (made.group.sum_(sums.clone()) / norm.counts.clamp(min=1)[:, None]).to(mean.dtype)
        if grouped is not None:
            x = grouped.together(work.pool)
            del grouped
        with work.profile.span(NODEWISE):
            work.profile.work(NODEWISE, 3 * x.numel() * x.element_size())
            for t, rows in norm.runs:
                counted = None if norm.counted is None else norm.counted[rows]
                vectors = NormVectors(slope[t], shift[t], mean[t], inv_std[t])
                work.rows.norm_backward(d_x[rows], x[rows], vectors, means[0, t], means[1, t], counted)
        return d_x, d_weight, d_bias, None, None


def norm_act_drop(
    work: Workspace,
    group: Group,
    x: Tensor | Grouped,
    after: Activation,
    norm: Norm | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    heard: bool = False,
) -> Tensor:
    """Normalise, activate and drop the rows of ``x`` in one pass.

    Args:
        x: [N, F], contiguous, fp32, fp64 or bf16; nobody else reads it where it is in groups.
        norm: the statistics; None without a norm.
        weight, bias: gamma, beta [F] or [T, F]; None without a norm.
        heard: a user's hook may hold the gradient of what comes out.
    """
    with torch.no_grad():
        if norm is None or weight is None or bias is None:
            weight = bias = None
            slope = torch.ones(1, x.shape[1], dtype=wide(x.dtype), device=x.device)
            shift = torch.zeros_like(slope)
            norm = Norm(shift, slope, torch.zeros(1, dtype=torch.float64, device=x.device), (0, len(x)))
        else:
            slope, shift = _map(weight, bias, norm)
    made = _Pass(work, group, norm, slope, shift, after, heard)
    if isinstance(x, Grouped):
        out: Tensor = _Fused.apply(x.stand_in, weight, bias, made, x)
        return rebuilt_by(out, lambda: made.forward(x)) if out.requires_grad else out
    return rebuilt_from(work.pool, _Fused.apply(x, weight, bias, made, None), made.forward, x)


class DistributedBatchNorm(RowNorm):
    """``torch.nn.BatchNorm1d`` over the rows of all workers: same parameters, buffers, momentum and eps; [T, F] for T types."""

    running_mean: Tensor
    running_var: Tensor
    reads_groups = True

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, num_types: int = 1) -> None:
        super().__init__(num_features, num_types)
        self.eps, self.momentum = eps, momentum
        self.register_buffer("running_mean", torch.zeros_like(self.bias))
        self.register_buffer("running_var", torch.ones_like(self.weight))

    @property
    def fuses(self) -> bool:
        """Not with running statistics under autograd: the compiled backward pass knows batch statistics only."""
        return self.training or not torch.is_grad_enabled()

    def statistics(
        self,
        x: Tensor | Grouped,
        group: Group,
        bounds: tuple[int, ...] | None = None,
        counted: Tensor | None = None,
        *,
        by: Rows | None = None,
    ) -> Norm:
        """What ``x`` [N, F] is normalised with; arguments as of ``global_moments``. In training every rank must call it."""
        bounds = bounds or (0, len(x))
        shape = (len(bounds) - 1, x.shape[1])
        running_mean, running_var = self.running_mean.view(shape), self.running_var.view(shape)
        if not self.training:
            counts = torch.zeros(shape[0], dtype=torch.float64, device=x.device)
            return Norm(running_mean, (running_var + self.eps).rsqrt(), counts, bounds)
        running = running_mean, running_var

        def find() -> Norm:
            return batch_statistics(x, group, bounds, self.eps, running, self.momentum, counted=counted, by=by)

        return find() if self.tape is None else self.tape.once(find)

    def forward(self, x: Tensor, group: Group, bounds: tuple[int, ...] | None = None, counted: Tensor | None = None) -> Tensor:
        norm = self.statistics(x, group, bounds, counted)
        if not self.training:
            slope, shift = _map(self.weight, self.bias, norm)
            mapped = (torch.addcmul(shift[t], x[rows], slope[t]).to(x.dtype) for t, rows in norm.runs)
            return torch.cat([x[:0], *mapped])
        return normalise(x, self.weight, self.bias, norm, group)

    def fused(
        self,
        work: Workspace,
        x: Tensor | Grouped,
        group: Group,
        activation: str,
        ids: Tensor,
        draw: Draw | None,
        bounds: tuple[int, ...] | None = None,
        counted: Tensor | None = None,
    ) -> Tensor:
        # While this rank waits for statistics it may go to disk and come back.
        unwritten = None if isinstance(x, Grouped) else work.pool.keep(x)
        norm = self.statistics(x, group, bounds, counted, by=work.rows)
        out = norm_act_drop(work, group, x, Activation(activation, ids, draw), norm, self.weight, self.bias)
        del unwritten
        return out
