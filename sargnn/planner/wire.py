"""Bytes that a run's row exchange sends in an epoch, from its configuration and how many messages serve its cut edges.

Letters: L layers, C outputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sargnn.comm.group import Group
from sargnn.config.run import RunConfig
from sargnn.data.dataset import Dataset
from sargnn.data.labels import task_of
from sargnn.engine.aggregate import Engine
from sargnn.graph.edge_columns import WEIGHT
from sargnn.models.base import Model
from sargnn.models.inputs import GraphShape
from sargnn.models.stack import GraphLayer, Stack
from sargnn.planner.cut_edges import CutEdges, Messages
from sargnn.shards.cover import Share, shares_of
from sargnn.shards.plan import RowCounts
from sargnn.training.build import label_columns, make_engine, make_model
from sargnn.training.edge_weights import uses_edge_weights


def shape_of(dataset: Dataset, config: RunConfig) -> GraphShape:
    """What a model must know of the graph."""
    split = np.asarray(dataset.split) > 0
    types = np.bincount(dataset.schema.types_of(np.flatnonzero(split)), minlength=len(dataset.schema.node_types))
    return GraphShape(
        dataset.schema,
        dataset.feature_widths,
        dataset.num_classes,
        label_columns(config, dataset.num_classes),
        task_of(dataset.labels.dtype),
        int(types.argmax()),
        WEIGHT in dataset.columns and uses_edge_weights(config),
    )


def bare(config: RunConfig, shape: GraphShape) -> tuple[Engine, Model]:
    """The engine and the model of a run that has no graph yet: for what they say of themselves."""
    alone = dataclasses.replace(config, world=1, servers=None)
    return make_engine(alone, Group.single()), make_model(alone, shape)


Serving = Callable[[Share | None, bool], Messages]
"""How many messages serve the cut edges where they are shared out so: all, or (true) those into labelled nodes, which are all
that the last layer of a typed graph computes."""


@dataclass(frozen=True)
class LayerTraffic:
    """A layer's messages, and what all workers together send for it in an epoch, bytes."""

    messages: Messages
    sent: int


def traffic_by_layer(config: RunConfig, shape: GraphShape, counts: RowCounts, serving: Serving) -> list[LayerTraffic] | None:
    """What travels in an epoch of full batches, per layer [L]; None: the model's layers cannot be told apart.

    The first layer's aggregates of constant rows, which travel once in a run, are left out; so are evaluations.

    Args:
        counts: of the whole graph.
    """
    engine, model = bare(config, shape)
    if not isinstance(model, Stack):
        return None
    layers = model.graph_layers
    costs = model.partial_costs(engine, [counts] * len(layers))
    shares = shares_of(config.comm.aggregate or "least", costs)
    known: dict[tuple[Share | None, bool], Messages] = {}
    traffic = []
    for number, (layer, share) in enumerate(zip(layers, shares, strict=True), 1):
        if not layer.uses_edges:
            traffic.append(LayerTraffic(Messages(0, 0, (0,) * config.world), 0))
            continue
        key = share, share is not None and shape.schema.typed and number == len(layers)
        if key not in known:
            known[key] = serving(*key)
        traffic.append(LayerTraffic(known[key], layer_bytes(engine, layer, counts, shape.label_columns, known[key])))
    return traffic


def traffic_of(
    config: RunConfig, dataset: Dataset, part: np.ndarray, halo_rows: int, cut: CutEdges | None
) -> list[LayerTraffic] | None:
    """The same of an assignment.

    Args:
        part: int32 [N]. halo_rows: of all parts. cut: its cut edges; None: too many to be shared out.

    Returns:
        None: not known, because of the model or the number of cut edges.
    """
    shape, rows = shape_of(dataset, config), dataset.num_nodes

    def serving(share: Share | None, labelled: bool) -> Messages:
        if cut is None and share is not None:
            raise _TooManyError
        if cut is None:
            return Messages(halo_rows)
        return (cut.into_type(dataset, part, shape.labelled) if labelled else cut).shared_by(share)

    try:
        return traffic_by_layer(config, shape, RowCounts(rows, rows, halo_rows), serving)
    except _TooManyError:
        return None


class _TooManyError(Exception):
    """There are more cut edges than are shared out here."""


def layer_bytes(
    engine: Engine, layer: GraphLayer, counts: RowCounts, columns: int, messages: Messages, *, caches: bool = True
) -> int:
    """What a layer sends in a training step of one view, by all workers.

    Args:
        columns: of labels beside the first layer's rows. messages: what serves its cut edges.
        caches: aggregates of constant rows stay from epoch to epoch; those of views that do not come again do not.
    """
    widths, needs_grad = layer.exchanged_widths(counts), layer.exchanged_needs_grad
    if layer.constant_input and caches and engine.caches_constants and not needs_grad:
        if not columns:
            return 0
        widths = (columns,)  # labels beside constant rows are others in every epoch
    return _bytes(engine, layer, widths, messages, needs_grad=needs_grad)


def _bytes(engine: Engine, layer: GraphLayer, widths: Sequence[int], messages: Messages, *, needs_grad: bool) -> int:
    mode, reducer, wire = engine.mode, layer.reducer, engine.exchange.wire
    costs = mode.costs(reducer, tuple(widths), engine.dtype, wire, exchanged_needs_grad=needs_grad)
    if costs is not None and layer.why_rows(engine) is None:
        return costs.source * messages.rows + costs.destination * messages.partials
    row = reducer.row_bytes(tuple(widths), engine.dtype, wire)
    return (mode.fetches(reducer) + needs_grad) * row * messages.rows
