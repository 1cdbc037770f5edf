"""The kinds of labels: their loss, labels as inputs, and predictions of each.

z is a logit, y a label, K the known labels of the rows that count, over all workers:

    classes      1/|K| sum over rows i of -log softmax(z_i)[y_i]           label smoothing e: y (1 - e) + e/C for one-hot y
    multilabel   1/|K| sum over (i, c) of log(1 + exp(z_ic)) - y_ic z_ic   label smoothing e: y (1 - e) + e/2
    regression   1/|K| sum over (i, c) of (z_ic - y_ic)^2

A class is one label a row. Of several labels or numbers some entries of a row may be unknown: they are in neither sum.

Letters: n rows, C outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from sargnn.config.run import Task


class Labels(ABC):
    """A kind of labels. They come with the dtype and shape that ``data.labels`` lists, of any n rows."""

    @abstractmethod
    def count(self, labels: Tensor) -> int:
        """How many labels of rows of the split are known."""

    @abstractmethod
    def loss_sum(self, logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
        """The loss summed over known labels; for no rows a zero that is still differentiable.

        Args:
            logits: [n, C].
        """

    @abstractmethod
    def columns(self, labels: Tensor, num_outputs: int, dtype: torch.dtype) -> Tensor:
        """Labels as further input, [n, C]; zeros where they are not known."""

    @abstractmethod
    def soft(self, logits: Tensor) -> Tensor:
        """Predictions in the place of labels that are not carried, [n, C]."""

    @abstractmethod
    def predictions(self, logits: Tensor) -> Tensor:
        """What ``sargnn predict`` writes: int64 [n] classes, uint8 [n, C] labels, or [n, C] values."""


class Classes(Labels):
    """One class of C."""

    def count(self, labels: Tensor) -> int:
        return len(labels)

    def loss_sum(self, logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)

    def columns(self, labels: Tensor, num_outputs: int, dtype: torch.dtype) -> Tensor:
        columns = torch.zeros(len(labels), num_outputs, dtype=dtype, device=labels.device)
        return columns.scatter_(1, labels[:, None], 1.0)

    def soft(self, logits: Tensor) -> Tensor:
        return logits.softmax(1)

    def predictions(self, logits: Tensor) -> Tensor:
        return logits.argmax(1)


class Multilabel(Labels):
    """C labels at once, each true or not; a label is predicted where its logit is above 0."""

    def count(self, labels: Tensor) -> int:
        return int((labels >= 0).sum())

    def loss_sum(self, logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
        wanted = labels.clamp(min=0).to(logits.dtype) * (1 - label_smoothing) + label_smoothing / 2
        known = (labels >= 0).to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, wanted, weight=known, reduction="sum")

    def columns(self, labels: Tensor, num_outputs: int, dtype: torch.dtype) -> Tensor:
        return labels.clamp(min=0).to(dtype)

    def soft(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def predictions(self, logits: Tensor) -> Tensor:
        return (logits > 0).to(torch.uint8)


class Regression(Labels):
    """C numbers; the logits are the values."""

    def count(self, labels: Tensor) -> int:
        return int(labels.isfinite().sum())

    def loss_sum(self, logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
        # An unknown entry's target is the prediction itself: no difference, no gradient.
        wanted = torch.where(labels.isfinite(), labels.to(logits.dtype), logits.detach())
        return F.mse_loss(logits, wanted, reduction="sum")

    def columns(self, labels: Tensor, num_outputs: int, dtype: torch.dtype) -> Tensor:
        return labels.nan_to_num(0.0).to(dtype)

    def soft(self, logits: Tensor) -> Tensor:
        return logits

    def predictions(self, logits: Tensor) -> Tensor:
        return logits


LABELS: dict[Task, Labels] = {"classes": Classes(), "multilabel": Multilabel(), "regression": Regression()}
