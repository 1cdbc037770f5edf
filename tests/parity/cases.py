"""Distributed cases, run on every rank of a pool."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from sargnn.comm.group import Group
from sargnn.config import (
    CheckpointConfig,
    CommConfig,
    EngineConfig,
    KernelConfig,
    LabelsConfig,
    ModeConfig,
    ModelSettings,
    OptimConfig,
    PartitionerConfig,
    RunConfig,
    TrackingConfig,
)
from sargnn.data.dataset import Dataset
from sargnn.data.settings import SyntheticConfig
from sargnn.engine.reducers.base import Reducer
from sargnn.models import MODELS
from sargnn.models.gat import Gat
from sargnn.models.gcn import Gcn
from sargnn.models.label_propagation import LabelPropagation
from sargnn.models.mlp import Mlp
from sargnn.models.rgcn import Rgcn
from sargnn.models.sage import Sage
from sargnn.models.stack import GraphLayer, Stack
from sargnn.partition.cut import parts_of
from sargnn.training.build import make_trainer
from sargnn.training.loop import Trainer
from tests.graphs import assign, nasty_graph, typed_graph

_DATASET = SyntheticConfig(
    name="synthetic", num_nodes=1, mean_degree=1.0, num_features=1, num_classes=2, blocks_per_class=1, homophily=0.5,
    power=2.5, label_noise=0.0, feature_signal=0.0, train_fraction=0.5, val_fraction=0.2, seed=0,
    normalize_features=False, add_self_loops=None,
)  # fmt: skip


Model = ModelSettings
BASELINES = ("mlp", "linear", "label_propagation")
"""Models that learn nothing from edges: ``test_recipe`` has them."""
NAMES = [*(name for name in MODELS if name not in BASELINES), "gatv2"]
"""Every other model, and the scorings of GAT."""


def graph_for(name: str, seed: int = 0) -> Dataset:
    """A graph that the model is for."""
    return typed_graph(seed) if name == "rgcn" else nasty_graph(seed=seed)


def model_config(name: str, **changes: Any) -> Model:
    """A small model with batch norm and dropouts on."""
    common: dict[str, Any] = {
        "hidden": 10, "num_layers": 3, "norm": "batch", "activation": "relu", "residual": False,
        "dropout": 0.4, "input_dropout": 0.0,
    }  # fmt: skip
    if name in ("gat", "gatv2"):
        attentive = {
            "hidden": 5, "heads": 3, "out_heads": 2, "attn_dropout": 0.3, "negative_slope": 0.2, "v2": name == "gatv2",
        }  # fmt: skip
        return Gat(name="gat", **{**common, **attentive, **changes})
    if name == "rgcn":
        relational = {"bases": None, "order": "auto", "embedding": 11}
        return Rgcn(name="rgcn", **{**common, **relational, **changes})
    if name == "label_propagation":
        return LabelPropagation(**{"name": name, "adjacency": "dad", "alpha": 0.9, "steps": 6, **changes})
    if name == "linear":
        return Mlp(name="linear", **{**common, "num_layers": 1, **changes})
    if name == "mlp":
        return Mlp(name="mlp", **{**common, **changes})
    if name == "gcn":
        return Gcn(name="gcn", **{**common, **changes})
    return Sage(name="sage", **{"aggregator": "mean", **common, **changes})


def run_config(
    model: Model, *, mode: str = "sar", kernel: str = "auto", partitioner: str = "random", world: int = 1,
    precision: str = "fp64", epochs: int = 30, seed: int = 3, prefetch_depth: int = 1,
    cache_static: str | bool = "auto",
    message_rows: int | None = None, labels: LabelsConfig | None = None, mfg: bool = False,
) -> RunConfig:  # fmt: skip
    """A configuration for cases that need no files."""
    return RunConfig(
        dataset=_DATASET,
        partitioner=PartitionerConfig(name=partitioner, seed=0, order="original"),
        model=model,
        mode=ModeConfig(mode),
        kernel=KernelConfig(kernel),
        optim=OptimConfig(name="adam", lr=0.01, weight_decay=0.0, schedule="cosine"),
        comm=CommConfig(backend="gloo", prefetch_depth=prefetch_depth, timeout_s=60.0, message_rows=message_rows),
        checkpoint=CheckpointConfig(every=None, keep=2),
        engine=EngineConfig(cache_static=cache_static),  # type: ignore[arg-type]
        tracking=TrackingConfig(enabled=False, uri=None, experiment="test"),
        epochs=epochs,
        eval_every=epochs,
        seed=seed,
        world=world,
        threads=1,
        device="cpu",
        precision=precision,  # type: ignore[arg-type]
        profile=False,
        store_dir="stores",
        run_name=None,
        run_dir=None,
        labels=labels or LabelsConfig(),
        mfg=mfg,
    )


def trainer_of(group: Group, config: RunConfig, dataset: Dataset) -> Trainer:
    """This rank's trainer on a dataset cut in memory."""
    assignment = assign(dataset, config.partitioner.name, group.world)
    part = list(parts_of(dataset, assignment, group.world))[group.rank]
    return make_trainer(config, part, dataset.num_classes, group)


def graph_layers(trainer: Trainer) -> list[GraphLayer]:
    """The model's layers."""
    assert isinstance(trainer.model, Stack)
    return [layer for layer in trainer.model.layers if isinstance(layer, GraphLayer)]


def edge_layers(trainer: Trainer) -> list[tuple[GraphLayer, Reducer]]:
    """Those that aggregate, each with its reducer."""
    layers = zip(graph_layers(trainer), trainer.plans, strict=True)
    return [(layer, layer.reducer_on(plan)) for layer, plan in layers if layer.uses_edges]


def step(group: Group, config: RunConfig, dataset: Dataset) -> dict[str, Any]:
    """One first step: loss, own logits with their original ids, summed gradients, bytes sent."""
    trainer = trainer_of(group, config, dataset)
    trainer.model.train()
    trainer.engine.epoch = 0
    group.traffic.reset()
    before = [buffer.clone() for buffer in trainer.model.buffers()]
    loss = trainer.gradients()
    grads = {name: p.grad.double().numpy() for name, p in trainer.model.named_parameters() if p.grad is not None}
    shards = {name: grads.pop(name) for name in list(grads) if name.startswith("inputs.embeddings.")}
    sent = group.traffic.sent_bytes
    plan = trainer.plans[0]
    predicted = 0
    for layer, own_plan in zip(graph_layers(trainer), trainer.plans, strict=True):
        predicted += layer.uses_edges and trainer.engine.mode.wire_bytes(
            own_plan,
            layer.reducer_on(own_plan),
            layer.exchanged_widths,
            trainer.rows.element_size(),
            exchanged_needs_grad=layer.exchanged_needs_grad,
        )
    with torch.no_grad():
        for buffer, value in zip(trainer.model.buffers(), before, strict=True):  # fed-back labels depend on them
            buffer.copy_(value)
        logits = trainer.logits(trainer.training, trainer.engine.epoch)
    return {
        "loss": loss,
        "node_ids": trainer.ids.numpy(),
        "ids": trainer.training.flow.own_outputs(trainer.ids).numpy(),
        "shards": shards,
        "logits": logits.double().numpy(),
        "grads": grads,
        "sent_bytes": sent,
        "predicted_bytes": predicted,
        "fetched_again": [trainer.engine.mode.fetches(reducer) - 1 for _, reducer in edge_layers(trainer)],
        "halo_rows": plan.halo_rows,
        "held_bytes": trainer.engine.exchange.held_bytes(),
        "planned_bytes": plan.lists.buffer_bytes(
            plan.rank,
            max((sum(layer.exchanged_widths) for layer, _ in edge_layers(trainer)), default=0),
            trainer.rows.element_size(),
            config.comm.prefetch_depth,
            refetch=any(trainer.engine.mode.fetches(reducer) > 1 for _, reducer in edge_layers(trainer)),
        ),
    }


def initial_parameters(group: Group, config: RunConfig, dataset: Dataset) -> dict[str, np.ndarray]:
    """The parameters that a run starts from."""
    trainer = trainer_of(group, config, dataset)
    return {name: p.detach().numpy() for name, p in trainer.model.named_parameters()}


def curve(group: Group, config: RunConfig, dataset: Dataset) -> dict[str, Any]:
    """A whole training: losses, the last accuracies and a digest of the final parameters."""
    trainer = trainer_of(group, config, dataset)
    history = trainer.run()
    parameters = [p.detach().numpy().tobytes() for p in trainer.replicated]
    return {
        "losses": history.losses,
        "accuracies": history.accuracies,
        "parameters": b"".join(parameters),
        "epoch_bytes": history.epoch_bytes,
    }


def with_world(config: RunConfig, world: int) -> RunConfig:
    """The same run on another number of workers."""
    return dataclasses.replace(config, world=world)
