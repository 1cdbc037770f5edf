"""Message flows that are made before every step: of target nodes drawn anew, from samples of the edges into each row.

As ``shards.mfg``, from the last layer to the first:

    O_L = wanted rows        O_(l-1) = I_l = O_l + sources of the chosen edges into O_l

Rows are numbered in the order in which they are found, type by type, so that every layer's output rows are the first of its
input rows. Every worker chooses the edges into its own rows and tells the owners of halo rows which ones it reads.

Degrees are those of the sample: a row's in-degree counts the edges that it has chosen, its out-degree those that any output
row of the step's layer has chosen from it. A layer that keeps all edges has those of the whole graph.

Letters: N own rows, H halo rows, L layers, M output rows, R relations, T node types, P workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sargnn.comm.exchange import Exchange
from sargnn.partition.cut import Part, weight_sums
from sargnn.plan.copies import Copies
from sargnn.plan.draw_loops import count_chosen, count_peers, mark_chosen, split_by_peer
from sargnn.plan.in_edges import Chosen, InEdges, Sample
from sargnn.plan.layer_plan import RowCounts
from sargnn.plan.load import Layout, halo_lists, id_ranks_of, load_plan
from sargnn.plan.mfg import MessageFlow
from sargnn.plan.relations import Inward, Outward, RelationSplitter


@dataclass(frozen=True)
class DrawnLayer:
    """What one layer computes on this worker.

    Attributes:
        outputs, inputs: int32 per type, the own rows that it computes and reads, in their order.
        chosen: per relation the edges into its destination type's outputs; () where the layer does not aggregate.
        halo: bool [H], the halo rows that it reads. sends: per peer bool, which of the rows that it could need it does need.
        sampled: whether edges were left out. outward: what out-degrees are then; None: they were not asked for.
    """

    outputs: tuple[np.ndarray, ...]
    inputs: tuple[np.ndarray, ...]
    chosen: tuple[Chosen, ...]
    halo: np.ndarray
    sends: tuple[np.ndarray, ...]
    sampled: bool
    outward: tuple[Outward, ...] | None

    @property
    def edges(self) -> int:
        """Edges into its output rows."""
        return sum(len(edges.sources) for edges in self.chosen)


class FlowDrawer:
    """Makes message flows of one worker's part, fast. All workers must make one, and call its methods, together.

    Args:
        part: the worker's part, with self-loops if the model adds them.
        own_loops: it does.
        layout, device, message_rows, dtype: as ``load_plan``.
        splitter: gives every layer a plan of each relation; None: does not.
        copies: of a part that has some: an edge into a node counts once in out-degrees of a sample.
    """

    def __init__(
        self,
        part: Part,
        rank: int,
        layout: Layout,
        exchange: Exchange,
        *,
        own_loops: bool,
        device: torch.device,
        message_rows: int,
        dtype: torch.dtype,
        splitter: RelationSplitter | None,
        copies: Copies | None = None,
    ) -> None:
        self._copies = copies
        self._part, self._rank, self._layout, self._exchange = part, rank, layout, exchange
        self._device, self._message_rows, self._dtype, self._splitter = device, message_rows, dtype, splitter
        self._schema, self._bounds, self._num_rows = part.schema, part.row_bounds, len(part.node_ids)
        self._edges = InEdges(part, rank, own_loops=own_loops)
        self._id_ranks = id_ranks_of(part)
        self._lists = halo_lists(part, torch.device("cpu"))
        self._send_rows = [rows.numpy() for rows in self._lists.send_rows]
        self._owners = np.repeat(np.arange(exchange.group.world, dtype=np.int32), np.diff(part.halo_offsets))

    def layers(
        self, wanted: np.ndarray, uses_edges: Sequence[bool], sample: Sample | None, *, outward: bool
    ) -> tuple[DrawnLayer, ...]:
        """What the wanted rows depend on.

        Args:
            wanted: int64, own rows, ascending. uses_edges: per layer, whether it aggregates.
            sample: which edges are kept; None: all. outward: count also the edges out of rows.
        """
        rows, reached = self._rows_of(wanted)
        layers: list[DrawnLayer] = []
        for layer in range(len(uses_edges) - 1, -1, -1):
            drawn = self._layer(rows, reached, layer, sample, uses_edges=uses_edges[layer], outward=outward)
            layers.insert(0, drawn)
            rows = list(drawn.inputs)
        return tuple(layers)

    def outward(
        self, wanted: np.ndarray, uses_edges: Sequence[bool], sample: Sample | None
    ) -> list[tuple[Outward, ...] | None]:
        """Per layer what out-degrees are; nothing else is held of more than one layer."""
        rows, reached = self._rows_of(wanted)
        degrees: list[tuple[Outward, ...] | None] = []
        for layer in range(len(uses_edges) - 1, -1, -1):
            drawn = self._layer(rows, reached, layer, sample, uses_edges=uses_edges[layer], outward=True)
            degrees.insert(0, drawn.outward)
            rows = list(drawn.inputs)
            del drawn
        return degrees

    def _rows_of(self, wanted: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Wanted rows type by type, and bool [N], where they are."""
        rows = [np.ascontiguousarray(wanted[slice(*np.searchsorted(wanted, self._type(t)))], np.int32) for t in self._types]
        reached = np.zeros(self._num_rows, bool)
        reached[wanted] = True
        return rows, reached

    @property
    def _types(self) -> range:
        return range(len(self._bounds) - 1)

    def _type(self, number: int) -> tuple[int, int]:
        """A type's own rows."""
        return self._bounds[number], self._bounds[number + 1]

    def _layer(
        self,
        outputs: list[np.ndarray],
        reached: np.ndarray,
        layer: int,
        sample: Sample | None,
        *,
        uses_edges: bool,
        outward: bool,
    ) -> DrawnLayer:
        marks = np.zeros(self._num_rows + len(self._owners), np.uint8)
        chosen: list[Chosen] = []
        for number, relation in enumerate(self._schema.relations if uses_edges else ()):
            edges = self._edges.choose(outputs[relation.destination], number, layer, sample)
            mark_chosen(edges.sources, marks)
            chosen.append(edges)
        needed, halo = marks[: self._num_rows].astype(bool), marks[self._num_rows :].astype(bool)
        told = self._exchange.to_owners(self._lists, (torch.from_numpy(marks[self._num_rows :, None]),))
        sends = tuple(received[0].numpy()[:, 0].astype(bool) for received in told)
        for rows, send in zip(self._send_rows, sends, strict=True):
            needed[rows[send]] = True
        new = np.flatnonzero(needed & ~reached).astype(np.int32)
        reached[new] = True
        inputs = []
        for number in self._types:
            added = new[slice(*np.searchsorted(new, self._type(number)))]
            inputs.append(np.concatenate([outputs[number], added]) if len(added) else outputs[number])
        sampled = uses_edges and sample is not None and sample.fanouts[layer] >= 0
        out = self._outward(chosen, outputs) if outward and sampled else None
        return DrawnLayer(tuple(outputs), tuple(inputs), tuple(chosen), halo, sends, sampled, out)

    def _outward(self, chosen: Sequence[Chosen], outputs: list[np.ndarray]) -> tuple[Outward, ...]:
        """Per relation the edges out of own rows of its source type, and their weights.

        Args:
            outputs: int32 per type, the layer's output rows, into which edges were chosen.
        """
        relations, total = len(chosen), self._num_rows + len(self._owners)
        if self._copies is not None:
            chosen = self._counted(chosen, outputs, self._copies)
        counts, sums = np.zeros((relations, total), np.int32), []
        for number, edges in enumerate(chosen):
            count_chosen(edges.sources, counts[number])
            if (weights := self._part.columns.weight) is not None:
                sums.append(weight_sums(edges.sources, np.asarray(weights)[edges.edges], total))
        tables: list[Any] = [counts] if not sums else [counts, np.stack(sums)]
        halos = [torch.from_numpy(np.ascontiguousarray(table[:, self._num_rows :].T)) for table in tables]
        own = [table[:, : self._num_rows].T for table in tables]
        for rows, said in zip(self._send_rows, self._exchange.to_owners(self._lists, halos), strict=True):
            for table, received in zip(own, said, strict=True):
                table[rows] += received.numpy()
        if self._copies is not None:
            own = [self._copies.total(table) for table in own]
        runs = [slice(*self._type(relation.source)) for relation in self._schema.relations]
        return tuple(
            Outward(own[0][run, r].astype(np.int64), own[1][run, r].copy() if sums else None) for r, run in enumerate(runs)
        )

    def _counted(self, chosen: Sequence[Chosen], outputs: list[np.ndarray], copies: Copies) -> list[Chosen]:
        """The edges into those of a node's copies that count."""
        computed = np.full(self._num_rows, -1, np.int16)
        computed[np.concatenate(outputs)] = 1
        counts = copies.before(computed) < 1
        counted = []
        for number, edges in enumerate(chosen):
            rows = outputs[self._schema.relations[number].destination]
            degrees = np.diff(edges.offsets)
            kept = np.repeat(counts[rows], degrees)
            offsets = np.concatenate([[0], np.cumsum(degrees * counts[rows])])
            counted.append(Chosen(offsets, edges.sources[kept], edges.edges[kept] if len(edges.edges) else edges.edges))
        return counted

    def counts(self, layers: Sequence[DrawnLayer]) -> tuple[RowCounts, ...]:
        """Per layer, its rows over all workers."""
        own = [[_length(layer.inputs), _length(layer.outputs), int(layer.halo.sum())] for layer in layers]
        return tuple(RowCounts(*totals) for totals in self._exchange.group.sum_(torch.tensor(own)).tolist())

    def flow(self, layers: Sequence[DrawnLayer], outward: Sequence[tuple[Outward, ...] | None] | None = None) -> MessageFlow:
        """The message flow.

        Args:
            outward: per layer, the out-degrees of a whole step that these layers are a part of; theirs if not given.
        """
        plans = []
        places = np.empty(self._num_rows, np.int32)
        for number, (layer, counts) in enumerate(zip(layers, self.counts(layers), strict=True)):
            degrees = layer.outward if outward is None else outward[number]
            part, bounds, inward = self._restricted(layer, degrees, places)
            inputs, outputs = np.concatenate(layer.inputs), np.concatenate(layer.outputs)
            if self._splitter is not None:

                def restrict(part: Part = part, bounds: tuple[int, ...] = bounds) -> tuple[Part, tuple[int, ...]]:
                    return part, bounds

                plan = self._splitter.split(restrict, inputs, outputs, drawn=(inward, degrees) if layer.sampled else None)
            else:
                kept = np.flatnonzero(layer.halo)
                ranks = np.concatenate([self._id_ranks[inputs], self._id_ranks[self._num_rows + kept]])
                plan = load_plan(
                    part,
                    self._rank,
                    self._layout,
                    device=self._device,
                    message_rows=self._message_rows,
                    out_bounds=bounds,
                    dtype=self._dtype,
                    id_ranks=ranks,
                )
            plans.append(dataclasses.replace(plan, counts=counts))
        ends = (np.concatenate(rows).astype(np.int64) for rows in (layers[0].inputs, layers[-1].outputs))
        return MessageFlow(tuple(plans), *(torch.from_numpy(rows).to(self._device) for rows in ends))

    def _restricted(
        self, layer: DrawnLayer, outward: tuple[Outward, ...] | None, places: np.ndarray
    ) -> tuple[Part, tuple[int, ...], list[Inward]]:
        """The part of one layer, the bounds of its output rows, and per relation the edges into each of these."""
        part, world, relations = self._part, self._exchange.group.world, self._schema.relations
        inputs = np.concatenate(layer.inputs)
        places[inputs] = np.arange(len(inputs), dtype=np.int32)
        halo_offsets = np.concatenate([[0], np.cumsum(layer.halo)])[part.halo_offsets]
        halo_places = np.cumsum(layer.halo, dtype=np.int32) - 1 - halo_offsets[self._owners].astype(np.int32)
        out_bounds = _bounds(layer.outputs)

        counts = np.zeros((world, len(relations)), np.int64)
        for number, relation_edges in enumerate(layer.chosen):
            own = counts[:, number].copy()
            count_peers(relation_edges.sources, self._num_rows, self._rank, self._owners, own)
            counts[:, number] = own
        ends = np.concatenate([[0], np.cumsum(counts.ravel())])
        src, dst = (np.empty(ends[-1], np.int32) for _ in range(2))
        edges = np.empty(ends[-1] if part.columns else 0, np.int32)
        inward = []
        for number, relation_edges in enumerate(layer.chosen):
            cursor = ends[:-1].reshape(world, len(relations))[:, number].copy()
            split_by_peer(
                relation_edges.sources,
                relation_edges.edges,
                relation_edges.offsets,
                out_bounds[relations[number].destination],
                self._num_rows,
                self._rank,
                self._owners,
                places,
                halo_places,
                cursor,
                src,
                dst,
                edges,
            )
            inward.append(self._inward(relation_edges))
        degrees = self._whole_degrees(inputs)
        if layer.sampled:
            degrees = self._sampled_degrees(layer, inward, outward)
        send = [places[rows[chosen]] for rows, chosen in zip(self._send_rows, layer.sends, strict=True)]
        nothing = np.zeros(0, np.int64)
        restricted = dataclasses.replace(
            part,
            features=(),
            node_ids=self._edges.ids[inputs].astype(np.int64),
            labels=nothing,
            split=nothing,
            edge_src=src,
            edge_dst=dst,
            edge_offsets=ends,
            halo_ids=self._edges.ids[self._num_rows :][layer.halo].astype(np.int64),
            halo_offsets=halo_offsets,
            send_rows=np.concatenate(send),
            send_offsets=np.concatenate([[0], np.cumsum([len(sent) for sent in send])]).astype(np.int64),
            columns=part.columns.take(edges),
            **degrees,
        )
        return restricted, out_bounds, inward

    def _whole_degrees(self, inputs: np.ndarray) -> dict[str, Any]:
        """Of a part whose own rows are ``inputs``, the fields that say degrees: those in the whole graph."""
        names = ("in_degrees", "out_degrees", "in_weights", "out_weights")
        of_part = {name: getattr(self._part, name) for name in names}
        return {name: None if values is None else np.asarray(values)[inputs] for name, values in of_part.items()}

    def _sampled_degrees(
        self, layer: DrawnLayer, inward: Sequence[Inward], outward: tuple[Outward, ...] | None
    ) -> dict[str, Any]:
        """The same of the sample; without entries where out-degrees are not known."""
        bounds, relations, weighted = _bounds(layer.inputs), self._schema.relations, self._part.weighted
        in_degrees, out_degrees = np.zeros(bounds[-1], np.int64), np.zeros(bounds[-1] if outward else 0, np.int64)
        in_weights, out_weights = np.zeros(bounds[-1]), np.zeros(len(out_degrees))
        for relation, into in zip(relations, inward, strict=True):
            first = bounds[relation.destination]
            at = slice(first, first + len(into.degrees))
            in_degrees[at] += into.degrees
            if into.weights is not None:
                in_weights[at] += into.weights
        for relation, out in zip(relations, outward or (), strict=False):
            rows = layer.inputs[relation.source] - self._bounds[relation.source]
            at = slice(bounds[relation.source], bounds[relation.source + 1])
            out_degrees[at] += out.degrees[rows]
            if out.weights is not None:
                out_weights[at] += out.weights[rows]
        sums = {"in_weights": in_weights if weighted else None, "out_weights": out_weights if weighted else None}
        return {"in_degrees": in_degrees, "out_degrees": out_degrees, **sums}

    def _inward(self, chosen: Chosen) -> Inward:
        degrees, weights = np.diff(chosen.offsets), self._part.columns.weight
        if weights is None:
            return Inward(degrees)
        rows = np.repeat(np.arange(len(degrees)), degrees)
        return Inward(degrees, weight_sums(rows, np.asarray(weights)[chosen.edges], len(degrees)))


def _bounds(rows: Sequence[np.ndarray]) -> tuple[int, ...]:
    return tuple(int(bound) for bound in np.concatenate([[0], np.cumsum([len(own) for own in rows])]))


def _length(rows: Sequence[np.ndarray]) -> int:
    return sum(len(own) for own in rows)
