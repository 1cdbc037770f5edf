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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.exchange import Exchange
from sargnn.comm.lists import HaloLists
from sargnn.partition.cut import Part, offsets_of
from sargnn.plan.cover import Share
from sargnn.plan.layer_plan import LayerPlan, RowCounts
from sargnn.plan.load import PlanSettings, halo_lists
from sargnn.plan.loops import count_into, mark_sources, renumber
from sargnn.plan.partials import load_shared_plan
from sargnn.plan.relations import RelationSplitter


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
class _Marks:
    """What one layer needs on this worker.

    Attributes:
        outputs: bool [N], its output rows.
        uses_edges: whether it reads more than these.
        edges: edges into its output rows.
        own: uint8 [N], own rows that these read.
        halo: bool [H], halo rows that they read.
        send: per peer bool, which of the rows that it could need it does need.
    """

    outputs: np.ndarray
    uses_edges: bool
    edges: int
    own: np.ndarray
    halo: np.ndarray
    send: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Reach:
    """What some rows' outputs depend on, layer by layer.

    Attributes:
        depth: int16 [N], the last layer that computes a row; 0: the first one reads it; -1: not even that.
        marks: per layer.
        counts: per layer, its rows over all workers.
    """

    depth: np.ndarray
    marks: tuple[_Marks, ...]
    counts: tuple[RowCounts, ...]

    @property
    def edges(self) -> tuple[int, ...]:
        """Per layer, those into its output rows on this worker."""
        return tuple(mark.edges for mark in self.marks)


def find_reach(
    part: Part,
    rank: int,
    exchange: Exchange,
    wanted: np.ndarray,
    uses_edges: Sequence[bool],
    hidden: np.ndarray | None = None,
) -> Reach:
    """What the wanted rows (bool [N]) depend on; all workers must call it.

    Args:
        part: the worker's part, with self-loops if the model adds them.
        hidden: bool [N], rows that all layers but the last are to compute; None: those that are needed.
        uses_edges: per layer, whether it aggregates; one that does not reads its output rows only.
    """
    lists = halo_lists(part, torch.device("cpu"))
    num_layers = len(uses_edges)
    depth = np.where(wanted, num_layers, -1).astype(np.int16)
    if hidden is not None:
        depth[hidden & ~wanted] = num_layers - 1
    marks: list[_Marks] = []
    for layer in range(num_layers, 0, -1):
        mark = _marks(part, rank, exchange, lists, depth >= layer, uses_edges[layer - 1])
        needed = (depth >= layer) | mark.own.astype(bool)
        for rows, chosen in zip(lists.send_rows, mark.send, strict=True):
            needed[rows.numpy()[chosen]] = True
        depth[needed & (depth < layer - 1)] = layer - 1
        marks.insert(0, mark)
    counted = torch.tensor(
        [[(depth >= layer - 1).sum(), (depth >= layer).sum(), mark.halo.sum()] for layer, mark in enumerate(marks, start=1)]
    )
    counts = tuple(RowCounts(*totals) for totals in exchange.group.sum_(counted).tolist())
    return Reach(depth, tuple(marks), counts)


def message_flow(
    part: Part,
    settings: PlanSettings,
    exchange: Exchange,
    reach: Reach,
    *,
    splitter: RelationSplitter | None = None,
    share: Callable[[Sequence[RowCounts | None]], Sequence[Share | None]] | None = None,
) -> MessageFlow:
    """Build the message-flow graph of some rows; all workers must call it.

    Args:
        part: the worker's part, with self-loops if the model adds them.
        settings: what all of its plans have in common.
        reach: what the rows depend on.
        splitter: gives every layer a plan of each relation; None: does not.
        share: gives, for the layers' counts of rows, how each one's cut edges are shared out; None: the destinations' owners
            aggregate all.
    """
    depth, num_layers = reach.depth, len(reach.marks)
    shares = [None] * num_layers if share is None else share(reach.counts)
    types = part.schema.types_of(part.node_ids)
    order = np.lexsort((np.arange(len(depth)), -depth, types))
    plans = []
    for layer, mark in enumerate(reach.marks, start=1):
        inputs, outputs = (order[depth[order] >= least] for least in (layer - 1, layer))
        if splitter is not None:
            plan = splitter.split(partial(_restricted, part, settings.rank, inputs, outputs, mark), inputs, outputs)
        else:
            restricted, bounds = _restricted(part, settings.rank, inputs, outputs, mark)
            plan = load_shared_plan(restricted, settings, exchange.group, shares[layer - 1], out_bounds=bounds)
        plans.append(dataclasses.replace(plan, counts=reach.counts[layer - 1]))
    ends = (torch.from_numpy(order[depth[order] >= least]).to(settings.device) for least in (0, num_layers))
    return MessageFlow(tuple(plans), *ends)


def only_into(part: Part, rank: int, exchange: Exchange, rows: slice) -> tuple[Part, tuple[int, ...]]:
    """The part of a layer that computes some own rows from all, and the bounds of its output rows; all workers must call it.

    Args:
        rows: all own rows of one type.
    """
    everything = np.arange(len(part.node_ids))
    wanted = (everything >= rows.start) & (everything < rows.stop)
    mark = _marks(part, rank, exchange, halo_lists(part, torch.device("cpu")), wanted, True)
    return _restricted(part, rank, everything, everything[rows], mark)


def _spans(part: Part) -> list[tuple[int, slice]]:
    """The source part and the edges of each source part and relation, in their order."""
    relations = len(part.schema.relations)
    return [(group // relations, slice(int(a), int(b))) for group, (a, b) in enumerate(pairwise(part.edge_offsets))]


def _marks(part: Part, rank: int, exchange: Exchange, lists: HaloLists, outputs: np.ndarray, uses_edges: bool) -> _Marks:
    own, halo, edges = np.zeros(len(part.node_ids), np.uint8), np.zeros((len(part.halo_ids), 1), np.uint8), 0
    src, dst = np.asarray(part.edge_src), np.asarray(part.edge_dst)
    for peer, span in _spans(part) if uses_edges else ():
        read = own if peer == rank else halo[part.halo_offsets[peer] : part.halo_offsets[peer + 1], 0]
        edges += mark_sources(src[span], dst[span], outputs, read)
    told = exchange.to_owners(lists, (torch.from_numpy(halo),))
    sent = tuple(received[0].numpy()[:, 0].astype(bool) for received in told)
    return _Marks(outputs, uses_edges, edges, own, halo[:, 0].astype(bool), sent)


def _restricted(part: Part, rank: int, inputs: np.ndarray, outputs: np.ndarray, mark: _Marks) -> tuple[Part, tuple[int, ...]]:
    """The part of one layer: own rows are ``inputs``, edges end in ``outputs`` and number them; and the outputs' bounds."""
    in_place, out_place = (np.full(len(part.node_ids), -1, np.int32) for _ in range(2))
    in_place[inputs] = np.arange(len(inputs), dtype=np.int32)
    out_place[outputs] = np.arange(len(outputs), dtype=np.int32)
    halo_place = np.cumsum(mark.halo, dtype=np.int32) - 1
    halo_offsets = np.concatenate([[0], np.cumsum(mark.halo)])[part.halo_offsets]
    halo_place -= np.repeat(halo_offsets[:-1], np.diff(part.halo_offsets)).astype(np.int32)

    source, destination = (np.empty(mark.edges, np.int32) for _ in range(2))
    edges = np.empty(mark.edges if part.columns else 0, np.int64)
    src, dst, begins = np.asarray(part.edge_src), np.asarray(part.edge_dst), np.empty(len(outputs) + 1, np.int64)
    counts: list[int] = []
    for peer, span in _spans(part):
        kept = count_into(dst[span], out_place, begins) if mark.uses_edges else 0
        places = in_place if peer == rank else halo_place[part.halo_offsets[peer] : part.halo_offsets[peer + 1]]
        at = slice(sum(counts), sum(counts) + kept)
        if kept:
            numbers = edges[at] if part.columns else edges
            renumber(src[span], dst[span], places, out_place, begins, source[at], destination[at], numbers)
            numbers += span.start
        counts.append(kept)
    ends = zip(pairwise(part.send_offsets), mark.send, strict=True)
    send = [in_place[part.send_rows[a:b]][chosen] for (a, b), chosen in ends]
    nothing = np.zeros(0, np.int64)
    restricted = dataclasses.replace(
        part,
        features=(),
        node_ids=np.asarray(part.node_ids)[inputs],
        labels=nothing,
        split=nothing,
        in_degrees=np.asarray(part.in_degrees)[inputs],
        out_degrees=np.asarray(part.out_degrees)[inputs],
        edge_src=source,
        edge_dst=destination,
        columns=part.columns.take(edges),
        edge_offsets=np.cumsum([0, *counts], dtype=np.int64),
        halo_ids=np.asarray(part.halo_ids)[mark.halo],
        halo_offsets=halo_offsets,
        send_rows=np.concatenate(send),
        send_offsets=offsets_of(send),
        weights=None if part.weights is None else part.weights.at(inputs),
    )
    return restricted, part.schema.bounds(np.asarray(part.node_ids)[outputs])
