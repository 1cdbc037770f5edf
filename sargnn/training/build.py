"""Everything that one rank trains with, built from its configuration and its part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sargnn.backends.memory import Pool
from sargnn.bf16 import ROW_DTYPES, wide
from sargnn.comm.exchange import Exchange
from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig, MemoryConfig, PreloadConfig, SampleConfig
from sargnn.config.run import RunConfig
from sargnn.engine.aggregate import Engine
from sargnn.engine.reducers.sum import Sum
from sargnn.errors import ConfigError
from sargnn.graph.labels import task_of
from sargnn.models.base import Model
from sargnn.models.inputs import GraphShape
from sargnn.partition.cut import Part, with_columns
from sargnn.plan.copies import Copies
from sargnn.plan.cover import Share, shares_of
from sargnn.plan.graph import WorkerGraph, find_labelled
from sargnn.rng import MAX_ID
from sargnn.training.edge_weights import used_columns
from sargnn.training.fit import Budget
from sargnn.training.optim import check_decay
from sargnn.training.trainer import Trainer

_COPIED_ROWS = 1 << 14
"""Of copies that travel in one message."""


def make_trainer(
    config: RunConfig,
    part: Part,
    num_classes: int,
    group: Group,
    scratch: Path | None = None,
    make_pool: Callable[..., Pool] = Pool,
    flat: Callable[[], Part] | None = None,
    budget: Budget | None = None,
) -> Trainer:
    """Everything one rank needs to train, from its part.

    Args:
        part: of this rank.
        num_classes: C.
        group: of all ranks.
        scratch: a folder of this rank's alone, for what lies on disk meanwhile; None: nothing does.
        make_pool: as ``Engine`` takes it.
        flat: opens the rank's part without copies, where ``part`` has some.
        budget: for a graph of such a shape, chooses what fits ``memory_budget``; needed where the run has one.
    """
    device, dtype = torch.device(config.device), ROW_DTYPES[config.precision]
    part = with_columns(part, used_columns(config))
    preloads = part.copy_rows is not None
    engine = make_engine(config, group, make_pool, within_servers=preloads)
    widths = tuple(rows.shape[1] for rows in part.features)
    draws = config.model.draws_by_id or 0 in widths or config.reads_labels or config.draws_flows
    if draws and part.schema.num_nodes > MAX_ID:
        raise ConfigError(
            "Dropout, embeddings, carried labels, steps and samples are drawn by node id, and this graph has ids of 2**32 "
            "and more.",
            hint="set dropout to 0, and train full batches",
        )
    columns = label_columns(config, num_classes)
    shape = GraphShape(
        part.schema, widths, num_classes, columns, task_of(part.labels.dtype), find_labelled(part, group), part.weighted
    )
    model = make_model(config, shape)
    copies = None
    if preloads:
        copies = Copies(
            part,
            Exchange(group, config.comm.prefetch_depth, engine.backend.moves),
            config.comm.message_rows or _COPIED_ROWS,
        )
    graph = WorkerGraph(
        part,
        engine.exchange,
        engine.mode.layout,
        add_self_loops=config.add_self_loops,
        device=device,
        message_rows=config.comm.message_rows,
        by_relation=model.by_relation,
        labelled=shape.labelled,
        dtype=wide(dtype),
        sums=None if preloads or config.smooth.name == "none" or group.world == 1 else share_of_sums(config, engine),
        copies=copies,
        counts_rows=config.norms_over_rows,
        share=lambda counts: shares_of(config.comm.aggregate or "least", model.partial_costs(engine, counts)),
    )
    model = model.to(device, wide(dtype))
    rows = model.inputs.load(part, config.seed, device, dtype, copies)

    def without_copies() -> Trainer:
        assert flat is not None
        full_batch = dataclasses.replace(
            config,
            preload=PreloadConfig(),
            mfg=False,
            batches=BatchesConfig(),
            sample=SampleConfig(),
            memory_budget=MemoryConfig(),
            eval="full",
        )
        return make_trainer(full_batch, flat(), num_classes, group, make_pool=make_pool)

    choose = None if budget is None else budget(shape)
    return Trainer(config, model, engine, graph, rows, num_classes, scratch, choose, without_copies if preloads else None)


def make_engine(
    config: RunConfig, group: Group, make_pool: Callable[..., Pool] = Pool, *, within_servers: bool = False
) -> Engine:
    """A run's engine; the arguments of ``Engine``."""
    return Engine(
        group,
        mode=config.mode.choice,
        keep=config.mode.keep,
        kernel=config.kernel.choice,
        prefetch_depth=config.comm.prefetch_depth,
        seed=config.seed,
        device=torch.device(config.device),
        cache_static=config.engine.cache_static == "auto",
        keep_layers=config.engine.keep_layers,
        make_pool=make_pool,
        within_servers=within_servers,
        **number_formats(config),
    )


def share_of_sums(config: RunConfig, engine: Engine) -> Share | None:
    """How plain sums of rows without gradients share cut edges out."""
    costs = engine.mode.costs(Sum(), (1,), engine.dtype, exchanged_needs_grad=False) if engine.why_rows(Sum()) is None else None
    return shares_of(config.comm.aggregate or "least", [costs])[0]


def number_formats(config: RunConfig) -> dict[str, Any]:
    """The engine's settings that say which numbers are rounded: ``dtype``, ``half_products``, ``wire``."""
    return {
        "dtype": ROW_DTYPES[config.precision],
        "half_products": config.precision == "mixed",
        "wire": None if config.comm.wire == "exact" else ROW_DTYPES[config.comm.wire],
    }


def label_columns(config: RunConfig, num_classes: int) -> int:
    """How many columns of labels the model reads beside the features."""
    return num_classes if config.labels.name != "none" else 0


def make_model(config: RunConfig, shape: GraphShape) -> Model:
    """The model in fp32, initialised from the seed: the same parameters on every rank and for every precision.

    Raises:
        ConfigError: the model cannot work on such a graph.
    """
    torch.manual_seed(config.seed)
    model: Model = config.model.build(shape)
    if shape.schema.typed and config.add_self_loops:
        raise ConfigError(
            "A typed graph has no relation that self-loops could belong to.",
            given="dataset.add_self_loops=true",
            hint="model=rgcn has a weight of its own for each node's own row; or set dataset.homogenize=true",
        )
    check_decay(config.optim, model)
    model.try_out(config, shape)
    config.sample.check(sum(model.uses_edges), config.model.name)
    return model
