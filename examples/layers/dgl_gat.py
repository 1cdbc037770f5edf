"""A stack of DGL's GATConv (or GATv2Conv) layers, unmodified.

sargnn train model=custom model.target=examples/layers/dgl_gat.py:Gat model.args.hidden=16 dataset.add_self_loops=true world=2
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from dgl.nn.pytorch import GATConv, GATv2Conv
from torch import Tensor, nn


class Gat(nn.Module):
    """Batch norm, an activation and dropout between the layers; the last one takes the mean of its heads.

    Args:
        hidden: width of a head. v2: GATv2. activation: relu or elu.
    """

    def __init__(
        self, in_width: int, num_outputs: int, hidden: int = 128, heads: int = 4, out_heads: int = 1, num_layers: int = 3,
        dropout: float = 0.5, attn_dropout: float = 0.0, activation: str = "relu", v2: bool = False, norm: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        conv = GATv2Conv if v2 else GATConv
        inner = [
            conv(in_width if k == 0 else heads * hidden, hidden, heads, attn_drop=attn_dropout) for k in range(num_layers - 1)
        ]
        last = conv(heads * hidden if inner else in_width, num_outputs, out_heads, attn_drop=attn_dropout)
        self.layers = nn.ModuleList([*inner, last])
        self.norms = nn.ModuleList(nn.BatchNorm1d(heads * hidden) if norm else nn.Identity() for _ in inner)
        self.activation = getattr(F, activation)
        self.dropout = nn.Dropout(dropout)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        h = x
        for number, (layer, block) in enumerate(zip(self.layers, graph.blocks, strict=False)):
            out = layer(block, h)
            if number == len(self.norms):
                return out.mean(1)  # type: ignore[no-any-return]
            h = self.dropout(self.activation(self.norms[number](out.flatten(1))))
        return h
