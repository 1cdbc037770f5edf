"""What is wrong with a module of PyG's is said in one message with the user's file and line, before any worker starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sargnn.errors import ConfigError
from tests.models.wrong import PLAIN, TYPED, check, configured, make

MODULE = """import torch
import torch_geometric.nn as gnn
import torch_geometric.utils as utils
from torch import nn


class Net(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = {layer}
        self.lin = nn.Linear(in_channels, out_channels)

    def forward(self, {arguments}):{head}
{body}
"""
SAGE = "gnn.SAGEConv(in_channels, out_channels)"
READS = "reads the numbers of the edges' nodes"


def net(body: str, layer: str = SAGE, arguments: str = "x, edge_index") -> str:
    """A module; where the message must point, ``# here`` stands, or nowhere: at ``def forward``."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return MODULE.format(body=lines, layer=layer, arguments=arguments, head="" if "# here" in body + layer else "  # here")


WRONG: dict[str, tuple[str, str]] = {
    "an argument that nobody knows": (net("return self.conv(x, edge_index)", arguments="x, edge_index, magic"), "for 'magic'"),
    "features of edges that are not there": (
        net("return self.conv(x, edge_index)", arguments="x, edge_index, edge_attr"), "needs 'edge_attr'",
    ),
    "weights that are not there": (
        net("return self.conv(x, edge_index)", arguments="x, edge_index, edge_weight"), "needs 'edge_weight'",
    ),
    "relations that are not there": (
        net("return self.conv(x, edge_index)", arguments="x, edge_index, edge_type"), "needs 'edge_type'",
    ),
    "unique": (net("return self.lin(x) + edge_index[0].unique().sum()  # here"), READS),
    "sort": (net("order = edge_index[1].sort()  # here\nreturn self.lin(x)"), READS),
    "a list": (net("pairs = edge_index.tolist()  # here\nreturn self.lin(x)"), READS),
    "an array": (net("pairs = edge_index.numpy()  # here\nreturn self.lin(x)"), READS),
    "one edge": (net("first = int(edge_index[0, 0])  # here\nreturn self.lin(x)"), READS),
    "a sparse matrix": (
        net("a = torch.sparse_coo_tensor(edge_index, torch.ones(12), (6, 6))  # here\nreturn self.lin(x)"),
        "negative ind",
    ),
    "a dense adjacency": (
        net("a = utils.to_dense_adj(edge_index)  # here\nreturn self.lin(x)"), "no table of",
    ),
    "the median": (net("return self.conv(x, edge_index)  # here", SAGE[:-1] + ", aggr='median')"), READS),
    "an own write": (net("x += 1  # here\nreturn self.conv(x, edge_index)"), "write to its input"),
    "rows in another order": (net("return self.conv(x.flip(0), edge_index)  # here"), "no table of"),
    "numbers of rows": (
        net("return self.conv(x * torch.arange(x.size(0))[:, None], edge_index)  # here"), "'arange' counts",
    ),
    "sorted rows": (net("x = x.sort(0)[0]  # here\nreturn self.conv(x, edge_index)"), "'sort' over rows"),
    "all pairs of rows": (net("a = (x @ x.t()).softmax(-1)  # here\nreturn self.lin(a @ x)"), "each row with all"),
    "distances of rows": (net("d = torch.cdist(x, x)  # here\nreturn self.lin(x)"), "each row with all"),
    "global attention": (
        net("h = nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])  # here\nreturn self.lin(h[0])"),
        "each row with all",
    ),
    "another width": (net("return self.conv(x[:, :2], edge_index)  # here"), "failed: RuntimeError"),
    "rows of edges": (net("return self.lin(x)[edge_index[0]]"), "one row for each node"),
    "one row": (net("return gnn.global_mean_pool(self.conv(x, edge_index), None)"), "one row for each node"),
    "a pair": (net("return self.conv(x, edge_index), x"), "returns no tensor"),
    "nothing": (net("self.conv(x, edge_index)"), "returns no tensor"),
    "no parameters": (net("return self.lin(x).detach()"), "none of its parameters"),
    "a layer that is not installed": (
        net("return self.conv(x, edge_index)", "gnn.SplineConv(in_channels, out_channels, 1, 2)  # here"), "constructor failed",
    ),
    "a value of other edges": (
        net("w = x[edge_index[0]]\nother, _ = utils.remove_self_loops(edge_index)\nw = w + x[other[1]]  # here\nreturn w"),
        "sets of edges",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_module(case: str, tmp_path: Path) -> None:
    text, wanted = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        make(configured(tmp_path, text, "world=2"), PLAIN)
    check(caught.value, tmp_path, text, wanted)


def test_rows_where_there_are_types(tmp_path: Path) -> None:
    text = net("return self.conv(x, edge_index)  # here")
    with pytest.raises(ConfigError) as caught:
        make(configured(tmp_path, text, "world=2"), TYPED)
    check(caught.value, tmp_path, text, "The model's forward failed")


def test_a_message_flow_needs_edges_of_each_layer(tmp_path: Path) -> None:
    text = net("h = self.conv(x, edge_index).relu()\nreturn self.lin(self.conv(h, edge_index))", "gnn.SAGEConv(5, 5)")
    with pytest.raises(ConfigError) as caught:
        make(configured(tmp_path, text, "mfg=true", "world=2"), PLAIN)
    check(caught.value, tmp_path, text, "message flows")
    assert "trim_to_layer" in str(caught.value)


def test_a_sum_is_read_at_sources_that_a_flow_leaves_out(tmp_path: Path) -> None:
    hops = "num_sampled_nodes_per_hop, num_sampled_edges_per_hop"
    body = f"x, edge_index, _ = utils.trim_to_layer(0, {hops}, x, edge_index)\nreturn self.conv(x, edge_index)  # here"
    text = net(body, "gnn.GCNConv(in_channels, out_channels)", f"x, edge_index, {hops}")
    make(configured(tmp_path, text, "world=2"), PLAIN)
    (tmp_path / "flow").mkdir()  # a file is loaded once in a process
    with pytest.raises(ConfigError) as caught:
        make(configured(tmp_path / "flow", text, "mfg=true", "world=2"), PLAIN)
    check(caught.value, tmp_path / "flow", text, "edges' sources")


def test_right_modules_are_none_of_these(tmp_path: Path) -> None:
    make(configured(tmp_path, net("return self.conv(x, edge_index)"), "world=2"), PLAIN)
    (tmp_path / "lazy").mkdir()  # its bias is memory that nobody has written to, until the first rows come
    lazy = net("return self.conv(x, edge_index)", "gnn.SAGEConv(-1, out_channels)")
    make(configured(tmp_path / "lazy", lazy, "world=2"), PLAIN)
    for number, (body, arguments) in enumerate(
        [
            ("return self.conv(x, adj_t)", "x, adj_t"),
            ("return self.conv(data.x, data.edge_index)", "data"),
            ("return self.lin(x) + self.conv(x, edge_index, size=None)", "x, edge_index, edge_attr=None, batch=None"),
            ("for edge_index in edge_indices[:1]:\n    x = self.conv(x, edge_index)\nreturn x", "x, edge_indices"),
        ]
    ):
        folder = tmp_path / str(number)  # a file is loaded once in a process
        folder.mkdir()
        make(configured(folder, net(body, arguments=arguments), "world=2"), PLAIN)
    assert len(WRONG) >= 25 and all("# here" in text for text, _ in WRONG.values())
