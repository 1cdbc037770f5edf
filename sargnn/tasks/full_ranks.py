"""Pairs ranked among all nodes, and each node's best partners, streamed: no worker has more than a tile of scores at once.

Every worker owns candidates and has queries of its own (``sargnn.tasks.score_tiles``). All workers go through all queries
together, batch after batch. Each gives its share of a batch to everybody. Everybody compares the batch with the candidates
that it owns, tile after tile, and what comes of it goes back. Memory depends neither on the number of queries nor on that of
candidates, but for 16 bytes a candidate: ids are in ascending order, so that a type's nodes follow each other, and bisection
tells the place of an id to leave out.

    rank(q, t) = 1 + |{c : s(q, c) > s(q, t)}| + 1/2 |{c : s(q, c) = s(q, t)}|     c: candidates but t and those to leave out

Scores are equal where rows are, wherever they lie, so a rank is the same on any world and for any tiles.

Letters: M own candidates, B own queries, n queries of a batch, T candidates of a tile, F width of an embedding, K partners.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from sargnn.comm.collectives import swap
from sargnn.comm.group import Group
from sargnn.tasks.metrics import gather_rows
from sargnn.tasks.score_tiles import Scorer, make_scorer

_BATCH, _TILE = 1024, 2048
"""Queries of all workers at once, and candidates: 16 MiB of scores."""
_FIRST_TILE = 64
"""Candidates of a first tile among which best ones are sought: nothing is known yet that would leave most of them out."""


@dataclass(frozen=True)
class Candidates:
    """The nodes of this worker: embeddings [M, F], fp32, fp64 or bf16; original ids, int64 [M], each of one worker only."""

    rows: Tensor
    ids: Tensor


@dataclass(frozen=True)
class Queries:
    """The ends of pairs that stay while all nodes take the other end's place.

    Attributes:
        rows: [B, F], embeddings.
        relation: int64 [B].
        ranks_heads: bool [B]: the rows are tails, and candidates are heads.
        first, last: int64 [B]: ids from ``first`` up to but not with ``last`` are candidates, such as those of a type.
        starts: int64 [B + 1].
        left_out: int64: of query i those at ``starts[i]:starts[i + 1]`` are no candidates: ids in any order.
    """

    rows: Tensor
    relation: Tensor
    ranks_heads: Tensor
    first: Tensor
    last: Tensor
    starts: Tensor
    left_out: Tensor


@torch.no_grad()
def full_ranks(
    group: Group, decoder: nn.Module, candidates: Candidates, queries: Queries, true_rows: Tensor, true_ids: Tensor
) -> Tensor:
    """Each pair's rank among all workers' candidates (see the module's text), float64 [B]. All workers must call it together.

    NaN where the score of the pair, of a candidate or of what is left out is not finite. All tensors lie where the decoder
    does, which is the same on all workers. ``true_rows``, [B, F], and ``true_ids``, int64 [B], are the pairs' other ends, which
    need not be candidates.
    """
    scorer = make_scorer(decoder, candidates.rows.shape[1])
    ranks = true_rows.new_empty(len(true_rows), dtype=torch.float64)
    for own, batch in _batches(group, scorer, candidates, queries, true_ids, true_rows):
        counts = batch.thresholds.new_zeros(len(batch.queries), 2)  # candidates above and equal
        for tile in batch.tiles(_TILE):
            counts[tile.queries] += tile.count(batch.thresholds[tile.queries])
        counts[~batch.thresholds.isfinite()] = torch.nan
        above, equal = group.sum_(counts)[batch.own].T
        ranks[own] = 1 + above + equal / 2
    return ranks


@torch.no_grad()
def top_partners(
    group: Group, decoder: nn.Module, candidates: Candidates, queries: Queries, ids: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """The best candidates of each query among those of all workers. All workers must call it together.

    Args:
        ids: int64 [B], the queries' own nodes, which are no candidates.
        k: K, at least 1.

    Returns:
        ids: int64 [B, K], the best first, of equal scores the smallest id; -1 where there are no more.
        scores: float32 [B, K], -inf where there are no more. Candidates whose score is not a number are left out.
    """
    scorer = make_scorer(decoder, candidates.rows.shape[1])
    best_ids, best_scores = ids.new_empty(len(ids), k), queries.rows.new_empty(len(ids), k, dtype=torch.float32)
    for own, batch in _batches(group, scorer, candidates, queries, ids, None):
        count = len(batch.queries)
        scores, partners = batch.queries.new_full((count, k), -torch.inf), ids.new_full((count, k), -1)
        for tile in batch.tiles(max(_FIRST_TILE, 2 * k)):
            chosen = tile.queries
            low, _ = _rounded_to(scores[chosen, -1])
            row, column = tile.at_least(low)
            place = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)  # among the row's: rows ascend
            width = int(place.max()) + 1 if len(place) else 0
            more = scores.new_full((len(chosen), width), -torch.inf)
            whose = partners.new_full((len(chosen), width), -1)
            more[row, place], whose[row, place] = tile.scores_at(row, column), tile.ids[column]
            both = torch.cat([scores[chosen], more], 1), torch.cat([partners[chosen], whose], 1)
            scores[chosen], partners[chosen] = best_of(*both, k)
        pieces = (
            swap(group, [piece.cpu().numpy() for piece in table.split(batch.sizes)], "sending the best partners")
            for table in (scores, partners)
        )
        all_scores, all_ids = (torch.from_numpy(np.concatenate(each, 1)).to(ids.device) for each in pieces)
        best_scores[own], best_ids[own] = best_of(all_scores, all_ids, k)
    return best_ids, best_scores


def _batches(
    group: Group, scorer: Scorer, candidates: Candidates, queries: Queries, also_left_out: Tensor, true_rows: Tensor | None
) -> Iterator[tuple[slice, _Batch]]:
    """All workers' queries, each worker's share of a batch at a time: which of this worker's they are, and the batch.

    ``also_left_out``: int64 [B], an id of each query. ``true_rows``: [B, F], whose scores are the thresholds, if any.
    """
    ids, order = candidates.ids.sort()
    share = max(1, _BATCH // group.world)
    counts = [int(count) for count in group.gather(torch.tensor(len(also_left_out)))]
    for first in range(0, max(counts), share):
        sizes = [min(max(count - first, 0), share) for count in counts]
        own = slice(first, first + sizes[group.rank])
        starts = queries.starts[first : own.stop + 1]
        relation, ranks_heads, lengths = queries.relation[own], queries.ranks_heads[own], starts.diff()
        rows = scorer.queries(queries.rows[own], relation, ranks_heads)
        numbers = [rows]
        if true_rows is not None:
            numbers.append(scorer.pairs(rows, scorer.keys(true_rows[own]), relation, ranks_heads)[:, None])
        table = [relation, ranks_heads.long(), queries.first[own], queries.last[own], lengths, also_left_out[own]]
        given = queries.left_out[starts[0] : starts[-1]] if len(lengths) else queries.left_out[:0]
        shared = gather_rows(group, torch.cat(numbers, 1))
        relation, ranks_heads, begin, end, lengths, also = gather_rows(group, torch.stack(table, 1)).T
        every = torch.arange(len(also), device=also.device)
        left_out = torch.cat([gather_rows(group, given), also])
        whose = torch.cat([every.repeat_interleave(lengths), every])
        place = torch.searchsorted(ids, left_out)
        here = torch.nonzero(place < len(ids))[:, 0]
        here = here[ids[place[here]] == left_out[here]]
        place, by_place = place[here].sort()
        before = sum(sizes[: group.rank])
        batch = _Batch(
            scorer=scorer,
            rows=candidates.rows,
            order=order,
            ids=ids,
            sizes=sizes,
            own=slice(before, before + sizes[group.rank]),
            queries=shared[:, : rows.shape[1]],
            thresholds=shared[:, rows.shape[1] :].flatten(),
            relation=relation,
            first=begin,
            last=end,
            ranks_heads=ranks_heads.bool(),
            left_out=torch.stack([place, whose[here][by_place]]),
        )
        yield own, batch


def best_of(scores: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row's scores [n, m], or all m, with their ids, of equal ones the smallest id."""
    ids, order = ids.sort(1)
    scores, place = scores.gather(1, order).sort(dim=1, descending=True, stable=True)
    return scores[:, :k], ids.gather(1, place)[:, :k]


def _rounded_to(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Between which numbers those lie that are rounded to fp32 numbers, float64 [n]; the two themselves may be."""
    narrow = scores.float()
    below, above = (narrow.nextafter(torch.full_like(narrow, end)).double() for end in (-torch.inf, torch.inf))
    return (scores + below) / 2, (scores + above) / 2


@dataclass(frozen=True)
class _Tile:
    """Some candidates, with the queries whose candidates they are.

    Attributes:
        queries: int64 [n'], which of the batch's.
        ids: int64 [T], the candidates'.
        products: float64 [n', T], of ``Scorer.tile``; -inf where a candidate is left out.
        is_finite: bool [n'], whether all products are, those left out, too.
        factors: the arguments of ``Scorer.tile``.
    """

    queries: Tensor
    ids: Tensor
    products: Tensor
    is_finite: Tensor
    scorer: Scorer
    factors: tuple[Tensor, Tensor, Tensor, Tensor]

    def count(self, thresholds: Tensor) -> Tensor:
        """How many candidates score more than each query's threshold, an fp32 number as float64 [n'], and how many the same:
        float64 [n', 2], NaN where a product is not finite.
        """
        low, high = _rounded_to(thresholds)
        of_queries, of_keys = self._margins()
        margin = of_queries * of_keys.max()
        is_above = self.products > (high + margin)[:, None]
        is_equal = (self.products > (low + margin)[:, None]) & (self.products < (high - margin)[:, None])
        row, column = torch.nonzero(self._reach(low - margin) & ~is_above & ~is_equal, as_tuple=True)
        low, high, score, margin = low[row], high[row], self.products[row, column], of_queries[row] * of_keys[column]
        least, most = score - margin, score + margin
        is_open = torch.nonzero(~((least > high) | (most < low) | ((least > low) & (most < high))))[:, 0]
        score[is_open] = self.scores_at(row[is_open], column[is_open])
        above, equal = (
            mask.sum(1, dtype=torch.int32) + torch.bincount(row[more], minlength=len(thresholds))
            for mask, more in ((is_above, score > high), (is_equal, (score > low) & (score < high)))
        )
        return torch.stack([above, equal], 1).double().where(self.is_finite[:, None], torch.nan)

    def at_least(self, low: Tensor) -> tuple[Tensor, Tensor]:
        """Rows, ascending, and columns, int64 [p] each, of the candidates that may score as much as ``low``, float64 [n']."""
        of_queries, of_keys = self._margins()
        row, column = torch.nonzero(self._reach(low - of_queries * of_keys.max()), as_tuple=True)
        return row, column

    def _margins(self) -> tuple[Tensor, Tensor]:
        """Float64 [n'] and [T], whose products are how far the tile's may be from scores before rounding."""
        root = self.scorer.slack**0.5
        of_queries, of_keys = (self.scorer.sizes(rows) * root for rows in self.factors[:2])
        return of_queries, of_keys

    def _reach(self, least: Tensor) -> Tensor:
        """Bool [n', T]: which products are as large, and not left out."""
        return self.products >= least.clamp_min(torch.finfo(torch.float64).min)[:, None]

    def scores_at(self, row: Tensor, column: Tensor) -> Tensor:
        """Scores, float64 [p], of places of the tile."""
        return self.scorer.pairs_at(*self.factors, (row, column))


@dataclass(frozen=True)
class _Batch:
    """Queries of all workers, in rank order, and this worker's candidates.

    Attributes:
        rows: [M, F], this worker's candidates.
        order: int64 [M], which row each place of ``ids`` is.
        ids: int64 [M], ascending.
        sizes: of each rank, how many queries are its; ``own``: which are this worker's.
        queries: float64 [n, F], as the scorer has them.
        thresholds: float64 [n], the scores that they are compared with; empty where there are none.
        relation, first, last, ranks_heads: [n], as of ``Queries``.
        left_out: int64 [2, p]: places in ``ids``, ascending, and the queries that leave them out.
    """

    scorer: Scorer
    rows: Tensor
    order: Tensor
    ids: Tensor
    sizes: list[int]
    own: slice
    queries: Tensor
    thresholds: Tensor
    relation: Tensor
    first: Tensor
    last: Tensor
    ranks_heads: Tensor
    left_out: Tensor

    def tiles(self, first_size: int) -> Iterator[_Tile]:
        """``first_size``: T of the first tile of a range of ids; it doubles up to ``_TILE``."""
        for ends in torch.stack([self.first, self.last], 1).unique(dim=0):
            chosen = torch.nonzero((self.first == ends[0]) & (self.last == ends[1]))[:, 0]
            place = torch.full_like(self.first, -1)
            place[chosen] = torch.arange(len(chosen), device=place.device)
            begin, end = torch.searchsorted(self.ids, ends).tolist()
            size = first_size
            while begin < end:
                yield self._tile(begin, min(begin + size, end), chosen, place)
                begin, size = begin + size, min(2 * size, max(_TILE, first_size))

    def _tile(self, begin: int, end: int, chosen: Tensor, place: Tensor) -> _Tile:
        keys = self.scorer.keys(self.rows[self.order[begin:end]])
        factors = self.queries[chosen], keys, self.relation[chosen], self.ranks_heads[chosen]
        products = self.scorer.tile(*factors)
        is_finite = products.sum(1).isfinite()
        among = torch.searchsorted(self.left_out[0], torch.tensor([begin, end], device=chosen.device)).tolist()
        column, query = self.left_out[:, slice(*among)]
        row = place[query]
        here = row >= 0
        products[row[here], column[here] - begin] = -torch.inf
        return _Tile(chosen, self.ids[begin:end], products, is_finite, self.scorer, factors)
