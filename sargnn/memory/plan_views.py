"""What the views of a run have on every worker: message flows, micro-batches, drawn steps, and parts of servers that preload.

The same functions choose as in a run (``training.fit``, ``batches``, ``training.steps``); only where a run's workers tell each
other what they need, nodes of the whole graph are marked here, layer by layer, on the parts that workers would open, one at a
time. As ``plan.mfg`` and ``plan.drawn`` do with an exchange for each layer, from the last one to the first:

    O_L = wanted nodes        O_(l-1) = I_l = O_l + sources of the (chosen) edges into O_l

Letters: N own rows of a worker, P workers, K micro-batches, S steps of an epoch, L layers, V nodes of the graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from sargnn.bf16 import ROW_DTYPES, wide
from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig
from sargnn.config.run import RunConfig
from sargnn.engine.aggregate import Engine
from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import ATTR, WEIGHT
from sargnn.memory.plan_pairs import PlannedPairs
from sargnn.memory.plan_parts import OpenParts, PartSizes, count_parts
from sargnn.memory.plan_traffic import MOST_CUT_EDGES, CutEdges, Messages
from sargnn.models.base import Model
from sargnn.models.inputs import GraphShape
from sargnn.partition.preload import Bounds
from sargnn.plan.drawn import Sample
from sargnn.plan.layer_plan import RowCounts
from sargnn.plan.mfg import spans_of
from sargnn.plan.sizes import Sizes
from sargnn.plan.target_groups import TargetRows, group_in_order, group_targets
from sargnn.tasks.kinds import in_split
from sargnn.training.build import layer_shares
from sargnn.training.fit import LOOKED_AT, draws_views, evaluation_sample, holds_constants, sampler, trains_in_batches
from sargnn.training.steps import check_count, most_of, shuffled_steps
from sargnn.training.views import layers_with_edges

_NEVER = -1
Chosen = tuple[np.ndarray, Sample | None]
"""Nodes (int64) whose outputs are wanted, and which edges are kept; None: all."""


@dataclass(frozen=True)
class Reached:
    """A view on one worker; ``counts`` and ``messages``, per layer, are of all workers that exchange rows with it."""

    sizes: Sizes
    counts: tuple[RowCounts, ...]
    messages: tuple[Messages, ...]


@dataclass(frozen=True)
class WorkerViews:
    """A worker's views.

    Attributes:
        training: of a step, or of the first steps of an epoch; (): all rows.
        evaluation: what evaluations read; None: all rows.
        whole: all rows, where the worker has copies of other servers' nodes; else the part says it.
        drawer_bytes: of what flows are drawn from.
        constant_rows: whose aggregates of constant rows all steps share.
        step_bytes, evaluation_bytes: what a view, and an evaluation, hold of pairs, beside its rows.
        queries: what a training view, and one of an evaluation, asks; 0: nothing.
    """

    training: tuple[Reached, ...]
    evaluation: Reached | None
    whole: Reached | None
    drawer_bytes: int
    constant_rows: int
    step_bytes: int = 0
    evaluation_bytes: int = 0
    queries: tuple[int, int] = (0, 0)


def has_views(config: RunConfig) -> bool:
    """Whether a run computes something else than full batches of all rows, each on one worker."""
    return config.mfg or config.batches != BatchesConfig() or config.draws_flows or config.may_preload or config.asks_queries


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
        self._split = np.ones(dataset.num_nodes, np.uint8) if config.predicts_pairs else np.asarray(dataset.split)
        self._pairs = PlannedPairs(config, dataset) if config.predicts_pairs else None
        self._weight_bytes = wide(ROW_DTYPES[config.precision]).itemsize
        self.training, self._cut = cache(self._make_training), cache(self._find_cut)

    @property
    def label_columns(self) -> int:
        return self._shape.label_columns

    @property
    def most_batches(self) -> int:
        if self._pairs is None:
            return most_of(self._targets)
        return 1 if self._config.asks_queries and self._model.norms_over_rows else self._pairs.most

    @property
    def _targets(self) -> list[int]:
        return [sizes.targets for sizes in self._part_sizes]

    def worker(self, rank: int, count: int) -> WorkerViews:
        whole = self._whole[rank] if self._preloads else None
        drawer = self._drawer_bytes[rank]
        constants = self._constants[rank] if draws_views(self._config) and self._holds_constants else 0
        worker = WorkerViews(self.training(count)[rank], self._evaluation[rank], whole, drawer, constants)
        if (pairs := self._pairs) is None:
            return worker
        held = pairs.step_bytes(count), pairs.evaluation_bytes()
        return dataclasses.replace(worker, step_bytes=held[0], evaluation_bytes=held[1], queries=pairs.queries(count))

    def part_sizes(self, rank: int) -> PartSizes:
        return self._part_sizes[rank]

    @cached_property
    def _part_sizes(self) -> list[PartSizes]:
        return count_parts(self.parts)

    @cached_property
    def _drawer_bytes(self) -> list[int]:
        return [self.parts[rank].drawer_bytes if draws_views(self._config) else 0 for rank in range(self._config.world)]

    def _make_training(self, count: int) -> list[tuple[Reached, ...]]:
        config, train = self._config, in_split(self._split, "train")
        if not trains_in_batches(config):
            if not config.mfg:
                return [(self._whole[rank],) for rank in range(config.world)] if self._preloads else [()] * config.world
            nodes = np.flatnonzero(train)
            if self._are_all(nodes):
                return [()] * config.world
            return self._reached([(nodes, None)], self._model.uses_edges)
        sample_of = sampler(config, self._model) if config.samples else lambda *_: None
        if self._pairs is not None:
            drawn = [(nodes, sample_of(step, 0)) for step, nodes in self._pairs.nodes(count)]
            return self._reached(drawn, self._uses_edges(self._holds_constants), shared=False)
        check_count(count, self._targets)
        group_of = np.where(train, 0, -1)
        if count > 1:
            group_of = self._groups(train, lambda targets: group_targets(config.batches.by, targets, count))
        if not config.draws_flows:
            chosen = [(np.flatnonzero(group_of == number), None) for number in range(count)]
            return self._reached(chosen, self._uses_edges(self._holds_constants))
        ids = np.flatnonzero(group_of >= 0)
        step_of = shuffled_steps(ids, config.seed, 0, config.batches.steps, Group.single())
        drawn = [
            (nodes, sample_of(step, 0))
            for step in range(min(config.batches.steps, LOOKED_AT))
            for number in range(count)
            if len(nodes := ids[(step_of == step) & (group_of[ids] == number)])
        ]
        return self._reached(drawn, self._uses_edges(self._holds_constants), shared=False)

    def _are_all(self, nodes: np.ndarray) -> bool:
        """Whether what reaches some nodes is the whole flow: they are all nodes of the labelled type, and nobody has copies."""
        return not self._preloads and len(nodes) == self._dataset.schema.count(self._shape.labelled)

    def _groups(self, nodes: np.ndarray, group: Callable[[TargetRows], np.ndarray]) -> np.ndarray:
        """Which group each of some nodes (bool [V]) is in on its worker, int32 [V]; -1: it is none of them."""
        config, groups = self._config, np.full(len(nodes), -1, np.int32)
        for rank in range(config.world):
            opened = self.parts[rank]
            rows = np.flatnonzero(nodes[opened.own_ids] & opened.inner)
            groups[opened.own_ids[rows]] = group(TargetRows(opened.part, opened.place, rows, config.seed, config.prepare.bytes))
        return groups

    @cached_property
    def _evaluation(self) -> Sequence[Reached | None]:
        config, nodes = self._config, np.flatnonzero(self._split > 0)
        uses_edges = self._model.uses_edges
        if config.eval == "sampled":
            chosen = self._reached([(nodes, evaluation_sample(config, self._model))], uses_edges, shared=False)
        elif config.mfg and not self._are_all(nodes):
            chosen = self._reached([(nodes, None)], uses_edges)
        else:
            return [None] * config.world
        return [reached for (reached,) in chosen]

    def evaluation_in_groups(self, count: int) -> list[tuple[Reached, ...]]:
        """By worker, the views of an evaluation in so many groups of its rows, in their order."""
        group_of = self._groups(self._split > 0, lambda targets: group_in_order(targets, count))
        chosen = [(np.flatnonzero(group_of == number), None) for number in range(count)]
        return self._reached(chosen, self._uses_edges(False))

    @cached_property
    def _whole(self) -> list[Reached]:
        """All rows that servers compute for their own nodes; targets are training rows."""
        first, last = self._dataset.schema.offsets[self._shape.labelled : self._shape.labelled + 2]
        by_worker = self._reached([(np.arange(first, last), None)], self._model.uses_edges, all_hidden=True)
        whole = []
        for rank, (reached,) in enumerate(by_worker):
            counts = reached.sizes.counts | {("targets", -1, -1): self.part_sizes(rank).targets}
            whole.append(dataclasses.replace(reached, sizes=dataclasses.replace(reached.sizes, counts=counts)))
        return whole

    @cached_property
    def _constants(self) -> list[int]:
        """By worker, rows that the first layer computes for any training node."""
        nodes = np.flatnonzero(in_split(self._split, "train"))
        by_worker = self._reached([(nodes, None)], self._uses_edges(True), shared=False)
        return [reached.sizes.counts["out", 0, -1] for (reached,) in by_worker]

    def _reached(
        self, chosen: Sequence[Chosen], uses_edges: Sequence[bool], *, shared: bool = True, all_hidden: bool = False
    ) -> list[tuple[Reached, ...]]:
        """By worker, what some nodes' outputs depend on.

        Args:
            uses_edges: per layer, whether it aggregates.
            shared: cut edges are shared out.
            all_hidden: all layers but the last compute all nodes of their server.
        """
        at_once = max(1, self._config.prepare.bytes // (2 * self.parts.num_nodes))
        by_worker: list[tuple[Reached, ...]] = []
        for ranks in self.parts.servers:
            by_view: list[list[Reached]] = []
            for first in range(0, len(chosen), at_once):
                some = chosen[first : first + at_once]
                by_view += self._reach(ranks, some, uses_edges, shared=shared, all_hidden=all_hidden)
            by_worker += [tuple(of_view[place] for of_view in by_view) for place in range(len(ranks))]
        return by_worker

    def _reach(
        self, ranks: range, chosen: Sequence[Chosen], uses_edges: Sequence[bool], *, shared: bool, all_hidden: bool
    ) -> list[list[Reached]]:
        """By view, then by worker, of a server; the arguments as of ``_reached``."""
        of_server = (self._part >= ranks.start) & (self._part < ranks.stop)
        num_layers, types = len(uses_edges), len(self._dataset.schema.node_types)
        depths = [np.where(of_server & all_hidden, num_layers - 1, _NEVER).astype(np.int16) for _ in chosen]
        for (nodes, _), depth in zip(chosen, depths, strict=True):
            depth[nodes[of_server[nodes]]] = num_layers
        edges = np.zeros((len(chosen), len(ranks), num_layers), np.int64)
        halo = np.zeros_like(edges)
        for layer in range(num_layers, 0, -1):
            for place, rank in enumerate(ranks if uses_edges[layer - 1] else ()):
                opened = self.parts[rank]
                for number, ((_, sample), depth) in enumerate(zip(chosen, depths, strict=True)):
                    outputs = depth[opened.own_ids] >= layer
                    read, edges[number, place, layer - 1] = opened.mark(outputs, layer - 1, sample)
                    halo[number, place, layer - 1] = read[len(opened.own_ids) :].sum()
                    nodes = opened.read_ids[read]
                    depth[nodes[depth[nodes] < layer - 1]] = layer - 1
        sizes: list[list[Sizes]] = [[] for _ in chosen]
        for place, rank in enumerate(ranks):
            opened = self.parts[rank]
            edge_bytes = 8 + (self._weight_bytes if opened.part.weighted else 0)
            for number, depth in enumerate(depths):
                own = depth[opened.own_ids]
                rows = [np.bincount(opened.types[own >= least], minlength=types).tolist() for least in range(num_layers + 1)]
                read_and_edges = edges[number, place].tolist(), halo[number, place].tolist(), edge_bytes
                targets = int((own[opened.inner] == num_layers).sum())
                sizes[number].append(Sizes.of(len(own), targets, rows[:-1], rows[1:], *read_and_edges))
        cut = self._shared_cut(ranks) if shared else None
        return [self._joined(*of_view, cut) for of_view in zip(sizes, depths, edges, strict=True)]

    def _joined(self, sizes: list[Sizes], depth: np.ndarray, edges: np.ndarray, cut: CutEdges | None) -> list[Reached]:
        """One view of all workers of a server. ``cut``: the edges that are shared out; None: every row that is read travels."""
        layers = range(edges.shape[1])
        read = [tuple(of_worker.halo[layer] for of_worker in sizes) for layer in layers]
        rows, out = (
            [sum(of_worker.counts[kind, layer, -1] for of_worker in sizes) for layer in layers] for kind in ("rows", "out")
        )
        counts = tuple(map(RowCounts, rows, out, map(sum, read)))
        messages = [Messages(sum(of_layer), 0, of_layer) for of_layer in read]
        if cut is not None:
            shares = layer_shares(self._config, self._model.partial_costs(self._engine, counts))
            for layer in layers:
                if edges[:, layer].any():
                    own = np.ascontiguousarray(edges[:, layer])
                    messages[layer] = cut.into(depth > layer, own).shared_by(shares[layer])
        results = tuple(layer.partials // len(sizes) for layer in messages)
        received = zip(*(layer.received for layer in messages), strict=True)
        return [
            Reached(dataclasses.replace(of_worker, halo=halo, results=results), counts, tuple(messages))
            for of_worker, halo in zip(sizes, received, strict=True)
        ]

    def _shared_cut(self, ranks: range) -> CutEdges | None:
        """The edges between a server's workers; None: none of them are shared out, or they are too many for it here."""
        rows_only = self._config.comm.aggregate == "post" or not self._engine.mode.takes_partials
        return None if len(ranks) == 1 or rows_only else self._cut(ranks)

    def _find_cut(self, ranks: range) -> CutEdges | None:
        sources, destinations, sizes, relations = [], [], [0], len(self._dataset.schema.relations)
        for place, rank in enumerate(ranks):
            opened = self.parts[rank]
            for number, (rows, span) in enumerate(spans_of(opened.part, place)):
                crossing = span if number // relations != place else slice(0, 0)
                sources.append(opened.read_ids[rows][opened.part.edge_src[crossing]])
                destinations.append(opened.read_ids[opened.part.edge_dst[crossing]])
                sizes.append(sizes[-1] + len(sources[-1]))
            if sizes[-1] > MOST_CUT_EDGES:
                return None
        own, bounds = np.zeros(len(ranks), np.int64), np.array(sizes[::relations])
        return CutEdges(len(ranks), own, bounds, np.concatenate(sources), np.concatenate(destinations))

    def _uses_edges(self, holds_constants: bool) -> list[bool]:
        return layers_with_edges(self._model, self._shape.label_columns, holds_constants=holds_constants)
