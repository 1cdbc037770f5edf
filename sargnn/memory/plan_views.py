"""What the views of a run have on every worker: message flows, micro-batches, drawn steps, and parts of servers that preload.

The same functions choose as in a run (``training.fit``, ``batches``, ``training.steps``); only where a run's workers tell each
other what they need, nodes of the whole graph are marked here, layer by layer, on the parts that workers would open, one at a
time. As ``plan.mfg`` and ``plan.drawn`` do with an exchange for each layer, from the last one to the first:

    O_L = wanted nodes        O_(l-1) = I_l = O_l + sources of the (chosen) edges into O_l

Letters: N own rows of a worker, P workers, K micro-batches, S steps of an epoch, L layers, V nodes of the graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from sargnn.bf16 import ROW_DTYPES, wide
from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig
from sargnn.config.run import RunConfig
from sargnn.engine.aggregate import Engine
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import ATTR, WEIGHT
from sargnn.memory.plan_parts import Opened, OpenParts, PartSizes
from sargnn.memory.plan_traffic import MOST_CUT_EDGES, CutEdges, Messages
from sargnn.models.base import Model
from sargnn.models.inputs import GraphShape
from sargnn.partition.preload import Bounds
from sargnn.plan.drawn import Sample
from sargnn.plan.layer_plan import RowCounts
from sargnn.plan.sizes import Sizes, rows_by_depth
from sargnn.plan.target_groups import TargetRows, group_in_order, group_targets
from sargnn.tasks.kinds import in_split
from sargnn.training.build import layer_shares
from sargnn.training.fit import LOOKED_AT, evaluation_sample, holds_constants, sample_numbered, trains_in_batches
from sargnn.training.steps import shuffled_steps

_NEVER = -1
Travelling = Callable[[np.ndarray, np.ndarray, tuple[RowCounts, ...]], Sequence[Messages] | None]
"""What travels in each layer's exchange, from the last layer that computes each node (int16 [V]), each worker's edges into the
rows of each layer (int64 [P, L]) and the counts of rows; None: every row that is read."""


@dataclass(frozen=True)
class Wanted:
    """What a view is for.

    Attributes:
        nodes: int64, whose outputs are wanted.
        sample: which edges are kept; None: all.
        uses_edges: per layer, whether it aggregates.
        hidden: int64, nodes that all layers but the last compute in any case.
    """

    nodes: np.ndarray
    sample: Sample | None
    uses_edges: tuple[bool, ...]
    hidden: np.ndarray | None = None


@dataclass(frozen=True)
class Reached:
    """A view on one worker; ``counts`` and ``messages``, per layer, are of all workers that exchange rows with it."""

    sizes: Sizes
    counts: tuple[RowCounts, ...]
    messages: tuple[Messages, ...]


def reach(
    parts: OpenParts,
    ranks: range,
    views: Sequence[Wanted],
    weight_bytes: int,
    buffer_bytes: int,
    serving: Travelling | None = None,
) -> list[list[Reached]]:
    """What each of some views has on each of some workers, which exchange rows with each other only: by view, by worker.

    Args:
        weight_bytes: of an edge's weight where the parts have any.
        buffer_bytes: of marks; as many views are looked at together as they suffice for.
        serving: what travels where it is not every row that is read.
    """
    at_once = max(1, buffer_bytes // (2 * parts.num_nodes))
    by_view: list[list[Reached]] = []
    for first in range(0, len(views), at_once):
        by_view += _reach(parts, ranks, views[first : first + at_once], weight_bytes, serving)
    return by_view


def _reach(
    parts: OpenParts, ranks: range, views: Sequence[Wanted], weight_bytes: int, serving: Travelling | None
) -> list[list[Reached]]:
    num_layers = len(views[0].uses_edges) if views else 0
    depths = [np.full(parts.num_nodes, _NEVER, np.int16) for _ in views]
    for view, depth in zip(views, depths, strict=True):
        if view.hidden is not None:
            depth[view.hidden] = num_layers - 1
        depth[view.nodes] = num_layers
    edges = np.zeros((len(views), len(ranks), num_layers), np.int64)
    halo = np.zeros_like(edges)
    for layer in range(num_layers, 0, -1):
        for place, rank in enumerate(ranks if any(wanted.uses_edges[layer - 1] for wanted in views) else ()):
            opened = parts[rank]
            for number, (view, depth) in enumerate(zip(views, depths, strict=True)):
                if not view.uses_edges[layer - 1]:
                    continue
                outputs = depth[opened.read_ids[: len(opened.inner)]] >= layer
                read, edges[number, place, layer - 1] = opened.sources(outputs, layer - 1, view.sample)
                halo[number, place, layer - 1] = read[len(opened.inner) :].sum()
                nodes = opened.read_ids[read]
                depth[nodes[depth[nodes] < layer - 1]] = layer - 1
    by_rank = []
    for place, rank in enumerate(ranks):
        opened, own = parts[rank], []
        for number, (view, depth) in enumerate(zip(views, depths, strict=True)):
            own.append(_sizes(opened, depth, view, edges[number, place], halo[number, place], weight_bytes))
        by_rank.append(own)
    return [_joined([own[number] for own in by_rank], depths[number], edges[number], serving) for number in range(len(views))]


def _sizes(opened: Opened, depth: np.ndarray, view: Wanted, edges: np.ndarray, halo: np.ndarray, weight_bytes: int) -> Sizes:
    own, num_layers = depth[np.asarray(opened.part.node_ids)], len(view.uses_edges)
    targets = int((own[opened.inner] == num_layers).sum())
    by_depth = rows_by_depth(opened.types, own, num_layers, len(opened.part.schema.node_types))
    edge_bytes = 8 + (weight_bytes if opened.part.weighted else 0)
    return Sizes.of(len(own), targets, by_depth[:-1], by_depth[1:], edges.tolist(), halo.tolist(), edge_bytes)


def _joined(sizes: list[Sizes], depth: np.ndarray, edges: np.ndarray, serving: Travelling | None) -> list[Reached]:
    counts = tuple(
        RowCounts(
            sum(worker_sizes.counts["rows", layer, -1] for worker_sizes in sizes),
            sum(worker_sizes.counts["out", layer, -1] for worker_sizes in sizes),
            sum(worker_sizes.halo[layer] for worker_sizes in sizes),
        )
        for layer in range(edges.shape[1])
    )
    read = [tuple(worker_sizes.halo[layer] for worker_sizes in sizes) for layer in range(edges.shape[1])]
    messages: Sequence[Messages] | None = None if serving is None else serving(depth, edges, counts)
    if messages is None:
        messages = [Messages(sum(rows), 0, rows) for rows in read]
    return [
        Reached(
            dataclasses.replace(
                worker_sizes,
                halo=tuple(layer.received[place] for layer in messages),
                results=tuple(layer.partials // len(sizes) for layer in messages),
            ),
            counts,
            tuple(messages),
        )
        for place, worker_sizes in enumerate(sizes)
    ]


@dataclass(frozen=True)
class WorkerViews:
    """A worker's views.

    Attributes:
        training: of a step, or of the first steps of an epoch; (): all rows.
        evaluation: what evaluations read; None: all rows.
        whole: all rows, where the worker has copies of other servers' nodes; else the part says it.
        drawer_bytes: of what flows are drawn from.
        constant_rows: whose aggregates of constant rows all steps share.
    """

    training: tuple[Reached, ...]
    evaluation: Reached | None
    whole: Reached | None
    drawer_bytes: int
    constant_rows: int


def has_views(config: RunConfig) -> bool:
    """Whether a run computes something else than full batches of all rows, each on one worker."""
    return config.mfg or config.batches != BatchesConfig() or config.draws_flows or config.may_preload


class Views:
    """Counts views of one configuration's workers.

    Args:
        part: int32 [V], each node's owner.
        store: the partition's folder; None: parts are cut from the dataset.

    Attributes:
        training: for a number of micro-batches, by worker, the views of a step; of drawn ones those of an epoch's first steps.
            Raises ``ConfigError``: there are more micro-batches than a worker has training nodes.
    """

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        part: np.ndarray,
        store: Path | None,
        shape: GraphShape,
        engine: Engine,
        model: Model,
    ) -> None:
        self._config, self._dataset, self._part, self._shape = config, dataset, part, shape
        self._engine, self._model = engine, model
        self._preloads, self._holds_constants = config.may_preload, holds_constants(config, model, engine)
        preload = config.preload
        bounds = Bounds(sum(model.uses_edges), preload.max_hop, preload.fanout, config.seed) if self._preloads else None
        columns = [*([WEIGHT] if shape.weighted else []), *([ATTR] if shape.edge_width else [])]
        self.parts = OpenParts(config, dataset, part, store, bounds, columns=columns)
        self._split = np.asarray(dataset.split)
        self._weight_bytes = wide(ROW_DTYPES[config.precision]).itemsize
        self.training, self._cut = cache(self._make_training), cache(self._find_cut)

    @property
    def label_columns(self) -> int:
        return self._shape.label_columns

    @cached_property
    def most_batches(self) -> int:
        sizes = np.bincount(self._part[in_split(self._split, "train")], minlength=self._config.world)
        return int(min((size for size in sizes if size), default=1))

    def worker(self, rank: int, count: int) -> WorkerViews:
        whole = self._whole[rank] if self._preloads else None
        drawer = self._parts_and_drawers[1][rank]
        constants = self._constants[rank] if self._config.draws_flows and self._holds_constants else 0
        return WorkerViews(self.training(count)[rank], self._evaluation[rank], whole, drawer, constants)

    def part_sizes(self, rank: int) -> PartSizes:
        return self._parts_and_drawers[0][rank]

    @cached_property
    def _parts_and_drawers(self) -> tuple[list[PartSizes], list[int]]:
        """By worker, its part, and bytes of what its flows are drawn from; each part is opened once."""
        types, relations = len(self._dataset.schema.node_types), len(self._dataset.schema.relations)
        sizes, drawers, sent = [], [], np.zeros(self._config.world, np.int64)
        for ranks in self.parts.servers:
            for rank in ranks:
                opened = self.parts[rank]
                part, inner = opened.part, opened.inner
                sent[ranks.start : ranks.stop] += np.diff(part.halo_offsets)
                split = np.asarray(part.split) * inner
                edges = np.diff(part.edge_offsets).reshape(-1, relations).sum(0)
                rows, own = (np.bincount(opened.types[kept], minlength=types) for kept in (slice(None), inner))
                sizes.append(
                    PartSizes(
                        tuple(rows.tolist()),
                        tuple(edges.tolist()),
                        len(part.halo_ids),
                        0,
                        int(in_split(split, "train").sum()),
                        int((split > 0).sum()),
                        inner=tuple(own.tolist()),
                    )
                )
                drawers.append(_drawer_bytes(opened) if self._config.draws_flows else 0)
        return [dataclasses.replace(part_sizes, sent=int(rows)) for part_sizes, rows in zip(sizes, sent, strict=True)], drawers

    def _make_training(self, count: int) -> list[tuple[Reached, ...]]:
        config = self._config
        if not trains_in_batches(config):
            if not config.mfg:
                return [(self._whole[rank],) for rank in range(config.world)] if self._preloads else [()] * config.world
            nodes = np.flatnonzero(in_split(self._split, "train"))
            if self._are_all(nodes):
                return [()] * config.world
            return self._reached([(nodes, None)], tuple(self._model.uses_edges))
        if count > self.most_batches:
            raise ConfigError(
                "There are more micro-batches than a worker has training nodes.",
                given=f"batches.count={count}",
                allowed=f"1 to {self.most_batches}",
            )
        group_of = self._groups(count)
        if not config.draws_flows:
            chosen = [(np.flatnonzero(group_of == number), None) for number in range(count)]
            return self._reached(chosen, self._uses_edges(self._holds_constants))
        ids = np.flatnonzero(group_of >= 0)
        step_of, steps = shuffled_steps(ids, config.seed, 0, config.batches.steps, Group.single()), config.batches.steps
        drawn: list[tuple[np.ndarray, Sample | None]] = []
        for step in range(min(steps, LOOKED_AT)):
            number = step if config.sample.every == "step" else 0
            sample = sample_numbered(config, self._model, number) if config.samples else None
            own = ids[step_of == step]
            drawn += [(nodes, sample) for number in range(count) if len(nodes := own[group_of[own] == number])]
        return self._reached(drawn, self._uses_edges(self._holds_constants), shared=False)

    def _are_all(self, nodes: np.ndarray) -> bool:
        """Whether what reaches some nodes is the whole flow: they are all nodes of the labelled type, and nobody has copies."""
        return not self._preloads and len(nodes) == self._dataset.schema.count(self._shape.labelled)

    def _groups(self, count: int) -> np.ndarray:
        """Each training node's micro-batch, int32 [V]; -1: it is none."""
        config, train = self._config, in_split(self._split, "train")
        groups = np.where(train, 0, -1).astype(np.int32)
        for opened, rows in self._own_rows(train) if count > 1 else ():
            targets = TargetRows(opened.part, opened.place, rows, config.seed, config.prepare.bytes)
            groups[np.asarray(opened.part.node_ids)[rows]] = group_targets(config.batches.by, targets, count)
        return groups

    def _own_rows(self, nodes: np.ndarray) -> Iterator[tuple[Opened, np.ndarray]]:
        """Each worker's part, and which of its rows are some nodes (bool [V]) and no copies."""
        for rank in range(self._config.world):
            opened = self.parts[rank]
            yield opened, np.flatnonzero(nodes[np.asarray(opened.part.node_ids)] & opened.inner)

    @cached_property
    def _evaluation(self) -> Sequence[Reached | None]:
        config, nodes = self._config, np.flatnonzero(self._split > 0)
        uses_edges = tuple(self._model.uses_edges)
        if config.eval == "sampled":
            chosen = self._reached([(nodes, evaluation_sample(config, self._model))], uses_edges, shared=False)
        elif config.mfg and not self._are_all(nodes):
            chosen = self._reached([(nodes, None)], uses_edges)
        else:
            return [None] * config.world
        return [reached for (reached,) in chosen]

    def evaluation_in_groups(self, count: int) -> list[tuple[Reached, ...]]:
        """By worker, the views of an evaluation in so many groups of its rows, in their order."""
        group_of = np.full(len(self._split), -1, np.int32)
        for opened, rows in self._own_rows(self._split > 0):
            targets = TargetRows(opened.part, opened.place, rows, 0, 0)
            group_of[np.asarray(opened.part.node_ids)[rows]] = group_in_order(targets, count)
        chosen = [(np.flatnonzero(group_of == number), None) for number in range(count)]
        return self._reached(chosen, self._uses_edges(False))

    @cached_property
    def _whole(self) -> list[Reached]:
        """All rows that servers compute for their own nodes."""
        schema, by_worker = self._dataset.schema, []
        first, last = schema.offsets[self._shape.labelled : self._shape.labelled + 2]
        for ranks in self.parts.servers:
            inner = np.flatnonzero((self._part >= ranks.start) & (self._part < ranks.stop))
            labelled = inner[(inner >= first) & (inner < last)]
            view = Wanted(labelled, None, tuple(self._model.uses_edges), inner)
            (reached,) = self._reach(ranks, [view])
            for rank, of_worker in zip(ranks, reached, strict=True):
                targets = int((in_split(self._split, "train") & (self._part == rank)).sum())
                sizes = dataclasses.replace(of_worker.sizes, counts=of_worker.sizes.counts | {("targets", -1, -1): targets})
                by_worker.append(dataclasses.replace(of_worker, sizes=sizes))
        return by_worker

    @cached_property
    def _constants(self) -> list[int]:
        """By worker, rows that the first layer computes for any training node."""
        nodes = np.flatnonzero(in_split(self._split, "train"))
        by_worker = self._reached([(nodes, None)], self._uses_edges(True), shared=False)
        return [reached.sizes.counts["out", 0, -1] for (reached,) in by_worker]

    def _reached(
        self, chosen: Sequence[tuple[np.ndarray, Sample | None]], uses_edges: tuple[bool, ...], *, shared: bool = True
    ) -> list[tuple[Reached, ...]]:
        """By worker, what some nodes' outputs depend on. ``shared``: cut edges are shared out."""
        by_worker: list[tuple[Reached, ...]] = []
        for ranks in self.parts.servers:
            of_server = (self._part >= ranks.start) & (self._part < ranks.stop)
            views = [Wanted(nodes[of_server[nodes]], sample, uses_edges) for nodes, sample in chosen]
            by_view = self._reach(ranks, views, shared=shared)
            by_worker += [tuple(of_view[place] for of_view in by_view) for place in range(len(ranks))]
        return by_worker

    def _reach(self, ranks: range, views: Sequence[Wanted], *, shared: bool = True) -> list[list[Reached]]:
        serving = self._serving(ranks) if shared else None
        return reach(self.parts, ranks, views, self._weight_bytes, self._config.prepare.bytes, serving)

    def _serving(self, ranks: range) -> Travelling | None:
        """What travels between a server's workers where partial results do."""
        rows_only = self._config.comm.aggregate == "post" or not self._engine.mode.takes_partials
        cut = None if len(ranks) == 1 or rows_only else self._cut(ranks)
        if cut is None:
            return None

        def serving(depth: np.ndarray, edges: np.ndarray, counts: tuple[RowCounts, ...]) -> list[Messages]:
            shares = layer_shares(self._config, self._model.partial_costs(self._engine, counts))
            messages = []
            for layer, share in enumerate(shares):
                own = np.ascontiguousarray(edges[:, layer])
                if not own.any():
                    messages.append(Messages(0, 0, (0,) * len(ranks)))
                    continue
                messages.append(cut.into(depth > layer, own).shared_by(share))
            return messages

        return serving

    def _find_cut(self, ranks: range) -> CutEdges | None:
        """The edges between a server's workers; None: too many to be shared out here."""
        sources, destinations, sizes, relations = [], [], [0], len(self._dataset.schema.relations)
        for place, rank in enumerate(ranks):
            part = self.parts[rank].part
            for peer in range(len(ranks)):
                span = slice(int(part.edge_offsets[peer * relations]), int(part.edge_offsets[(peer + 1) * relations]))
                if peer == place:
                    span = slice(0, 0)
                halo = np.asarray(part.halo_ids[part.halo_offsets[peer] : part.halo_offsets[peer + 1]], np.int64)
                sources.append(halo[part.edge_src[span]])
                destinations.append(np.asarray(part.node_ids, np.int64)[part.edge_dst[span]])
                sizes.append(len(sources[-1]))
            if sum(sizes) > MOST_CUT_EDGES:
                return None
        own, bounds = np.zeros(len(ranks), np.int64), np.cumsum(sizes)
        return CutEdges(len(ranks), own, bounds, np.concatenate(sources), np.concatenate(destinations))

    def _uses_edges(self, holds_constants: bool) -> tuple[bool, ...]:
        """As ``training.views.ViewBuilder.uses_edges``."""
        first, *others = self._model.uses_edges
        return (first and (self._shape.label_columns > 0 or not holds_constants), *others)


def _drawer_bytes(opened: Opened) -> int:
    """Of a part's edges by destination (``plan.drawn``)."""
    part, rows, ids = opened.part, len(opened.inner), len(opened.read_ids)
    loops = rows if opened.loops else 0
    edges = len(part.edge_src) + loops
    sources = 0 if len(part.halo_offsets) == 2 else edges * 4
    held = edges * 8 if loops else 0  # a part with self-loops is none that is mapped from the store
    begins = sum(8 * int((opened.types == relation.destination).sum()) for relation in part.schema.relations)
    return sources + held + begins + ids * (4 + 4) + len(part.halo_ids) * 4 + (edges * 4 if part.weighted else 0)
