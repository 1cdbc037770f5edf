"""Groups of targets that do not look at edges."""

from __future__ import annotations

import numpy as np

from sargnn.batches.targets import TargetRows


def group_in_order(targets: TargetRows, count: int) -> np.ndarray:
    """Runs of the worker's rows in their order, sizes differing by at most one. Returns int32 [W], each target's group.

    With ``partitioner.order=locality`` neighbours have near row numbers; with ``original`` these are runs of original ids.
    """
    number = len(targets.rows)
    return (np.arange(number, dtype=np.int64) * count // max(number, 1)).astype(np.int32)


def group_at_random(targets: TargetRows, count: int) -> np.ndarray:
    """Groups drawn from the seed, sizes differing by at most one. Returns int32 [W], each target's group."""
    drawn = np.random.default_rng([targets.seed, targets.rank]).permutation(len(targets.rows))
    groups = np.empty(len(targets.rows), np.int32)
    groups[drawn] = group_in_order(targets, count)
    return groups
