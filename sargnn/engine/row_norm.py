"""What a norm between two layers is, and layer normalisation.

Layer normalisation (Ba, Kiros and Hinton, 2016) is of each row over its own features. No worker needs to know of another's
rows.

    forward   xhat = (x - mu) inv, mu = mean over F of x, inv = 1 / sqrt(mean over F of (x - mu)^2 + eps)
              v = gamma xhat + beta, y = drop(act(v))
    backward  g = drop(gradient of y) act'(v)
              d gamma = sum over rows of g xhat, d beta = sum over rows of g: this worker's sums
              dx = inv (h - mean over F of h - xhat mean over F of (h xhat)), h = g gamma

The last line: with d xhat = h, x acts on xhat by itself, through mu and through inv. As d mu / d x_f = 1 / F and
d inv / d x_f = -inv^2 xhat_f / F (the deviations add up to 0, so mu adds nothing to it), dx_f = inv h_f - inv sum(h) / F
- inv xhat_f sum(h xhat) / F. Where all entries of a row are equal, xhat is 0, y is that of beta, and dx is inv (h - mean(h)).

Saves ONE tensor, x; mu, inv, xhat and v are computed again, and the mask is drawn again. A linear map that reads y rebuilds it
in backward (``engine.rebuild``), so that y is not kept either. Rows of several node types have parameters each.

Letters: N own rows, F features, T node types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sargnn.backends.base import Activation
from sargnn.comm.group import Group
from sargnn.engine.rebuild import rebuilt_from
from sargnn.engine.workspace import Workspace
from sargnn.profile import NODEWISE
from sargnn.rng import Draw

Found = TypeVar("Found")


class Tape:
    """What norms found in one pass, for a second one over the same rows (``engine.segments``)."""

    def __init__(self) -> None:
        self._found: list[Any] = []
        self._at: int | None = None

    def rewind(self) -> None:
        self._at = 0

    def once(self, find: Callable[[], Found]) -> Found:
        """What ``find()`` gives; in the second pass what it gave in the first."""
        if self._at is None:
            self._found.append(find())
            return cast(Found, self._found[-1])
        self._at += 1
        return cast(Found, self._found[self._at - 1])


class RowNorm(nn.Module, ABC):
    """A norm of the rows between two layers, with a scale gamma and a shift beta, [F], or [T, F] for T types.

    ``tape``: where statistics over rows are kept while a pass runs that is run again; None: it is not.
    """

    tape: Tape | None = None
    reads_groups: bool = False
    """Whether ``fused`` takes rows in groups of columns."""

    def __init__(self, num_features: int, num_types: int = 1) -> None:
        super().__init__()
        shape = (num_features,) if num_types == 1 else (num_types, num_features)
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))

    @property
    def fuses(self) -> bool:
        """Whether ``fused`` can give what is wanted now, also in backward."""
        return True

    @abstractmethod
    def forward(self, x: Tensor, group: Group, bounds: tuple[int, ...] | None = None, counted: Tensor | None = None) -> Tensor:
        """Normalise ``x`` [N, F] in PyTorch's own operators; in training all workers must call it.

        Args:
            bounds: T + 1, the rows of each type; None: (0, N).
            counted: uint8 [N], 1 for rows that statistics over rows are taken of; None: of all.
        """

    @abstractmethod
    def fused(
        self,
        work: Workspace,
        x: Any,
        group: Group,
        activation: str,
        ids: Tensor,
        draw: Draw | None,
        bounds: tuple[int, ...] | None = None,
        counted: Tensor | None = None,
    ) -> Tensor:
        """Normalise, activate and drop ``x`` [N, F] in one pass; in training all workers must call it.

        Args:
            activation: ``relu``, ``elu`` or ``none``.
            ids: int64 [N], original ids.
            draw: None drops nothing.
            bounds, counted: as for ``forward``.
        """


def type_runs(bounds: tuple[int, ...]) -> list[tuple[int, slice]]:
    """The types that have rows here, with their rows. ``bounds``: T + 1, the rows of each type."""
    return [(t, slice(a, b)) for t, (a, b) in enumerate(zip(bounds, bounds[1:], strict=False)) if a < b]


@dataclass(frozen=True)
class _Pass:
    """What one pass is to do with its rows. ``bounds``: T + 1, the rows of each type."""

    work: Workspace
    eps: float
    after: Activation
    bounds: tuple[int, ...]

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        with self.work.profile.span(NODEWISE):
            self.work.profile.work(NODEWISE, 2 * x.numel() * x.element_size())
            out = self.work.pool.empty_like(x)
            gammas, betas = self._by_type(weight), self._by_type(bias)
            for t, rows in type_runs(self.bounds):
                self.work.rows.layer_norm_act_drop(x[rows], gammas[t], betas[t], self.eps, self.after.of(rows), out[rows])
        return out

    def backward(self, grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        d_weight, d_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        gammas, betas, d_gammas, d_betas = (self._by_type(table) for table in (weight, bias, d_weight, d_bias))
        with self.work.profile.span(NODEWISE):
            self.work.profile.work(NODEWISE, 3 * x.numel() * x.element_size())
            d_x, grad = self.work.pool.empty_like(x), grad.contiguous()
            for t, rows in type_runs(self.bounds):
                d_betas[t], d_gammas[t] = self.work.rows.layer_norm_act_drop_backward(
                    grad[rows], x[rows], gammas[t], betas[t], self.eps, self.after.of(rows), d_x[rows]
                )
        return d_x, d_weight, d_bias

    def _by_type(self, parameter: Tensor) -> Tensor:
        return parameter.view(len(self.bounds) - 1, -1)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, made: _Pass) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.made = made
        return made.forward(x.detach(), weight.detach(), bias.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = (tensor.detach() for tensor in ctx.saved_tensors)
        return (*ctx.made.backward(grad, x, weight, bias), None)


class LayerNorm(RowNorm):
    """``torch.nn.LayerNorm`` over the F features of each row: same parameters and eps."""

    def __init__(self, num_features: int, num_types: int = 1, eps: float = 1e-5) -> None:
        super().__init__(num_features, num_types)
        self.eps = eps

    def forward(self, x: Tensor, group: Group, bounds: tuple[int, ...] | None = None, counted: Tensor | None = None) -> Tensor:
        bounds = bounds or (0, len(x))
        weight, bias = (parameter.view(len(bounds) - 1, -1) for parameter in (self.weight, self.bias))
        pieces = [F.layer_norm(x[rows], x.shape[1:], weight[t], bias[t], self.eps) for t, rows in type_runs(bounds)]
        return pieces[0] if len(pieces) == 1 else torch.cat([x[:0], *pieces])

    def fused(
        self,
        work: Workspace,
        x: Tensor,
        group: Group,
        activation: str,
        ids: Tensor,
        draw: Draw | None,
        bounds: tuple[int, ...] | None = None,
        counted: Tensor | None = None,
    ) -> Tensor:
        made = _Pass(work, self.eps, Activation(activation, ids, draw), bounds or (0, len(x)))
        out: Tensor = _Fused.apply(x, self.weight, self.bias, made)
        return rebuilt_from(work.pool, out, made.forward, x, self.weight, self.bias)
