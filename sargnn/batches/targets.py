"""The target nodes of one worker, and the edges that end in them.

Letters: N own rows, H halo rows, W target rows, E edges into targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from sargnn.partition.cut import Part


@dataclass(frozen=True)
class TargetRows:
    """What is to be grouped.

    Attributes:
        part: the worker's part. rank: its number.
        rows: int64 [W], the own rows whose outputs are wanted, ascending.
        seed: of what is drawn.
        buffer_bytes: memory that finding the groups may take.
    """

    part: Part
    rank: int
    rows: np.ndarray
    seed: int
    buffer_bytes: int

    @property
    def num_vertices(self) -> int:
        """N + H."""
        return len(self.part.node_ids) + len(self.part.halo_ids)

    def edges(self, wanted: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Sources and destinations, int64 each; halo rows are numbered behind the own rows.

        Args:
            wanted: bool [N], the destinations; None: all.
        """
        part, relations = self.part, len(self.part.schema.relations)
        sources, destinations = [], []
        for q in range(len(part.halo_offsets) - 1):
            span = slice(int(part.edge_offsets[q * relations]), int(part.edge_offsets[(q + 1) * relations]))
            src, dst = part.edge_src[span], part.edge_dst[span]
            if wanted is not None:
                chosen = wanted[dst]
                src, dst = src[chosen], dst[chosen]
            shift = 0 if q == self.rank else len(part.node_ids) + int(part.halo_offsets[q])
            sources.append(src.astype(np.int64) + shift)
            destinations.append(dst.astype(np.int64))
        return np.concatenate(sources), np.concatenate(destinations)

    @cached_property
    def incidence(self) -> sparse.csr_array:
        """int32 [W, N + H], 1 where an edge goes from a row to a target; a row is no source of itself."""
        wanted = np.zeros(len(self.part.node_ids), bool)
        wanted[self.rows] = True
        src, dst = self.edges(wanted)
        other = src != dst
        place = np.searchsorted(self.rows, dst[other])
        ones = np.ones(len(place), np.int32)
        incidence = sparse.csr_array((ones, (place, src[other])), shape=(len(self.rows), self.num_vertices))
        incidence.sum_duplicates()
        incidence.data[:] = 1
        return incidence

    @cached_property
    def weights(self) -> np.ndarray:
        """int64 [W], what a target weighs when groups are balanced: 1 and its in-degree.

        What a group reaches grows with its edges. Groups of equally many targets differ up to sixfold on graphs with hubs,
        because hubs have common neighbours and come together.
        """
        return 1 + np.asarray(self.part.in_degrees)[self.rows].astype(np.int64)
