"""Propagation without parameters: what label propagation and Correct & Smooth share.

    x_(t+1) = alpha S x_t + (1 - alpha) x_0        S one of

    dad   D^-1/2 A D^-1/2        da   D^-1 A        ad   A D^-1

A_ij counts the edges j -> i; of a graph with edge weights it is their sum. D_ii = sum of A_ij, the in-degree; D^-1 and D^-1/2
are 0 where it is 0. On symmetric graphs these are the usual three. The sum reducer does the work in whatever mode runs,
without gradients: beside x_0 three tables of its size.

Letters: N own rows, C columns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sargnn.bf16 import wide
from sargnn.engine.aggregate import Engine
from sargnn.engine.reducers.sum import Sum
from sargnn.plan.layer_plan import LayerPlan

_POWERS = {"dad": (-0.5, -0.5), "da": (-1.0, 0.0), "ad": (0.0, -1.0)}
"""Of D, left and right of A."""


@torch.no_grad()
def propagate(
    engine: Engine,
    plan: LayerPlan,
    start: Tensor,
    *,
    alpha: float,
    steps: int,
    adjacency: str,
    after: Callable[[Tensor], object] = lambda x: None,
) -> Tensor:
    """x after ``steps`` steps, [N, C]; ``start`` itself where there are none. All workers must call it.

    Args:
        plan: computes all its rows.
        start: x_0 [N, C].
        alpha: 0 to 1.
        adjacency: ``dad``, ``da`` or ``ad``.
        after: changes x in place after every step.
    """
    left, right = (_power(plan, power, start) for power in _POWERS[adjacency])
    reducer, x = Sum(weighted=True, exact=True), start
    for _ in range(steps):
        (x,) = engine.aggregate(plan, reducer, (x if right is None else (x * right).to(x.dtype),))
        if left is not None:
            x.mul_(left)
        x.mul_(alpha).add_(start, alpha=1 - alpha)
        after(x)
    return x


def _power(plan: LayerPlan, power: float, like: Tensor) -> Tensor | None:
    """[N, 1], D to a negative power, 0 where D is 0; None for power 0."""
    if power == 0:
        return None
    if plan.weights is not None:
        sums = plan.weights.inward
        return torch.where(sums > 0, sums.pow(power), 0).to(wide(like.dtype))[:, None]
    return torch.where(plan.in_degrees > 0, plan.in_degrees.clamp(min=1).to(wide(like.dtype)).pow(power), 0)[:, None]
