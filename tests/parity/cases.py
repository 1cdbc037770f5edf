"""Distributed cases, run on every rank of a pool."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from sargnn.backends import KERNELS
from sargnn.backends.memory import Pool
from sargnn.comm.group import Group
from sargnn.config.choices import KernelConfig, ModeConfig, ModelSettings
from sargnn.config.combinations import ONE_GRAPH
from sargnn.config.groups import (
    BatchesConfig,
    CheckpointConfig,
    CommConfig,
    EngineConfig,
    LabelsConfig,
    OptimConfig,
    PreloadConfig,
    SampleConfig,
    SmoothConfig,
    TrackingConfig,
)
from sargnn.config.partitioner import PartitionerConfig
from sargnn.config.run import RunConfig
from sargnn.engine.modes import MODES
from sargnn.engine.reducers import REDUCERS
from sargnn.engine.reducers.base import Reducer, WithPartials
from sargnn.graph.dataset import Dataset, group_by
from sargnn.graph.edge_columns import names_to_json
from sargnn.graph.store import StoreWriter
from sargnn.memory.budget import chooser
from sargnn.models import MODELS
from sargnn.models.rgat import RgatLayer
from sargnn.models.stack import GraphLayer
from sargnn.partition import PARTITIONERS
from sargnn.partition.cut import parts_of
from sargnn.partition.part import Part
from sargnn.partition.preload import Bounds, write_preloaded
from sargnn.partition.store import FORMAT_VERSION, open_part
from sargnn.plan.layer_plan import LayerPlan
from sargnn.resolve import is_target, resolve
from sargnn.sources.settings import SyntheticConfig
from sargnn.training.build import make_trainer
from sargnn.training.trainer import Trainer
from tests.graphs import assign, nasty_graph, typed_graph
from tests.parity import oracle
from tests.parity.covering import Axis, spread
from tests.parity.oracle import Definition

_DATASET = SyntheticConfig(
    name="synthetic", num_nodes=1, mean_degree=1.0, num_features=1, num_classes=2, blocks_per_class=1, homophily=0.5,
    power=2.5, label_noise=0.0, feature_signal=0.0, train_fraction=0.5, val_fraction=0.2, seed=0,
    normalize_features=False, add_self_loops=None,
)  # fmt: skip


Model = ModelSettings

_STACK: dict[str, Any] = {
    "hidden": 10, "num_layers": 3, "norm": "batch", "activation": "relu", "residual": False,
    "dropout": 0.4, "input_dropout": 0.0,
}  # fmt: skip
_ATTENTION = {"hidden": 5, "heads": 3, "out_heads": 2, "attn_dropout": 0.3, "negative_slope": 0.2, "v2": False}


def _plain_graph(seed: int) -> Dataset:
    return nasty_graph(seed=seed)


@dataclass(frozen=True)
class ModelCase:
    """How a model is tested.

    Attributes:
        settings: a small one, with batch norm and dropouts on.
        definition: what it computes, in dense matrices. graph: a graph that it is for, from a seed.
        folds_as: the model that meets everything for it, since its layers fold by the same reducer with the same weights.
    """

    settings: Mapping[str, Any]
    definition: Definition
    graph: Callable[[int], Dataset] = _plain_graph
    folds_as: str = ""


@dataclass(frozen=True)
class ModeCase:
    """What is particular to a mode.

    Attributes:
        plain_autograd: it runs only kernels that autograd differentiates. fetches_again: in the backward pass of case 2.
    """

    plain_autograd: bool = False
    fetches_again: bool = False


@dataclass(frozen=True)
class KernelCase:
    """What is particular to a kernel.

    Attributes:
        plain_autograd: it has operators that autograd differentiates.
        interpreted: it is for a GPU, and runs so slowly here that ``test_interpreted.py`` alone runs it.
    """

    plain_autograd: bool
    interpreted: bool = False


WRITTEN_MODELS = {name: target for name, target in MODELS.items() if name != "custom"}
"""All but the user's own, which is compared with those that it repeats: ``test_custom.py``."""

# Every key of the package's tables has its case here, and here alone: ``test_table.py``.
MODEL_CASES: dict[str, ModelCase] = {
    "sage": ModelCase({**_STACK, "aggregator": "mean"}, Definition(oracle.sage)),
    "gat": ModelCase({**_STACK, **_ATTENTION}, Definition(oracle.gat)),
    "gcn": ModelCase(_STACK, Definition(oracle.gcn)),
    "gin": ModelCase({**_STACK, "eps": 0.3, "learn_eps": True, "mlp_layers": 2}, Definition(oracle.gin), folds_as="sage"),
    "rgcn": ModelCase({**_STACK, "bases": None, "order": "auto", "embedding": 11}, Definition(oracle.rgcn), typed_graph),
    "rgat": ModelCase(
        {**_STACK, **{key: value for key, value in _ATTENTION.items() if key != "v2"}, "embedding": 11},
        Definition(oracle.rgat),
        typed_graph,
        folds_as="gat",
    ),
    "sgc": ModelCase({"steps": 2, "input_dropout": 0.0}, Definition(oracle.sgc, stack=False), folds_as="gcn"),
    "appnp": ModelCase(
        {**_STACK, "steps": 3, "alpha": 0.2, "edge_dropout": 0.3}, Definition(oracle.appnp, stack=False), folds_as="gcn"
    ),
    "gcnii": ModelCase(
        {**_STACK, "alpha": 0.2, "theta": 0.7}, Definition(oracle.gcnii, ends=oracle.perceptron), folds_as="gcn"
    ),
    "resgcn": ModelCase({**_STACK, "conv": "sage"}, Definition(oracle.resgcn, ends=oracle.perceptron), folds_as="sage"),
    "mlp": ModelCase(_STACK, Definition(oracle.perceptron, reads_edges=False)),
    "linear": ModelCase({**_STACK, "num_layers": 1}, Definition(oracle.perceptron, reads_edges=False)),
    "none": ModelCase({"hidden": 6}, Definition(oracle.rows_alone, reads_edges=False, stack=False)),
    "label_propagation": ModelCase(
        {"adjacency": "dad", "alpha": 0.9, "steps": 6}, Definition(oracle.label_propagation, stack=False)
    ),
}
REDUCER_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sum": ("sage", {"aggregator": "sum"}),
    "mean": ("sage", {"aggregator": "mean"}),
    "max": ("sage", {"aggregator": "max"}),
    "lstm": ("sage", {"aggregator": "lstm"}),
    "gat": ("gat", {}),
    "gatv2": ("gat", {"v2": True}),
    "rgcn": ("rgcn", {"order": "transform_first"}),
    "relation_sum": ("rgcn", {"order": "aggregate_first"}),
}
"""A model whose layers fold with this reducer, and the settings that choose it."""
WHOLE = {"lstm": ONE_GRAPH}
"""Reducers that only some modes run on several workers."""
MODE_CASES: dict[str, ModeCase] = {
    "sar": ModeCase(fetches_again=True),
    "no_remat": ModeCase(),
    "one_shot": ModeCase(),
    "domain_parallel": ModeCase(plain_autograd=True),
}
KERNEL_CASES: dict[str, KernelCase] = {
    "fused": KernelCase(plain_autograd=False),
    "triton": KernelCase(plain_autograd=False, interpreted=True),
    "dgl": KernelCase(plain_autograd=True),
    "reference": KernelCase(plain_autograd=True),
}
PARTITIONER_CASES: dict[str, int] = dict.fromkeys(
    ("metis", "kaminpar", "stream", "auto", "random", "range", "given"), 0
)  # fmt: skip
"""The seed that it is tested with."""
TABLES: dict[str, tuple[Mapping[str, str], Mapping[str, Any]]] = {
    "model": (WRITTEN_MODELS, MODEL_CASES),
    "reducer": (REDUCERS, REDUCER_CASES),
    "mode": (MODES, MODE_CASES),
    "kernel": (KERNELS, KERNEL_CASES),
    "partitioner": (PARTITIONERS, PARTITIONER_CASES),
}


def without_case() -> list[str]:
    """What a table of the package has and the cases have not, or the other way round: ``model 'toy'``."""
    return [
        f"{kind} '{name}'" for kind, (table, own) in TABLES.items() for name in sorted(set(table).symmetric_difference(own))
    ]


if without_case():
    raise LookupError(f"No case in tests/parity/cases.py, or a case of nothing: {', '.join(without_case())}")

NAMES = [name for name in WRITTEN_MODELS if MODEL_CASES[name].definition.reads_edges and name != "label_propagation"] + [
    "gatv2"
]
"""Models that learn from edges, and the scorings of GAT."""
LIKE_OTHERS = Axis(
    [name for name in NAMES if name != "gatv2" and MODEL_CASES[name].folds_as], first=["gin", "rgat", "appnp"]
)  # fmt: skip
OWN_FOLDS = [name for name in NAMES if name not in LIKE_OTHERS]
"""Models that fold as another one, and those that do not; ``test_first_step.py`` meets all of them in ``make test``."""
CPU_KERNELS = [kernel for kernel in KERNELS if not KERNEL_CASES[kernel].interpreted]
"""What runs at a CPU's speed."""
_RUNS = [
    (mode, kernel)
    for mode in MODES
    for kernel in CPU_KERNELS
    if KERNEL_CASES[kernel].plain_autograd or not MODE_CASES[mode].plain_autograd
]
_FIRST = [("sar", "fused"), ("no_remat", "dgl"), ("one_shot", "fused")]
PAIRS = Axis(_RUNS, [*_FIRST, ("domain_parallel", "reference")])
"""Modes with the kernels that they run; ``test_first_step.py`` meets all of them in ``make test``."""
QUICK = Axis([pair for pair in PAIRS if pair[1] != "reference"], [*_FIRST, ("domain_parallel", "dgl")])
"""Those without the slow kernel."""
WHERE = [("metis", 1), ("random", 2), ("metis", 4)]
"""Partitioners with a number of workers."""
MASKED, REUSED = LabelsConfig("masked", 0.4, 0), LabelsConfig("masked", 0.4, 2)
"""Labels as inputs, and those that are predicted fed back twice."""


def spread_models(*axes: Sequence[Any], strength: int = 1) -> list[Any]:
    """``spread`` of the models in ``NAMES`` and the axes; models that fold as another one with a strength of 1."""
    return [*spread(OWN_FOLDS, *axes, strength=strength), *spread(LIKE_OTHERS, *axes)]


def graph_for(name: str, seed: int = 0) -> Dataset:
    """A graph that the model is for."""
    return MODEL_CASES["gat" if name == "gatv2" else name].graph(seed)


def model_config(name: str, **changes: Any) -> Model:
    """A small model with batch norm and dropouts on; ``gatv2`` is GAT with the other scoring."""
    if name == "gatv2":
        name, changes = "gat", {"v2": True, **changes}
    settings: Model = resolve("model", MODELS, name)(name=name, **{**MODEL_CASES[name].settings, **changes})
    return settings


def known(name: str, **changes: Any) -> dict[str, Any]:
    """Those of the changes whose settings a model has."""
    cls = resolve("model", MODELS, "gat" if name == "gatv2" else name)
    return {key: value for key, value in changes.items() if key in {one.name for one in dataclasses.fields(cls)}}


def definition_of(model: Model) -> Definition:
    """What the model computes."""
    return MODEL_CASES[model.name].definition


def _choice(name: str) -> dict[str, Any]:
    if is_target(name):
        return {"name": "toy", "target": name}
    return {"name": name, "file": "written where it is read.npy"} if name == "given" else {"name": name}


CONTRACT_EPOCHS = 30
"""Over which the contract of exactness holds."""
EPOCHS = 3
"""Of a curve that says no number: a wrong draw shows in the second, and a wrong gradient or optimizer state in the third, for
Adam's first step tells signs alone."""


def run_config(
    model: Model, *, mode: str = "sar", kernel: str = "auto", partitioner: str = "random", world: int = 1,
    precision: str = "fp64", epochs: int = EPOCHS, seed: int = 3, prefetch_depth: int = 1,
    cache_static: str | bool = "auto",
    message_rows: int | None = None, labels: LabelsConfig | None = None, mfg: bool = False, wire: str = "exact",
    aggregate: str | None = None, keep: str = "rows", batches: BatchesConfig | None = None,
    keep_layers: str | int = "all", column_groups: int | None = None, sample: SampleConfig | None = None, servers: int = 1,
    preload: PreloadConfig | None = None, smooth: SmoothConfig | None = None,
) -> RunConfig:  # fmt: skip
    """A configuration for cases that need no files. Modes, kernels and partitioners are names, or targets ``FILE.py:NAME``."""
    return RunConfig(
        dataset=_DATASET,
        partitioner=PartitionerConfig(**_choice(partitioner), seed=PARTITIONER_CASES.get(partitioner, 0), order="original"),
        model=model,
        mode=ModeConfig(**_choice(mode), keep=keep),  # type: ignore[arg-type]
        kernel=KernelConfig(**_choice(kernel)),
        optim=OptimConfig(name="adam", lr=0.01, weight_decay=0.0, schedule="cosine"),
        comm=CommConfig(
            backend="gloo",
            prefetch_depth=prefetch_depth,
            timeout_s=60.0,
            message_rows=message_rows,
            wire=wire,  # type: ignore[arg-type]
            aggregate=aggregate or "least",  # type: ignore[arg-type]
            rate="1MB",  # so that fastest has partial results on small graphs
        ),  # fmt: skip
        checkpoint=CheckpointConfig(every=None, keep=2),
        engine=EngineConfig(cache_static=cache_static, keep_layers=keep_layers, column_groups=column_groups),  # type: ignore[arg-type]
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
        batches=batches or BatchesConfig(),
        sample=sample or SampleConfig(),
        servers=servers if servers > 1 else None,
        preload=preload or PreloadConfig("shared" if servers > 1 else "none"),
        smooth=smooth or SmoothConfig(),
    )


def trainer_of(group: Group, config: RunConfig, dataset: Dataset, make_pool: Callable[..., Pool] = Pool) -> Trainer:
    """This rank's trainer on a dataset cut in memory; of a run with servers that preload on disk."""
    choice, world = config.partitioner.choice, group.world
    assignment = _once(("assignment", choice, world), dataset, lambda: assign(dataset, choice, world))
    flat = _once(("parts", choice, world), dataset, lambda: list(parts_of(dataset, assignment, world)))[group.rank]
    if config.preload.name != "shared":
        return make_trainer(config, flat, dataset.num_classes, group, make_pool=make_pool, budget=chooser)
    group = group.again(servers=config.num_servers)
    hops = sum(reads_edges(config))
    bounds = Bounds(hops, config.preload.max_hop, config.preload.fanout, config.seed)
    servers = config.num_servers
    preloaded = _once(
        ("preloaded", choice, world, servers, bounds),
        dataset,
        lambda: preloaded_parts(dataset, assignment, servers, world, bounds),
    )
    part = preloaded[group.rank]
    return make_trainer(config, part, dataset.num_classes, group, make_pool=make_pool, flat=lambda: flat, budget=chooser)


def reads_edges(config: RunConfig) -> list[bool]:
    """Per layer of the model, whether it aggregates."""
    definition = definition_of(config.model)
    return [reads for _, reads in definition.layers(config.model)] if definition.stack else definition.reads(config.model)


_KEPT: dict[tuple[Any, ...], Any] = {}


def _once(key: tuple[Any, ...], dataset: Dataset, make: Callable[[], Any]) -> Any:
    """What several ranks, each with a dataset of its own, and tests want of the same content; of the last few."""
    key = (hashlib.blake2b(pickle.dumps(dataset)).digest(), *key)
    if key not in _KEPT:
        _KEPT[key] = make()
        for old in list(_KEPT)[:-24]:
            del _KEPT[old]
    return _KEPT[key]


def preloaded_parts(dataset: Dataset, assignment: np.ndarray, servers: int, world: int, bounds: Bounds) -> list[Part]:
    """Of servers that preload."""
    offsets, nodes = group_by(assignment, world)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "preloaded"
        with StoreWriter(path, "partition", FORMAT_VERSION) as writer:
            write_preloaded(writer, dataset, offsets, nodes, servers, bounds)
            weighted = {} if dataset.columns.weight is None else {"edge_weights": [0, 1]}
            carried = names_to_json(dataset.columns.columns)
            writer.meta = {
                "schema": dataset.schema.to_json(), "num_classes": dataset.num_classes, "preload": {}, **weighted, **carried
            }  # fmt: skip
        return [open_part(path, rank) for rank in range(world)]


def graph_layers(trainer: Trainer) -> list[GraphLayer]:
    """The model's layers, one for each plan, in order."""
    return [layer for layer in trainer.model.modules() if isinstance(layer, GraphLayer)]


def edge_layers(trainer: Trainer) -> list[tuple[GraphLayer, Reducer]]:
    """Those that aggregate, each with its reducer."""
    layers = zip(graph_layers(trainer), trainer.training.flow.plans, strict=True)
    return [(layer, layer.reducer_on(plan)) for layer, plan in layers if layer.uses_edges]


def plans_of(layer: GraphLayer, plan: LayerPlan) -> list[LayerPlan]:
    """Those that a layer aggregates on: its own, or those of the relations that it computes."""
    if plan.relations is None:
        return [plan]
    assert isinstance(layer, RgatLayer)
    ends = zip(plan.schema.relations, plan.relations.plans, strict=True)
    return [own for relation, own in ends if relation.destination in layer.types]


def step(group: Group, config: RunConfig, dataset: Dataset) -> dict[str, Any]:
    """One first step: loss, own logits with their original ids, summed gradients, bytes sent."""
    trainer = trainer_of(group, config, dataset)
    trainer.model.train()
    trainer.engine.epoch = 0
    group.traffic.reset()
    before = [buffer.clone() for buffer in trainer.model.buffers()]
    loss = trainer.loop.gradients().value
    grads = {name: p.grad.double().numpy() for name, p in trainer.model.named_parameters() if p.grad is not None}
    shards = {name: grads.pop(name) for name in list(grads) if name.startswith("inputs.embeddings.")}
    sent = group.traffic.sent_bytes
    plan = trainer.training.flow.plans[0]
    predicted = 0
    wire = trainer.engine.exchange.wire

    for layer, layer_plan in zip(graph_layers(trainer), trainer.training.flow.plans, strict=True):
        for own_plan in plans_of(layer, layer_plan):
            predicted += layer.uses_edges and trainer.engine.mode.wire_bytes(
                own_plan,
                layer.reducer_on(own_plan),
                layer.exchanged_widths(own_plan.counts),
                trainer.rows.dtype,
                wire,
                exchanged_needs_grad=layer.exchanged_needs_grad,
            )
    with torch.no_grad():
        for buffer, value in zip(trainer.model.buffers(), before, strict=True):  # fed-back labels depend on them
            buffer.copy_(value)
        logits = trainer.forward.logits(trainer.training, trainer.engine.epoch)
    return {
        "loss": loss,
        "node_ids": trainer.ids.numpy(),
        "ids": trainer.training.flow.own_outputs(trainer.ids).numpy(),
        "shards": shards,
        "logits": logits.double().numpy(),
        "grads": grads,
        "sent_bytes": sent,
        "predicted_bytes": predicted,
        "keeps_scores": trainer.engine.mode.keeps_scores,
        "fetched_again": [trainer.engine.mode.fetches(reducer) - 1 for _, reducer in edge_layers(trainer)],
        "halo_rows": plan.halo_rows,
        "held_bytes": trainer.engine.exchange.most_held,
        "planned_bytes": sum(
            planned_bytes(trainer, plan) for plan in {id(one): one for one in trainer.training.flow.plans}.values()
        ),
    }


def planned_bytes(trainer: Trainer, plan: LayerPlan) -> int:
    """What the exchange may hold for the layers of a plan."""
    rows, wire, depth = trainer.rows.dtype, trainer.engine.exchange.wire, trainer.config.comm.prefetch_depth
    layers = [
        one
        for one, own in zip(graph_layers(trainer), trainer.training.flow.plans, strict=True)
        if own is plan and one.uses_edges
    ]
    reducers = [layer.reducer_on(plan) for layer in layers]
    widths = [layer.exchanged_widths(plan.counts) for layer in layers]
    widened = [sum(w for t, w in enumerate(own) if t not in reducer.scores)
               for own, reducer in zip(widths, reducers, strict=True)]  # fmt: skip
    total = plan.lists.buffer_bytes(
        plan.rank,
        max((r.row_bytes(own, rows, wire) for own, r in zip(widths, reducers, strict=True)), default=0),
        depth,
        refetch=any(trainer.engine.mode.fetches(reducer) > 1 for reducer in reducers),
        widened_bytes=0 if wire is None or rows != torch.float32 else 4 * max(widened, default=0),
    )
    if plan.partials is None:
        return total
    columns = [r.partial_columns(own, rows) for own, r in zip(widths, reducers, strict=True)
               if isinstance(r, WithPartials)]  # fmt: skip
    travels = [one.row_bytes(wire) for one in columns]
    wide = 0 if wire is None else 2 * max(max(one.row_bytes()) for one in columns)
    return total + plan.partials.lists.buffer_bytes(
        plan.rank, max(max(one[0], one[2]) for one in travels), max(max(one[1], one[3]) for one in travels), depth,
        widened_bytes=(wide, wide),
    )  # fmt: skip


def initial_parameters(group: Group, config: RunConfig, dataset: Dataset) -> dict[str, np.ndarray]:
    """The parameters that a run starts from."""
    trainer = trainer_of(group, config, dataset)
    return {name: p.detach().numpy() for name, p in trainer.model.named_parameters()}


def curve(group: Group, config: RunConfig, dataset: Dataset) -> dict[str, Any]:
    """A whole training: losses, the last metric and a digest of the final parameters."""
    trainer = trainer_of(group, config, dataset)
    history = trainer.run()
    parameters = [p.detach().numpy().tobytes() for p in trainer.optimization.replicated]
    return {
        "losses": history.losses,
        "scores": history.scores,
        "parameters": b"".join(parameters),
        "epoch_bytes": history.epoch_bytes,
    }


def with_world(config: RunConfig, world: int) -> RunConfig:
    """The same run on another number of workers."""
    return dataclasses.replace(config, world=world)


def in_groups(config: RunConfig, groups: int | None) -> RunConfig:
    """The same run with aggregations in groups of columns."""
    return dataclasses.replace(config, engine=dataclasses.replace(config.engine, column_groups=groups))


def with_preload(config: RunConfig, preload: PreloadConfig) -> RunConfig:
    """The same run where servers preload otherwise."""
    return dataclasses.replace(config, preload=preload)
