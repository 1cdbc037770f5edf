"""A bipartite block of edges in both orders, as kernels read it.

Letters: S source rows, M destination rows, A destination rows and B source rows with an edge in this block, E edges.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sargnn.graph.edge_columns import NO_COLUMNS, WEIGHT, EdgeColumns
from sargnn.native import Entry

_list_rows = Entry("list_rows", "dst i E, rows i A, indptr i A+1")
_group = Entry("group", "src i E, values i? E, t_indptr i S+1, order i E")
_group_destinations = Entry("group_destinations", "src i E, dst_rows i? A, indptr i A+1, t_indptr i S+1, t_dst i E")


@dataclass(frozen=True)
class EndIds:
    """Who the rows at the ends of a block's edges are: what is drawn for an edge, and how ties break, depends on it.

    Attributes:
        src, dst: int64 [S] and [M], original ids.
        src_rank: int32 [S], the rank of each source row's original id among all that this worker sees; None: the rows' order.

    What gives them may stand for those of sources: it is called the first time that they are asked for.
    """

    src: Tensor | Callable[[], Tensor]
    dst: Tensor
    src_rank: Tensor | Callable[[], Tensor] | None = None


class EdgeBlock:
    """The edges from S source rows to M destination rows.

    Only the A destination rows that have an edge here are listed, so a block costs nothing for the others. Source rows are
    listed in full: a halo holds no row without an edge, and an own part has them all. Where the source rows are the own ones
    and the destinations a peer's, few of them have one: ``lists_sources`` lists the B that do, and what goes back through the
    block can only be added to what there is.

    Attributes:
        dst_rows: int32 [A], ascending; None if every destination row is listed (A = M).
        indptr: int32 [A + 1], where the edges of each listed destination row begin.
        src: int32 [E], the sources of each listed destination row.
        src_rows: int32 [B], ascending; None if every source row is listed (B = S).
        t_indptr: int32 [B + 1], where the edges of each listed source row begin. It and the next two are made the first time
            that they are asked for, which backward passes do.
        t_dst: int32 [E], the destination rows (not list positions) of each listed source row.
        t_edge: int32 [E], the position of each edge of ``t_dst`` in the order of ``src``.
        visits: where the edges come from several pieces of rows, those of each listed destination row cut at the pieces' ends,
            as if each piece had a block of its own: int32 [V], destination rows, ascending, and int32 [V + 1], where the edges
            of each begin. None: those of a row are not cut.
        columns: what the edges carry, in the order of ``src``, as ``EdgeColumns.on`` gives it.
        weight: [E], the graph's edge weights among it, of the rows' dtype; None: it has none.
        t_weight: [E], the same in the order of ``t_dst``; made the first time it is asked for.
        src_id_rank, src_ids, dst_ids: of ``EndIds``.
        cache: what kernels keep with the block, by kernel name.
    """

    _lay: Callable[[Tensor], Tensor] = staticmethod(lambda tensor: tensor)

    def __init__(
        self,
        src: Tensor,
        dst: Tensor,
        num_src: int,
        num_dst: int,
        ids: EndIds | None = None,
        columns: EdgeColumns = NO_COLUMNS,
        *,
        lists_sources: bool = False,
        visits: Tensor | None = None,
    ) -> None:
        """Build from edges sorted by destination.

        Args:
            src: int32 [E] in [0, S).
            dst: int32 [E] in [0, M), ascending.
            ids: who the rows are; None: their own numbers.
            columns: in the order of ``src``.
            lists_sources: list only source rows that have an edge.
            visits: int32 [E], the piece that each edge comes from; those of one destination go by piece. None: there is one.
        """
        if ids is None:
            ids = EndIds(torch.arange(num_src, device=src.device), torch.arange(num_dst, device=src.device))
        self._ids, self.dst_ids = ids, ids.dst
        self.num_src, self.num_dst = num_src, num_dst
        self.src = src
        self.columns = columns
        rows, self.indptr = _listed(dst, num_dst)
        self.dst_rows = None if len(rows) == num_dst else rows
        self.visits = None if visits is None else _visits(dst, visits)
        self.src_rows: Tensor | None = None
        if lists_sources:
            order = torch.sort(src, stable=True).indices
            self.src_rows, counts = torch.unique_consecutive(src[order], return_counts=True)
            self._by_source = _offsets(counts), dst[order]
        self.cache: dict[str, Any] = {}

    @classmethod
    def one_each(cls, rows: Tensor, num_dst: int) -> EdgeBlock:
        """An edge from row a to destination row ``rows[a]``, int32 [A], ascending, for every a. It knows no original ids."""
        block = cls.__new__(cls)
        own = torch.arange(len(rows) + 1, dtype=torch.int32, device=rows.device)
        nobody = torch.empty(0, dtype=torch.int64, device=rows.device)
        block.num_src, block.num_dst = len(rows), num_dst
        block.src, block.indptr, block.dst_rows = own[:-1], own, rows
        block._by_source = own, rows
        block.src_rows, block.columns, block.visits = None, NO_COLUMNS, None
        block._ids, block.dst_ids = EndIds(nobody, nobody, block.src), nobody
        block.cache = {}
        return block

    @cached_property
    def _by_source(self) -> tuple[Tensor, Tensor]:
        """``t_indptr`` and ``t_dst``."""
        if self.src.device.type != "cpu":
            indptr = _offsets(torch.bincount(self.src, minlength=self.num_src))
            destinations = self.dst_per_edge().to(torch.int32)[torch.sort(self.src, stable=True).indices]
        else:
            indptr, destinations = torch.empty(self.num_src + 1, dtype=torch.int32), torch.empty_like(self.src)
            _group_destinations(self.src, self.dst_rows, self.indptr, indptr, destinations)
        return self._lay(indptr), self._lay(destinations)

    def ready_for_gradients(self) -> None:
        """Make what backward passes read."""
        _ = self._by_source

    @property
    def t_indptr(self) -> Tensor:
        return self._by_source[0]

    @property
    def t_dst(self) -> Tensor:
        return self._by_source[1]

    @cached_property
    def src_ids(self) -> Tensor:
        return self._lay(self._ids.src if isinstance(self._ids.src, Tensor) else self._ids.src())

    @cached_property
    def src_id_rank(self) -> Tensor:
        rank = self._ids.src_rank
        if rank is None:
            return torch.arange(self.num_src, dtype=torch.int32, device=self.src.device)
        return self._lay(rank if isinstance(rank, Tensor) else rank())

    @cached_property
    def t_edge(self) -> Tensor:
        if self.src.device.type != "cpu":
            return torch.sort(self.src, stable=True).indices.to(torch.int32)
        order = torch.empty_like(self.src)
        _group(self.src, None, torch.empty(self.num_src + 1, dtype=torch.int32), order)
        return self._lay(order)

    @property
    def weight(self) -> Tensor | None:
        weight = self.columns[WEIGHT] if WEIGHT in self.columns else None
        assert weight is None or isinstance(weight, Tensor)
        return weight

    @cached_property
    def t_weight(self) -> Tensor:
        assert self.weight is not None
        return self._lay(self.weight.index_select(0, self.t_edge))

    def by_source(self, weight: Tensor) -> Tensor:
        """[E], numbers of edges in the order of ``t_dst``; given in the order of ``src``."""
        return self.t_weight if weight is self.weight else weight.index_select(0, self.t_edge)

    def lay(self, lay: Callable[[Tensor], Tensor]) -> None:
        """Have the tensors lie elsewhere: where ``lay`` gives the same tensor. Also those that are made later."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, lay(value))
            elif name in ("_by_source", "visits") and value is not None:
                setattr(self, name, (lay(value[0]), lay(value[1])))
        self._lay = lay

    def __getstate__(self) -> dict[str, Any]:
        """Without where it lay, and what would give ids."""
        state = {**vars(self), "_ids": EndIds(self.src_ids, self.dst_ids, self.src_id_rank)}
        state.pop("_lay", None)
        return state

    @property
    def num_edges(self) -> int:
        return len(self.src)

    @property
    def num_listed(self) -> int:
        """A."""
        return len(self.indptr) - 1

    @property
    def num_listed_sources(self) -> int:
        """B."""
        return self.num_src if self.src_rows is None else len(self.src_rows)

    def dst_per_edge(self) -> Tensor:
        """int64 [E], the destination row of each edge in the order of ``src``."""
        counts = (self.indptr[1:] - self.indptr[:-1]).long()
        listed = torch.arange(self.num_dst, device=self.src.device) if self.dst_rows is None else self.dst_rows.long()
        return torch.repeat_interleave(listed, counts)


def keep_edges(block: EdgeBlock, kept: Tensor) -> EdgeBlock:
    """The block of some of the edges, between the same rows. ``kept``: bool [E], in the order of ``block.src``."""
    some = copy(block)
    some.cache = {}
    for derived in ("t_edge", "t_weight", "_by_source"):
        some.__dict__.pop(derived, None)
    some.src = block.src[kept]
    some.columns = block.columns.take(kept)
    counts = _counts_between(block.indptr, kept)
    listed = counts > 0
    rows = block.dst_rows if block.dst_rows is not None else torch.arange(block.num_dst, dtype=torch.int32, device=kept.device)
    some.dst_rows = None if bool(listed.all()) and block.dst_rows is None else rows[listed]
    some.indptr = _offsets(counts[listed])
    if block.visits is not None:
        rows, indptr = block.visits
        counts = _counts_between(indptr, kept)
        some.visits = rows[counts > 0], _offsets(counts[counts > 0])
    if block.src_rows is not None:
        by_source = kept[block.t_edge]
        counts = _counts_between(block.t_indptr, by_source)
        some.src_rows = block.src_rows[counts > 0]
        some._by_source = _offsets(counts[counts > 0]), block.t_dst[by_source]
    return some


def _listed(dst: Tensor, num_dst: int) -> tuple[Tensor, Tensor]:
    """The destination rows that have an edge, int32 [A], and where each one's edges begin, int32 [A + 1]."""
    if dst.device.type != "cpu":
        rows, counts = torch.unique_consecutive(dst, return_counts=True)
        return rows, _offsets(counts)
    most = min(num_dst, len(dst))
    rows, indptr = torch.empty(most, dtype=torch.int32), torch.empty(most + 1, dtype=torch.int32)
    listed = _list_rows(dst, rows, indptr)
    if listed == most:
        return rows, indptr
    return rows[:listed].clone(), indptr[: listed + 1].clone()


def _visits(dst: Tensor, visits: Tensor) -> tuple[Tensor, Tensor]:
    """``EdgeBlock.visits``. Args: int32 [E] each."""
    begins = torch.ones(len(dst), dtype=torch.bool, device=dst.device)
    begins[1:] = (dst[1:] != dst[:-1]) | (visits[1:] != visits[:-1])
    starts = torch.nonzero(begins)[:, 0].to(torch.int32)
    return dst[starts.long()], torch.cat([starts, starts.new_tensor([len(dst)])])


def _counts_between(indptr: Tensor, kept: Tensor) -> Tensor:
    """How many are kept in each run ``[indptr[i], indptr[i + 1])``, int64."""
    before = torch.zeros(len(kept) + 1, dtype=torch.int64, device=kept.device)
    torch.cumsum(kept, 0, out=before[1:])
    return before[indptr[1:].long()] - before[indptr[:-1].long()]


def _offsets(counts: Tensor) -> Tensor:
    offsets = torch.zeros(len(counts) + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=offsets[1:])
    return offsets.to(torch.int32)
