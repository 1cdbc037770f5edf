"""Predicting nodes: one class, several labels or numbers of each, by the dtype of the dataset's labels (``data.labels``).

A worker's share of the loss is its sum over known labels of training nodes (``tasks.labels`` has the equations) / their number
over all workers; the shares add up.

Letters: n rows, N own rows, M output rows, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.bf16 import ROW_DTYPES, wide
from sargnn.comm.group import Group
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import SPLITS, task_of
from sargnn.partition.cut import Part
from sargnn.tasks.base import Counted, Predict, Targets, Task
from sargnn.tasks.kinds import KINDS, Scores, choose_metric, in_split
from sargnn.tasks.labels import LABELS, LabelInputs
from sargnn.tasks.metrics import measure

_NUMBERS_AT_ONCE = 1 << 19
"""Of logits that are widened: two megabytes, which malloc gives back when they are freed."""


class NodeTask(Task):
    """Predicts what nodes are. A task of one's own that has another loss extends this class and has its own ``loss_sum``.

    Attributes:
        kind: what the labels are.
        label_smoothing: how much of a label's weight is spread over all classes, or over true and false.
    """

    @classmethod
    def check(cls, config: RunConfig, dataset: Dataset) -> None:
        task, split = dataset.task, np.asarray(dataset.split)
        choose_metric(task, config.metric)
        given, kind = f"labels of the task {task}", KINDS[task]
        if kind.why_not_smoothed is not None and config.optim.label_smoothing:
            raise ConfigError(
                kind.why_not_smoothed,
                given=f"optim.label_smoothing={config.optim.label_smoothing}, {given}",
                allowed="optim.label_smoothing=0",
            )
        if not kind.are_shares and config.smooth.name != "none":
            raise ConfigError(
                "Correct & Smooth spreads the shares of classes, which add up to one.",
                given=f"smooth={config.smooth.name}, {given}",
                allowed="smooth=none",
            )
        if config.batches.steps > (nodes := int(in_split(split, "train").sum())):
            raise ConfigError(
                "There are more steps in an epoch than training nodes.",
                given=f"batches.steps={config.batches.steps}",
                allowed=f"1 to {nodes}",
            )
        if config.early_stopping is not None and not in_split(split, "valid").any():
            raise ConfigError("Early stopping needs validation nodes, and the dataset has none.", hint="early_stopping=null")

    def __init__(self, config: RunConfig, part: Part, outputs: int, group: Group, *, reads_labels: bool = False) -> None:
        self.name = task_of(part.labels.dtype)
        self.kind, self.metric, self.outputs = LABELS[self.name], choose_metric(self.name, config.metric), outputs
        self.label_smoothing, self._group = config.optim.label_smoothing, group
        device = torch.device(config.device)
        self._labels, split, ids, self._inner = (
            torch.from_numpy(np.array(rows)).to(device) for rows in (part.labels, part.split, part.node_ids, part.inner)
        )
        self._inputs: LabelInputs | None = None
        if config.reads_labels or reads_labels:
            training, dtype = in_split(split, "train"), ROW_DTYPES[config.precision]
            self._inputs = LabelInputs(config.labels, self.kind, self._labels, training, ids, outputs, config.seed, dtype)
            self.input_columns, self.feeds_back = outputs, config.labels.reuse > 0
        self._split = split * self._inner  # a copy's loss and score are its owner's

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss summed over the known labels of some rows; for no rows a zero that is still differentiable.

        It must be a sum over rows: workers, micro-batches and pieces of a table are added up.

        Args:
            logits: [n, C].
            labels: [n] or [n, C].
        """
        return self.kind.loss_sum(logits, labels, self.label_smoothing)

    def rows(self, split: str | None = None) -> np.ndarray:
        wanted = self._split > 0 if split is None else in_split(self._split, split)
        return torch.nonzero(wanted)[:, 0].numpy()

    def count(self, rows: np.ndarray) -> int:
        return self.kind.count(self._labels[torch.from_numpy(rows)])

    def targets(self, output_rows: Tensor | None, counts: Mapping[str, int] | None = None) -> Targets:
        labels, split = self._labels, self._split
        if output_rows is not None:
            labels, split = labels.index_select(0, output_rows), split.index_select(0, output_rows)
        rows = {name: torch.nonzero(split == value)[:, 0] for name, value in SPLITS.items()}
        if counts is None:
            known = self._group.sum_(torch.tensor([self.kind.count(labels[own]) for own in rows.values()], dtype=torch.int64))
            counts = dict(zip(rows, known.tolist(), strict=True))
        return Targets(labels, rows, counts, output_rows)

    def columns(self, step: int | None, predict: Predict, share: Callable[[Tensor], object]) -> Tensor | None:
        return None if self._inputs is None else self._inputs.read(step, predict, share)

    def counted(self, step: int, rows: np.ndarray | None) -> Counted:
        if self._inputs is None or not self._inputs.masked:
            return Counted()
        hidden = self._inputs.training & ~self._inputs.carried(step) & self._inner
        if rows is not None:
            in_step = torch.zeros_like(hidden)
            in_step[torch.from_numpy(rows)] = True
            hidden &= in_step
        known = torch.tensor(self.kind.count(self._labels[hidden]), dtype=torch.int64)
        return Counted(int(self._group.sum_(known)), hidden)

    def loss(self, outputs: Tensor, targets: Targets, counted: Counted) -> Tensor:
        rows, labels = targets.rows["train"], max(counted.total(targets), 1)
        if counted.rows is not None:
            own_rows = rows if targets.own_rows is None else targets.own_rows[rows]
            rows = rows[counted.rows[own_rows]]
        if wide(outputs.dtype) != outputs.dtype:
            share: Tensor = _OfRoundedLogits.apply(outputs, targets.labels, rows, labels, self.loss_sum)
            return share
        return self.loss_sum(outputs[rows], targets.labels[rows]) / labels

    def metrics(self, outputs: Tensor, targets: Targets) -> Scores:
        return measure(self.metric, outputs, targets, self._group)

    def tables(self, outputs: Tensor) -> dict[str, Tensor]:
        """``predictions``: int64 [n] classes, uint8 [n, C] labels, or [n, C] values."""
        return {"predictions": self.kind.predictions(outputs)}


class _OfRoundedLogits(torch.autograd.Function):
    """The share of bf16 logits, in fp32, which no table is held in; saves its gradient, which is as large as they are."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, rows: Tensor, count: int, loss_sum: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        gradient = torch.zeros_like(logits) if ctx.needs_input_grad[0] else None
        share = torch.zeros((), dtype=torch.float64, device=logits.device)
        for chunk in rows.split(max(1, _NUMBERS_AT_ONCE // max(1, logits.shape[1]))):
            leaf = logits[chunk].to(wide(logits.dtype)).requires_grad_(gradient is not None)
            with torch.set_grad_enabled(gradient is not None):
                loss = loss_sum(leaf, labels[chunk]) / count
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
