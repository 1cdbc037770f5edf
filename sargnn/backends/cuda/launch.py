"""How Triton kernels are started, the code that several of them share, and which edges a program walks over.

On a GPU they are compiled. Where ``TRITON_INTERPRET=1`` is set before Triton is imported, its interpreter runs them on a CPU's
tensors, slowly: what tests do.

A program folds one run of edges with one row at their near end. Rows with many edges (hubs) would keep one program busy when
all others have ended, so their edges are cut into pieces: one pass folds pieces into rows of their own, a second one joins the
pieces of each hub, in their order. What is cut depends on the block alone, so sums have the same bits in every run.

Letters: S source rows, M destination rows, E edges, R runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sargnn.backends.block import EdgeBlock
from sargnn.backends.walks import Direction
from sargnn.bf16 import wide
from sargnn.rng import Draw

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether kernels run in Triton's interpreter."""
WORDS = ["seed", "epoch", "tag", "threshold"]
"""Arguments of kernels that draw: another number of these makes no other code."""
LONGEST = 1024
"""Edges of a run."""


def run(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Start a program of a kernel for each place of a grid; none where it has none.

    Args:
        grid: at most 65,535 in the second and the third place.
        arguments: tensors, numbers, None. Of a tensor with an attribute ``host``, such as one on a pretended device, the kernel
            gets that one.
        constants: also ``num_warps``.
    """
    if all(grid):
        kernel[grid](*(getattr(argument, "host", argument) for argument in arguments), **constants)


def held(dtype: torch.dtype) -> Any:
    """What sums of rows of a dtype are held in, as kernels take it."""
    return tl.float64 if wide(dtype) == torch.float64 else tl.float32


def words(draw: Draw | None) -> tuple[int, int, int, int, float]:
    """A draw as kernels take it: seed, epoch, tag, threshold, and what is kept is multiplied with; 0 drops nothing."""
    return (0, 0, 0, 0, 1.0) if draw is None else (draw.seed, draw.epoch, draw.tag, draw.threshold, draw.scale)


def tile(width: int, dtype: torch.dtype, most: int = 256) -> dict[str, Any]:
    """The constants of a kernel that walks over tiles of rows of ``width`` columns: ``EDGES`` rows of ``COLUMNS`` columns.

    Args:
        dtype: of the rows; what sums of them are ``HELD`` in goes by it.
        most: columns of a tile; wider rows are several.
    """
    columns = min(triton.next_power_of_2(max(width, 1)), most)
    warps = warps_of(columns)
    return {"HELD": held(dtype), "EDGES": edges_of(columns, warps, dtype), "COLUMNS": columns, "num_warps": warps}


def warps_of(columns: int) -> int:
    """Eight columns a thread, as long as there are warps."""
    return min(32, max(1, columns // 256))


def edges_of(columns: int, warps: int, dtype: torch.dtype) -> int:
    """How many rows a tile has: 128 bytes of registers a thread."""
    return max(2, 4096 // wide(dtype).itemsize * warps // max(columns, 16))


def in_wide(tensor: Tensor | None, like: torch.dtype) -> Tensor | None:
    """Factors in what sums of rows are held in, contiguous."""
    return None if tensor is None else tensor.to(wide(like)).contiguous()


@triton.jit
def drawn(source, destination, column, tag, seed, epoch):
    """The draw of each column, or head, of a node or an edge, uint32: word ``column % 4`` of the counter (source, destination,
    column // 4, tag) of ``sargnn.rng``. All are broadcast; a node's destination is 0."""
    key = (epoch.to(tl.uint64) << 32) | seed.to(tl.uint64)
    zero = (source + destination + column) * 0
    c0 = (source + zero).to(tl.uint32)
    c1 = (destination + zero).to(tl.uint32)
    c2 = (column // 4 + zero).to(tl.uint32)
    c3 = (tag + zero).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(key, c0, c1, c2, c3)
    which = column % 4
    return tl.where(which == 0, w0, tl.where(which == 1, w1, tl.where(which == 2, w2, w3)))


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
    walks: dict[str, Walk] = block.cache.setdefault("triton", {})
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
