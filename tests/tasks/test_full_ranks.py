"""Ranks among all nodes and best partners against a search that scores pair by pair, for any world and any tiles."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sargnn.comm.group import Group
from sargnn.tasks import full_ranks as streamed
from sargnn.tasks.decoders import DECODERS, Dot, Mlp
from sargnn.tasks.full_ranks import Candidates, Queries, full_ranks, top_partners
from sargnn.tasks.score_tiles import Scorer, make_scorer, sum_by_halves
from tests.parity.covering import first_of, spread
from tests.pool import pool

NODES, WIDTH, RELATIONS, PAIRS = 90, 6, 3, 50
TYPES = ((0, 30), (30, 75), (75, 90))


class Distance(nn.Module):
    """A user's decoder: its ends and relations are not alike."""

    def forward(self, heads: Tensor, tails: Tensor, relation: Tensor) -> Tensor:
        return -(heads + 0.5 * relation[:, None] - 2 * tails).abs().sum(1)


class Farthest(Dot):
    """One that extends a decoder whose ranks are products, and is none."""

    def forward(self, heads: Tensor, tails: Tensor, relation: Tensor) -> Tensor:
        return -super().forward(heads, tails, relation).abs()


def decoder_of(name: str, width: int = WIDTH, *, coarse: bool = True) -> nn.Module:
    """With parameters in quarters, so that different rows have the same score, too, unless they are not to be coarse."""
    torch.manual_seed(5)
    own = {"own": Distance(), "farthest": Farthest(width, RELATIONS)}
    made: nn.Module = own[name] if name in own else Mlp(width, 4) if name == "mlp" else DECODERS[name](width, RELATIONS)
    for parameter in made.parameters() if coarse else ():
        parameter.data.mul_(4).round_().div_(4)
    return made


@dataclass(frozen=True)
class Case:
    """Pairs (queries[i], true[i]) of a graph, with who owns which nodes and asks for which pairs."""

    rows: Tensor
    fixed: Tensor
    true: Tensor
    relation: Tensor
    ranks_heads: Tensor
    ranges: Tensor
    left_out: list[Tensor]
    owner: Tensor
    asker: Tensor

    def candidates(self, rank: int) -> Candidates:
        """In no order."""
        own = torch.nonzero(self.owner == rank)[:, 0].flip(0)
        return Candidates(self.rows[own], own)

    def asked(self, rank: int) -> Tensor:
        return torch.nonzero(self.asker == rank)[:, 0]

    def queries(self, which: Tensor) -> Queries:
        lists = [self.left_out[i] for i in which.tolist()]
        starts = torch.tensor([0, *(len(ids) for ids in lists)]).cumsum(0)
        first, last = self.ranges[which].T
        left_out = torch.cat([torch.zeros(0, dtype=torch.int64), *lists])
        rows = self.rows[self.fixed[which]]
        return Queries(rows, self.relation[which], self.ranks_heads[which], first, last, starts, left_out)


def case_of(seed: int, world: int, *, filtered: bool = True, typed: bool = True, rows: Tensor | None = None) -> Case:
    """Rows of few values, a third of them copies of others. Of four ranks one owns no node, and another one has no pair."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    if rows is None:
        rows = draw(4, NODES, WIDTH).float() / 2 - 0.5
        rows[draw(NODES, NODES // 3)] = rows[draw(NODES, NODES // 3)]
        rows[3] = 0
    count = len(rows)
    fixed, true = draw(count, PAIRS), draw(count, PAIRS)
    ranges = torch.tensor([0, count]).repeat(PAIRS, 1)
    if typed:  # of the true end's type; a few have another type's candidates
        ranges = torch.tensor(TYPES)[
            torch.bucketize((true + (draw(5, PAIRS) == 0) * 40) % NODES, torch.tensor([30, 75]), right=True)
        ]
    left_out = [draw(count + 5, int(draw(30, 1))) if filtered else draw(1, 0) for _ in range(PAIRS)]
    owner = draw(world, count) if world < 4 else torch.tensor([0, 1, 3])[draw(3, count)]
    asker = torch.tensor([0, 0, 0, world // 2])[draw(4, PAIRS)]
    return Case(rows, fixed, true, draw(RELATIONS, PAIRS), draw(2, PAIRS) == 1, ranges, left_out, owner, asker)


def scores_by_pairs(case: Case, decoder: nn.Module, i: int) -> np.ndarray:
    """Of pair i with each node in the place of the end that is ranked, one call of the decoder for each."""
    wide, rows = copy.deepcopy(decoder).double(), case.rows.double()
    own, relation = rows[case.fixed[i]][None], case.relation[i][None]
    ends = [(row[None], own) if case.ranks_heads[i] else (own, row[None]) for row in rows]
    with torch.no_grad():
        return np.array([wide(head, tail, relation).item() for head, tail in ends]).astype(np.float32)


def allowed(case: Case, i: int, also: Tensor) -> np.ndarray:
    """Bool per node: whether it is a candidate of pair i."""
    ids = np.arange(len(case.rows))
    in_range = (ids >= int(case.ranges[i, 0])) & (ids < int(case.ranges[i, 1]))
    return in_range & ~np.isin(ids, case.left_out[i].numpy()) & (ids != int(also[i]))


def searched_ranks(case: Case, decoder: nn.Module) -> list[float]:
    ranks = []
    for i, true in enumerate(case.true.tolist()):
        scores = scores_by_pairs(case, decoder, i)
        others = scores[allowed(case, i, case.true)]
        ranks.append(1 + float((others > scores[true]).sum()) + float((others == scores[true]).sum()) / 2)
    return ranks


def ranks_of(group: Group, case: Case, decoder: nn.Module) -> Tensor:
    which = case.asked(group.rank)
    true = case.true[which]
    return full_ranks(group, decoder, case.candidates(group.rank), case.queries(which), case.rows[true], true)


def partners_of(group: Group, case: Case, decoder: nn.Module, k: int) -> tuple[Tensor, Tensor]:
    which = case.asked(group.rank)
    return top_partners(group, decoder, case.candidates(group.rank), case.queries(which), case.fixed[which], k)


def together(case: Case, of_ranks: list[Tensor]) -> Tensor:
    """What each rank has of its pairs, in the order of all."""
    every = torch.cat(of_ranks)
    out = torch.empty_like(every)
    out[torch.cat([case.asked(rank) for rank in range(len(of_ranks))])] = every
    return out


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "_BATCH", 12)
    monkeypatch.setattr(streamed, "_TILE", 7)
    monkeypatch.setattr(streamed, "_FIRST_TILE", 2)


SEARCHED: list[Any] = [[*DECODERS, "mlp", "own", "farthest"], [1, 2, 4], [(0, True, True), (1, True, False), (2, False, False)]]
PARTNERS: list[Any] = [[("dot", 1), ("complex", 5), ("cosine", 40), ("mlp", 5), ("own", 100)], [1, 2, 4], [True, False]]


@pytest.mark.parametrize(
    ("name", "world", "seed", "filtered", "typed"),
    first_of(spread(*SEARCHED), spread(*SEARCHED, strength=2)),
)
@pytest.mark.usefixtures("small_tiles")
def test_ranks_are_those_of_a_search(name: str, world: int, seed: int, filtered: bool, typed: bool) -> None:
    decoder, case = decoder_of(name), case_of(seed, world, filtered=filtered, typed=typed)
    if name == "cosine":
        case.rows.abs_()  # what cancels would not be exactly 0, since lengths are rounded
    ranks = together(case, pool(world)(ranks_of, case, decoder))
    assert ranks.dtype == torch.float64
    assert ranks.tolist() == searched_ranks(case, decoder)
    assert (ranks % 1 == 0.5).any()


@pytest.mark.parametrize(
    ("name", "dtype"),
    spread(["dot", "cosine", "bilinear", "mlp", "transe", "rotate"], [torch.float32, torch.float64, torch.bfloat16]),
)
def test_ranks_do_not_depend_on_tiles(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of any numbers, of which many are there several times: their products differ from tile to tile."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(50, 66, generator=generator).repeat(3, 1)[torch.randperm(150, generator=generator)].to(dtype)
    decoder = decoder_of(name, 66, coarse=False).to(torch.float32 if dtype == torch.bfloat16 else dtype)
    want = None
    for world, batch, tile in ((1, 1024, 2048), (1, 3, 5), (2, 16, 64), (4, 7, 33)):
        monkeypatch.setattr(streamed, "_BATCH", batch)
        monkeypatch.setattr(streamed, "_TILE", tile)
        case = case_of(1, world, typed=False, rows=rows)
        case = Case(**{**vars(case_of(1, 1, typed=False, rows=rows)), "owner": case.owner, "asker": case.asker})
        want = want or searched_ranks(case, decoder)
        assert together(case, pool(world)(ranks_of, case, decoder)).tolist() == want
    assert want is not None and len({rank % 1 for rank in want}) == 2


def test_products_halfway_between_two_scores_are_rounded_to_even() -> None:
    """1 + 2^-24 is rounded down to the true end's 1, a little more is rounded up, and 1 + 3 2^-24 is so from below."""
    step = 2.0**-24
    tails = [[1, 0], [1, step], [1, step + 2.0**-50], [1, 2 * step], [1, 3 * step], [1, -step / 2], [1, -step], [0, 0]]
    rows = torch.tensor([[1.0, 1.0], *tails], dtype=torch.float64)
    zero, no = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.bool)
    queries = Queries(rows[:1].repeat(2, 1), zero, no, zero + 1, zero + len(rows), torch.zeros(3, dtype=torch.int64), zero[:0])
    true = torch.tensor([1, 4])
    ranks = full_ranks(Group.single(), Dot(2, 1), Candidates(rows, torch.arange(len(rows))), queries, rows[true], true)
    # scores: 1, 1, 1 + 2 step, 1 + 2 step, 1 + 4 step, 1, 1 - step, 0
    assert rows[1:].sum(1).float().tolist() == [1, 1, 1 + 2 * step, 1 + 2 * step, 1 + 4 * step, 1, 1 - step, 0]
    assert ranks.tolist() == [1 + 3 + 2 / 2, 1 + 1 + 1 / 2]


def test_products_too_near_to_a_bound_decide_nothing() -> None:
    """Rows add up to 1 + 2^-24 but for the last bits, in which orders of addition differ: to 1, or to the next fp32 number."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(400, 40, generator=generator, dtype=torch.float64)
    bound = 1 + 2.0**-24
    for row in rows:
        row[7] += bound - math.fsum(row.tolist())
    rows[0], rows[1] = torch.eye(40)[0], 0
    sums = torch.cat([sum_by_halves(row[None].clone()) for row in rows])
    assert ((rows @ torch.ones(40, 1, dtype=torch.float64))[:, 0] > bound).ne(sums > bound).any()
    zero = torch.zeros(1, dtype=torch.int64)
    queries = Queries(torch.ones(1, 40), zero, zero.bool(), zero, zero + len(rows), torch.tensor([0, 0]), zero[:0])
    candidates = Candidates(rows, torch.arange(len(rows)))
    above, equal = int((sums.float() > 1).sum()), int((sums.float() == 1).sum()) - 1
    assert min(above, equal) > 50
    assert full_ranks(Group.single(), Dot(40, 1), candidates, queries, rows[:1], zero).tolist() == [1 + above + equal / 2]


@pytest.mark.parametrize("width", [1, 2, 16, 67, 300])
def test_products_are_as_near_to_scores_as_is_said(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    queries, keys = (torch.randn(count, width, generator=generator).double() for count in (50, 80))
    keys[40:] -= (keys[40:] @ queries[0] / queries[0].square().sum())[:, None] * queries[0]  # what they add up to cancels
    scorer = make_scorer(Dot(width, 1), width)
    zero = torch.zeros(50, dtype=torch.int64)
    products = scorer.tile(queries, keys, zero, zero.bool())
    sums = sum_by_halves((queries[:, None] * keys).flatten(0, 1)).view(50, 80)
    assert (products - sums).abs().le(scorer.slack * queries.norm(dim=1)[:, None] * keys.norm(dim=1)).all()
    assert torch.equal(sums[7, 5:6], sum_by_halves(queries[7:8] * keys[5:6]))
    assert torch.allclose(sums, (queries[:, None] * keys).sum(2))


@pytest.mark.parametrize("width", [2, 16, 300])
@pytest.mark.parametrize("name", ["transe", "rotate"])
def test_distances_are_as_near_to_scores_as_is_said(name: str, width: int) -> None:
    """Also of rows that are hardly apart, or the same."""
    generator = torch.Generator().manual_seed(width)
    rows, keys = (torch.randn(count, width, generator=generator).double() for count in (50, 80))
    decoder = decoder_of(name, width, coarse=False)
    decoder.margin.data.fill_(9)  # type: ignore[operator]
    scorer, of = make_scorer(decoder, width), torch.arange(50) % RELATIONS
    queries = scorer.queries(rows, of, of == 1)
    keys[:30], keys[30:40] = queries[:30], queries[:10] + 1e-9
    row, column = torch.arange(50).repeat_interleave(80), torch.arange(80).repeat(50)
    wanted = scorer._pairs(queries[row], keys[column], of[row], of[row] == 1).view(50, 80)
    far = (scorer.tile(queries, keys, of, of == 1) - wanted).abs()
    assert far.le(scorer.slack * scorer.sizes(queries)[:, None] * scorer.sizes(keys)).all()
    for i, r in enumerate(of.tolist()):
        ends = rows[i].repeat(80, 1), keys
        heads, tails = ends[::-1] if r == 1 else ends
        assert torch.allclose(scorer.decoder(heads, tails, of[i].repeat(80)), wanted[i], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ["dot", "mlp"])
def test_tiles_are_small(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "_BATCH", 12)
    monkeypatch.setattr(streamed, "_TILE", 7)
    decoder, case, shapes = decoder_of(name), case_of(0, 2, typed=False), []
    kind = type(make_scorer(decoder, WIDTH))
    tile = kind.tile

    def watched(scorer: Scorer, *factors: Tensor) -> Tensor:
        shapes.append((len(factors[0]), len(factors[1])))
        return tile(scorer, *factors)

    monkeypatch.setattr(kind, "tile", watched)
    pool(2)(ranks_of, case, decoder)
    assert max(shapes) == (12, 7)
    assert {columns for _, columns in shapes if columns < 7} == {int((case.owner == rank).sum()) % 7 for rank in (0, 1)} - {0}


def test_scores_that_are_not_finite() -> None:
    """A candidate's concern those whose candidate it is, a query's itself; a true end's, too, though it is no candidate."""
    case = case_of(0, 2)
    elsewhere = (case.true < case.ranges[:, 0]) | (case.true >= case.ranges[:, 1])
    nodes = [80, int(case.true[elsewhere][0])]
    case.rows[80, 2], case.rows[nodes[1]] = torch.inf, torch.nan
    ranks = together(case, pool(2)(ranks_of, case, decoder_of("dot")))
    reached = ((case.ranges[:, :1] <= torch.tensor(nodes)) & (torch.tensor(nodes) < case.ranges[:, 1:])).any(1)
    touched = torch.isin(case.fixed, torch.tensor(nodes)) | torch.isin(case.true, torch.tensor(nodes))
    assert torch.equal(ranks.isnan(), reached | touched)
    assert 0 < ranks.isnan().sum() < PAIRS


def test_without_candidates_or_queries() -> None:
    case = case_of(0, 2, typed=False)
    unowned = Case(**{**vars(case), "owner": torch.full_like(case.owner, 9)})
    assert together(unowned, pool(2)(ranks_of, unowned, decoder_of("dot"))).tolist() == [1] * PAIRS
    ids, scores = (
        together(unowned, list(parts)) for parts in zip(*pool(2)(partners_of, unowned, decoder_of("dot"), 3), strict=True)
    )
    assert ids.unique().tolist() == [-1] and scores.unique().tolist() == [-torch.inf]
    unasked = Case(**{**vars(case), "asker": torch.full_like(case.asker, 9)})
    assert [len(ranks) for ranks in pool(2)(ranks_of, unasked, decoder_of("mlp"))] == [0, 0]
    assert [tuple(ids.shape) for ids, _ in pool(2)(partners_of, unasked, decoder_of("mlp"), 3)] == [(0, 3), (0, 3)]


@pytest.mark.parametrize(("name", "k", "world", "typed"), first_of(spread(*PARTNERS), spread(*PARTNERS, strength=2)))
@pytest.mark.usefixtures("small_tiles")
def test_partners_are_those_of_a_search(name: str, k: int, world: int, typed: bool) -> None:
    """In the order of scores, then of ids; -1 where there are no more candidates."""
    decoder, case = decoder_of(name), case_of(0 if typed else 1, world, typed=typed)
    if name == "cosine":
        case.rows.abs_()  # as above
    parts = pool(world)(partners_of, case, decoder, k)
    ids, scores = (together(case, list(part)) for part in zip(*parts, strict=True))
    for i in range(PAIRS):
        every = scores_by_pairs(case, decoder, i)
        nodes = np.flatnonzero(allowed(case, i, case.fixed))
        best = nodes[np.lexsort((nodes, -every[nodes]))][:k]
        short = k - len(best)
        assert ids[i].tolist() == [*best.tolist(), *[-1] * short]
        assert scores[i].tolist() == [*every[best].tolist(), *[-np.inf] * short]
    assert (ids == -1).any() == (k > (10 if typed else 60))


def test_partners_do_not_depend_on_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(50, 66, generator=generator).repeat(3, 1)[torch.randperm(150, generator=generator)]
    want = None
    for world, batch, tile in ((1, 1024, 2048), (1, 3, 5), (2, 16, 64)):
        monkeypatch.setattr(streamed, "_BATCH", batch)
        monkeypatch.setattr(streamed, "_TILE", tile)
        case = case_of(1, world, typed=False, rows=rows)
        case = Case(**{**vars(case_of(1, 1, typed=False, rows=rows)), "owner": case.owner, "asker": case.asker})
        parts = pool(world)(partners_of, case, Dot(67, 1), 10)
        ids, scores = (together(case, list(part)) for part in zip(*parts, strict=True))
        want = want or (ids, scores)
        assert torch.equal(ids, want[0]) and torch.equal(scores, want[1])
