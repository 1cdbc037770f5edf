"""Which rank has a node: asked by original id, without a table of all nodes anywhere.

Rank r keeps where the nodes of the ids [r D, (r + 1) D) are, with D = ceil(N / P); who asks for an id asks that rank.

Letters: N nodes of the whole graph, P ranks.
"""

from __future__ import annotations

import numpy as np

from sargnn.comm.collectives import swap
from sargnn.comm.group import Group

_ROW_BITS = 31


class Directory:
    """All ranks must make one, and call its methods, together.

    Args:
        group: all ranks.
        ids: int64, original ids of this rank's own rows.
        num_nodes: N.
    """

    def __init__(self, group: Group, ids: np.ndarray, num_nodes: int) -> None:
        self._group, self._span = group, -(-num_nodes // group.world)
        own = np.asarray(ids)
        order = np.argsort(own, kind="stable")
        pieces = self._by_keeper(own[order])
        told = swap(group, [own[order][piece] for piece in pieces], "telling who has which node")
        rows = swap(group, [order[piece] for piece in pieces], "telling who has which node")
        self._first = group.rank * self._span
        self._places = np.full(max(0, min(self._span, num_nodes - self._first)), -1, np.int64)
        for rank, (nodes, numbers) in enumerate(zip(told, rows, strict=True)):
            self._places[nodes - self._first] = (rank << _ROW_BITS) | numbers

    def _by_keeper(self, ids: np.ndarray) -> list[slice]:
        """Which of some ascending ids each rank keeps."""
        ends = np.searchsorted(ids, self._span * np.arange(self._group.world + 1))
        return [slice(first, last) for first, last in zip(ends, ends[1:], strict=False)]

    def locate(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which rank each node is on, and which row it is there: int64, of the shape of ``ids`` (int64, original ids)."""
        if self._group.world == 1:
            return np.zeros_like(ids), self._places[ids]
        asked, back = np.unique(ids, return_inverse=True)
        questions = swap(self._group, [asked[piece] for piece in self._by_keeper(asked)], "asking who has which node")
        answers = swap(self._group, [self._places[nodes - self._first] for nodes in questions], "asking who has which node")
        places = np.concatenate(answers)[back].reshape(ids.shape)
        return places >> _ROW_BITS, places & (2**_ROW_BITS - 1)
