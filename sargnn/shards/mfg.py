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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.exchange import Exchange
from sargnn.comm.lists import HaloLists
from sargnn.partition.cut import Part
from sargnn.shards.cover import Share
from sargnn.shards.load import Layout, halo_lists
from sargnn.shards.partials import load_shared_plan
from sargnn.shards.plan import LayerPlan
from sargnn.shards.relations import RelationSplitter


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
        return rows if self.input_rows is None else rows.index_select(0, self.input_rows)

    def own_outputs(self, rows: Tensor) -> Tensor:
        """Of own rows [N, ...] those that the last layer computes."""
        return rows if self.output_rows is None else rows.index_select(0, self.output_rows)


@dataclass(frozen=True)
class _Marks:
    """What one layer needs on this worker.

    Attributes:
        edges: bool [E], edges into its output rows. halo: bool [H], halo rows that these read.
        send: per peer bool, which of the rows that it could need it does need.
    """

    edges: np.ndarray
    halo: np.ndarray
    send: tuple[np.ndarray, ...]


def message_flow(
    part: Part, rank: int, layout: Layout, exchange: Exchange, wanted: np.ndarray, uses_edges: Sequence[bool], *,
    device: torch.device, message_rows: int, splitter: RelationSplitter | None = None, dtype: torch.dtype = torch.float32,
    shares: Sequence[Share | None] | None = None,
) -> MessageFlow:  # fmt: skip
    """Build the message-flow graph of some rows; all workers must call it.

    Args:
        part: the worker's part, with self-loops if the model adds them.
        wanted: bool [N], the own rows whose outputs are wanted.
        uses_edges: per layer, whether it aggregates; one that does not reads its output rows only.
        layout, device, message_rows, dtype: as ``load_plan``.
        splitter: gives every layer a plan of each relation; None: does not.
        shares: per layer, how its cut edges are shared out; None: the destinations' owners aggregate all.
    """
    lists = halo_lists(part, torch.device("cpu"))
    num_layers = len(uses_edges)
    # The last layer that computes a row; 0: the first one reads it; -1: not even that.
    depth = np.where(wanted, num_layers, -1).astype(np.int16)
    marks: list[_Marks] = []
    for layer in range(num_layers, 0, -1):
        marks.insert(0, _marks(part, rank, exchange, lists, depth >= layer, uses_edges[layer - 1]))
        needed = depth >= layer
        first, last = part.edge_offsets[rank * _relations(part)], part.edge_offsets[(rank + 1) * _relations(part)]
        needed[part.edge_src[first:last][marks[0].edges[first:last]]] = True
        for rows, chosen in zip(lists.send_rows, marks[0].send, strict=True):
            needed[rows.numpy()[chosen]] = True
        depth[needed & (depth < layer - 1)] = layer - 1
    types = part.schema.types_of(part.node_ids)
    order = np.lexsort((np.arange(len(depth)), -depth, types))
    plans = []
    for layer, mark in enumerate(marks, start=1):
        inputs, outputs = (order[depth[order] >= least] for least in (layer - 1, layer))
        if splitter is not None:
            plans.append(splitter.split(partial(_restricted, part, rank, inputs, outputs, mark), inputs, outputs))
            continue
        restricted, bounds = _restricted(part, rank, inputs, outputs, mark)
        plans.append(
            load_shared_plan(
                restricted, rank, layout, exchange.group, None if shares is None else shares[layer - 1], device=device,
                message_rows=message_rows, out_bounds=bounds, dtype=dtype,
            )
        )  # fmt: skip
    ends = (torch.from_numpy(order[depth[order] >= least]).to(device) for least in (0, num_layers))
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


def _marks(
    part: Part, rank: int, exchange: Exchange, lists: HaloLists, outputs: np.ndarray, uses_edges: bool
) -> _Marks:  # fmt: skip
    edges = outputs[part.edge_dst] if uses_edges else np.zeros(len(part.edge_dst), bool)
    halo = np.zeros((len(part.halo_ids), 1), np.uint8)
    for q in range(len(part.halo_offsets) - 1):
        if q != rank:
            first, last = part.edge_offsets[q * _relations(part)], part.edge_offsets[(q + 1) * _relations(part)]
            halo[part.halo_offsets[q] + part.edge_src[first:last][edges[first:last]]] = 1
    told = exchange.to_owners(lists, (torch.from_numpy(halo),))
    return _Marks(edges, halo[:, 0].astype(bool), tuple(sent[0].numpy()[:, 0].astype(bool) for sent in told))


def _restricted(
    part: Part, rank: int, inputs: np.ndarray, outputs: np.ndarray, mark: _Marks
) -> tuple[Part, tuple[int, ...]]:  # fmt: skip
    """The part of one layer: own rows are ``inputs``, edges end in ``outputs`` and number them; and the outputs' bounds."""
    world, relations = len(part.halo_offsets) - 1, _relations(part)
    in_place, out_place = (np.full(len(part.node_ids), -1, np.int32) for _ in range(2))
    in_place[inputs] = np.arange(len(inputs), dtype=np.int32)
    out_place[outputs] = np.arange(len(outputs), dtype=np.int32)
    kept_before = np.concatenate([[0], np.cumsum(mark.halo)])
    halo_offsets = kept_before[part.halo_offsets]

    group = np.repeat(np.arange(world * relations), np.diff(part.edge_offsets))[mark.edges]
    source, destination = np.asarray(part.edge_src)[mark.edges], out_place[np.asarray(part.edge_dst)[mark.edges]]
    peer = group // relations
    own, far = peer == rank, peer != rank
    source[own] = in_place[source[own]]
    source[far] = kept_before[part.halo_offsets[peer[far]] + source[far]] - halo_offsets[peer[far]]
    order = np.lexsort((source, destination, group))
    send = [
        in_place[part.send_rows[a:b]][chosen]
        for a, b, chosen in zip(part.send_offsets, part.send_offsets[1:], mark.send, strict=False)
    ]
    nothing = np.zeros(0, np.int64)
    if part.edge_weight is not None and part.in_weights is not None and part.out_weights is not None:
        part = dataclasses.replace(
            part,
            edge_weight=np.asarray(part.edge_weight)[mark.edges][order],
            in_weights=np.asarray(part.in_weights)[inputs],
            out_weights=np.asarray(part.out_weights)[inputs],
        )
    restricted = dataclasses.replace(
        part,
        features=(),
        node_ids=np.asarray(part.node_ids)[inputs],
        labels=nothing,
        split=nothing,
        in_degrees=np.asarray(part.in_degrees)[inputs],
        out_degrees=np.asarray(part.out_degrees)[inputs],
        edge_src=source[order],
        edge_dst=destination[order],
        edge_offsets=_offsets(np.bincount(group, minlength=world * relations)),
        halo_ids=np.asarray(part.halo_ids)[mark.halo],
        halo_offsets=halo_offsets,
        send_rows=np.concatenate(send),
        send_offsets=_offsets(np.array([len(one) for one in send])),
    )
    return restricted, part.schema.bounds(np.asarray(part.node_ids)[outputs])


def _relations(part: Part) -> int:
    return len(part.schema.relations)


def _offsets(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
