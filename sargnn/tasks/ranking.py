"""TEMPORARY."""

import torch

from sargnn.tasks.metrics import roc_auc


def _all(group, t):
    n = [int(x) for x in group.gather(torch.tensor(len(t)))]
    m = max(n)
    p = t.new_zeros(m)
    p[: len(t)] = t
    return torch.cat([q[:k] for q, k in zip(group.gather(p), n)])


def measure_pairs(group, p, n):
    p, n = _all(group, p), _all(group, n)
    return {
        "auc": roc_auc(
            torch.cat([p, n]), torch.cat([torch.ones(len(p), dtype=torch.bool), torch.zeros(len(n), dtype=torch.bool)])
        )
    }


def measure_ranks(group, r):
    return {}


def mean_ranks(p, c):
    return p
