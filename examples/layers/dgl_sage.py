"""A stack of DGL's SAGEConv layers, unmodified.

sargnn train model=custom model.target=examples/layers/dgl_sage.py:Sage model.args.hidden=64 world=2
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from dgl.nn.pytorch import SAGEConv
from torch import Tensor, nn


class Sage(nn.Module):
    """Batch norm, ReLU and dropout between the layers.

    Args:
        aggregator: mean, gcn or pool. norm: whether there are batch norms.
    """

    def __init__(
        self, in_width: int, num_outputs: int, hidden: int = 256, num_layers: int = 3, dropout: float = 0.5,
        aggregator: str = "mean", norm: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        widths = [in_width, *[hidden] * (num_layers - 1), num_outputs]
        pairs = zip(widths, widths[1:], strict=False)
        self.layers = nn.ModuleList(SAGEConv(one, other, aggregator) for one, other in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) if norm else nn.Identity() for width in widths[1:-1])
        self.dropout = nn.Dropout(dropout)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        h = x
        for number, (layer, block) in enumerate(zip(self.layers, graph.blocks, strict=False)):
            h = layer(block, h)
            if number < len(self.norms):
                h = self.dropout(F.relu(self.norms[number](h)))
        return h
