"""What attention needs beside rows, the same for every kernel.

Letters: M destination rows, K heads, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sargnn.bf16 import wide
from sargnn.rng import Draw


@dataclass(frozen=True)
class Attention:
    """The numbers of an attention.

    Attributes:
        heads: K.
        negative_slope: of LeakyReLU, 0 to 1.
        draw: of attention dropout; None drops nothing.
    """

    heads: int
    negative_slope: float
    draw: Draw | None = None

    @property
    def scale(self) -> float:
        """What weights that are kept are multiplied with."""
        return 1.0 if self.draw is None else self.draw.scale

    def by_head(self, rows: Tensor) -> Tensor:
        """Rows [any, K D] as [any, K, D], without a copy."""
        return rows.view(len(rows), self.heads, rows.shape[1] // self.heads)


@dataclass(frozen=True)
class RunningSoftmax:
    """A softmax over edges that are met shard by shard, and the rows that it weighs.

    With m, s and out so far, and scores e_j of new edges: m' = max(m, max of e_j), s' = s exp(m - m') + sum of exp(e_j - m'),
    out' = (out s exp(m - m') + sum of exp(e_j - m') z_j) / s'.

    Attributes:
        out: [M, K D], normalised at all times; undefined where ``denominator`` is 0.
        max_score: [M, K], m, -inf before any edge.
        denominator: [M, K], s, 0 before any edge.
    """

    out: Tensor
    max_score: Tensor
    denominator: Tensor

    @classmethod
    def empty(cls, like: Tensor, num_dst: int, heads: int, out: Tensor | None = None) -> RunningSoftmax:
        """Before any edge, in what sums of such rows are held in; ``like``: [any, K D]; ``out``: memory to be used for it."""
        held = wide(like.dtype)
        return cls(
            like.new_empty(num_dst, like.shape[1], dtype=held) if out is None else out,
            like.new_full((num_dst, heads), float("-inf"), dtype=held),
            like.new_zeros(num_dst, heads, dtype=held),
        )
