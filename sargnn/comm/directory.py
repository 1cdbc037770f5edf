"""Which rank has a node: asked by original id, without a table of all nodes anywhere.

Rank r keeps where the nodes of the ids [r D, (r + 1) D) are, with D = ceil(N / P); who asks for an id asks that rank.

Letters: N nodes of the whole graph, P ranks, F width of a row.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sargnn.bf16 import wide
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

    def send(self, ids: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give each node's owner a row about it; all ranks must call it together.

        Args:
            ids: int64 [n], original ids.
            table: [n, ...].

        Returns:
            Of what came here, rank by rank: own rows, int64 [m], and what was sent of each, [m, ...].
        """
        ranks, rows = self.locate(ids)
        order = np.argsort(ranks, kind="stable")
        ends = np.searchsorted(ranks[order], np.arange(self._group.world + 1))
        pieces = [order[first:last] for first, last in zip(ends, ends[1:], strict=False)]
        came = swap(self._group, [rows[piece] for piece in pieces], "telling owners of nodes")
        told = swap(self._group, [table[piece] for piece in pieces], "telling owners of nodes")
        return np.concatenate(came), np.concatenate(told)

    def fetch(self, rows: Tensor, ids: np.ndarray) -> Tensor:
        """The rows of nodes, [n, F], in fp32 where they are bf16; all ranks must call it together.

        Args:
            rows: [own rows, F].
            ids: int64 [n], original ids.
        """
        ranks, places = self.locate(ids)
        order = np.argsort(ranks, kind="stable")
        ends = np.searchsorted(ranks[order], np.arange(self._group.world + 1))
        asked = [places[order[first:last]] for first, last in zip(ends, ends[1:], strict=False)]
        questions = swap(self._group, asked, "asking for rows")
        answered = [rows[torch.from_numpy(each).to(rows.device)].to(wide(rows.dtype)).cpu().numpy() for each in questions]
        answers = np.concatenate(swap(self._group, answered, "sending rows"))
        fetched = np.empty_like(answers)
        fetched[order] = answers
        return torch.from_numpy(fetched).to(rows.device)
