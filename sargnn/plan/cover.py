"""Who aggregates an edge between two parts: the owner of its destination, or that of its source.

Where the destination's owner does, the source's row travels; where the source's owner does, a partial result for the
destination. What has to travel from one part to another is then a vertex cover of the bipartite graph of the edges between
them: every edge has its source or its destination in it. The cheapest is a cover of minimum weight, w_s for each source and w_d
for each destination, that is, a minimum cut (Koenig, 1931; Egervary, 1931): s -> source with capacity w_s, source ->
destination without limit, destination -> t with capacity w_d. SuperGCN (Zhuang et al.) chooses so for sums.

An edge with both ends in the cover stays with its destination. Destinations are made dearer by ``TILT``, so that near ties stay
there, too, and dearer still at a rank that would aggregate ``MOST_EDGES`` times the edges that end in its rows.

What is least is bytes, or time (``fastest``). An edge that its source's owner aggregates takes longer, by t: few edges meet at
a destination there, whose result is written, read, sent and added. A source that does not travel so costs t for each of its k
edges, which leaves w_s - k t of its capacity, 0 at least; and a pair has partial results only where they save more time than
their messages take. Those times are constants, and the rate of the network is given, not measured: runs have the same bits
whenever they are started.

Letters: S sources, D destinations, E edges between two parts, P ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from sargnn.comm.group import Group

TILT, TILTS_MORE, MOST_EDGES, TRIALS = 1.05, 1.1, 1.08, 8
"""How much dearer destinations are made at first, and then at a rank with too many edges; after so many trials it stands."""
EDGE_S_PER_BYTE, HANDLING_S_PER_BYTE, MESSAGE_S = 0.3e-9, 0.2e-9, 50e-6
"""How much longer an edge of a partial result takes in a training step, for each byte of its row; what packing and reading take
for each byte that travels; and what a message takes however short it is (docs/maintainers/measured.md)."""
_UNIT, _NO_LIMIT = 50, 2**30


@dataclass(frozen=True)
class Costs:
    """What the two ways cost a layer, in bytes of a training step.

    Attributes:
        source: of a source row that travels to a peer.
        row: of a source row in one message.
        request: of a destination row that a partial result is asked for, forward and backward.
        answer: of its partial result, forward and backward.
        ranked: whether partial results name their winners (``LayerPlan.partials``).
    """

    source: int
    row: int
    request: tuple[int, int]
    answer: tuple[int, int]
    ranked: bool = False

    @property
    def destination(self) -> int:
        """Of a destination row whose partial result travels."""
        return sum(self.request) + sum(self.answer)

    @property
    def largest(self) -> int:
        """Of the largest message of a partial result, for a row."""
        return max(*self.request, *self.answer)

    @property
    def messages(self) -> int:
        """Of a piece of partial results."""
        return sum(width > 0 for width in (*self.request, *self.answer))


@dataclass(frozen=True)
class Share:
    """How the cut edges of layers are shared out.

    Attributes:
        ratio: bytes of a destination row / bytes of a source row. None: all go to the sources' owners.
        widest: how many times as wide as a source row the widest message of a partial result is.
        ranked: as in ``Costs``.
        edge: what an edge takes longer where its source is / what a source row takes to travel.
        messages: what the messages of a pair's partial results take / likewise.
    """

    ratio: float | None
    widest: float
    ranked: bool = False
    edge: float = 0.0
    messages: float = 0.0


def shares_of(aggregate: str, costs: Sequence[Costs | None], rate: float = 0.0) -> list[Share | None]:
    """How each of a model's layers shares its cut edges; those whose ratios lie within 10 % have one share.

    Args:
        aggregate: ``post``, ``pre``, ``least`` or ``fastest``.
        costs: per layer; None: it has no partial results.
        rate: bytes a second of a worker's link to others, for ``fastest``.

    Returns:
        Per layer; None: the destinations' owners aggregate all edges.
    """
    shares: list[Share | None] = [None] * len(costs)
    left = [k for k, cost in enumerate(costs) if cost is not None and aggregate != "post"]
    while left:
        first = costs[left[0]]
        assert first is not None
        alike = [k for k in left if aggregate == "pre" or _ratio(costs[k]) <= 1.1 * _ratio(first) <= 1.21 * _ratio(costs[k])]
        members = [cost for k in alike if (cost := costs[k]) is not None]
        source = sum(cost.source for cost in members)
        source_s = source * (1 / rate + HANDLING_S_PER_BYTE) if aggregate == "fastest" else math.inf
        share = Share(
            None if aggregate == "pre" else sum(cost.destination for cost in members) / source,
            max(1.0, *(cost.largest / cost.row for cost in members)),
            any(cost.ranked for cost in members),
            edge=EDGE_S_PER_BYTE * sum(cost.row for cost in members) / source_s,
            messages=MESSAGE_S * sum(cost.messages for cost in members) / source_s,
        )
        for k in alike:
            shares[k] = share
        left = [k for k in left if k not in alike]
    return shares


def spared_shares(shares: Sequence[Share | None], uses_edges: Sequence[bool]) -> list[Share | None]:
    """Layers without edges get the share of the first one with edges: a plan is held for each share."""
    used = next((share for share, uses in zip(shares, uses_edges, strict=True) if uses), None)
    return [share if uses else used for share, uses in zip(shares, uses_edges, strict=True)]


def _ratio(costs: Costs | None) -> float:
    assert costs is not None
    return costs.destination / costs.source


def least_cover(src: np.ndarray, dst: np.ndarray, num_src: int, share: Share, tilt: float = 1.0) -> np.ndarray:
    """The sources of a cover of minimum weight, 1 for a source and ``ratio`` for a destination; of several always the same.

    Args:
        src: int [E] in [0, S).
        dst: int [E].
        share: with a ratio.
        tilt: how much dearer destinations are made.

    Returns:
        bool [S].
    """
    assert share.ratio is not None
    ratio, degrees = share.ratio * tilt, np.bincount(src, minlength=num_src)
    ends, places = np.unique(dst, return_inverse=True)
    num_dst = len(ends)
    edges = sparse.csr_matrix((np.ones(len(src), np.int32), (src, places)), (num_src, num_dst))
    edges.sum_duplicates()  # parallel edges
    edges.sort_indices()
    # Rows of the network: s, the sources, the destinations, t.
    first = 1 + num_src
    indptr = np.concatenate([[0, num_src], num_src + edges.indptr[1:], np.zeros(num_dst + 1, np.int64)])
    indptr[first:] = np.append(num_src + edges.nnz + np.arange(num_dst + 1), num_src + edges.nnz + num_dst)
    indices = np.concatenate([1 + np.arange(num_src), first + edges.indices, np.full(num_dst, first + num_dst)])
    capacity = np.full(len(indices), _NO_LIMIT, np.int32)
    capacity[:num_src] = np.rint(_UNIT * np.maximum(0, 1 - share.edge * degrees))
    capacity[num_src + edges.nnz :] = max(1, round(_UNIT * ratio))
    size = first + num_dst + 1
    network = sparse.csr_matrix((capacity, indices.astype(np.int32), indptr.astype(np.int32)), (size, size))
    residual = network - maximum_flow(network, 0, size - 1).flow
    residual.data = (residual.data > 0).astype(np.int8)
    residual.eliminate_zeros()
    reached = np.zeros(size, bool)
    reached[breadth_first_order(residual, 0, return_predecessors=False)] = True
    covered: np.ndarray = ~reached[1:first]
    if share.messages:
        served = ~covered[src]
        saved = np.count_nonzero(degrees[~covered]) - ratio * len(np.unique(dst[served])) - share.edge * served.sum()
        covered |= saved <= share.messages
    return covered


def choose_edges(
    group: Group, edges: Sequence[tuple[np.ndarray, np.ndarray]], halo_rows: Sequence[int], share: Share
) -> list[np.ndarray]:
    """Which edges into this rank's rows the owners of their sources aggregate; all ranks must call it together.

    Args:
        edges: per peer sources int [E], numbered among its halo rows here, and destinations int [E].
        halo_rows: per peer S.

    Returns:
        Per peer bool [E].
    """
    rank, world = group.rank, group.world
    if share.ratio is None:
        return [np.full(len(src), q != rank) for q, (src, _) in enumerate(edges)]
    own = torch.zeros(world, dtype=torch.int64)
    own[rank] = sum(len(src) for src, _ in edges)
    chosen = [np.zeros(len(src), bool) for src, _ in edges]

    def cover(q: int, tilt: float) -> None:
        src, dst = edges[q]
        if q != rank and len(src):
            chosen[q] = ~least_cover(src, dst, halo_rows[q], share, tilt)[src]

    def moved() -> torch.Tensor:
        counts = torch.tensor([int(mask.sum()) for mask in chosen])
        counts[rank] = -counts.sum()
        return counts

    try_tilts(group, own, cover, moved)
    return chosen


def try_tilts(group: Group, own: torch.Tensor, cover: Callable[[int, float], None], moved: Callable[[], torch.Tensor]) -> None:
    """Cover edges, and again with a larger tilt those from ranks that aggregate too many; all ranks must call it together.

    Args:
        own: int64 [P], edges into each rank's rows; summed over the group's ranks, as is what is moved.
        cover: covers the edges from a rank's rows with a tilt.
        moved: int64 [P], how many more edges each rank aggregates with the covers at hand.
    """
    total = group.sum_(own)
    tilt, tilted = np.full(len(total), TILT), np.ones(len(total), bool)
    for _ in range(TRIALS):
        for q in np.flatnonzero(tilted):
            cover(int(q), tilt[q])
        tilted = ((total + group.sum_(moved())) > MOST_EDGES * total.clamp(min=1)).numpy()
        if not tilted.any():
            break
        tilt[tilted] *= TILTS_MORE
