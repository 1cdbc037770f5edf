"""The edges between parts, and how many messages serve them.

Letters: N nodes, E edges, P parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sargnn.data.dataset import Dataset
from sargnn.partition.blocks import in_edge_blocks
from sargnn.shards.cover import MOST_EDGES, TILT, TILTS_MORE, TRIALS, Share, least_cover

MOST_CUT_EDGES = 50_000_000
"""Beyond so many the fewest messages are not found: that takes a maximum flow for each pair of parts."""


@dataclass(frozen=True)
class Messages:
    """What travels in one exchange, of all parts.

    Attributes:
        rows: of sources. partials: results for destinations. received: rows that each part receives [P]; () if not known.
    """

    rows: int
    partials: int = 0
    received: tuple[int, ...] = ()


@dataclass(frozen=True)
class CutEdges:
    """All edges between parts, by the pair of them.

    Attributes:
        world: P. own: int64 [P], edges into each part's rows, those within it counted.
        bounds: int64 [P P + 1]: edges into part p from part q are ``[bounds[p P + q], bounds[p P + q + 1])``.
        source, destination: int64, nodes.
    """

    world: int
    own: np.ndarray
    bounds: np.ndarray
    source: np.ndarray
    destination: np.ndarray
    _shared: dict[Share | None, Messages] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, dataset: Dataset, part: np.ndarray, world: int, loops: int = 0) -> CutEdges | None:
        """Of an assignment; None where there are more than ``MOST_CUT_EDGES``.

        Args:
            part: int32 [N]. loops: self-loops that the model adds to each node.
        """
        sources, destinations, count = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
        own = loops * np.bincount(part, minlength=world)
        for first, indptr, indices in in_edge_blocks(dataset, "listing cut edges"):
            destination = first + np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
            own += np.bincount(part[destination], minlength=world)
            crossing = part[indices] != part[destination]
            sources.append(np.asarray(indices[crossing], np.int64))
            destinations.append(destination[crossing])
            count += len(sources[-1])
            if count > MOST_CUT_EDGES:
                return None
        source, destination = np.concatenate(sources), np.concatenate(destinations)
        pair = part[destination].astype(np.int64) * world + part[source]
        order = np.argsort(pair, kind="stable")
        bounds = np.searchsorted(pair[order], np.arange(world * world + 1))
        return cls(world, own, bounds, source[order], destination[order])

    def into_type(self, dataset: Dataset, part: np.ndarray, node_type: int) -> CutEdges:
        """Those into nodes of one type only. part: int32 [N]."""
        first, last = dataset.schema.offsets[node_type : node_type + 2]
        degrees = np.diff(np.asarray(dataset.indptr)[first : last + 1])
        own = np.bincount(part[first:last], weights=degrees, minlength=self.world).astype(np.int64)
        nodes = np.zeros(len(part), bool)
        nodes[first:last] = True
        return self.into(nodes, own)

    def into(self, nodes: np.ndarray, own: np.ndarray) -> CutEdges:
        """Those into some nodes only, bool [N]. own: int64 [P], edges into each part's rows among them."""
        kept = nodes[self.destination]
        bounds = np.concatenate([[0], np.cumsum(kept)])[self.bounds]
        return CutEdges(self.world, own, bounds, self.source[kept], self.destination[kept])

    def fewest(self, ratio: float = 1.0) -> Messages:
        """The cheapest: of each pair of parts a least cover, a partial result at ``ratio`` of a row's price."""
        rows = partials = 0
        for pair in range(self.world**2):
            cover = self._cover(pair, ratio)
            rows, partials = rows + cover.rows, partials + cover.partials
        return Messages(rows, partials)

    def shared_by(self, share: Share | None) -> Messages:
        """As a run shares them out (``shards.cover.choose_edges``), which keeps ranks from too many edges; found once."""
        if share not in self._shared:
            self._shared[share] = self._shared_by(share)
        return self._shared[share]

    def _shared_by(self, share: Share | None) -> Messages:
        if share is None:
            found_rows = [len(np.unique(self.source[self._edges(pair)])) for pair in range(self.world**2)]
            return Messages(sum(found_rows), 0, self._by_part(found_rows))
        if share.ratio is None:
            counts = (len(np.unique(self.destination[self._edges(pair)])) for pair in range(self.world**2))
            return Messages(0, sum(counts), (0,) * self.world)
        world, tilt, tilted = self.world, np.full(self.world, TILT), np.ones(self.world, bool)
        covers: dict[int, _Cover] = {}
        for _ in range(TRIALS):
            covers |= {
                p * world + q: self._cover(p * world + q, share.ratio * tilt[q])
                for q in range(world)
                if tilted[q]
                for p in range(world)
            }
            total = self.own.copy()
            for pair, cover in covers.items():
                total[pair % world] += cover.moved
                total[pair // world] -= cover.moved
            tilted = total > MOST_EDGES * np.maximum(self.own, 1)
            if not tilted.any():
                break
            tilt[tilted] *= TILTS_MORE
        rows = [covers[pair].rows for pair in range(world**2)]
        return Messages(sum(rows), sum(cover.partials for cover in covers.values()), self._by_part(rows))

    def _by_part(self, rows: list[int]) -> tuple[int, ...]:
        return tuple(sum(rows[p * self.world : (p + 1) * self.world]) for p in range(self.world))

    def _edges(self, pair: int) -> slice:
        return slice(int(self.bounds[pair]), int(self.bounds[pair + 1]))

    def _cover(self, pair: int, ratio: float) -> _Cover:
        some = self._edges(pair)
        if some.start == some.stop:
            return _Cover(0, 0, 0)
        ids, rows = np.unique(self.source[some], return_inverse=True)
        by_row = least_cover(rows.astype(np.int32), self.destination[some], len(ids), ratio)[rows]
        return _Cover(len(np.unique(rows[by_row])), len(np.unique(self.destination[some][~by_row])), int((~by_row).sum()))


@dataclass(frozen=True)
class _Cover:
    """Attributes: rows, partials: messages of a pair. moved: edges that the sources' owner aggregates."""

    rows: int
    partials: int
    moved: int
