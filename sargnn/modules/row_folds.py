"""Folds over the rows of all workers that are neither sums nor means: a rule for each, in terms of sums, maxima and products.

Sums and means need no rule: ``trial.py`` finds that a function is one, and ``SumOverWorkers`` and ``mean_over_workers`` compute
it of each worker's own result. A rule here gets the function's arguments and an ``Over``, which folds over the rows of all
workers, or, in a trial, of two parts of a table: there the rule must give what the function itself gives of the whole, or the
call is refused.

Each worker's loss is its share of one loss, so that the gradient of what all workers have alike is the sum of what each of them
has for it: y = sum over workers of x_w has d x_w = sum over workers of d y_w.

Letters: N rows of this worker.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sargnn.comm.group import Group

Rule = Callable[..., Any]
"""(``Over``, the function, its arguments ...) to its result; ``None`` in the place of a tensor that all workers cannot have."""


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
        least = -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        own = x.amax(dims, keepdim=True) if x.numel() else x.new_full(shape, least)
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


class _ProductOverWorkers(torch.autograd.Function):
    """``y = product over workers of x_w``: d x_w = d y times the product of the others'."""

    @staticmethod
    def forward(ctx: Any, group: Group, x: Tensor) -> Tensor:
        ctx.group = group
        parts = torch.stack(group.gather(x.contiguous()))
        others = torch.cat([parts[: group.rank], parts[group.rank + 1 :]]).prod(0)
        ctx.save_for_backward(others)
        return parts.prod(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (others,) = ctx.saved_tensors
        return None, ctx.group.sum_(grads[0].contiguous().clone()) * others


class _RootOfSum(torch.autograd.Function):
    """``y = (sum over workers of n_w^p)^(1/p)``, n_w >= 0 each worker's norm: d n_w = d y (n_w / y)^(p - 1), 0 where y is."""

    @staticmethod
    def forward(ctx: Any, group: Group, own: Tensor, p: float) -> Tensor:
        ctx.group, ctx.p = group, p
        total = torch.linalg.vector_norm(torch.stack(group.gather(own.contiguous())), p, dim=0)
        ctx.save_for_backward(own, total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        own, total = ctx.saved_tensors
        share = (own / total) ** (ctx.p - 1)
        return None, ctx.group.sum_(grads[0].contiguous().clone()) * share.masked_fill(total == 0, 0), None


class How(NamedTuple):
    """How what rows give part by part becomes what all of them give.

    Attributes:
        parts: of what each of several parts gives.
        workers: of what each worker gives, with a gradient.
    """

    parts: Callable[[list[Any]], Any]
    workers: Callable[[Group, Tensor], Any]


SUM = How(sum, SumOverWorkers.apply)
PRODUCT = How(math.prod, _ProductOverWorkers.apply)


class Over:
    """Folds over rows, in terms of ``join``. ``dim``: of the first argument, along which they run; None: nobody needs it."""

    dim: int | None = None

    def join(self, own: Tensor, how: How) -> Any:
        """What all rows give, of what these do."""
        raise NotImplementedError

    def sum(self, x: Tensor, dims: list[int], *, keepdim: bool = False) -> Tensor:
        """[...] without ``dims``, the rows' among them."""
        total: Tensor = self.join(x.sum(dims, keepdim=keepdim), SUM)
        return total

    def count(self, x: Tensor, dims: list[int]) -> float:
        own = torch.tensor([math.prod(x.shape[dim] for dim in dims)], dtype=torch.float64)
        return float(self.join(own, SUM))

    def largest(self, x: Tensor, dims: list[int]) -> Tensor:
        """The maxima along ``dims``, which stay as 1."""
        raise NotImplementedError

    def norm(self, own: Tensor, p: float) -> Tensor:
        """Of what is each part's norm, 1 <= p < inf."""

        def of_parts(parts: list[Tensor]) -> Tensor:
            total: Tensor = torch.linalg.vector_norm(torch.stack(parts), p, dim=0)
            return total

        total: Tensor = self.join(own, How(of_parts, lambda group, own: _RootOfSum.apply(group, own, p)))
        return total

    def mean(self, x: Tensor, dims: list[int], *, keepdim: bool = False) -> Tensor:
        return self.sum(x, dims, keepdim=keepdim) / self.count(x, dims)


class OverWorkers(Over):
    """Folds over the rows of all workers, who call together."""

    def __init__(self, group: Group, dim: int | None = None) -> None:
        self.group, self.dim = group, dim

    def join(self, own: Tensor, how: How) -> Any:
        return how.workers(self.group, own)

    def largest(self, x: Tensor, dims: list[int]) -> Tensor:
        largest: Tensor = _Largest.apply(self.group, x, tuple(dims))
        return largest


class Waits(Exception):
    """A part needs what the others give to a fold."""


class OverParts(Over):
    """Folds over the rows of several parts, one after the other: a rule is called for each part until all folds are known."""

    def __init__(self, dim: int | None) -> None:
        self.dim = dim
        self._known: list[Any] = []
        self._given: list[tuple[How, Any]] = []
        self._at = 0

    def results(self, parts: Sequence[Callable[[Over], Any]]) -> list[Any]:
        """What a rule gives for each part. parts: call it with an ``Over``."""
        while True:
            self._given, done = [], []
            for part in parts:
                self._at = 0
                try:
                    done.append(part(self))
                except Waits:
                    continue
            if not self._given:
                return done
            self._known.append(self._given[0][0].parts([own for _, own in self._given]))

    def join(self, own: Any, how: How) -> Any:
        self._at += 1
        if self._at <= len(self._known):
            return self._known[self._at - 1]
        self._given.append((how, own))
        raise Waits

    def largest(self, x: Tensor, dims: list[int]) -> Tensor:
        how = How(lambda parts: torch.stack(parts).amax(0), SumOverWorkers.apply)
        largest: Tensor = self.join(x.amax(tuple(dims), keepdim=True), how)
        return largest


def mean_over_workers(group: Group, own: Tensor, rows: int, args: Sequence[Tensor]) -> Tensor:
    """``y = sum over workers of N_w y_w / sum of N_w``, of a mean over each worker's rows.

    Args:
        own: y_w, which is not defined where there are no rows.
        rows: N_w.
        args: what it was computed from; a worker without rows must be in backward as others are.
    """
    total = float(group.sum_(torch.tensor([rows], dtype=torch.float64)).item())
    if not rows and total:
        own = sum((arg.sum() * 0 for arg in args if arg.requires_grad), torch.zeros_like(own.detach()))
        rows = 1
    mean: Tensor = SumOverWorkers.apply(group, own * (rows / total if total else 1.0))
    return mean


def _dims(x: Tensor, dim: Any) -> list[int]:
    """The dimensions that an argument names: all where it names none."""
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return list(range(x.dim()))
    return [axis % x.dim() for axis in ([dim] if isinstance(dim, int) else dim)]


_Extreme = namedtuple("_Extreme", "values indices")


def _extreme(sign: int) -> Rule:
    """``max``, ``amax`` with sign 1, ``min``, ``amin`` with -1. Where the first maximum is, is known to no worker."""

    def rule(over: Over, func: Any, input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        dims = _dims(input, dim)
        if not over.count(input, dims):
            return func(input, *(() if dim is None else (dim,)))  # PyTorch says what is wrong
        values = sign * over.largest(sign * input, dims)
        values = values if keepdim else values.squeeze(dims)
        by_place = func.__name__ in ("max", "min") and dim is not None
        return _Extreme(values, None) if by_place else values

    return rule


def _both_extremes(over: Over, func: Any, input: Tensor, *, dim: Any = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    low, high = (_extreme(sign)(over, torch.amax, input, dim, keepdim) for sign in (-1, 1))
    return low, high


def _variance(over: Over, func: Any, input: Tensor, *given: Any, **named: Any) -> Any:
    """``std``, ``var``, also with their means: ``(input, dim, unbiased, keepdim)``, ``(input, unbiased)``, or by name."""
    dim, unbiased, keepdim = named.get("dim"), named.get("unbiased"), named.get("keepdim", False)
    if given and isinstance(given[0], bool):
        unbiased = given[0]
    elif given:
        dim, unbiased, keepdim = [*given, *[dim, unbiased, keepdim][len(given) :]]
    free = named.get("correction")
    free = (1 if unbiased in (None, True) else 0) if free is None else free
    dims = _dims(input, dim)
    mean = over.mean(input, dims, keepdim=True)
    variance = over.sum((input - mean) ** 2, dims, keepdim=keepdim) / max(over.count(input, dims) - float(free), 0.0)
    out = variance.sqrt() if "std" in func.__name__ else variance
    return (out, mean if keepdim else mean.squeeze(dims)) if func.__name__.endswith("_mean") else out


def _vector_norm(
    over: Over, func: Any, x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    dims, p = _dims(x, dim), float(ord)
    x = x if dtype is None else x.to(dtype)
    if math.isinf(p):
        sign = 1 if p > 0 else -1
        values = sign * over.largest(sign * x.abs(), dims)
        return values if keepdim else values.squeeze(dims)
    if p >= 1:
        return over.norm(torch.linalg.vector_norm(x, p, dims, keepdim), p)
    if p == 0:
        return over.sum((x != 0).to(x.dtype), dims, keepdim=keepdim)
    return over.sum(x.abs() ** p, dims, keepdim=keepdim) ** (1 / p)


def _norm(
    over: Over,
    func: Any,
    input: Tensor,
    p: Any = "fro",
    dim: Any = None,
    keepdim: bool = False,
    out: Any = None,
    dtype: Any = None,
) -> Tensor:
    """``torch.norm``, ``Tensor.norm`` and ``linalg.norm``, which agree where they are norms of vectors."""
    if "linalg" in func.__name__ and p not in (None, "fro") and (dim is None or not isinstance(dim, int)):
        pair = dim if dim is not None else (-2, -1)
        return input if p == "nuc" or input.dim() < 2 else _matrix_norm(over, func, input, p, pair, keepdim)
    return _vector_norm(over, func, input, 2 if p in (None, "fro") else p, dim, keepdim, dtype=dtype)


def _linalg_norm(
    over: Over, func: Any, A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    return _norm(over, func, A, ord, dim, keepdim, None, dtype)


def _matrix_norm(
    over: Over, func: Any, A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """Frobenius's, and the largest or smallest sum of a row or a column."""
    A = A if dtype is None else A.to(dtype)
    if ord == "fro":
        return _vector_norm(over, func, A, 2, dim, keepdim)
    sign, (first, second) = (1 if ord > 0 else -1), _dims(A, dim)
    summed, other = (first, second) if abs(ord) == 1 else (second, first)
    sums = over.sum(A.abs(), [summed], keepdim=True) if over.dim in (None, summed) else A.abs().sum(summed, keepdim=True)
    best = over.largest(sign * sums, [other]) if over.dim in (None, other) else (sign * sums).amax(other, keepdim=True)
    return sign * best if keepdim else sign * best.squeeze([first, second])


def _distance(over: Over, func: Any, input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    return _vector_norm(over, func, input - other, p)


def _product(over: Over, func: Any, input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    input = input if dtype is None else input.to(dtype)
    product: Tensor = over.join(input.prod() if dim is None else input.prod(dim, keepdim=keepdim), PRODUCT)
    return product


def _any(over: Over, func: Any, input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return over.sum((input != 0).to(torch.int64), _dims(input, dim), keepdim=keepdim) > 0


def _all(over: Over, func: Any, input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return over.sum((input == 0).to(torch.int64), _dims(input, dim), keepdim=keepdim) == 0


def _equal(over: Over, func: Any, *given: Any, **named: Any) -> bool:
    return not bool(over.sum(torch.tensor([int(not func(*given, **named))]), [0]))


def _nanmean(over: Over, func: Any, input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    dims, input = _dims(input, dim), input if dtype is None else input.to(dtype)
    there = (~input.isnan()).to(input.dtype)
    return over.sum(torch.nan_to_num(input, 0.0, torch.inf, -torch.inf), dims, keepdim=keepdim) / over.sum(
        there, dims, keepdim=keepdim
    )


def _log_of_sum(over: Over, x: Tensor, dims: list[int]) -> Tensor:
    """``log sum exp`` along ``dims``, which stay as 1."""
    largest = over.largest(x.detach(), dims)
    largest = largest.masked_fill(largest.isinf(), 0)
    return largest + over.sum((x - largest).exp(), dims, keepdim=True).log()


def _logsumexp(over: Over, func: Any, input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    out = _log_of_sum(over, input, _dims(input, dim))
    return out if keepdim else out.squeeze(_dims(input, dim))


def _softmax(over: Over, func: Any, input: Tensor, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    input = input.to(_stacklevel) if isinstance(_stacklevel, torch.dtype) else input if dtype is None else input.to(dtype)
    if func.__name__ == "softmin":
        input = -input
    difference = input - _log_of_sum(over, input, _dims(input, 0 if dim is None else dim))
    return difference if "log_softmax" in func.__name__ else difference.exp()


def _covariance(
    over: Over, func: Any, input: Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None
) -> Tensor:
    """``cov``, of rows that are observations: columns of the argument, which may be one variable."""
    x = input if input.dim() > 1 else input[None]
    centred = x - over.mean(x, [1], keepdim=True)
    out = over.join(centred @ centred.T, SUM) / max(over.count(x, [1]) - correction, 0)
    return out.reshape(()) if input.dim() < 2 else out


def _correlation(over: Over, func: Any, input: Tensor) -> Tensor:
    out = _covariance(over, func, input)
    if not out.dim():
        return out / out
    spread = out.diagonal().sqrt()
    return torch.clamp(out / spread[:, None] / spread[None], -1, 1)


def _class_loss(
    over: Over,
    func: Any,
    input: Tensor,
    target: Tensor,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    **named: Any,
) -> Tensor:
    """``cross_entropy`` and ``nll_loss``: a mean by the classes' weights, without what is ignored."""
    given = {"weight": weight, "ignore_index": ignore_index, "reduction": "none"}
    if over.dim == min(input.dim() - 1, 1):
        raise NotImplementedError("rows are classes")
    each = func(input, target, **given, **named)
    dims = list(range(each.dim()))
    total = over.sum(each, dims)
    if reduction == "sum":
        return total
    if target.is_floating_point():
        return total / over.count(each, dims)
    counted = F.nll_loss(torch.full_like(input.detach(), -1), target, **given)
    return total / over.sum(counted, dims)


def _histogram(over: Over, func: Any, input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    dims = list(range(input.dim()))
    if min == max:
        min, max = (float(sign * over.largest(sign * input.detach(), dims)) for sign in (-1, 1))
    return over.sum(func(input, bins, min, max)[None], [0])


def _bincount(over: Over, func: Any, input: Tensor, weights: Any = None, minlength: int = 0) -> Tensor:
    longest = int(over.largest(torch.cat([input.flatten(), input.new_full((1,), -1)]), [0])) + 1
    own = func(input, weights, max(minlength, longest))
    if weights is not None:  # of no rows PyTorch counts in integers, whatever the weights
        own = own.to(torch.float32 if weights.dtype == torch.float32 else torch.float64)
    return over.sum(own[None], [0])


def _cosine(over: Over, func: Any, x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    x1, x2 = torch.broadcast_tensors(x1, x2)
    dims = _dims(x1, dim)
    lengths = [_vector_norm(over, func, x, 2, dims, True).clamp(min=eps) for x in (x1, x2)]
    return over.sum((x1 / lengths[0]) * (x2 / lengths[1]), dims)


RULES: dict[str, Rule] = {
    **dict.fromkeys("max amax".split(), _extreme(1)),
    **dict.fromkeys("min amin".split(), _extreme(-1)),
    "aminmax": _both_extremes,
    **dict.fromkeys("std var std_mean var_mean".split(), _variance),
    "norm": _norm,
    "linalg_norm": _linalg_norm,
    "linalg_vector_norm": _vector_norm,
    "linalg_matrix_norm": _matrix_norm,
    "dist": _distance,
    "prod": _product,
    "any": _any,
    "all": _all,
    **dict.fromkeys("equal allclose".split(), _equal),
    "nanmean": _nanmean,
    **dict.fromkeys("logsumexp special_logsumexp".split(), _logsumexp),
    **dict.fromkeys("softmax log_softmax softmin special_softmax special_log_softmax".split(), _softmax),
    "cov": _covariance,
    "corrcoef": _correlation,
    **dict.fromkeys("cross_entropy nll_loss".split(), _class_loss),
    "histc": _histogram,
    "bincount": _bincount,
    "cosine_similarity": _cosine,
}
"""By the function's name, which says no more than which rule to try."""
