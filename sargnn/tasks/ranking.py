"""How well pairs of nodes are told from negatives, over all workers: from their scores, or from their ranks among candidates.

    auc        the probability that a pair has a larger score than a negative, ties counted half
    ap         sum_i (R_i - R_(i-1)) P_i over distinct scores from the largest down, with precision P_i and recall R_i of
               all that score at least as much, as scikit-learn's average precision
    hits@K     of scores: the share of pairs above the K-th largest negative, 1 with fewer than K negatives, as OGB's
               evaluators for ogbl-collab, ogbl-ppa and ogbl-ddi have it; of ranks: the share of ranks up to K
    mrr        the mean of 1 / rank, where a rank is 1 + larger candidates + equal ones / 2, as OGB's for ogbl-citation2
    mean_rank  the mean of ranks

Every value is the same on every rank. Those of scores are made of counts of all workers' pairs, so that it does not matter who
holds which. ``sargnn.tasks.full_ranks`` ranks pairs among all nodes.

Letters: P pairs of this worker, Q negatives of this worker, K candidates of a pair.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.collectives import swap
from sargnn.comm.group import Group
from sargnn.tasks.metrics import average_precision, roc_auc

HITS = (1, 3, 10, 20, 50, 100)


def measure_pairs(group: Group, positives: Tensor, negatives: Tensor) -> dict[str, float | None]:
    """``auc``, ``ap`` and ``hits@K`` of the scores of pairs [P] and negatives [Q] of all workers. All workers must call it.

    Every worker holds all scores while it counts. A value is None where it is not defined: without pairs, ``auc`` and ``ap``
    without negatives, and where a score is not finite.
    """
    positives, negatives = (gather_rows(group, scores.detach()).cpu() for scores in (positives, negatives))
    scores = torch.cat([positives, negatives])
    if not len(positives) or not scores.isfinite().all():
        return dict.fromkeys(["auc", "ap", *(f"hits@{k}" for k in HITS)])
    best = negatives.topk(min(HITS[-1], len(negatives))).values
    hits = {f"hits@{k}": int((positives > best[k - 1]).sum()) / len(positives) if k <= len(best) else 1.0 for k in HITS}
    if not len(negatives):
        return {"auc": None, "ap": None, **hits}
    is_pair = torch.arange(len(scores)) < len(positives)
    return {"auc": roc_auc(scores, is_pair), "ap": average_precision(scores, is_pair), **hits}


def measure_ranks(group: Group, ranks: Tensor) -> dict[str, float | None]:
    """``mrr``, ``hits@K`` and ``mean_rank``, means over all workers' pairs, of float64 [P] from 1. All workers must call it.

    All are None without pairs, and where a rank is not finite.
    """
    own = [ranks.reciprocal(), *(ranks <= k for k in HITS), ranks, torch.ones_like(ranks)]
    *sums, count = group.sum_(torch.stack([values.sum(dtype=torch.float64) for values in own])).tolist()
    names = ["mrr", *(f"hits@{k}" for k in HITS), "mean_rank"]
    if not count or not math.isfinite(sums[-1]):
        return dict.fromkeys(names)
    return {name: total / count for name, total in zip(names, sums, strict=True)}


def mean_ranks(positive: Tensor, candidates: Tensor) -> Tensor:
    """Float64 [P] of scores [P] and candidates' [P, K], the mean of a pair's best and worst rank among ties; NaN where any of
    these is not finite.
    """
    own = positive[:, None]
    ranks = 1 + (candidates > own).sum(1).double() + (candidates == own).sum(1) / 2
    return ranks.where(positive.isfinite() & candidates.isfinite().all(1), torch.nan)


def gather_rows(group: Group, rows: Tensor) -> Tensor:
    """All ranks' rows [sum of n, ...] in rank order, where ``rows`` lie, of a dtype that NumPy has. All ranks must call it."""
    pieces = swap(group, [rows.cpu().numpy()] * group.world, "gathering what is ranked")
    return torch.from_numpy(np.concatenate(pieces)).to(rows.device)
