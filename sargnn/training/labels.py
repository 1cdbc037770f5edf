"""Labels of training nodes as further input: masked label prediction (Shi et al., 2021) and label reuse (Wang et al., 2021).

Every epoch a random part of the training nodes carries its label as a row beside its features: one-hot of a class, else the
labels or numbers themselves, 0 for what is not known. The loss is taken on the others, so that no node ever sees the label that
it is to predict. At evaluation all training nodes carry theirs.

With reuse the nodes that carry none get predicted labels instead: the model runs once more for each iteration, in evaluation
mode and without gradients, and softmax(logits) becomes their input; of several labels sigmoid(logits), of numbers the logits.
These predictions come from labels that were carried, never from the others.

Letters: N own rows, M output rows, C outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sargnn.config.groups import LabelsConfig
from sargnn.data.dataset import SPLITS
from sargnn.rng import Draw, Purpose, dropout_mask
from sargnn.training.tasks import NodeTask


class LabelInputs:
    """This worker's label columns.

    Args:
        task: what the labels are. labels: [N] or [N, C]. split: uint8 [N]. ids: int64 [N], original ids of the own rows.
        num_classes: C. seed: of the draws.
    """

    def __init__(
        self,
        config: LabelsConfig,
        task: NodeTask,
        labels: Tensor,
        split: Tensor,
        ids: Tensor,
        num_classes: int,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        self.config, self.task, self.num_classes, self.seed, self.dtype = config, task, num_classes, seed, dtype
        self.training = split == SPLITS["train"]
        self._labels, self._ids = labels, ids

    @property
    def masked(self) -> bool:
        """Whether training nodes are kept from carrying their label while they are predicted."""
        return self.config.name == "masked"

    def carried(self, epoch: int | None) -> Tensor:
        """bool [N], the training rows that carry their label: a draw by original id and epoch; all if there is no epoch."""
        if epoch is None or not self.masked:
            return self.training
        rows = torch.nonzero(self.training)[:, 0]
        draw = Draw(self.seed, epoch, Purpose.LABELS, 0, 1.0 - self.config.rate)
        carried = torch.zeros_like(self.training)
        carried[rows] = dropout_mask(self._ids[rows], 1, draw)[:, 0]
        return carried

    def count(self, rows: Tensor) -> int:
        """Known labels of own rows, bool [N]."""
        return self.task.count(self._labels[rows])

    def columns(self, carried: Tensor) -> Tensor:
        """[N, C]: the labels of those that carry theirs, zeros for the others."""
        columns = torch.zeros(len(carried), self.num_classes, dtype=self.dtype, device=carried.device)
        rows = torch.nonzero(carried)[:, 0]
        columns[rows] = self.task.columns(self._labels[rows], self.num_classes, self.dtype)
        return columns

    def filled(self, columns: Tensor, carried: Tensor, logits: Tensor, rows: Tensor | None) -> Tensor:
        """``columns``, with predictions for those that carry no label.

        Args:
            logits: [M, C] of the own rows ``rows`` (int64 [M]; None: of all).
        """
        soft = self.task.soft(logits)
        blank = ~(carried if rows is None else carried[rows])
        columns[torch.nonzero(blank)[:, 0] if rows is None else rows[blank]] = soft[blank].to(columns.dtype)
        return columns
