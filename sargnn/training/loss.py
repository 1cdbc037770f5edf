"""What output rows should be, and a worker's share of the training loss.

Letters: M output rows, C outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.bf16 import wide
from sargnn.comm.group import Group
from sargnn.data.dataset import SPLITS
from sargnn.training.tasks import TASKS, NodeTask

_NUMBERS_AT_ONCE = 1 << 19
"""Of logits that are widened: two megabytes, which malloc gives back when they are freed."""


@dataclass(frozen=True)
class Targets:
    """What an output row should be.

    Attributes:
        labels: int64 [M], or of another task than classes [M, C] (``data.labels``).
        rows: split name -> int64, the output rows in it.
        global_counts: split name -> known labels in it over all workers; of classes the rows.
        task: what the labels are.
    """

    labels: Tensor
    rows: dict[str, Tensor]
    global_counts: dict[str, int]
    task: NodeTask = TASKS["classes"]

    @classmethod
    def gather(cls, labels: Tensor, split: Tensor, group: Group, task: NodeTask = TASKS["classes"]) -> Targets:
        """From the output rows' labels [M] or [M, C] and split uint8 [M]; counts are summed over the group."""
        rows = {name: torch.nonzero(split == value)[:, 0] for name, value in SPLITS.items()}
        counts = group.sum_(torch.tensor([task.count(labels[r]) for r in rows.values()], dtype=torch.int64))
        return cls(labels, rows, dict(zip(rows, counts.tolist(), strict=True)), task)


def joined_targets(parts: Sequence[Targets]) -> Targets:
    """Of the output rows of several views, one behind the other; each part has the counts of all."""
    if len(parts) == 1:
        return parts[0]
    rows: dict[str, list[Tensor]] = {name: [] for name in parts[0].rows}
    first = 0
    for part in parts:
        for name, own in part.rows.items():
            rows[name].append(own + first)
        first += len(part.labels)
    labels = torch.cat([part.labels for part in parts])
    return Targets(labels, {name: torch.cat(own) for name, own in rows.items()}, parts[0].global_counts, parts[0].task)


def training_loss(
    logits: Tensor, targets: Targets, *, predicted: tuple[Tensor, int] | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """This worker's share of the loss: summed over its known labels of training rows / their number over all workers.

    The shares add up to the mean over all of them (``training.tasks`` has the equations); a worker without any gives a zero
    that is still differentiable.

    Args:
        logits: [M, C]. Of bf16 ones the loss and its gradient are computed in fp32, which no table is held in.
        predicted: the output rows that count, int64, and the number of their known labels over all workers; all training rows
            if not given.
        label_smoothing: how much of a label's weight is spread over all classes, or over true and false.
    """
    rows, count = predicted or (targets.rows["train"], targets.global_counts["train"])
    if wide(logits.dtype) != logits.dtype:
        share: Tensor = _OfRoundedLogits.apply(logits, targets, rows, max(count, 1), label_smoothing)
        return share
    return targets.task.loss_sum(logits[rows], targets.labels[rows], label_smoothing) / max(count, 1)


class _OfRoundedLogits(torch.autograd.Function):
    """The share of bf16 logits; saves its gradient, which is as large as they are."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Targets, rows: Tensor, count: int, label_smoothing: float) -> Tensor:
        gradient = torch.zeros_like(logits) if ctx.needs_input_grad[0] else None
        share = torch.zeros((), dtype=torch.float64, device=logits.device)
        for chunk in rows.split(max(1, _NUMBERS_AT_ONCE // max(1, logits.shape[1]))):
            leaf = logits[chunk].to(wide(logits.dtype)).requires_grad_(gradient is not None)
            with torch.set_grad_enabled(gradient is not None):
                loss = targets.task.loss_sum(leaf, targets.labels[chunk], label_smoothing) / count
            if gradient is not None:
                gradient[chunk] = torch.autograd.grad(loss, leaf)[0].to(gradient.dtype)
            share += loss.detach()
        ctx.gradient = gradient
        return share.to(wide(logits.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradient, ctx.gradient = ctx.gradient, None
        return gradient.mul_(grad), None, None, None, None
