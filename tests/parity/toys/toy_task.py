"""Classes by the focal loss (Lin et al., 2017): -(1 - p)^2 log p, with p the share of the right class."""

from __future__ import annotations

from torch import Tensor

from sargnn.tasks.nodes import NodeTask


class Focal(NodeTask):
    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        log_share = logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
        return -((1 - log_share.exp()) ** 2 * log_share).sum()
