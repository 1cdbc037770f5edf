"""Metrics of pairs and of ranks against scikit-learn's and OGB's, on one worker and spread over several."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.tasks.metrics import HITS, mean_ranks, measure_pairs, measure_ranks
from tests.pool import pool
from tests.sources.ogb_files import judge

ALONE = Group.single()


def scores(seed: int, positives: int, negatives: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """In quarters, so that many are tied, pairs with pairs and with negatives."""
    generator = torch.Generator().manual_seed(seed)
    high, low = (torch.randn(count, generator=generator).mul(8).round() / 4 for count in (positives, negatives))
    return (high + 1).to(dtype), low.to(dtype)


def spread_pairs(group: Group, positives: Tensor, negatives: Tensor, owners: tuple[Tensor, Tensor]) -> dict[str, float | None]:
    return measure_pairs(group, positives[owners[0] == group.rank], negatives[owners[1] == group.rank])


def spread_ranks(group: Group, ranks: Tensor, owner: Tensor) -> dict[str, float | None]:
    return measure_ranks(group, ranks[owner == group.rank])


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_areas_are_scikit_learns(seed: int, dtype: torch.dtype) -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    positives, negatives = scores(seed, 300, 700, dtype)
    marks = np.repeat([1, 0], [300, 700])
    both = torch.cat([positives, negatives]).numpy()
    measured = measure_pairs(ALONE, positives, negatives)
    assert measured["ap"] == average_precision_score(marks, both)
    assert measured["auc"] == pytest.approx(roc_auc_score(marks, both), abs=1e-15)  # a sum of trapezoids


@pytest.mark.parametrize("k", [*HITS, 7, 600])
@pytest.mark.parametrize("negatives", [1, 20, 49, 50, 99, 100, 700])
def test_hits_are_ogbs(k: int, negatives: int, monkeypatch: pytest.MonkeyPatch) -> None:
    high, low = scores(k, 300, negatives)
    ogb = judge("ogbl-collab", monkeypatch)
    ogb.K = k
    want = ogb.eval({"y_pred_pos": high, "y_pred_neg": low})[f"hits@{k}"]
    assert want == 1.0 or negatives >= k
    assert measure_pairs(ALONE, high, low, [k])[f"hits@{k}"] == want


@pytest.mark.parametrize("world", [2, 4])
def test_who_holds_which_pairs_does_not_matter(world: int) -> None:
    """One of four ranks has no pair, another one no negative."""
    positives, negatives = scores(0, 300, 700)
    want = measure_pairs(ALONE, positives, negatives)
    generator = torch.Generator().manual_seed(1)
    owners = torch.randint(min(world, 3), (300,), generator=generator), torch.randint(1, world, (700,), generator=generator)
    assert len(set(want.values())) > 5
    for measured in pool(world)(spread_pairs, positives, negatives, owners):
        assert measured == want


def test_pairs_that_are_not_measured() -> None:
    positives, negatives = scores(0, 3, 4)
    empty, wrong = torch.zeros(0), torch.tensor([1.0, torch.nan])
    assert set(measure_pairs(ALONE, empty, negatives).values()) == {None}
    assert set(measure_pairs(ALONE, empty, empty).values()) == {None}
    assert measure_pairs(ALONE, positives, empty) == {"auc": None, "ap": None, **{f"hits@{k}": 1.0 for k in HITS}}
    owners = torch.tensor([0, 0]), torch.tensor([1, 1, 1, 1])
    for measured in pool(2)(spread_pairs, wrong, negatives, owners):
        assert set(measured.values()) == {None}
    assert set(measure_pairs(ALONE, positives, -torch.inf * torch.ones(4)).values()) == {None}


def test_ranks_are_ogbs(monkeypatch: pytest.MonkeyPatch) -> None:
    positives, _ = scores(3, 200, 0)
    _, candidates = scores(4, 0, 200 * 60)
    candidates = candidates.view(200, 60)
    said = judge("ogbl-citation2", monkeypatch).eval({"y_pred_pos": positives, "y_pred_neg": candidates})
    ranks = mean_ranks(positives, candidates)
    assert ranks.dtype == torch.float64
    assert torch.equal(1 / ranks.float(), said["mrr_list"])
    assert (ranks % 1 == 0.5).any()
    measured = measure_ranks(ALONE, ranks)
    assert measured["mrr"] == pytest.approx(said["mrr_list"].double().mean().item(), rel=1e-6)
    for k in (1, 3, 10):
        assert measured[f"hits@{k}"] == said[f"hits@{k}_list"].double().mean().item()
    assert measured["mean_rank"] == ranks.numpy().mean()


def test_ranks_of_all_workers_are_averaged() -> None:
    ranks = torch.randint(2, 400, (90,), generator=torch.Generator().manual_seed(0)).double() / 2
    owner = torch.arange(90) % 5 // 2  # of four ranks one has no pair
    want = measure_ranks(ALONE, ranks)
    spread = pool(4)(spread_ranks, ranks, owner)
    assert all(measured == spread[0] for measured in spread)
    assert spread[0] == pytest.approx(want, rel=1e-14)
    assert want["hits@100"] == (ranks <= 100).double().mean().item()
    ranks[80] = torch.nan
    assert all(set(measured.values()) == {None} for measured in pool(4)(spread_ranks, ranks, owner))
    assert set(measure_ranks(ALONE, ranks[:0]).values()) == {None}


def test_ranks_of_scores_that_are_not_finite_are_not_a_number() -> None:
    positive = torch.tensor([1.0, torch.nan, 1.0, torch.inf, 0.0])
    candidates = torch.tensor([[0.0, 2.0], [0.0, 0.0], [torch.nan, 0.0], [1.0, 1.0], [0.0, 0.0]])
    ranks = mean_ranks(positive, candidates)
    assert ranks.isnan().tolist() == [False, True, True, True, False]
    assert (ranks[0], ranks[4]) == (2, 2)
    assert mean_ranks(positive[:1], candidates[:1, :0]).tolist() == [1]
