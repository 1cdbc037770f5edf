"""GIN (Xu et al., 2019): h'_i = W_2 relu(W_1 (h_i + sum of h_j over edges j -> i)).

sargnn train model=custom model.target=examples/layers/gin.py:Gin model.args.hidden=32 world=2
"""

import dgl.function as fn
from torch import nn


class Gin(nn.Module):
    def __init__(self, in_width, num_outputs, hidden=64):
        super().__init__()
        ends = (in_width, hidden), (hidden, num_outputs)
        self.maps = nn.ModuleList(nn.Sequential(nn.Linear(a, hidden), nn.ReLU(), nn.Linear(hidden, b)) for a, b in ends)

    def forward(self, graph, h):
        for mlp, block in zip(self.maps, graph.blocks, strict=False):
            block.srcdata["h"] = h
            block.update_all(fn.copy_u("h", "m"), fn.sum("m", "summed"))
            h = mlp(h[: block.num_dst_nodes()] + block.dstdata["summed"])
        return h
