"""Which edges a program walks over: runs of edges with one row at their near end.

A program folds one run. Rows with many edges (hubs) would keep one program busy when all others have ended, so their edges are
cut into pieces: one pass folds pieces into rows of their own, a second one joins the pieces of each hub, in their order. What
is cut depends on the block alone, so sums have the same bits in every run.

Letters: S source rows, M destination rows, E edges, R runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.walks import Direction

LONGEST = 1024
"""Edges of a run."""
_KEY = "triton"


class Runs(NamedTuple):
    """Runs of edges.

    Attributes:
        near: int32 [R], the row at this end of each run's edges; None: the run's own number.
        begin, end: int32 [R], its edges, as ``far`` numbers them.
        start: int32 [R], the first edge of its row, which a piece need not begin with.
        far: int32 [E], the row at the other end of each edge.
    """

    near: Tensor | None
    begin: Tensor
    end: Tensor
    start: Tensor
    far: Tensor

    @property
    def number(self) -> int:
        """R."""
        return len(self.begin)


@dataclass(frozen=True)
class Walk:
    """The edges of a block, listed by one of their ends.

    Attributes:
        whole: rows whose edges are one run.
        pieces: of the other rows; None: there are none.
        joins: of each of these rows, with pieces for edges.
    """

    whole: Runs
    pieces: Runs | None = None
    joins: Runs | None = None

    @property
    def of_edges(self) -> tuple[Runs, ...]:
        """Runs that together have every edge once."""
        return (self.whole,) if self.pieces is None else (self.whole, self.pieces)


def walk(block: EdgeBlock, direction: Direction) -> Walk:
    """Made at the first call, which waits for the device, and kept in ``block.cache``."""
    walks: dict[str, Walk] = block.cache.setdefault(_KEY, {})
    if direction not in walks:
        if direction == "forward":
            walks[direction] = _walk(block.dst_rows, block.indptr, block.src)
        else:
            walks[direction] = _walk(block.src_rows, block.t_indptr, block.t_dst)
    return walks[direction]


def _walk(near: Tensor | None, indptr: Tensor, far: Tensor) -> Walk:
    begin, end = indptr[:-1], indptr[1:]
    pieces = (end - begin + LONGEST - 1) // LONGEST
    if not len(far) or int(pieces.max()) < 2:
        return Walk(Runs(near, begin, end, begin, far))
    rows = torch.arange(len(begin), dtype=torch.int32, device=far.device) if near is None else near
    hubs = torch.nonzero(pieces > 1)[:, 0]
    short = torch.nonzero(pieces <= 1)[:, 0]
    counts = pieces[hubs].long()
    of_hub = torch.repeat_interleave(hubs, counts)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    numbers = torch.arange(len(of_hub), device=far.device)
    start = begin[of_hub]
    first = start + LONGEST * (numbers - torch.repeat_interleave(offsets[:-1], counts)).to(torch.int32)
    last = torch.minimum(first + LONGEST, end[of_hub])
    ends = offsets.to(torch.int32)
    return Walk(
        Runs(rows[short], begin[short], end[short], begin[short], far),
        Runs(rows[of_hub], first, last, start, far),
        Runs(rows[hubs], ends[:-1], ends[1:], ends[:-1], numbers.to(torch.int32)),
    )
