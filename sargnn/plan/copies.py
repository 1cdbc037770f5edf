"""Copies of nodes: a server that preloads computes rows of nodes that other servers own (``partition.preload``).

A node's owner is the worker that the partition gave it to; it has the node's labels for the loss, its learned row and its place
in predictions. Copies get from there what they cannot compute: learned rows, and labels that were predicted. What flows back is
gradients, which the owner adds to its own.

Which of a node's copies counts in statistics over a layer's rows (``engine.norm``): the owner's where it computes the row, else
that of the lowest server that does. With d_s(v) the last layer in which server s computes node v, a copy on server s counts in
layer l where

    before(v, s) < l <= d_s(v),    before(v, s) = max over the owner's server and all servers below s of d(v),

and the owner's own row wherever it is computed.

Letters: N own rows, K copies among them, S servers, P ranks of all servers, L layers.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.exchange import Exchange
from sargnn.comm.lists import HaloLists
from sargnn.partition.part import Part
from sargnn.plan.mfg import MessageFlow

_NEVER = -1


class Copies:
    """A worker's copies. All workers must make one, and call its methods, together.

    Args:
        message_rows: no message holds more rows.
        device: of the tables that are fetched.
        counts_rows: of a node's copies one is to count in statistics over rows.

    Attributes:
        inner: bool [N], own rows that are no copies.
        rows: int64 [K], those that are, by owner; on the device.
    """

    def __init__(
        self, part: Part, exchange: Exchange, message_rows: int, device: torch.device, *, counts_rows: bool = False
    ) -> None:
        lists = part.copies
        assert lists is not None
        self.exchange, self._num_rows, self._counts_rows = exchange, len(part.node_ids), counts_rows
        self.inner = part.inner
        self._rows = np.asarray(lists.rows).astype(np.int64)
        self.rows, self._device = torch.from_numpy(self._rows).to(device), device
        copied = torch.from_numpy(np.array(lists.copied_rows)).to(device)
        ends = zip(lists.copied_offsets, lists.copied_offsets[1:], strict=False)
        self._lists = HaloLists(tuple(copied[a:b] for a, b in ends), tuple(np.diff(lists.offsets).tolist()), message_rows)
        size = exchange.group.world // exchange.group.servers
        self._owners = np.repeat(np.arange(exchange.group.world) // size, np.diff(lists.offsets))
        self._server = exchange.group.rank // size

    def moved_rows(self) -> int:
        """How many rows this worker sends to other servers in a ``fetch`` and a ``give_back`` together."""
        return sum(len(rows) for rows in self._lists.send_rows) + sum(self._lists.receive_rows)

    def fetch(self, table: Tensor) -> None:
        """Overwrite rows of ``table`` [N, F] that are copies with their owners' rows."""
        received = table.new_empty(len(self.rows), table.shape[1])
        self.exchange.all_rows(self._lists, (table,), (received,), exact=(0,))
        table[self.rows] = received

    def give_back(self, grad: Tensor) -> None:
        """Add what ``grad`` [N, F] has for copies to their owners' rows, in place, and set it to 0."""
        given = grad[self.rows]
        grad[self.rows] = 0
        self.exchange.all_gradients(self._lists, (given,), (grad,), exact=(0,))

    def counting(self, flow: MessageFlow) -> MessageFlow:
        """The flow with ``counted`` in each layer's plan, where copies are not to count as rows."""
        if not self._counts_rows:
            return flow
        depth = np.full(self._num_rows, _NEVER, np.int16)
        for layer in range(len(flow.plans)):
            depth[flow.rows_of(layer, self._num_rows).cpu().numpy()] = layer + 1
        before = self.before(depth)
        plans = []
        for layer, plan in enumerate(flow.plans):
            outputs = flow.rows_of(layer, self._num_rows).cpu().numpy()
            counted = torch.from_numpy((before[outputs] < layer + 1).astype(np.uint8)).to(plan.node_ids.device)
            plans.append(dataclasses.replace(plan, counted=counted))
        return dataclasses.replace(flow, plans=tuple(plans))

    def total(self, counts: np.ndarray) -> np.ndarray:
        """What all copies of each own row's node have together, fp64 [N, F]."""
        table = torch.from_numpy(np.ascontiguousarray(counts, np.float64)).to(self._device)
        self.give_back(table)
        self.fetch(table)
        return table.cpu().numpy()

    def before(self, depth: np.ndarray) -> np.ndarray:
        """int16 [N], the last layer in which another copy counts in place of each row; ``depth``: that computes it here."""
        servers = self.exchange.group.servers
        table = torch.full((self._num_rows, servers), float(_NEVER))
        own = torch.from_numpy(depth.astype(np.float32))
        table[:, self._server] = own
        said = self.exchange.to_owners(self._lists, (own[torch.from_numpy(self._rows), None],))
        size = self.exchange.group.world // servers
        for rank, (rows, (depths,)) in enumerate(zip(self._lists.send_rows, said, strict=True)):
            table[rows.cpu().long(), rank // size] = depths[:, 0]
        table = table.to(self._device)
        self.fetch(table)
        before = np.full(self._num_rows, _NEVER, np.int16)
        if len(self._rows):
            copies = table[self.rows].cpu().numpy()
            first = copies[np.arange(len(copies)), self._owners]
            before[self._rows] = np.maximum(first, copies[:, : self._server].max(1, initial=_NEVER))
        return before
