"""GraphSage for PyG that computes in each layer only what the next ones need, for message flows and samples.

sargnn train model=custom model.target=examples/layers/pyg_flow.py:Net mfg=true world=2
"""

from torch import nn
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import trim_to_layer


class Net(nn.Module):
    def __init__(self, in_channels, out_channels, hidden_channels=64):
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(in_channels, hidden_channels), SAGEConv(hidden_channels, out_channels)])

    def forward(self, x, edge_index, num_sampled_nodes_per_hop, num_sampled_edges_per_hop):
        hops = num_sampled_nodes_per_hop, num_sampled_edges_per_hop
        for number, conv in enumerate(self.convs):
            x, edge_index, _ = trim_to_layer(number, *hops, x, edge_index)
            x = conv(x if number == 0 else x.relu(), edge_index)
        return x
