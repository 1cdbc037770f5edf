"""Parameters that PyG's and DGL's layers learned elsewhere give the same logits here, in fp64 within 1e-9."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sargnn.cli.compose import compose_verb
from sargnn.comm.group import Group
from sargnn.config.run import parse
from sargnn.export.read import read
from sargnn.graph.dataset import Dataset, by_destination
from sargnn.interop.dgl import import_dgl, is_installed
from tests.graphs import nasty_graph
from tests.in_process import sargnn_here as run
from tests.parity import cases

pyg = pytest.importorskip("torch_geometric.nn")
safetensors = pytest.importorskip("safetensors.torch")
IN, HIDDEN, HEADS = nasty_graph().features[0].shape[1], 8, 2
OUT, BATCH, V2 = f"model.out_heads={HEADS}", {"norm": "batch_norm"}, {"v2": True}
PYG: dict[str, tuple[Any, list[str]]] = {
    "sage": (lambda c: pyg.GraphSAGE(IN, HIDDEN, 3, c, **BATCH), ["model=sage"]),
    "sage, layer norm": (
        lambda c: pyg.GraphSAGE(IN, HIDDEN, 2, c, norm="layer_norm", norm_kwargs={"mode": "node"}),
        ["model=sage", "model.norm=layer"],
    ),
    "gcn": (lambda c: pyg.GCN(IN, HIDDEN, 3, c), ["model=gcn", "model.norm=none"]),
    "gat": (lambda c: pyg.GAT(IN, HEADS * HIDDEN, 3, c, heads=HEADS, **BATCH), ["model=gat", OUT]),
    "gatv2": (
        lambda c: pyg.GAT(IN, HEADS * HIDDEN, 2, c, heads=HEADS, **V2),
        ["model=gat", "model.v2=true", "model.norm=none", OUT],
    ),
    "gin": (lambda c: GinOfPyg(c), ["model=gin", "model.eps=0.5"]),
    "gin, learned eps": (lambda c: GinOfPyg(c, train_eps=True), ["model=gin", "model.learn_eps=true"]),
    "gatv2, batch norm": (
        lambda c: pyg.GAT(IN, HEADS * HIDDEN, 2, c, heads=HEADS, **V2, **BATCH),
        ["model=gat", "model.v2=true", OUT],
    ),
}


class GinOfPyg(nn.Module):
    """Perceptrons with batch norms, and batch norms between the convolutions."""

    def __init__(self, classes: int, *, train_eps: bool = False) -> None:
        super().__init__()
        pairs = [(IN, HIDDEN), (HIDDEN, classes)]
        self.convs = nn.ModuleList(pyg.GINConv(perceptron(a, b), eps=0.5, train_eps=train_eps) for a, b in pairs)
        self.norm, self.num_layers = nn.BatchNorm1d(HIDDEN), 2

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        first, last = self.convs
        out: Tensor = last(torch.relu(self.norm(first(x, edges))), edges)
        return out


class OfDgl(nn.Module):
    """Layers of DGL's with batch norms between them."""

    def __init__(self, make: Any, classes: int, heads: int = 1) -> None:
        super().__init__()
        self.convs = nn.ModuleList([make(IN, HIDDEN), make(heads * HIDDEN, HIDDEN), make(heads * HIDDEN, classes)])
        self.norms = nn.ModuleList(nn.BatchNorm1d(heads * HIDDEN) for _ in range(2))

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=False):
            x = torch.relu(norm(conv(graph, x).flatten(1)))
        out = self.convs[-1](graph, x)
        return out.mean(1) if out.dim() == 3 else out


def perceptron(a: int, b: int) -> nn.Module:
    return nn.Sequential(nn.Linear(a, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, b))


def config_of(words: list[str], layers: int) -> Any:
    small = [
        f"model.hidden={HIDDEN}",
        f"model.num_layers={layers}",
        "model.dropout=0",
        "precision=fp64",
        "partitioner.order=original",
    ]
    heads = [f"model.heads={HEADS}"] if "model=gat" in words else []
    return parse(compose_verb("train", ["world=1", *small, *heads, *words]))


def begun(net: nn.Module) -> nn.Module:
    """Any numbers, those of norms too, in evaluation mode."""
    torch.manual_seed(0)
    net = net.double()
    for name, value in net.state_dict().items():
        if value.is_floating_point() and not name.endswith("eps"):
            value.copy_(torch.rand_like(value) + 0.5 if "running_var" in name else torch.randn_like(value) / 3)
    return net.eval()


def compare(net: nn.Module, expected: Tensor, config: Any, graph: Dataset, file: Path) -> None:
    torch.save(net.state_dict(), file)
    trainer = cases.trainer_of(Group.single(), config, graph)
    arrays = read(config, graph, trainer.model, file)
    with torch.no_grad():
        for kind, tensors in (("param", trainer.model.named_parameters()), ("buffer", trainer.model.named_buffers())):
            for name, tensor in tensors:
                tensor.copy_(torch.from_numpy(arrays.pop(f"{kind}/{name}")))
    assert not arrays
    logits = torch.empty_like(expected)
    logits[trainer.ids] = trainer.evaluator.predictions().to(expected.dtype)
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)


def both_ways(graph: Dataset) -> Dataset:
    source, destination = edges_of(graph, loops=False).numpy()
    indptr, indices = by_destination(np.append(source, destination), np.append(destination, source), graph.num_nodes)
    return dataclasses.replace(graph, indptr=indptr, indices=indices)


def edges_of(graph: Dataset, *, loops: bool) -> Tensor:
    destination = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    edges = torch.from_numpy(np.stack([np.asarray(graph.indices, np.int64), destination]))
    if loops:  # exactly one a node
        own = torch.arange(graph.num_nodes)
        edges = torch.cat([edges[:, edges[0] != edges[1]], torch.stack([own, own])], 1)
    return edges


@pytest.mark.parametrize("name", PYG)
def test_models_of_pyg(tmp_path: Path, name: str) -> None:
    make, words = PYG[name]
    graph = (
        both_ways(nasty_graph()) if name == "gcn" else nasty_graph()
    )  # PyG's GCN counts a source's in-edges, ours its out-edges
    net: Any = begun(make(graph.num_classes))
    config = config_of(words, net.num_layers)
    edges = edges_of(graph, loops=words[0] not in ("model=sage", "model=gin"))
    for conv in net.convs:
        conv.add_self_loops = False
    with torch.no_grad():
        expected = net(torch.from_numpy(np.asarray(graph.features[0])).double(), edges)
    compare(net, expected, config, graph, tmp_path / "net.pt")


@pytest.mark.skipif(not is_installed(), reason="DGL is not installed")
@pytest.mark.parametrize("name", ["sage", "gcn", "gat", "gatv2", "gin"])
def test_layers_of_dgl(tmp_path: Path, name: str) -> None:
    graph, layers = nasty_graph(), import_dgl().nn.pytorch
    many = {"allow_zero_in_degree": True}
    make, words = {
        "sage": (lambda a, b: layers.SAGEConv(a, b, "mean"), ["model=sage"]),
        "gcn": (lambda a, b: layers.GraphConv(a, b, **many), ["model=gcn"]),
        "gat": (lambda a, b: layers.GATConv(a, b, HEADS, **many), ["model=gat", f"model.out_heads={HEADS}"]),
        "gin": (lambda a, b: layers.GINConv(perceptron(a, b), learn_eps=True), ["model=gin", "model.learn_eps=true"]),
        "gatv2": (
            lambda a, b: layers.GATv2Conv(a, b, HEADS, **many),
            ["model=gat", "model.v2=true", f"model.out_heads={HEADS}"],
        ),
    }[name]
    net = begun(OfDgl(make, graph.num_classes, HEADS if "gat" in name else 1))
    edges = edges_of(graph, loops=name not in ("sage", "gin"))
    with torch.no_grad():
        there = import_dgl().graph((edges[0], edges[1]), num_nodes=graph.num_nodes)
        expected = net(there, torch.from_numpy(np.asarray(graph.features[0])).double())
    compare(net, expected, config_of(words, 3), graph, tmp_path / "net.pt")


def test_a_module_of_the_users(tmp_path: Path) -> None:
    """From its own state_dict, by name."""
    graph = nasty_graph()
    words = ["model=custom", "model.target=examples/layers/pyg_gcn.py:DeepGCN", "precision=fp64"]
    config = parse(compose_verb("train", ["world=1", *words]))
    trainer = cases.trainer_of(Group.single(), config, graph)
    state = {name.partition(".")[2]: torch.randn_like(value) for name, value in trainer.model.named_parameters()}
    state |= {name.partition(".")[2]: value + 1 for name, value in trainer.model.named_buffers()}
    torch.save({"state_dict": state}, tmp_path / "net.pt")
    arrays = read(config, graph, trainer.model, tmp_path / "net.pt")
    assert all(np.array_equal(array, state[name.partition("/")[2].partition(".")[2]].numpy()) for name, array in arrays.items())


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    words, file = ["import-model", "net.pt", "model=sage", "model.hidden=8", "dataset.num_nodes=200"], tmp_path / "net.pt"
    net = pyg.GraphSAGE(64, 8, 3, 10, norm="batch_norm")
    torch.save(net.state_dict(), file)

    def said(*more: str) -> str:
        done = run(tmp_path, *words, *more)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        return " ".join(done.stderr.split())

    assert "convolutions" in said("model.num_layers=2") and "allowed: 2" in said("model.num_layers=2")
    assert "norms" in said("model.norm=none")
    assert "layers.0.conv.lin_l.weight: [8, 64] there, [9, 64] here" in said("model.hidden=9")
    assert "task=nodes" in said("task=links", "dataset.link_split=[0.8,0.1,0.1]")
    torch.save(net.state_dict() | {"convs.1.lin_l.weight": net.state_dict()["convs.1.lin_l.weight"][:, :3]}, file)
    assert "layers.1.conv.lin_l.weight: [8, 3] there, [8, 8] here" in said()
    torch.save(net, tmp_path / "whole.pt")
    file.write_bytes((tmp_path / "whole.pt").read_bytes())
    assert "torch.save(net.state_dict(), FILE)" in said()
    torch.save([1, 2], file)
    assert "no state_dict" in said()
    words[1] = "net.safetensors"
    named = {name.replace("convs.0", "zeroth").replace("convs.1", "first"): value for name, value in net.state_dict().items()}
    safetensors.save_file(named, tmp_path / "net.safetensors")
    assert "have no order" in said()
    words[1] = "net.pt"
    file.unlink()
    assert "no such file" in said()


def test_a_run_starts_from_it(tmp_path: Path) -> None:
    net = begun(pyg.GraphSAGE(64, 8, 3, 10, norm="batch_norm"))
    torch.save(net.state_dict(), tmp_path / "net.pt")
    words = ["model=sage", "model.hidden=8", "dataset.num_nodes=200", "precision=fp64"]
    done = run(tmp_path, "import-model", "net.pt", *words, "out=start")
    assert done.returncode == 0 and "init_from=start" in done.stderr, done.stderr
    assert "there already" in run(tmp_path, "import-model", "net.pt", *words, "out=start").stderr
    train = ["train", *words, "init_from=start", "epochs=1", "optim.lr=1e-12", "world=2", "run_name=one", "checkpoint.every=1"]
    done = run(tmp_path, *train, "tracking=none", "model.dropout=0")
    assert done.returncode == 0, done.stderr
    done = run(tmp_path, "export", "one", "out=plain")
    assert done.returncode == 0, done.stderr
    back = safetensors.load_file(tmp_path / "plain" / "parameters.safetensors")
    for theirs, ours in (("convs.1.lin_r.weight", "layers.1.conv.lin_r.weight"), ("norms.0.module.weight", "norms.0.weight")):
        torch.testing.assert_close(back[ours], net.state_dict()[theirs], rtol=0, atol=1e-9)
