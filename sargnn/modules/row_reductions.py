"""What a user's module computes over node rows, over the rows of all workers: sums, means, spreads, norms, maxima, softmax.

Each worker's loss is its share of one loss, so that the gradient of what all workers have alike is the sum of what each of them
has for it: y = sum over workers of x_w has d x_w = sum over workers of d y_w.

Letters: N rows of this worker.
"""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import torch
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.errors import ConfigError
from sargnn.modules.tag import mark_of, set_mark, user_line
from sargnn.modules.tag_rules import Call, reduced_dims

SPREADS = "sum mean nanmean std var norm".split()
_EXTREMES = "max min amax amin".split()
_ALIKE = "any all count_nonzero equal allclose".split()
_SOFTMAX = "softmax log_softmax logsumexp".split()
_REFUSED = """median nanmedian mode quantile nanquantile kthvalue argmax argmin prod cumsum cumprod logcumsumexp sort argsort
    topk std_mean var_mean normalize renorm""".split()
REDUCTIONS = (*SPREADS, *_EXTREMES, *_ALIKE, *_SOFTMAX, *_REFUSED)
_FIRST = {"normalize": 2, "topk": 2, "kthvalue": 2, "quantile": 2, "nanquantile": 2}
"""Where the dimension stands among the arguments of functions that have it elsewhere than second."""
_KEEPDIM = {"std": 3, "var": 3, "norm": 3}
_Extreme = namedtuple("_Extreme", "values indices")


class SumOverWorkers(torch.autograd.Function):
    """``y = sum over workers of x``, alike on all of them."""

    @staticmethod
    def forward(ctx: Any, group: Group, x: Tensor) -> Tensor:
        ctx.group = group
        return group.sum_(x.contiguous().clone())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, ctx.group.sum_(grads[0].contiguous().clone())


class _Largest(torch.autograd.Function):
    """``y = max over rows of all workers``; its gradient is shared out among the rows that have it, as ``amax`` does."""

    @staticmethod
    def forward(ctx: Any, group: Group, x: Tensor, dims: tuple[int, ...]) -> Tensor:
        shape = [1 if dim in dims else size for dim, size in enumerate(x.shape)]
        own = x.amax(dims, keepdim=True) if x.numel() else x.new_full(shape, -torch.inf)
        largest = torch.stack(group.gather(own.contiguous())).amax(0)
        ctx.group, ctx.dims = group, dims
        ctx.save_for_backward(x, largest)
        return largest

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        x, largest = ctx.saved_tensors
        has = x == largest
        holders = ctx.group.sum_(has.sum(ctx.dims, keepdim=True))
        return None, has * (ctx.group.sum_(grads[0].contiguous().clone()) / holders), None


def reduced_over_workers(group: Group, call: Call) -> Any:
    """The answer for the rows of all workers; ``NotImplemented`` where no rows are reduced.

    Raises:
        ConfigError: the function needs all rows in one place.
    """
    name = call.name
    if group.world == 1 or "out" in call.kwargs or not call.args:
        return NotImplemented
    if name in ("equal", "allclose"):
        return bool(group.sum_(torch.tensor([int(call.plain())])).item() == group.world)
    x, mark = call.args[0], mark_of(call.args[0])
    dims = _dims(call)
    if mark is None or dims is None or mark.dim not in dims:
        return NotImplemented
    if name in _REFUSED:
        raise ConfigError(
            f"'{name}' over node rows needs the rows of all workers in one place",
            given=f"{user_line()}: {name} along the rows",
            allowed="sum, mean, std, var, norm, max, min, softmax and logsumexp over rows; any function of each row by itself",
        )
    if name in ("any", "all", "count_nonzero") or (name == "sum" and not x.is_floating_point()):
        total = group.sum_(call.plain().to(torch.int64))
        if name in ("any", "all"):
            return total > 0 if name == "any" else total == group.world
        return total
    if name in _SOFTMAX:
        return _softmax(group, call, x, dims)
    keep = bool(call.argument(_KEEPDIM.get(name, 2), "keepdim", default=False))
    if name in SPREADS:
        return _spread(group, call, x, dims, keep=keep)
    return _extreme(group, call, x, dims, keep=keep)


def _dims(call: Call) -> list[int] | None:
    if call.name in _FIRST or call.name in _SOFTMAX:
        default = 1 if call.name == "normalize" else -1
        dim = call.argument(_FIRST.get(call.name, 1), "dim", default=default)
        return [axis % call.args[0].dim() for axis in (dim if isinstance(dim, (tuple, list)) else [dim])]
    if call.name in ("sort", "argsort") and len(call.args) < 2 and "dim" not in call.kwargs:
        return [call.args[0].dim() - 1]
    return reduced_dims(call)


def _spread(group: Group, call: Call, x: Tensor, dims: list[int], *, keep: bool) -> Tensor:
    name, exponent = call.name, 2.0

    def total(values: Tensor, *, keepdim: bool = keep) -> Tensor:
        summed: Tensor = SumOverWorkers.apply(group, values.sum(dims, keepdim=keepdim))
        return summed

    if name == "sum":
        return total(x)
    if name == "norm":
        p = call.argument(1, "p", default=2)
        exponent = 2.0 if p == "fro" else float(p)
        if exponent <= 0 or math.isinf(exponent):
            raise ConfigError(f"A norm over node rows has a finite p above 0, not {p}", given=user_line())
        return total(x.abs() ** exponent) ** (1 / exponent)
    if name == "nanmean":
        return total(torch.nan_to_num(x)) / total((~x.isnan()).to(x.dtype))
    own = torch.tensor([math.prod(x.shape[dim] for dim in dims)], dtype=torch.float64)
    count = float(group.sum_(own).item())
    if name == "mean":
        return total(x) / count
    mean = total(x, keepdim=True) / count
    free = call.kwargs.get("correction", call.argument(2, "unbiased", default=True))
    if isinstance(call.argument(1, "unbiased"), bool):  # x.std(False)
        free = call.argument(1, "unbiased")
    variance = total((x - mean) ** 2) / max(count - float(1 if free is None else free), 0.0)
    return variance.sqrt() if name == "std" else variance


def _extreme(group: Group, call: Call, x: Tensor, dims: list[int], *, keep: bool) -> Any:
    sign = -1 if call.name in ("min", "amin") else 1
    of_whole_numbers = not x.is_floating_point()
    values = x.double() if of_whole_numbers else x
    out: Tensor = sign * _Largest.apply(group, sign * values, tuple(dims))
    if bool(torch.isinf(out).all()) and not int(group.sum_(torch.tensor(x.shape[dims[0]]))):
        return call.plain()  # where nobody has rows, PyTorch says what is wrong
    out = out.to(x.dtype) if of_whole_numbers else out
    if not keep:
        out = out.squeeze(dims)
    by_place = call.name in ("max", "min") and len(dims) == 1 and (len(call.args) > 1 or "dim" in call.kwargs)
    return _Extreme(out, None) if by_place else out


def _softmax(group: Group, call: Call, x: Tensor, dims: list[int]) -> Tensor:
    largest = _Largest.apply(group, x.detach(), tuple(dims))
    total = SumOverWorkers.apply(group, (x - largest).exp().sum(dims, keepdim=True))
    logarithm: Tensor = largest + total.log()
    if call.name == "logsumexp":
        return logarithm if call.argument(2, "keepdim", default=False) else logarithm.squeeze(dims)
    difference = x - logarithm
    return difference if call.name == "log_softmax" else difference.exp()


def scattered_over_workers(group: Group, call: Call) -> Any:
    """Rows added to a table that all workers have alike, by an index of rows: the sum over all workers."""
    target = call.args[0]
    if group.world == 1 or mark_of(target) is not None or target.requires_grad:
        return NotImplemented
    source = call.args[3] if len(call.args) > 3 else call.kwargs.get("src", call.kwargs.get("source"))
    if mark_of(source) is None and mark_of(call.args[2]) is None:
        return NotImplemented
    own = call.func(torch.zeros_like(target), *call.args[1:], **call.kwargs)
    out: Tensor = target + SumOverWorkers.apply(group, own)
    set_mark(out, None, shared=False)
    if not call.name.endswith("_"):
        return out
    if out.requires_grad:
        return target.add_(out - target.detach())
    return target.copy_(out)
