"""What travels in an epoch: the edges between parts, how many messages serve them, and the bytes that the row exchange sends.

Letters: N nodes, E edges, P parts, L layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.config.run import RunConfig
from sargnn.engine.aggregate import Engine
from sargnn.graph.dataset import Dataset, in_edge_blocks
from sargnn.graph.edge_columns import WEIGHT
from sargnn.models.base import Model
from sargnn.models.inputs import EVERY_TYPE, GraphShape
from sargnn.models.stack import GraphLayer, Stack
from sargnn.plan.cover import Share, least_cover, try_tilts
from sargnn.plan.layer_plan import RowCounts
from sargnn.training.build import edge_width, label_columns, layer_shares, make_engine, make_model, uses_edge_weights

MOST_CUT_EDGES = 50_000_000
"""Beyond so many the fewest messages are not found: that takes a maximum flow for each pair of parts."""


@dataclass(frozen=True)
class Messages:
    """What travels in one exchange, of all parts.

    Attributes:
        partials: results for destinations.
        received: rows that each part receives [P]; (): not known.
    """

    rows: int
    partials: int = 0
    received: tuple[int, ...] = ()


@dataclass(frozen=True)
class CutEdges:
    """All edges between P parts, by the pair of them.

    Attributes:
        own: int64 [P], edges into each part's rows, those within it counted.
        bounds: int64 [P P + 1]: edges into part p from part q are ``[bounds[p P + q], bounds[p P + q + 1])``.
        source: int64 [E], nodes.
        destination: int64 [E], nodes.
    """

    world: int
    own: np.ndarray
    bounds: np.ndarray
    source: np.ndarray
    destination: np.ndarray
    _shared: dict[Share | None, Messages] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, dataset: Dataset, part: np.ndarray, world: int, loops: int = 0) -> CutEdges | None:
        """Of ``part``, int32 [N]; None where there are more than ``MOST_CUT_EDGES``. ``loops``: added to each node."""
        sources, destinations, count = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
        own = loops * np.bincount(part, minlength=world)
        for first, indptr, indices in in_edge_blocks(dataset, "listing cut edges"):
            destination = first + np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
            own += np.bincount(part[destination], minlength=world)
            crossing = part[indices] != part[destination]
            sources.append(np.asarray(indices[crossing], np.int64))
            destinations.append(destination[crossing])
            count += len(sources[-1])
            if count > MOST_CUT_EDGES:
                return None
        source, destination = np.concatenate(sources), np.concatenate(destinations)
        pair = part[destination].astype(np.int64) * world + part[source]
        order = np.argsort(pair, kind="stable")
        bounds = np.searchsorted(pair[order], np.arange(world * world + 1))
        return cls(world, own, bounds, source[order], destination[order])

    def into(self, nodes: np.ndarray, own: np.ndarray) -> CutEdges:
        """Those into some nodes only, bool [N]. ``own``: int64 [P], edges into each part's rows among them."""
        kept = nodes[self.destination]
        bounds = np.concatenate([[0], np.cumsum(kept)])[self.bounds]
        return CutEdges(self.world, own, bounds, self.source[kept], self.destination[kept])

    def fewest(self, ratio: float = 1.0) -> Messages:
        """Of each pair of parts a least cover, a partial result at ``ratio`` of a row's price."""
        covers = [self._cover(pair, Share(ratio, 1.0)) for pair in range(self.world**2)]
        return Messages(sum(rows for rows, *_ in covers), sum(partials for _, partials, _ in covers))

    def shared_by(self, share: Share | None) -> Messages:
        """As a run shares them out (``plan.cover.choose_edges``), which keeps ranks from too many edges; found once."""
        if share not in self._shared:
            self._shared[share] = self._shared_by(share)
        return self._shared[share]

    def _shared_by(self, share: Share | None) -> Messages:
        if share is None:
            rows = [len(np.unique(self.source[self._edges(pair)])) for pair in range(self.world**2)]
            return Messages(sum(rows), 0, tuple(np.reshape(rows, (self.world, -1)).sum(1).tolist()))
        if share.ratio is None:
            counts = (len(np.unique(self.destination[self._edges(pair)])) for pair in range(self.world**2))
            return Messages(0, sum(counts), (0,) * self.world)
        world, covers = self.world, [(0, 0, 0)] * self.world**2

        def cover(q: int, tilt: float) -> None:
            for pair in range(q, world**2, world):
                covers[pair] = self._cover(pair, share, tilt)

        def moved() -> Tensor:
            edges = np.reshape([count for *_, count in covers], (world, world))
            return torch.from_numpy(edges.sum(0) - edges.sum(1))

        try_tilts(Group.single(), torch.from_numpy(self.own), cover, moved)
        received = tuple(np.reshape([rows for rows, *_ in covers], (world, world)).sum(1).tolist())
        return Messages(sum(received), sum(partials for _, partials, _ in covers), received)

    def _edges(self, pair: int) -> slice:
        return slice(int(self.bounds[pair]), int(self.bounds[pair + 1]))

    def _cover(self, pair: int, share: Share, tilt: float = 1.0) -> tuple[int, int, int]:
        """Rows and partial results that serve a pair, and the edges that the sources' owner aggregates."""
        some = self._edges(pair)
        if some.start == some.stop:
            return 0, 0, 0
        ids, rows = np.unique(self.source[some], return_inverse=True)
        by_row = least_cover(rows.astype(np.int32), self.destination[some], len(ids), share, tilt)[rows]
        return len(np.unique(rows[by_row])), len(np.unique(self.destination[some][~by_row])), int((~by_row).sum())


def shape_of(dataset: Dataset, config: RunConfig) -> GraphShape:
    split = np.asarray(dataset.split) > 0
    types = np.bincount(dataset.schema.types_of(np.flatnonzero(split)), minlength=len(dataset.schema.node_types))
    outputs, every = config.num_outputs(dataset.num_classes), config.predicts_pairs and dataset.schema.typed
    return GraphShape(
        dataset.schema,
        dataset.feature_widths,
        outputs,
        label_columns(config, outputs),
        dataset.task,
        EVERY_TYPE if every else int(types.argmax()),
        WEIGHT in dataset.columns and uses_edge_weights(config),
        edge_width=edge_width(dataset.columns, config),
    )


def bare(config: RunConfig, shape: GraphShape) -> tuple[Engine, Model]:
    """The engine and the model of a run that has no graph yet: for what they say of themselves."""
    alone = dataclasses.replace(config, world=1, servers=None)
    return make_engine(alone, Group.single()), make_model(alone, shape)


Serving = Callable[[Share | None, bool], Messages | None]
"""How many messages serve the cut edges where they are shared out so: all, or (true) those into labelled nodes, which are all
that the last layer of a typed graph computes. None: not known."""


@dataclass(frozen=True)
class LayerTraffic:
    """A layer's messages, and what all workers together send for it in an epoch, bytes."""

    messages: Messages
    sent: int


def traffic_by_layer(config: RunConfig, shape: GraphShape, counts: RowCounts, serving: Serving) -> list[LayerTraffic] | None:
    """What travels in an epoch of full batches, per layer [L]; None: not known, or the model's layers cannot be told apart.

    Aggregates of constant rows, which travel once in a run, and evaluations are left out. ``counts``: of the whole graph.
    """
    engine, model = bare(config, shape)
    if not isinstance(model, Stack):
        return None
    layers = model.graph_layers
    costs = model.partial_costs(engine, [counts] * len(layers))
    shares = layer_shares(config, costs)
    serving, traffic = cache(serving), []
    for number, (layer, share) in enumerate(zip(layers, shares, strict=True), 1):
        if not layer.uses_edges:
            traffic.append(LayerTraffic(Messages(0, 0, (0,) * config.world), 0))
            continue
        messages = serving(share, share is not None and shape.schema.typed and number == len(layers))
        if messages is None:
            return None
        traffic.append(LayerTraffic(messages, layer_bytes(engine, layer, counts, shape.label_columns, messages)))
    return traffic


def traffic_of(
    config: RunConfig, dataset: Dataset, part: np.ndarray, halo_rows: int, cut: CutEdges | None
) -> list[LayerTraffic] | None:
    """As ``traffic_by_layer``, of an assignment ``part``, int32 [N], and its cut edges; None: too many to be shared out."""
    shape, rows = shape_of(dataset, config), dataset.num_nodes

    def serving(share: Share | None, labelled: bool) -> Messages | None:
        if cut is None:
            return Messages(halo_rows) if share is None else None
        if not labelled or shape.labelled == EVERY_TYPE:
            return cut.shared_by(share)
        first, last = dataset.schema.offsets[shape.labelled : shape.labelled + 2]
        degrees = np.diff(np.asarray(dataset.indptr)[first : last + 1])
        own = np.bincount(part[first:last], weights=degrees, minlength=cut.world).astype(np.int64)
        nodes = np.zeros(len(part), bool)
        nodes[first:last] = True
        return cut.into(nodes, own).shared_by(share)

    return traffic_by_layer(config, shape, RowCounts(rows, rows, halo_rows), serving)


def layer_bytes(
    engine: Engine, layer: GraphLayer, counts: RowCounts, columns: int, messages: Messages, *, caches: bool = True
) -> int:
    """What a layer sends in a training step of one view, by all workers.

    Args:
        counts: of the layer's rows over all workers.
        columns: of labels beside the first layer's rows.
        messages: what serves its cut edges.
        caches: whether aggregates of constant rows stay from epoch to epoch; those of views that do not come again do not.
    """
    mode, reducer, wire, needs_grad = engine.mode, layer.reducer, engine.exchange.wire, layer.exchanged_needs_grad
    widths = tuple(layer.exchanged_widths(counts))
    if layer.constant_input and caches and engine.caches_constants and not needs_grad:
        if not columns:
            return 0
        widths = (columns,)  # labels beside constant rows are others in every epoch
    costs = mode.costs(reducer, widths, engine.dtype, wire, exchanged_needs_grad=needs_grad)
    if costs is not None and layer.why_rows(engine) is None:
        return costs.source * messages.rows + costs.destination * messages.partials
    return (mode.fetches(reducer) + needs_grad) * reducer.row_bytes(widths, engine.dtype, wire) * messages.rows
