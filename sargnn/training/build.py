"""Everything that one rank trains with, built from its configuration and its part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sargnn.backends.device import Device
from sargnn.backends.memory import Pool
from sargnn.bf16 import ROW_DTYPES, wide
from sargnn.comm.exchange import Exchange
from sargnn.comm.group import Group
from sargnn.comm.lists import join_windows
from sargnn.config.groups import BatchesConfig, MemoryConfig, PreloadConfig, SampleConfig
from sargnn.config.run import RunConfig
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.reducers.sum import Sum
from sargnn.errors import ConfigError
from sargnn.graph.check import Range
from sargnn.graph.edge_columns import ATTR, WEIGHT, EdgeColumns
from sargnn.graph.schema import LABEL_DTYPES, UNLABELLED, has_label, task_of
from sargnn.models.base import Model
from sargnn.models.inputs import EVERY_TYPE, GraphShape
from sargnn.partition.part import Part, with_columns
from sargnn.plan.cover import Costs, Share, shares_of
from sargnn.plan.graph import Sharing, WorkerGraph, degree_histogram, find_labelled
from sargnn.plan.load import NO_LIMIT, PlanSettings
from sargnn.rng import MAX_ID
from sargnn.tasks.base import Task, load_task
from sargnn.tracking.memory import PeakMeter
from sargnn.training.fit import Budget, Setup, evaluation_sample, fit_steps, trains_in_batches
from sargnn.training.optim import Optimization, check_decay
from sargnn.training.trainer import Trainer
from sargnn.training.views import View, ViewBuilder

if TYPE_CHECKING:
    from sargnn.graph.dataset import Dataset

_WITHOUT = "dataset.edge_weights=false trains as if there were none"
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
    make_meter: Callable[[Device], PeakMeter] = PeakMeter.here,
    trained: Mapping[str, Any] | None = None,
) -> Trainer:
    """Everything one rank needs to train, from its part.

    Args:
        scratch: a folder of this rank's alone, for what lies on disk meanwhile; None: nothing does.
        flat: opens the rank's part without copies, where ``part`` has some.
        make_meter: gives what measures memory peaks where rows lie, once all was read in.
        trained: as ``Inputs`` has it, of a model that only predicts here.
        budget: for a graph of such a shape, chooses what fits ``memory_budget``; needed where the run has one.
    """
    device, dtype = torch.device(config.device), ROW_DTYPES[config.precision]
    if trained is not None:
        part, num_classes = _with_labels_of(trained, part, group), trained["outputs"]
    num_classes = config.num_outputs(num_classes)
    part = with_columns(part, used_columns(config))
    if edges_in_memory(config, len(part.edge_src), part.columns.width):
        part = dataclasses.replace(part, columns=part.columns.read_in())
    preloads = part.copies is not None
    engine = make_engine(config, group, make_pool, within_servers=preloads)
    engine.pool.largest = max(engine.pool.largest, len(part.node_ids))
    widths = tuple(rows.shape[1] for rows in part.features)
    draws = config.model.draws_by_id or 0 in widths or config.reads_labels or config.draws_flows or config.predicts_pairs
    if draws and part.schema.num_nodes > MAX_ID:
        raise ConfigError(
            "Dropout, embeddings, carried labels, steps and samples are drawn by node id, and this graph has ids of 2**32 "
            "and more.",
            hint="set dropout to 0, and train full batches",
        )
    columns = label_columns(config, num_classes)
    of_edges = part.weighted, edge_width(part.columns, config)
    every = config.predicts_pairs and part.schema.typed
    labelled = trained["labelled"] if trained is not None else EVERY_TYPE if every else find_labelled(part, group)
    shape = GraphShape(part.schema, widths, num_classes, columns, task_of(part.labels), labelled, *of_edges)
    if config.model.reads_degrees:
        shape = dataclasses.replace(shape, degrees=degree_histogram(part, group))
    model = make_model(config, shape)
    copies = None
    if preloads:
        from sargnn.plan.copies import Copies

        exchange = Exchange(group, config.comm.prefetch_depth, engine.backend.moves)
        copied_rows = config.comm.message_rows or _COPIED_ROWS
        copies = Copies(part, exchange, copied_rows, device, counts_rows=config.norms_over_rows)
    of_sums = None if preloads or config.smooth.name == "none" or group.world == 1 else share_of_sums(config, engine)
    graph = WorkerGraph(
        part,
        engine.exchange,
        plan_settings(config, engine, part),
        add_self_loops=config.add_self_loops,
        by_relation=model.by_relation,
        labelled=shape.labelled,
        copies=copies,
        sharing=Sharing(lambda counts: layer_shares(config, model.partial_costs(engine, counts)), of_sums),
    )
    model = model.to(device, wide(dtype))
    model.inputs.pool = engine.pool
    rows = model.inputs.load(part, config.seed, device, dtype, copies)
    if not model.inputs.sharded() and rows.untyped_storage().resizable():  # neither learned nor mapped from the store
        rows = engine.pool.lay(rows)

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
        return make_trainer(full_batch, flat(), num_classes, group, make_pool=make_pool, make_meter=make_meter, trained=trained)

    ids = torch.from_numpy(np.array(part.node_ids))
    task = load_task(config.task)(config, part, num_classes, group, reads_labels=model.reads_labels)
    task.connect(engine.exchange, graph.message_rows, engine.exchange.group.near)
    if task.module is not None:
        model.add_module("task", task.module)
    trains_on_all = not config.mfg and not trains_in_batches(config)
    builder = ViewBuilder(model, engine, graph, rows, task, whole_recurs=trains_on_all or task.feeds_back)
    training, evaluation = build_views(config, model, task, builder)
    if training is not None and trained is None:
        builder.ready_for_gradients(training.flow)
    optimization = Optimization(config.optim, config.epochs, model, engine.pool)
    engine.agree_on_room()
    graph.release()  # what is given back is no part of what training starts from
    setup = Setup(config, model, engine, graph, ids, task, builder, evaluation, optimization, make_meter(engine.place))
    fitted = fit_steps(setup, training, scratch, None if budget is None else budget(shape))
    return Trainer(setup, fitted, without_copies if preloads else None)


def _with_labels_of(trained: Mapping[str, Any], part: Part, group: Group) -> Part:
    """The part, with labels as the model gives them that are all unknown where no worker's part has any label."""
    if int(group.sum_(torch.tensor(int(has_label(np.asarray(part.labels)).sum())))):
        return part
    shape = (len(part.node_ids),) if trained["task"] == "classes" else (len(part.node_ids), trained["outputs"])
    unknown = np.nan if trained["task"] == "regression" else UNLABELLED
    return dataclasses.replace(part, labels=np.full(shape, unknown, LABEL_DTYPES[trained["task"]]))


def build_views(config: RunConfig, model: Model, task: Task, builder: ViewBuilder) -> tuple[View | None, View]:
    """The training and the evaluation view; and the whole one where labels are fed back, before memory is measured.

    No training view with micro-batches or drawn ones, which are not there yet when training starts.
    """
    later = trains_in_batches(config)
    if config.eval != "sampled" and not config.mfg:
        whole = builder.whole()
        return None if later else whole, whole
    training = None
    if config.eval == "sampled":
        evaluation = builder.drawn_evaluation(task.rows(), evaluation_sample(config, model))
    else:
        training = None if later else builder.reaching(task.rows("train"), recurring=True)
        evaluation = builder.reaching(task.rows(), recurring=False)
    if task.feeds_back:
        builder.whole()
    return training, evaluation


def make_engine(
    config: RunConfig, group: Group, make_pool: Callable[..., Pool] = Pool, *, within_servers: bool = False
) -> Engine:
    settings = EngineSettings(
        mode=config.mode.choice,
        keep=config.mode.keep,
        kernel=config.kernel.choice,
        prefetch_depth=config.comm.prefetch_depth,
        seed=config.seed,
        device=torch.device(config.device),
        cache_static=config.engine.cache_static == "auto",
        keep_layers=config.engine.keep_layers,
        column_groups=config.engine.column_groups,
        **number_formats(config),
    )
    return Engine(group, settings, make_pool=make_pool, within_servers=within_servers)


def plan_settings(config: RunConfig, engine: Engine, part: Part) -> PlanSettings:
    """What all plans of the engine's worker have in common. All ranks must call it, with their part of the whole graph."""
    message_rows = config.comm.message_rows or NO_LIMIT
    group = engine.exchange.group
    dtype = wide(engine.dtype)
    near, lay, means = group.near, engine.pool.lay, config.dataset.loop_features == "mean"
    windows: tuple[int, ...] = ()
    if group.world > 2 and not near:
        received = group.gather(torch.from_numpy(np.diff(part.halo_offsets)))
        windows = join_windows([counts.tolist() for counts in received], message_rows)
    return PlanSettings(group.rank, engine.mode.layout, engine.device, message_rows, dtype, near, windows, lay, means)


def share_of_sums(config: RunConfig, engine: Engine) -> Share | None:
    """How plain sums of rows without gradients share cut edges out."""
    costs = engine.mode.costs(Sum(), (1,), engine.dtype, exchanged_needs_grad=False) if engine.why_rows(Sum()) is None else None
    return layer_shares(config, [costs])[0]


def layer_shares(config: RunConfig, costs: Sequence[Costs | None]) -> list[Share | None]:
    """How layers share cut edges out, as ``comm`` says. Per layer, as ``shares_of`` takes and gives it."""
    return shares_of(config.comm.aggregate or "fastest", costs, config.comm.bytes_per_s)


def number_formats(config: RunConfig) -> dict[str, Any]:
    return {
        "dtype": ROW_DTYPES[config.precision],
        "half_products": config.precision == "mixed",
        "wire": None if config.comm.wire == "exact" else ROW_DTYPES[config.comm.wire],
    }


def label_columns(config: RunConfig, num_classes: int) -> int:
    return num_classes if config.labels.name != "none" else 0


def shape_of(config: RunConfig, dataset: Dataset, labelled: int) -> GraphShape:
    """What a run's model is made for, from the whole dataset; ``labelled``: the node type that it predicts."""
    outputs = config.num_outputs(dataset.num_classes)
    columns = label_columns(config, outputs)
    of_edges = WEIGHT in dataset.columns and uses_edge_weights(config), edge_width(dataset.columns, config)
    return GraphShape(dataset.schema, dataset.feature_widths, outputs, columns, dataset.task, labelled, *of_edges)


def make_model(config: RunConfig, shape: GraphShape) -> Model:
    """The model in fp32, initialised from the seed: the same parameters on every rank and for every precision.

    Raises ``ConfigError`` where the model cannot work on such a graph.
    """
    torch.default_generator.manual_seed(config.seed)  # it is made on the host
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


def check_edge_weights(config: RunConfig, weights: Range | None) -> None:
    """Check that the model, and Correct & Smooth, can use weights of this range; None: the graph has none.

    Raises ``ConfigError`` where one of them cannot: why, and what would work.
    """
    if weights is None or not config.dataset.edge_weights:
        return
    low, high = weights
    given = f"edge weights from {low:g} to {high:g}" if low < high else f"edge weights of {low:g}"
    reason = config.model.no_weights
    if reason is not None and config.model.operations:  # one that reads no edges reads no weights either
        raise ConfigError(
            f"The model '{config.model.title}' cannot use edge weights. {reason}",
            given=given,
            allowed="model=gcn, gat, rgcn, or sage with a sum or a mean; a module of your own reads graph.edata['w']",
            hint=_WITHOUT,
        )
    if low >= 0:
        return
    if config.model.divides_by_weights:
        raise ConfigError(
            f"The model '{config.model.title}' divides by sums of edge weights, and some are negative.",
            given=given,
            allowed="weights of 0 and more; model=sage model.aggregator=sum and model=gat take any",
            hint=_WITHOUT,
        )
    if config.smooth.name != "none":
        raise ConfigError(
            "Correct & Smooth divides by sums of edge weights, and some are negative.",
            given=f"smooth={config.smooth.name}, {given}",
            allowed="smooth=none, or weights of 0 and more",
            hint=_WITHOUT,
        )


def uses_edge_weights(config: RunConfig) -> bool:
    return config.dataset.edge_weights and (bool(config.model.operations) or config.smooth.name != "none")


def used_columns(config: RunConfig) -> tuple[str, ...]:
    """Names of what edges carry and the run reads; the rest is not loaded."""
    weights = (WEIGHT,) if uses_edge_weights(config) else ()
    return (*weights, ATTR) if config.model.reads_edge_features else weights


def edge_width(columns: EdgeColumns, config: RunConfig) -> int:
    """D, the features of an edge that the run reads; 0: none."""
    return columns.width if config.model.reads_edge_features else 0


def edges_in_memory(config: RunConfig, edges: int, width: int) -> bool:
    if config.engine.edge_rows != "auto":
        return config.engine.edge_rows == "memory"
    return config.budget_bytes is not None and 8 * edges * width * 4 <= config.budget_bytes
