"""The training loss and the counts behind the accuracies.

Letters: N own rows, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.data.dataset import SPLITS


@dataclass(frozen=True)
class Targets:
    """What an own row should be.

    Attributes:
        labels: int64 [N].
        rows: split name -> int64, the own rows in it.
        global_counts: split name -> rows in it over all workers.
    """

    labels: Tensor
    rows: dict[str, Tensor]
    global_counts: dict[str, int]

    @classmethod
    def gather(cls, labels: np.ndarray, split: np.ndarray, group: Group, device: torch.device) -> Targets:
        """From a part's labels int64 [N] and split uint8 [N]; counts are summed over the group."""
        rows = {name: torch.from_numpy(np.flatnonzero(split == value)).to(device) for name, value in SPLITS.items()}
        counts = group.sum_(torch.tensor([len(r) for r in rows.values()], dtype=torch.int64))
        return cls(torch.from_numpy(np.array(labels)).to(device), rows, dict(zip(rows, counts.tolist(), strict=True)))


def training_loss(logits: Tensor, targets: Targets) -> Tensor:
    """This worker's share of the loss: cross entropy summed over its training rows / their number over all workers.

    The shares add up to the mean over all training rows; a worker without any gives a zero that is still differentiable.
    """
    rows = targets.rows["train"]
    total = torch.nn.functional.cross_entropy(logits[rows], targets.labels[rows], reduction="sum")
    return total / max(targets.global_counts["train"], 1)


def accuracies(logits: Tensor, targets: Targets, group: Group) -> dict[str, float | None]:
    """Fraction of right rows per split over all workers; None for an empty split."""
    right = logits.argmax(1) == targets.labels
    counts = group.sum_(torch.stack([right[rows].sum() for rows in targets.rows.values()]))
    return {
        name: count / targets.global_counts[name] if targets.global_counts[name] else None
        for name, count in zip(targets.rows, counts.tolist(), strict=True)
    }
