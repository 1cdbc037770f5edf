"""The training loss and the counts behind the accuracies.

Letters: N own rows, M output rows, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.data.dataset import SPLITS


@dataclass(frozen=True)
class Targets:
    """What an output row should be.

    Attributes:
        labels: int64 [M].
        rows: split name -> int64, the output rows in it.
        global_counts: split name -> rows in it over all workers.
    """

    labels: Tensor
    rows: dict[str, Tensor]
    global_counts: dict[str, int]

    @classmethod
    def gather(cls, labels: Tensor, split: Tensor, group: Group) -> Targets:
        """From the output rows' labels int64 [M] and split uint8 [M]; counts are summed over the group."""
        rows = {name: torch.nonzero(split == value)[:, 0] for name, value in SPLITS.items()}
        counts = group.sum_(torch.tensor([len(r) for r in rows.values()], dtype=torch.int64))
        return cls(labels, rows, dict(zip(rows, counts.tolist(), strict=True)))


def training_loss(
    logits: Tensor, targets: Targets, *, predicted: tuple[Tensor, int] | None = None, label_smoothing: float = 0.0
) -> Tensor:  # fmt: skip
    """This worker's share of the loss: cross entropy summed over its training rows / their number over all workers.

    The shares add up to the mean over all training rows; a worker without any gives a zero that is still differentiable.

    Args:
        predicted: the output rows that count, int64, and their number over all workers; all training rows if not given.
        label_smoothing: how much of the label's weight is spread over all classes.
    """
    rows, count = predicted or (targets.rows["train"], targets.global_counts["train"])
    total = torch.nn.functional.cross_entropy(
        logits[rows], targets.labels[rows], reduction="sum", label_smoothing=label_smoothing
    )  # fmt: skip
    return total / max(count, 1)


def accuracies(scores: Tensor, targets: Targets, group: Group) -> dict[str, float | None]:
    """Fraction of right rows per split over all workers, from scores or logits [M, C]; None for an empty split."""
    right = scores.argmax(1) == targets.labels
    counts = group.sum_(torch.stack([right[rows].sum() for rows in targets.rows.values()]))
    return {
        name: count / targets.global_counts[name] if targets.global_counts[name] else None
        for name, count in zip(targets.rows, counts.tolist(), strict=True)
    }
