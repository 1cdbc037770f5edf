"""The networks that stock DGL and PyG are measured with: the same model as this project's, on the same graph."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.config.choices import KernelConfig
from sargnn.config.groups import LinksConfig
from sargnn.config.models import CustomSettings, StackSettings
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.interop.dgl import import_dgl
from sargnn.report.bench.entries import Case, reasons_without_pyg, reasons_without_stock
from sargnn.report.bench.settings import DGL_MODELS, FORMS, PYG_MODELS
from sargnn.resolve import resolve
from sargnn.sources.links import draw_links
from sargnn.tasks.negatives import Sampler
from tests.graphs import with_edge_features, with_weights
from tests.parity import cases


def config_of(name: str, **changes: Any) -> RunConfig:
    model = cases.model_config(name, dropout=0.0, **({"attn_dropout": 0.0} if name == "gat" else {}), **changes)
    config = cases.run_config(model, mode="domain_parallel", kernel="dgl", precision="fp32")
    return dataclasses.replace(config, dataset=dataclasses.replace(config.dataset, add_self_loops=False))


def graph_of(name: str) -> Dataset:
    """Of a typed graph only one type has features, or all have as many."""
    graph = cases.graph_for(name)
    widest = max(graph.feature_widths)
    return dataclasses.replace(
        graph, features=tuple(rows if rows.shape[1] == widest else rows[:, :0] for rows in graph.features)
    )  # fmt: skip


def test_a_module_of_the_users_computes_what_it_computes_on_shards() -> None:
    """From the same seed, without dropout, the first loss is the same."""
    settings = CustomSettings("custom", target="examples/layers/dgl_sage.py:Sage", args={"hidden": 8, "dropout": 0.0})
    config, graph = cases.run_config(settings, precision="fp32"), cases.graph_for("sage")
    trainer = cases.trainer_of(Group.single(), config, graph)
    torch.manual_seed(config.seed)
    network = resolve("stock model", DGL_MODELS, "custom")(config, graph, import_dgl())
    trainer.model.train()
    trainer.engine.epoch = 0
    assert network.loss().item() == pytest.approx(trainer.loop.gradients().value, rel=1e-5)
    with pytest.raises(ConfigError, match="homogeneous graphs only"):
        resolve("stock model", DGL_MODELS, "custom")(config, cases.graph_for("rgcn"), import_dgl())


@pytest.mark.parametrize(("norm", "weighted"), [("batch", False), ("layer", False), ("batch", True)])
@pytest.mark.parametrize("name", [name for name in DGL_MODELS if name != "custom"])
def test_it_computes_what_the_baseline_mode_computes(name: str, norm: str, weighted: bool) -> None:
    """With the same parameters the first loss is the same."""
    config = config_of(name, norm=norm, **({"embedding": None} if name == "rgcn" else {}))
    graph = with_weights(graph_of(name)) if weighted else graph_of(name)
    trainer = cases.trainer_of(Group.single(), config, graph)
    network = resolve("stock model", DGL_MODELS, name)(config, graph, import_dgl())
    compare_first_losses(trainer, network, config, graph)


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("name", PYG_MODELS)
@pytest.mark.filterwarnings("ignore:There exist node types:UserWarning", "ignore:Sparse CSR tensor support:UserWarning")
def test_so_does_pyg_in_every_form(name: str, norm: str) -> None:
    """With self-loops too, which are made beforehand."""
    pytest.importorskip("torch_geometric")
    config, graph = config_of(name, norm=norm, **({"embedding": None} if name == "rgcn" else {})), graph_of(name)
    if name == "gat":
        config = dataclasses.replace(config, dataset=dataclasses.replace(config.dataset, add_self_loops=True))
    trainer = cases.trainer_of(Group.single(), config, graph)
    for form in FORMS:
        network = resolve("stock model", PYG_MODELS, name)(config, graph, form)
        compare_first_losses(trainer, network, config, graph)
        with pytest.raises(ConfigError, match="edge weights"):
            resolve("stock model", PYG_MODELS, name)(config, with_weights(graph), form)


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("self_loops", [False, True])
def test_so_does_pyg_with_edge_features(v2: bool, self_loops: bool) -> None:
    """Those of self-loops are zeros."""
    pytest.importorskip("torch_geometric")
    config, graph = config_of("gat", norm="layer", v2=v2), with_edge_features(graph_of("gat"))
    config = dataclasses.replace(config, dataset=dataclasses.replace(config.dataset, add_self_loops=self_loops))
    config = dataclasses.replace(config, mode=dataclasses.replace(config.mode, name="sar"), kernel=KernelConfig("reference"))
    trainer = cases.trainer_of(Group.single(), config, graph)
    network = resolve("stock model", PYG_MODELS, "gat")(config, graph, "edge_index")
    compare_first_losses(trainer, network, config, graph)


@pytest.mark.parametrize("peer", ["DGL", "PyG"])
def test_links_have_the_same_loss(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the negatives that our first step draws."""
    graph = draw_links(graph_of("sage"), [0.6, 0.2, 0.2])
    config = dataclasses.replace(config_of("sage", norm="layer"), task="links", links=LinksConfig("dot", 6, temperature=4.0))
    assert not reasons_without_stock(Case("links", config)) and not reasons_without_pyg(Case("links", config))
    trainer = cases.trainer_of(Group.single(), config, graph)
    if peer == "PyG":
        network = resolve("stock model", PYG_MODELS, "sage")(config, graph, "edge_index")
    else:
        network = resolve("stock model", DGL_MODELS, "sage")(config, graph, import_dgl())
    drawn: list[tuple[tuple[Any, ...], Any]] = []
    draw = Sampler.draw

    def drawing(*arguments: Any) -> Any:
        drawn.append((arguments[1:3], draw(*arguments)))
        return drawn[-1][1]

    def as_ours(*_: Any, **__: Any) -> torch.Tensor:
        ends, negatives = drawn[0]
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(ends, network.pairs.numpy(), strict=True))
        return torch.from_numpy(negatives.tails[:, 0])

    monkeypatch.setattr(Sampler, "draw", drawing)
    monkeypatch.setattr(torch, "randint", as_ours)
    compare_first_losses(trainer, network, config, graph)
    strict = dataclasses.replace(config, links=dataclasses.replace(config.links, strict=True))
    (reason,) = reasons_without_pyg(Case("links", strict))
    assert "links.strict=False" in reason


def compare_first_losses(trainer: Any, network: Any, config: RunConfig, graph: Dataset) -> None:
    """With our parameters."""
    ours: dict[str, torch.Tensor] = dict(trainer.model.named_parameters())
    copied = 0
    with torch.no_grad():
        for key, parameter in network.named_parameters():
            if (same := of_ours(key, ours, graph)) is not None:
                if len(same) < len(parameter) and key.endswith("bias"):  # of each head; the last layer's heads are averaged
                    same = same.repeat(len(parameter) // len(same))
                parameter.copy_(same.reshape(parameter.shape))
                copied += 1
            else:  # before a batch norm a bias changes nothing
                assert key.endswith("bias")
                parameter.zero_()
    assert isinstance(config.model, StackSettings)
    assert copied >= 4 * config.model.num_layers - 2
    trainer.model.train()
    trainer.engine.epoch = 0
    ours_first = trainer.loop.gradients().value
    assert network.loss().item() == pytest.approx(ours_first, rel=1e-5)


def of_ours(key: str, ours: dict[str, torch.Tensor], graph: Dataset) -> torch.Tensor | None:
    """Our value for a parameter of stock DGL's; None for a bias that we do not have."""
    kind, first, *rest = key.split(".")
    schema = graph.schema
    if kind == "embeddings":
        return ours[f"inputs.embeddings.{schema.node_types.index(first):02d}_{first}"]
    if kind == "norms":
        found = ours[f"norms.{first}.{rest[-1]}"]
        return found[schema.node_types.index(rest[0])] if len(rest) == 2 else found
    layer = f"layers.{first}."
    if kind == "loops":
        return ours[f"{layer}loop"].T if rest == ["weight"] else ours.get(f"{layer}bias")
    if rest[0] == "convs":  # <SOURCE___RELATION___DESTINATION>
        (relation,) = (name for name in (each.name for each in schema.relations) if f"___{name}___" in rest[1])
        return ours[f"{layer}weight"][[each.name for each in schema.relations].index(relation)].T
    if rest[0] == "mods":
        return ours[f"{layer}weight"][[one.name for one in schema.relations].index(rest[1])]
    names = {
        "fc_neigh.weight": "neigh.weight", "fc_self.weight": "self.weight", "fc_self.bias": "self.bias", "bias": "bias",
        "fc.weight": "linear.weight", "attn_l": "attn_src", "attn_r": "attn_dst",
        "lin_l.weight": "neigh.weight", "lin_r.weight": "self.weight", "lin_l.bias": "self.bias",
        "lin.weight": "linear.weight", "att_src": "attn_src", "att_dst": "attn_dst",
    }  # fmt: skip
    names |= {"lin_edge.weight": "edge_map.weight", "att_edge": "attn_edge"}
    if f"{layer}src.weight" in ours:  # GATv2
        ends = ("l", "src"), ("r", "dst")
        names |= {f"lin_{side}.{part}": f"{end}.{part}" for side, end in ends for part in ("weight", "bias")}
        names["att"] = "attn"
    return ours.get(layer + names[".".join(rest)])


def test_what_it_does_not_build_is_said() -> None:
    for name, changes, what in (
        ("sage", {"aggregator": "max"}, "model.aggregator=mean"),
        ("gat", {"v2": True}, "model.v2=False"),
        ("rgcn", {"bases": 2, "embedding": None}, "model.bases=None"),
        ("sage", {"norm": "none"}, "model.norm=batch"),
        ("gcn", {}, "model=gcn"),
    ):
        (reason,) = reasons_without_stock(Case("one", config_of(name, **changes)))
        assert what in reason
        of_pyg = [] if "v2" in changes else [reason.replace("stock DGL", "stock PyG")]
        assert reasons_without_pyg(Case("one", config_of(name, **changes))) == of_pyg
    assert not reasons_without_stock(Case("one", config_of("sage")))
    assert not reasons_without_stock(Case("one", config_of("rgcn", embedding=None)))
