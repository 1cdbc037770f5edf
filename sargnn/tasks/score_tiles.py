"""Scores of many queries with many candidates, such that equal rows have equal scores wherever they are computed.

A query is the end of a pair that stays, with its relation. Candidates are nodes in the other end's place. A score is computed
in fp64 and rounded to fp32, whatever the dtype of rows and parameters. Of a ``Factored`` decoder it is

    s(q, k) = fp32( S(q_1 k_1, ..., q_F k_F) )        S: the fp64 sum of halves, each summed likewise: a fixed order

which depends on nothing but the two rows. A tile is one matrix product, whose order of additions does depend on its place and
shape. With u = 2^-53, products of F terms in any order are within F u |q| |k| (1 + F u) of the real number, and S is within
(2 + log2 F) u |q| |k| (Higham, Accuracy and Stability of Numerical Algorithms, 3.1 and 4.2). So

    | product - S |  <=  (2 F + 8) u |q| |k|

decides how nearly all candidates compare with a number, and S itself is computed for the others.

The distances of a ``Distance`` decoder are computed from heads that are moved once, or tails that are moved back, by its own
``distances``, which says how far off they may be, likewise.

Any other decoder is called with pairs of rows. Its own products have an order of their own, which rounding to fp32 hides but
for one score in hundreds of millions; tiles and pairs are taken to be the same.

Letters: B queries, T candidates, P pairs, F width of an embedding.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from sargnn.tasks.decoders import Distance, Factored

_UNIT = 2.0**-53
_SCRATCH_NUMBERS = 1 << 20
"""Of rows of pairs that are made at once."""


class Scorer(ABC):
    """Scores from a decoder's copy in fp64, of queries float64 [B, F] with keys float64 [T, F].

    Each query has a relation, int64 [B], and says whether candidates are heads, ``ranks_heads``, bool [B].
    """

    slack = 0.0
    """Times the sizes of q and k: how far a tile's number may be from what is rounded to a pair's score."""

    def __init__(self, decoder: nn.Module) -> None:
        self.decoder = copy.deepcopy(decoder).double().eval()

    def queries(self, rows: Tensor, relation: Tensor, ranks_heads: Tensor) -> Tensor:
        """Float64 [B, F], of the ends [B, F] that stay."""
        return rows.double()

    def keys(self, rows: Tensor) -> Tensor:
        """Float64 [T, F], of candidates [T, F]."""
        return rows.double()

    def sizes(self, rows: Tensor) -> Tensor:
        """Of queries or keys, 0 where they are not finite."""
        return torch.linalg.vector_norm(rows, dim=1).nan_to_num(0, 0)

    @abstractmethod
    def tile(self, queries: Tensor, keys: Tensor, relation: Tensor, ranks_heads: Tensor) -> Tensor:
        """Float64 [B, T], of each query with each key; not rounded."""

    def pairs(self, queries: Tensor, keys: Tensor, relation: Tensor, ranks_heads: Tensor) -> Tensor:
        """The scores [P] of P queries and a key each, fp32 numbers as float64."""
        return self._pairs(queries, keys, relation, ranks_heads).float().double()

    @abstractmethod
    def _pairs(self, queries: Tensor, keys: Tensor, relation: Tensor, ranks_heads: Tensor) -> Tensor:
        """The same, not rounded."""

    def pairs_at(
        self, queries: Tensor, keys: Tensor, relation: Tensor, ranks_heads: Tensor, at: tuple[Tensor, Tensor]
    ) -> Tensor:
        """``pairs`` of some places of a tile, few of them at once; ``at``: int64 [P] each, which query and which key."""
        size = max(1, _SCRATCH_NUMBERS // max(1, queries.shape[1]))
        scores = [
            self.pairs(queries[rows], keys[columns], relation[rows], ranks_heads[rows])
            for rows, columns in zip(at[0].split(size), at[1].split(size), strict=True)
        ]
        return torch.cat([queries.new_zeros(0), *scores])


class Products(Scorer):
    """Of a ``Factored`` decoder."""

    def __init__(self, decoder: Factored, width: int) -> None:
        super().__init__(decoder)
        self._factors: Factored = self.decoder  # type: ignore[assignment]
        self.slack = (2 * width + 8) * _UNIT

    def queries(self, rows: Tensor, relation: Tensor, ranks_heads: Tensor) -> Tensor:
        wide = rows.double()
        of_heads = self._factors.queries(wide, relation)
        if not ranks_heads.any():
            return of_heads
        return self._factors.head_queries(wide, relation).where(ranks_heads[:, None], of_heads)

    def keys(self, rows: Tensor) -> Tensor:
        return self._factors.keys(rows.double())

    def tile(self, queries: Tensor, keys: Tensor, relation: Tensor, ranks_heads: Tensor) -> Tensor:
        return queries @ keys.T

    def _pairs(self, queries: Tensor, keys: Tensor, relation: Tensor, ranks_heads: Tensor) -> Tensor:
        return sum_by_halves(queries * keys)


class Distances(Scorer):
    """Of a ``Distance`` decoder."""

    def __init__(self, decoder: Distance, width: int) -> None:
        super().__init__(decoder)
        self._distance: Distance = self.decoder  # type: ignore[assignment]
        self.slack = decoder.slack(width, _UNIT)

    def queries(self, rows: Tensor, relation: Tensor, ranks_heads: Tensor) -> Tensor:
        moved, back = (self._distance.moved(rows.double(), relation, sign) for sign in (1.0, -1.0))
        return back.where(ranks_heads[:, None], moved)

    def sizes(self, rows: Tensor) -> Tensor:
        return 1 + self._distance.margin.abs() + super().sizes(rows)

    def tile(self, queries: Tensor, keys: Tensor, relation: Tensor, ranks_heads: Tensor) -> Tensor:
        return self._distance.margin - self._distance.distances(queries, keys)

    def _pairs(self, queries: Tensor, keys: Tensor, relation: Tensor, ranks_heads: Tensor) -> Tensor:
        return self._distance.margin - self._distance.distance(queries - keys)


class Calls(Scorer):
    """Of a decoder that has nothing but its ``forward``."""

    def tile(self, queries: Tensor, keys: Tensor, relation: Tensor, ranks_heads: Tensor) -> Tensor:
        scores = queries.new_empty(len(queries) * len(keys))
        size = max(1, _SCRATCH_NUMBERS // max(1, queries.shape[1]))
        for first in range(0, len(scores), size):
            place = torch.arange(first, min(first + size, len(scores)), device=scores.device)
            row, column = place // len(keys), place % len(keys)
            scores[place] = self._pairs(queries[row], keys[column], relation[row], ranks_heads[row])
        return scores.view(len(queries), len(keys))

    def _pairs(self, queries: Tensor, keys: Tensor, relation: Tensor, ranks_heads: Tensor) -> Tensor:
        keys_first = ranks_heads[:, None]
        scores: Tensor = self.decoder(keys.where(keys_first, queries), queries.where(keys_first, keys), relation)
        return scores


def make_scorer(decoder: nn.Module, width: int) -> Scorer:
    if isinstance(decoder, Factored) and type(decoder).forward is Factored.forward:
        return Products(decoder, width)
    if isinstance(decoder, Distance) and type(decoder).forward is Distance.forward:
        return Distances(decoder, width)
    return Calls(decoder)  # also of one that extends these and scores otherwise


def sum_by_halves(terms: Tensor) -> Tensor:
    """[P] of [P, F], which are overwritten: column by column, so that a row's sum depends on nothing but the row."""
    width = terms.shape[1]
    while width > 1:
        half = (width + 1) // 2
        terms[:, : width - half] += terms[:, half:width]
        width = half
    return terms[:, 0] if width else terms.new_zeros(len(terms))
