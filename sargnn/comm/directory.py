"""Which rank has a node: asked by original id, without a table of all nodes anywhere.

Rank r keeps where the nodes of the ids [r D, (r + 1) D) are, with D = ceil(N / P); who asks for an id asks that rank.

Letters: N nodes of the whole graph, P ranks, F width of a row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sargnn.bf16 import wide
from sargnn.comm.collectives import swap
from sargnn.comm.group import Group
from sargnn.native import Entry

_ROW_BITS = 31
_list_distinct = Entry("list_distinct", "numbers l M, distinct l M, place i M")
_group = Entry("group", "keys * E, values l? E, indptr l K+1, order l E")


class Directory:
    """All ranks must make one, of the original ids (int64) of their own rows, and call its methods, together."""

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
        asked, back = np.empty(ids.size, np.int64), np.empty(ids.size, np.int32)
        asked = asked[: _list_distinct(np.ravel(ids), asked, back)]
        questions = swap(self._group, [asked[piece] for piece in self._by_keeper(asked)], "asking who has which node")
        answers = swap(self._group, [self._places[nodes - self._first] for nodes in questions], "asking who has which node")
        places = np.concatenate(answers)[back].reshape(ids.shape)
        ranks = places >> _ROW_BITS
        places &= 2**_ROW_BITS - 1
        return ranks, places

    def send(self, ids: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give each node's owner (int64 [n], original ids) a row [n, ...] about it; all ranks must call it together.

        Gives what came here, rank by rank: own rows, int64 [m], and what was sent of each, [m, ...].
        """
        ranks, rows = self.locate(ids)
        _, pieces = by_rank(ranks, self._group.world)
        came = swap(self._group, [rows[piece] for piece in pieces], "telling owners of nodes")
        told = swap(self._group, [table[piece] for piece in pieces], "telling owners of nodes")
        return np.concatenate(came), np.concatenate(told)

    def ask(self, ids: np.ndarray, answer: Callable[..., np.ndarray], *about: np.ndarray) -> np.ndarray:
        """What each node's owner answers, [n, ...]; all ranks must call it together.

        ``ids``: int64 [n], original ids. ``answer`` gets own rows and what is asked ``about`` each, int64 [m] each.
        """
        ranks, rows = self.locate(ids)
        if self._group.world == 1:
            return answer(rows, *about)
        order, pieces = by_rank(ranks, self._group.world)
        table = np.stack([rows, *about], 1)
        asked = swap(self._group, [table[piece] for piece in pieces], "asking owners of nodes")
        said = np.concatenate(swap(self._group, [answer(*each.T) for each in asked], "answering about nodes"))
        answers = np.empty_like(said)
        answers[order] = said
        return answers

    def fetch(self, rows: Tensor, ids: np.ndarray) -> Tensor:
        """The rows of nodes (int64 [n], original ids), [n, F], in fp32 where they are bf16; all ranks must call it together."""

        def taken(own: np.ndarray) -> np.ndarray:
            return rows[torch.from_numpy(np.ascontiguousarray(own)).to(rows.device)].to(wide(rows.dtype)).cpu().numpy()

        return torch.from_numpy(self.ask(ids, taken)).to(rows.device)


def by_rank(ranks: np.ndarray, world: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Places of entries by the rank that each belongs to (int64 [n]): all in a row, and those of each rank; the order stays."""
    order, begins = np.empty(len(ranks), np.int64), np.empty(world + 1, np.int64)
    _group(ranks, None, begins, order)
    return order, np.split(order, begins[1:-1])
