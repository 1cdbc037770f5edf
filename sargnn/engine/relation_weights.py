"""R-GCN's weights of relations, one after the other, so that with bases there is no table of relations x in x out.

    W_r = sum over b of a_rb V_b        d a_rb = <V_b, d W_r>        d V_b = sum over r of a_rb d W_r

Letters: R relations, B bases.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class RelationWeights:
    """W_r [in, out] of each relation r, differentiable.

    ``tables``: (W [R, in, out],), or (V [B, in, out], a [R, B]); of the latter a weight is made when it is asked for, and kept
    until another one is.
    """

    def __init__(self, tables: Sequence[Tensor]) -> None:
        self.tables = tuple(tables)
        self._made: tuple[int, Tensor] | None = None

    def __getitem__(self, relation: int) -> Tensor:
        if len(self.tables) == 1:
            return self.tables[0][relation]
        if self._made is None or self._made[0] != relation:
            bases, coefficients = self.tables
            self._made = relation, (coefficients[relation] @ bases.flatten(1)).view(bases.shape[1:])
        return self._made[1]


class RelationGradients:
    """The gradients of ``weights.tables`` so far."""

    def __init__(self, weights: RelationWeights) -> None:
        self._weights, self._of = weights, -1
        self._sums = tuple(map(torch.zeros_like, weights.tables))
        self._now = self._sums[0].new_zeros(self._sums[0].shape[1:])

    def __getitem__(self, relation: int) -> Tensor:
        """[in, out], to which d W_r may be added until another relation's is asked for."""
        if len(self._sums) == 1:
            return self._sums[0][relation]
        if relation != self._of:
            self._take_back()
            self._of = relation
        return self._now

    def _take_back(self) -> None:
        if self._of >= 0:
            (bases, coefficients), (d_bases, d_coefficients) = self._weights.tables, self._sums
            d_weight = self._now.flatten()
            d_coefficients[self._of] += bases.flatten(1) @ d_weight
            d_bases.flatten(1).addr_(coefficients[self._of], d_weight)
            self._now.zero_()

    def finish(self) -> tuple[Tensor, ...]:
        self._take_back()
        return self._sums
