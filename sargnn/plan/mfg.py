"""Message-flow graphs: in each layer only the rows that reach a row whose output is wanted.

The last layer computes the wanted rows W; layer l computes what layer l + 1 reads, its own output rows and their in-neighbours:

    O_L = W        O_(l-1) = I_l = O_l + sources of all edges into O_l

Every worker marks the halo rows that it reads and tells their owners, one round of the exchange per layer. The sets are nested,
so with the own rows in the order of how many layers need them, every layer's output rows are the first of its input rows (of
each type): nothing is gathered to find them.

Letters: N own rows, H halo rows, L layers, T node types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.exchange import Exchange
from sargnn.partition.part import Part, WeightedDegrees, offsets_of
from sargnn.plan.cover import Share
from sargnn.plan.layer_plan import LayerPlan, RowCounts
from sargnn.plan.load import PlanSettings, halo_lists
from sargnn.plan.loops import count_into, mark_sources, renumber
from sargnn.plan.partials import load_shared_plan

if TYPE_CHECKING:
    from sargnn.plan.relations import RelationSplitter, Restricted


@dataclass(frozen=True)
class MessageFlow:
    """Which rows every layer computes, from which.

    Attributes:
        plans: one per layer.
        input_rows: int64, the own rows that the first layer reads, in its order; None: all, in the part's order.
        output_rows: int64, the own rows that the last layer computes, in its order; None: all.
    """

    plans: tuple[LayerPlan, ...]
    input_rows: Tensor | None = None
    output_rows: Tensor | None = None

    def own_inputs(self, rows: Tensor) -> Tensor:
        """Of own rows [N, ...] those that the first layer reads."""
        return rows if self.input_rows is None else rows.index_select(0, self.input_rows.to(rows.device))

    def rows_of(self, layer: int, num_rows: int) -> Tensor:
        """int64, the own rows that a layer computes, in its order.

        Args:
            layer: from 0.
        num_rows: N.
        """
        device = self.plans[0].node_ids.device
        rows = torch.arange(num_rows, device=device) if self.input_rows is None else self.input_rows
        for plan in self.plans[: layer + 1]:
            rows = plan.self_rows(rows)
        return rows

    def own_outputs(self, rows: Tensor) -> Tensor:
        """Of own rows [N, ...] those that the last layer computes."""
        return rows if self.output_rows is None else rows.index_select(0, self.output_rows.to(rows.device))


@dataclass(frozen=True)
class FlowLayer:
    """What one layer computes on this worker.

    Attributes:
        outputs: int32 per type, the own rows that it computes, in their order.
        inputs: int32 per type, those that it reads; its outputs are the first.
        halo: bool [H], the halo rows that it reads.
        sends: per peer bool, which of the rows that it could need it does need.
        edges: into its output rows.
    """

    outputs: tuple[np.ndarray, ...]
    inputs: tuple[np.ndarray, ...]
    halo: np.ndarray
    sends: tuple[np.ndarray, ...]
    edges: int


@dataclass(frozen=True)
class Reach:
    """What some rows' outputs depend on, layer by layer, over all edges.

    Attributes:
        layers: what each computes.
        counts: per layer, its rows over all workers.
    """

    layers: tuple[FlowLayer, ...]
    counts: tuple[RowCounts, ...]


Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""A layer's edges by source part and relation: source and destination rows, numbers in the part, and where each begins."""


class FlowBuilder:
    """Makes message flows of one worker's part. All workers must make one, and call its methods, together.

    Args:
        part: the worker's part, with self-loops if the model adds them.
        settings: what all of its plans have in common.
        splitter: gives every layer a plan of each relation; None: does not.
    """

    def __init__(
        self, part: Part, settings: PlanSettings, exchange: Exchange, *, splitter: RelationSplitter | None = None
    ) -> None:
        self._part, self._settings, self._exchange, self._splitter = part, settings, exchange, splitter
        self._schema, self._bounds, self._num_rows = part.schema, part.row_bounds, len(part.node_ids)
        self._lists = halo_lists(part, torch.device("cpu"))
        self._send_rows = [rows.numpy() for rows in self._lists.send_rows]

    def reach(self, wanted: np.ndarray, uses_edges: Sequence[bool], hidden: np.ndarray | None = None) -> Reach:
        """What the wanted rows (bool [N]) depend on.

        Args:
            uses_edges: per layer, whether it aggregates; one that does not reads its output rows only.
            hidden: bool [N], rows that all layers but the last are to compute; None: those that are needed.
        """
        keep = [self._keep_all if reads else lambda *_: 0 for reads in uses_edges]
        layers = tuple(self._from_last(np.flatnonzero(wanted), keep, hidden))[::-1]
        return Reach(layers, self.counts(layers))

    def flow_of(
        self, reach: Reach, share: Callable[[Sequence[RowCounts | None]], Sequence[Share | None]] | None = None
    ) -> MessageFlow:
        """The message flow of what rows depend on.

        Args:
            share: gives, for the layers' counts of rows, how each one's cut edges are shared out; None: the destinations'
                owners aggregate all.
        """
        shares = [None] * len(reach.layers) if share is None else share(reach.counts)

        def plan(layer: FlowLayer, share: Share | None) -> LayerPlan:
            restricted = partial(self._restricted, layer, self._split_all)
            if self._splitter is not None:
                return self._splitter.split(restricted, np.concatenate(layer.inputs), np.concatenate(layer.outputs))
            part, bounds = restricted()
            return load_shared_plan(part, self._settings, self._exchange.group, share, out_bounds=bounds)

        return self._join(reach.layers, map(plan, reach.layers, shares), reach.counts)

    def only_into(self, rows: slice) -> Restricted:
        """The part of a layer that computes all own rows of one type from all, and the bounds of its output rows."""
        everything = np.arange(self._num_rows)
        (layer,) = self._from_last(everything[rows], [self._keep_all])
        return self._restricted(dataclasses.replace(layer, inputs=by_type(everything, self._bounds)), self._split_all)

    def counts(self, layers: Sequence[FlowLayer]) -> tuple[RowCounts, ...]:
        """Per layer, its rows over all workers."""
        own = [[sum(map(len, layer.inputs)), sum(map(len, layer.outputs)), int(layer.halo.sum())] for layer in layers]
        return tuple(RowCounts(*totals) for totals in self._exchange.group.sum_(torch.tensor(own)).tolist())

    def _from_last(
        self,
        wanted: np.ndarray,
        keep: Sequence[Callable[[tuple[np.ndarray, ...], np.ndarray], int]],
        hidden: np.ndarray | None = None,
    ) -> Iterator[FlowLayer]:
        """The layers that compute the wanted rows (int64, ascending), from the last one to the first.

        Args:
            keep: per layer what chooses edges into its output rows (``FlowLayer.outputs``): marks their sources in uint8
                [N + H], and returns how many edges there are.
            hidden: as ``reach``.
        """
        outputs, reached = by_type(wanted, self._bounds), np.zeros(self._num_rows, bool)
        reached[wanted] = True
        for keep_edges in reversed(keep):
            marks = np.zeros(self._num_rows + len(self._part.halo_ids), np.uint8)
            edges = keep_edges(outputs, marks)
            needed, halo = marks[: self._num_rows].astype(bool), marks[self._num_rows :]
            if hidden is not None:
                needed |= hidden
            told = self._exchange.to_owners(self._lists, (torch.from_numpy(halo[:, None]),))
            sends = tuple(received[0].numpy()[:, 0].astype(bool) for received in told)
            for rows, chosen in zip(self._send_rows, sends, strict=True):
                needed[rows[chosen]] = True
            new = np.flatnonzero(needed & ~reached)
            reached[new] = True
            both = zip(outputs, by_type(new, self._bounds), strict=True)
            inputs = tuple(np.concatenate([rows, added]) if len(added) else rows for rows, added in both)
            yield FlowLayer(outputs, inputs, halo.astype(bool), sends, edges)
            outputs = inputs

    def _keep_all(self, outputs: tuple[np.ndarray, ...], marks: np.ndarray) -> int:
        """All edges into the output rows."""
        wanted = np.zeros(self._num_rows, bool)
        wanted[np.concatenate(outputs)] = True
        return mark_all(self._part, self._settings.rank, wanted, marks)

    def _split_all(self, layer: FlowLayer, places: np.ndarray) -> Split:
        """All edges into a layer's output rows."""
        part, outputs, out_places = self._part, np.concatenate(layer.outputs), np.full(self._num_rows, -1, np.int32)
        out_places[outputs] = np.arange(len(outputs), dtype=np.int32)
        source, destination = (np.empty(layer.edges, np.int32) for _ in range(2))
        edges = np.empty(layer.edges if part.columns else 0, np.int64)
        src, dst, begins = np.asarray(part.edge_src), np.asarray(part.edge_dst), np.empty(len(outputs) + 1, np.int64)
        ends = [0]
        for rows, span in spans_of(part, self._settings.rank):
            kept = count_into(dst[span], out_places, begins) if layer.edges else 0
            at = slice(ends[-1], ends[-1] + kept)
            if kept:
                numbers = edges[at] if part.columns else edges
                renumber(src[span], dst[span], places[rows], out_places, begins, source[at], destination[at], numbers)
                numbers += span.start
            ends.append(at.stop)
        return source, destination, edges, np.array(ends, np.int64)

    def _restricted(
        self,
        layer: FlowLayer,
        split: Callable[[Any, np.ndarray], Split],
        degrees: tuple[np.ndarray, np.ndarray, WeightedDegrees | None] | None = None,
    ) -> Restricted:
        """The part of one layer: own rows are its input rows, edges number its output rows; and these rows' bounds.

        Args:
            split: gives its edges, for the layer and the places of input rows and of halo rows that are read, int32 [N + H].
            degrees: in, out and weighted ones of the input rows; None: those of the whole graph.
        """
        part, inputs = self._part, np.concatenate(layer.inputs)
        places = np.empty(self._num_rows + len(layer.halo), np.int32)
        places[inputs] = np.arange(len(inputs), dtype=np.int32)
        halo_offsets = np.concatenate([[0], np.cumsum(layer.halo)])[part.halo_offsets]
        first = np.repeat(halo_offsets[:-1], np.diff(part.halo_offsets))
        places[self._num_rows :] = np.cumsum(layer.halo) - 1 - first
        source, destination, edges, edge_offsets = split(layer, places)
        send = [places[rows[chosen]] for rows, chosen in zip(self._send_rows, layer.sends, strict=True)]
        if degrees is None:
            weights = None if part.weights is None else part.weights.at(inputs)
            degrees = np.asarray(part.in_degrees)[inputs], np.asarray(part.out_degrees)[inputs], weights
        nothing = np.zeros(0, np.int64)
        restricted = dataclasses.replace(
            part,
            features=(),
            node_ids=np.asarray(part.node_ids)[inputs],
            labels=nothing,
            split=nothing,
            in_degrees=degrees[0],
            out_degrees=degrees[1],
            edge_src=source,
            edge_dst=destination,
            columns=part.columns.take(edges),
            edge_offsets=edge_offsets,
            halo_ids=np.asarray(part.halo_ids)[layer.halo],
            halo_offsets=halo_offsets,
            send_rows=np.concatenate(send),
            send_offsets=offsets_of(send),
            weights=degrees[2],
        )
        return restricted, bounds_of(layer.outputs)

    def _join(self, layers: Sequence[FlowLayer], plans: Iterable[LayerPlan], counts: Sequence[RowCounts]) -> MessageFlow:
        counted = tuple(dataclasses.replace(plan, counts=count) for plan, count in zip(plans, counts, strict=True))
        ends = (torch.from_numpy(np.concatenate(rows).astype(np.int64)) for rows in (layers[0].inputs, layers[-1].outputs))
        return MessageFlow(counted, *(rows.to(self._settings.device, non_blocking=True) for rows in ends))


def spans_of(part: Part, rank: int) -> Iterator[tuple[slice, slice]]:
    """By source part and relation: its rows among own and halo rows [N + H], and its edges. ``rank``: the part's number."""
    own = len(part.node_ids)
    halo = own + np.asarray(part.halo_offsets)
    for group, (a, b) in enumerate(pairwise(part.edge_offsets)):
        peer = group // len(part.schema.relations)
        yield slice(0, own) if peer == rank else slice(int(halo[peer]), int(halo[peer + 1])), slice(int(a), int(b))


def mark_all(part: Part, rank: int, wanted: np.ndarray, marks: np.ndarray) -> int:
    """Mark (uint8 [N + H]) the sources of all edges into wanted rows (bool [N]). Returns how many edges there are."""
    src, dst = np.asarray(part.edge_src), np.asarray(part.edge_dst)
    return sum(mark_sources(src[span], dst[span], wanted, marks[rows]) for rows, span in spans_of(part, rank))


def by_type(rows: np.ndarray, bounds: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Own rows, ascending, type by type: int32. ``bounds``: of the part's rows."""
    ends = np.searchsorted(rows, bounds)
    return tuple(np.ascontiguousarray(rows[a:b], np.int32) for a, b in pairwise(ends))


def bounds_of(rows: Sequence[np.ndarray]) -> tuple[int, ...]:
    """Where the rows of each type begin, and their end."""
    return tuple(offsets_of(list(rows)).tolist())
