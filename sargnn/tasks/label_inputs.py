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

from collections.abc import Callable

import torch
from torch import Tensor

from sargnn.config.groups import LabelsConfig
from sargnn.rng import Draw, Purpose, dropout_mask
from sargnn.tasks.base import Predict
from sargnn.tasks.labels import Labels


class LabelInputs:
    """This worker's label columns.

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
