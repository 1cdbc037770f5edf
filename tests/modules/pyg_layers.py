"""Layers and ready models of PyG's, as ``test_pyg_layers.py`` calls them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric import utils

IN, OUT = 8, 4


def _call(layer: Any, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:
    return layer(x, edge_index)


def _weighted(layer: Any, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:
    return layer(x, edge_index, edge_weight)


def _positive(layer: Any, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:
    return layer(x, edge_index, edge_weight.abs())


def _beside_first(layer: Any, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:
    return layer(x.relu(), x, edge_index)


def _history(layer: Any, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:
    return layer(torch.stack([x.relu(), x.tanh(), x], dim=1), edge_index)


def _signed(layer: Any, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:
    return layer(x, edge_index[:, edge_weight > 0], edge_index[:, edge_weight <= 0])


def _placed(layer: Any, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:
    return layer(x, x[:, :3].tanh(), edge_index)


def _turned(layer: Any, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:
    edge_index, _ = utils.remove_self_loops(edge_index)  # an angle to a place itself has no gradient
    return layer(x, x[:, :3].tanh(), x[:, 3:6], edge_index)


@dataclass(frozen=True)
class Case:
    """A layer.

    Attributes:
        make: makes it.
        call: (layer, x, edge_index, edge_weight) to rows.
        fused: the kernel of what all of its folds run on, as the log has it; None: some fold runs on none.
    """

    make: Callable[[], nn.Module]
    call: Callable[..., Any] = _call
    fused: str | None = None


def _layers(norm: nn.Module) -> nn.Module:
    return gnn.Sequential("x, edge_index", [(gnn.SAGEConv(IN, OUT), "x, edge_index -> x"), norm, nn.ReLU()])


class Own(nn.Module):
    """A forward of the user's: (the module, x, edge_index, edge_weight) to rows."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function, self.lin = function, nn.Linear(IN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.function(self, x, edge_index, edge_weight)


def _with_zeros(kind: str) -> Case:
    """Folds that the table's own numbers are part of."""

    def function(own: Own, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        rows = x[index[0]]
        ends = index[1].view(-1, 1).expand(-1, IN)
        return rows.new_zeros(x.size(0), IN).scatter_reduce_(0, ends, rows, kind)

    return Case(lambda: Own(function), _weighted)


def _from_own(own: Own, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    return x.relu().scatter_reduce(0, index[0].view(-1, 1).expand(-1, IN), x[index[1]], "mean")


def _log_of_sums(own: Own, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Of nodes without neighbours, too, and of sums that are as small as what is added."""
    return (utils.scatter((x[index[0]] * 9 - 30).exp(), index[1], 0, x.size(0)) + 1e-16).log()


def _constant_sums(own: Own, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    with torch.no_grad():
        rows = x[index[0]]
        total = utils.scatter(rows, index[1], 0, x.size(0))
        count = utils.degree(index[1], x.size(0), x.dtype).clamp(min=1).view(-1, 1)
    return own.lin(total) + own.lin(total / count) + own.lin(x)


def _seen_without_gradient(own: Own, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """What has a gradient is computed for the first time where there is none."""
    rows = x[index[0]] * x[index[1]]
    total = utils.scatter(x[index[0]], index[1], 0, x.size(0))
    with torch.no_grad():
        largest = total.abs().max() + rows.norm()
    return (total + utils.scatter(rows, index[1], 0, x.size(0))) / largest


def _exponents(x: Tensor, index: Tensor) -> Tensor:
    logits = x[index[0]] * x[index[1]]
    return (logits - utils.scatter(logits.detach(), index[1], 0, x.size(0), "max")[index[1]]).exp()


def _shares_of_some(own: Own, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Of a softmax over all edges."""
    above = _exponents(x, index)
    below, kept = utils.scatter(above, index[1], 0, x.size(0)), weight > 0
    some = index[:, kept]
    return utils.scatter(above[kept] / below[some[1]], some[1], 0, x.size(0))


def _shares_of_constants(own: Own, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    above = _exponents(x, index)
    with torch.no_grad():
        below = utils.scatter(above, index[1], 0, x.size(0))
    return utils.scatter(above / below[index[1]], index[1], 0, x.size(0))


def _by_number(own: Own, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    zeros, sign = weight.new_zeros(2), (weight > 0).long()
    first, second = zeros.scatter_add(0, sign, weight), zeros.scatter_add(0, sign, weight * weight)
    return x * first[0] + x.relu() * second[1]


def _counted_at_sources(own: Own, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    rows = x[index[1]]
    return x * rows.new_zeros(x.size(0), IN).index_add_(0, index[0], torch.ones_like(rows))


class Edited(nn.Module):
    """Edges are changed by ``torch_geometric.utils``, and a message function is the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.score = nn.Linear(IN, OUT), nn.Linear(2 * OUT, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin(x)
        edge_index, _ = utils.remove_self_loops(edge_index)
        row, col = edge_index
        upward = edge_index[:, row < col]
        gate = self.score(torch.cat([x[row], x[col]], dim=-1)).squeeze(-1)
        gate = utils.softmax(gate, col, num_nodes=x.size(0))
        out = utils.scatter(gate.unsqueeze(-1) * x[row], col, dim=0, dim_size=x.size(0), reduce="sum")
        out = out + utils.scatter(x[upward[0]].tanh(), upward[1], dim=0, dim_size=x.size(0), reduce="mean")
        edge_index, _ = utils.add_self_loops(edge_index, num_nodes=x.size(0))
        degree = utils.degree(edge_index[1], x.size(0), dtype=x.dtype)
        return out + x / degree.view(-1, 1) + x.mean(0) + x.t() @ x @ x.new_ones(OUT) / x.size(0)


class Softmaxes(nn.Module):
    """Softmax over other edges than those that are summed: out of each node, among some edges alone, among all for some."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.score = nn.Linear(IN, OUT), nn.Linear(2 * OUT, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin(x)
        row, col = edge_index
        score = self.score(torch.cat([x[row], x[col]], dim=-1)).squeeze(-1)
        upward, among = row < col, torch.zeros_like(score)
        among[upward] = utils.softmax(score[upward], col[upward])
        out_of, into = utils.softmax(score, row, num_nodes=x.size(0)), utils.softmax(score, col, num_nodes=x.size(0))

        def summed(weights: Tensor, rows: Tensor, ends: Tensor) -> Tensor:
            return utils.scatter(weights.unsqueeze(-1) * rows, ends, dim=0, dim_size=x.size(0), reduce="sum")

        weighted = summed(out_of + among, x[row], col) + summed(into, x[col], row)
        return weighted + summed(into[upward], x[row[upward]], col[upward])


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


class Written(nn.Module):
    """What a layer writes to is read as it was before, and as it is afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(IN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
        x, (row, col) = self.lin(x), edge_index
        first = x[row] * weight.view(-1, 1)
        before = first * 2
        before[:, 0] = before[:, 1] * 3
        if before.requires_grad:
            before.register_hook(lambda gradient: gradient * 2)
        nn.functional.relu(first, inplace=True)
        second = x[row] * 2
        second += 1
        nn.functional.relu(second, True)
        third = x[col] * 1
        powers = third.exp()
        third.zero_()
        third[:, 0] = 3
        start = second.new_zeros(x.shape)
        start.add_(1)
        degree = x.new_zeros(x.size(0)).index_add(0, col, weight.abs())
        degree += 5
        out = start.index_add(0, col, first + before + second + third + powers + degree[row].view(-1, 1))
        return out.index_add(0, col, Doubled.apply(x[row])) / degree.view(-1, 1)


CASES: dict[str, Case] = {
    "agnn": Case(gnn.AGNNConv),
    "antisymmetric": Case(lambda: gnn.AntiSymmetricConv(IN)),
    "appnp": Case(lambda: gnn.APPNP(2, 0.1), fused="sum"),
    "appnp_weighted": Case(lambda: gnn.APPNP(2, 0.1), _positive, fused="weighted_sum"),
    "cg": Case(lambda: gnn.CGConv(IN)),
    "cheb": Case(lambda: gnn.ChebConv(IN, OUT, 3)),
    "cheb_weighted": Case(lambda: gnn.ChebConv(IN, OUT, 3), _positive),
    "cluster": Case(lambda: gnn.ClusterGCNConv(IN, OUT)),
    "dir": Case(lambda: gnn.DirGNNConv(gnn.SAGEConv(IN, OUT))),
    "dna": Case(lambda: gnn.DNAConv(IN, heads=2, groups=2), _history),
    "edge": Case(lambda: gnn.EdgeConv(nn.Linear(2 * IN, OUT))),
    "eg": Case(lambda: gnn.EGConv(IN, IN, num_heads=2, num_bases=2), fused="sum"),
    "eg_several": Case(
        lambda: gnn.EGConv(IN, IN, aggregators=["sum", "mean", "symnorm", "max", "std"], num_heads=2, num_bases=2)
    ),
    "fa": Case(lambda: gnn.FAConv(IN, dropout=0.0), _beside_first),
    "feast": Case(lambda: gnn.FeaStConv(IN, OUT, heads=2)),
    "film": Case(lambda: gnn.FiLMConv(IN, OUT)),
    "gat": Case(lambda: gnn.GATConv(IN, OUT, heads=2), fused="gat"),
    "gat_residual": Case(lambda: gnn.GATConv(IN, OUT, heads=2, residual=True, concat=False, add_self_loops=False), fused="gat"),
    "gat_reversed": Case(lambda: gnn.GATConv(IN, OUT, heads=2, flow="target_to_source"), fused="gat"),
    "gatv2": Case(lambda: gnn.GATv2Conv(IN, OUT, heads=2), fused="gatv2"),
    "gated": Case(lambda: gnn.GatedGraphConv(IN, 2), fused="sum"),
    "gcn": Case(lambda: gnn.GCNConv(IN, OUT), fused="sum"),
    "gcn_cached": Case(lambda: gnn.GCNConv(IN, OUT, cached=True), fused="sum"),
    "gcn_improved": Case(lambda: gnn.GCNConv(IN, OUT, improved=True)),
    "gcn_reversed": Case(lambda: gnn.GCNConv(IN, OUT, flow="target_to_source"), fused="sum"),
    "gcn_weighted": Case(lambda: gnn.GCNConv(IN, OUT), _positive, fused="weighted_sum"),
    "gcn_without_loops": Case(lambda: gnn.GCNConv(IN, OUT, add_self_loops=False), fused="sum"),
    "gcn2": Case(lambda: gnn.GCN2Conv(IN, 0.1), _beside_first, fused="sum"),
    "gen": Case(lambda: gnn.GENConv(IN, OUT)),
    "gen_power": Case(lambda: gnn.GENConv(IN, OUT, aggr="powermean", learn_p=True)),
    "general": Case(lambda: gnn.GeneralConv(IN, OUT)),
    "gin": Case(lambda: gnn.GINConv(nn.Linear(IN, OUT), train_eps=True), fused="sum"),
    "graph": Case(lambda: gnn.GraphConv(IN, OUT), fused="sum"),
    "graph_weighted": Case(lambda: gnn.GraphConv(IN, OUT, aggr="mean"), _weighted, fused="weighted_mean"),
    "hypergraph": Case(lambda: gnn.HypergraphConv(IN, OUT)),
    "le": Case(lambda: gnn.LEConv(IN, OUT)),
    "lg": Case(gnn.LGConv, fused="sum"),
    "mf": Case(lambda: gnn.MFConv(IN, OUT)),
    "mixhop": Case(lambda: gnn.MixHopConv(IN, OUT), fused="sum"),
    "pna": Case(
        lambda: gnn.PNAConv(IN, OUT, ["mean", "max", "min", "std", "var"], ["identity", "amplification"], torch.ones(9).long())
    ),
    "point_gnn": Case(lambda: gnn.PointGNNConv(nn.Linear(IN, 3), nn.Linear(3 + IN, 6), nn.Linear(6, IN)), _placed),
    "point_net": Case(lambda: gnn.PointNetConv(nn.Linear(IN + 3, 6), nn.Linear(6, OUT)), _placed),
    "point_transformer": Case(lambda: gnn.PointTransformerConv(IN, OUT, attn_nn=nn.Linear(OUT, OUT)), _placed),
    "ppf": Case(lambda: gnn.PPFConv(nn.Linear(IN + 4, OUT), add_self_loops=False), _turned),
    "res_gated": Case(lambda: gnn.ResGatedGraphConv(IN, OUT)),
    "sage": Case(lambda: gnn.SAGEConv(IN, OUT), fused="mean"),
    "sage_max": Case(lambda: gnn.SAGEConv(IN, OUT, aggr="max", project=True), fused="max"),
    "sage_min": Case(lambda: gnn.SAGEConv(IN, OUT, aggr="min")),
    "sage_mul": Case(lambda: gnn.SAGEConv(IN, OUT, aggr="mul")),
    "sage_reversed": Case(lambda: gnn.SAGEConv(IN, OUT, flow="target_to_source"), fused="sum"),
    "sage_several": Case(lambda: gnn.SAGEConv(IN, OUT, aggr=["mean", "std", "var", "sum"])),
    "sage_softmax": Case(lambda: gnn.SAGEConv(IN, OUT, aggr=gnn.SoftmaxAggregation(learn=True))),
    "sg": Case(lambda: gnn.SGConv(IN, OUT, K=2), fused="sum"),
    "signed": Case(lambda: gnn.SignedConv(IN, OUT, first_aggr=True), _signed),
    "signed_next": Case(lambda: gnn.SignedConv(IN // 2, OUT, first_aggr=False), _signed),
    "simple": Case(gnn.SimpleConv, fused="sum"),
    "ssg": Case(lambda: gnn.SSGConv(IN, OUT, 0.1, K=2), fused="sum"),
    "super": Case(lambda: gnn.SuperGATConv(IN, OUT, heads=2).eval()),
    "tag": Case(lambda: gnn.TAGConv(IN, OUT), fused="sum"),
    "transformer": Case(lambda: gnn.TransformerConv(IN, OUT, heads=2, beta=True)),
    "wl_continuous": Case(gnn.WLConvContinuous),
    "model_gcn": Case(lambda: gnn.GCN(IN, 6, 2, OUT, norm="batch", jk="cat"), fused="sum"),
    "model_sage": Case(lambda: gnn.GraphSAGE(IN, 6, 3, OUT, norm="layer"), fused="mean"),
    "model_gat": Case(lambda: gnn.GAT(IN, 6, 2, OUT, heads=2, v2=True, jk="lstm"), fused="gatv2"),
    "model_gin": Case(lambda: gnn.GIN(IN, 6, 2, OUT), fused="sum"),
    "model_pna": Case(
        lambda: gnn.PNA(IN, 6, 2, OUT, aggregators=["mean"], scalers=["identity", "linear"], deg=torch.ones(9).long())
    ),
    "model_edge": Case(lambda: gnn.EdgeCNN(IN, 6, 2, OUT)),
    "batch_norm": Case(lambda: _layers(gnn.BatchNorm(OUT))),
    "graph_norm": Case(lambda: _layers(gnn.GraphNorm(OUT))),
    "graph_size_norm": Case(lambda: _layers(gnn.GraphSizeNorm())),
    "instance_norm": Case(lambda: _layers(gnn.InstanceNorm(OUT, affine=True, track_running_stats=True))),
    "layer_norm": Case(lambda: _layers(gnn.LayerNorm(OUT, mode="graph"))),
    "mean_subtraction": Case(lambda: _layers(gnn.MeanSubtractionNorm())),
    "pair_norm": Case(lambda: _layers(gnn.PairNorm())),
    "diff_group_norm": Case(lambda: _layers(gnn.DiffGroupNorm(OUT, 2))),
    "message_norm": Case(lambda: gnn.GENConv(IN, OUT, msg_norm=True)),
    "edited": Case(Edited),
    "softmaxes": Case(Softmaxes),
    "written": Case(Written, _weighted),
    "largest_with_zeros": _with_zeros("amax"),
    "mean_with_zeros": _with_zeros("mean"),
    **{
        function.__name__.strip("_"): Case(partial(Own, function), _weighted)
        for function in (
            _from_own,
            _log_of_sums,
            _constant_sums,
            _seen_without_gradient,
            _shares_of_some,
            _shares_of_constants,
            _by_number,
            _counted_at_sources,
        )
    },
}
