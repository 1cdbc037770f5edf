"""The networks that stock DGL is measured with: the same model as this project's, on the same graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from sargnn.bench.stock import STOCK
from sargnn.bench.table.entries import Case, reasons_without_stock
from sargnn.comm.group import Group
from sargnn.config import RunConfig
from sargnn.data.dataset import Dataset
from sargnn.interop.dgl import import_dgl
from sargnn.resolve import resolve
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


@pytest.mark.parametrize("name", list(STOCK))
def test_it_computes_what_the_baseline_mode_computes(name: str) -> None:
    """With the same parameters the first loss is the same."""
    config = config_of(name, **({"embedding": None} if name == "rgcn" else {}))
    graph = graph_of(name)
    trainer = cases.trainer_of(Group.single(), config, graph)
    network = resolve("stock model", STOCK, name)(config, graph, import_dgl())
    ours = dict(trainer.model.named_parameters())
    copied = 0
    with torch.no_grad():
        for key, parameter in network.named_parameters():
            if (same := of_ours(key, ours, graph)) is not None:
                parameter.copy_(same.reshape(parameter.shape))
                copied += 1
            else:  # before a batch norm a bias changes nothing
                assert key.endswith("bias")
                parameter.zero_()
    assert copied >= 4 * config.model.num_layers - 2  # type: ignore[union-attr]
    trainer.model.train()
    trainer.engine.epoch = 0
    assert network.loss().item() == pytest.approx(trainer.gradients(), rel=1e-5)


def of_ours(key: str, ours: Mapping[str, torch.Tensor], graph: Dataset) -> torch.Tensor | None:
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
    if rest[0] == "mods":
        return ours[f"{layer}weight"][[one.name for one in schema.relations].index(rest[1])]
    names = {
        "fc_neigh.weight": "neigh.weight", "fc_self.weight": "self.weight", "fc_self.bias": "self.bias", "bias": "bias",
        "fc.weight": "linear.weight", "attn_l": "attn_src", "attn_r": "attn_dst",
    }  # fmt: skip
    one = ours.get(layer + names[".".join(rest)])
    return one.repeat(2) if rest == ["bias"] and one is not None else one  # of each head; the heads are averaged


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
    assert not reasons_without_stock(Case("one", config_of("sage")))
    assert not reasons_without_stock(Case("one", config_of("rgcn", embedding=None)))
