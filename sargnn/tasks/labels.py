"""The kinds of labels: their loss, labels as inputs, and predictions of each.

z is a logit, y a label, K the known labels of the rows that count, over all workers:

    classes      1/|K| sum over rows i of -log softmax(z_i)[y_i]           label smoothing e: y (1 - e) + e/C for one-hot y
    multilabel   1/|K| sum over (i, c) of log(1 + exp(z_ic)) - y_ic z_ic   label smoothing e: y (1 - e) + e/2
    regression   1/|K| sum over (i, c) of (z_ic - y_ic)^2

A class is one label a row. Of several labels or numbers some entries of a row may be unknown: they are in neither sum.

Letters: n rows, N own rows, M output rows, C outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from sargnn.config.groups import LabelsConfig
from sargnn.config.run import Task
from sargnn.rng import Draw, Purpose, dropout_mask
from sargnn.tasks.base import Predict


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


class LabelInputs:
    """Labels of training nodes as further input: masked label prediction (Shi et al., 2021), label reuse (Wang et al., 2021).

    Every epoch a random part of the training nodes carries its label as a row beside its features: one-hot of a class, else
    the labels or numbers themselves, 0 for what is not known. The loss is taken on the others, so that no node ever sees the
    label that it is to predict. At evaluation all training nodes carry theirs.

    With reuse the nodes that carry none get predicted labels instead: the model runs once more for each iteration, in
    evaluation mode and without gradients, and softmax(logits) becomes their input; of several labels sigmoid(logits), of
    numbers the logits. These predictions come from labels that were carried, never from the others.

    Args:
        kind: what the labels are.
        labels: [N] or [N, C].
        training: bool [N], the own rows that are trained on.
        ids: int64 [N], original ids of the own rows.
        num_outputs: C.
        seed: of the draws.
        dtype: of the columns.
    """

    def __init__(
        self,
        config: LabelsConfig,
        kind: Labels,
        labels: Tensor,
        training: Tensor,
        ids: Tensor,
        num_outputs: int,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        self.training, self._config, self._kind, self._seed = training, config, kind, seed
        self._labels, self._ids, self._num_outputs, self._dtype = labels, ids, num_outputs, dtype

    @property
    def masked(self) -> bool:
        """Whether training nodes are kept from carrying their label while they are predicted."""
        return self._config.name == "masked"

    def carried(self, epoch: int | None) -> Tensor:
        """bool [N], the training rows that carry their label: a draw by original id and epoch; all if there is no epoch."""
        if epoch is None or not self.masked:
            return self.training
        rows = torch.nonzero(self.training)[:, 0]
        draw = Draw(self._seed, epoch, Purpose.LABELS, 0, 1.0 - self._config.rate)
        carried = torch.zeros_like(self.training)
        carried[rows] = dropout_mask(self._ids[rows], 1, draw)[:, 0]
        return carried

    def read(self, step: int | None, predict: Predict, share: Callable[[Tensor], object]) -> Tensor:
        """[N, C]: the labels of those that carry theirs; for the others zeros, or with reuse what is predicted.

        Args:
            step: whose draw it is; None: all training nodes carry theirs.
            predict: runs the model with some columns.
            share: gives predictions to copies of their rows on other workers.
        """
        carried = self.carried(step)
        columns = torch.zeros(len(carried), self._num_outputs, dtype=self._dtype, device=carried.device)
        rows = torch.nonzero(carried)[:, 0]
        columns[rows] = self._kind.columns(self._labels[rows], self._num_outputs, self._dtype)
        for _ in range(self._config.reuse):
            logits, predicted = predict(columns)
            soft = self._kind.soft(logits)
            blank = ~(carried if predicted is None else carried[predicted])
            columns[torch.nonzero(blank)[:, 0] if predicted is None else predicted[blank]] = soft[blank].to(columns.dtype)
            del logits, soft
            share(columns)
        return columns
