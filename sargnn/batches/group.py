"""From the name of a grouping to the groups."""

from __future__ import annotations

import numpy as np

from sargnn.batches import GROUPINGS
from sargnn.batches.targets import TargetRows
from sargnn.errors import ConfigError
from sargnn.resolve import resolve


def group_targets(by: str, targets: TargetRows, count: int) -> np.ndarray:
    """Each target's group, int32 [W] in [0, count); none is empty where there are as many targets.

    Args:
        by: a key of ``GROUPINGS``, or a target outside the package.

    Raises:
        ConfigError: a function outside the package gives something else.
    """
    number = len(targets.rows)
    if count == 1 or number == 0:
        return np.zeros(number, np.int32)
    function = resolve("grouping", GROUPINGS, by)
    if number <= count:
        return np.arange(number, dtype=np.int32)
    groups = np.asarray(function(targets, count))
    if groups.shape != (number,) or groups.dtype.kind not in "iu" or groups.min() < 0 or groups.max() >= count:
        raise ConfigError(
            "What 'batches.by' names must give each target's group.",
            given=f"{groups.dtype} {list(groups.shape)} from {by}",
            allowed=f"whole numbers [{number}] from 0 to {count - 1}",
        )
    return _without_empty_ones(groups.astype(np.int32), count)


def _without_empty_ones(groups: np.ndarray, count: int) -> np.ndarray:
    """METIS may leave a group of a small graph empty: it gets half of the largest."""
    groups, sizes = groups.copy(), np.bincount(groups, minlength=count)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        moved = np.flatnonzero(groups == largest)[: sizes[largest] // 2]
        groups[moved] = empty
        sizes[largest] -= len(moved)
        sizes[empty] = len(moved)
    return groups
