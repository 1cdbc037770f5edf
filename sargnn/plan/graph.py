"""A worker's graph: message flows through it for any rows that are wanted.

Letters: N own rows, L layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from sargnn.comm.exchange import Exchange
from sargnn.comm.group import Group
from sargnn.partition.part import Part, one_type
from sargnn.partition.store import release
from sargnn.plan.cover import Share, spared_shares
from sargnn.plan.layer_plan import LayerPlan, RowCounts
from sargnn.plan.load import NO_LIMIT, PlanSettings, with_self_loops
from sargnn.plan.mfg import FlowBuilder, MessageFlow, Reach
from sargnn.plan.partials import load_shared_plan

if TYPE_CHECKING:
    from sargnn.plan.copies import Copies
    from sargnn.plan.drawn import FlowDrawer
    from sargnn.plan.relations import RelationSplitter

_SMALLEST_MESSAGE_ROWS = 1024


def degree_histogram(part: Part, group: Group) -> tuple[int, ...]:
    """How many nodes of the whole graph have 0, 1, 2, ... edges into them; all workers must call it together."""
    degrees = np.asarray(part.in_degrees)
    largest = max(int(top) for top in group.gather(torch.tensor([degrees.max(initial=0)])))
    counts = torch.from_numpy(np.bincount(degrees, minlength=largest + 1))
    return tuple(group.sum_(counts).tolist())


@dataclass(frozen=True)
class Sharing:
    """How cut edges are shared out (``plan.cover``).

    Attributes:
        of_layers: per layer, from its ``LayerPlan.counts``.
        of_sums: of ``WorkerGraph.neighbourhood``.
    """

    of_layers: Callable[[Sequence[RowCounts | None]], Sequence[Share | None]]
    of_sums: Share | None = None


def usual_message_rows(num_nodes: int, world: int) -> int:
    """How many rows a message holds at most where nobody has said: three eighths of a worker's average rows, at least 1024.

    The larger a message, the more of its rows meet at a destination row, which is read and written once for all of them. Its
    buffers take memory that other tables leave idle while a layer aggregates.
    """
    return max(_SMALLEST_MESSAGE_ROWS, -(-3 * num_nodes // (8 * world)))


def find_labelled(part: Part, group: Group) -> int:
    """The node type that has labels; all workers must call it together."""
    counts = np.bincount(part.schema.types_of(part.node_ids[part.split > 0]), minlength=len(part.schema.node_types))
    return int(group.sum_(torch.from_numpy(counts)).argmax())


class WorkerGraph:
    """All workers must make one, and call its methods, together.

    Args:
        settings: what all of its plans have in common; where they have no limit of a message's rows, it is
            ``usual_message_rows``.
        add_self_loops: whether the model adds one per node; the data's own stay in ``neighbourhood``.
        by_relation: give the plans of a typed graph ``relations``, one plan each, in place of shards with all of them; joined:
            ``relations`` that know all of them as one graph alone.
        labelled: the node type that has labels, where it is known already; below 0: the last layer computes all rows; None: all
            workers find it together.
        copies: of a part that has some.
        sharing: how cut edges are shared out; None, and where ``by_relation`` holds: they stay with their destinations.
    """

    def __init__(
        self,
        part: Part,
        exchange: Exchange,
        settings: PlanSettings,
        *,
        add_self_loops: bool,
        by_relation: bool | Literal["joined"] = False,
        labelled: int | None = None,
        sharing: Sharing | None = None,
        copies: Copies | None = None,
    ) -> None:
        self.part, self.exchange, self.copies, self.rank = part, exchange, copies, settings.rank
        self._sharing, self._add_self_loops = sharing, add_self_loops
        group = exchange.group
        if settings.message_rows == NO_LIMIT:
            num_nodes = int(group.sum_(torch.tensor(len(part.node_ids), dtype=torch.int64)))
            settings = dataclasses.replace(settings, message_rows=usual_message_rows(num_nodes, group.world))
        self.settings, self.message_rows = settings, settings.message_rows
        self.labelled = find_labelled(part, group) if labelled is None else labelled
        self._splitter: RelationSplitter | None = None
        if by_relation and part.schema.typed:
            from sargnn.plan.relations import RelationSplitter

            self._splitter = RelationSplitter(part, exchange, settings, only_joined=by_relation == "joined")
        self._split: LayerPlan | None = None
        self._plans: dict[Share | None, LayerPlan] = {}
        self._flows: dict[int, MessageFlow] = {}
        self._looped: Part | None = None
        self._drawer: FlowDrawer | None = None

    @property
    def num_rows(self) -> int:
        return len(self.part.node_ids)

    @property
    def labelled_rows(self) -> slice:
        """The own rows of the labelled type, or of all types, without copies."""
        return self.rows_of_type(self.labelled) if self.labelled >= 0 else slice(0, self.num_inner)

    def rows_of_type(self, node_type: int) -> slice:
        """The own rows of a type, without copies, which stand behind them."""
        bounds = self.part.row_bounds
        first, last = bounds[node_type], bounds[node_type + 1]
        return slice(first, last if self.copies is None else first + int(self.copies.inner[first:last].sum()))

    @property
    def num_inner(self) -> int:
        """Own rows that are no copies."""
        return self.num_rows if self.copies is None else int(self.copies.inner.sum())

    def whole(self, num_layers: int, uses_edges: Sequence[bool] | None = None) -> MessageFlow:
        """Every layer computes all rows, the last one those of the labelled type, or all where relations are kept apart.

        With copies: all rows that are none, and the copies that these need. All layers aggregate where ``uses_edges`` is None.
        """
        if num_layers not in self._flows and self.copies is not None:
            wanted = np.zeros(self.num_rows, bool)
            wanted[self.labelled_rows] = True
            uses_edges = uses_edges or [True] * num_layers
            self._flows[num_layers] = self.flow_of(self._builder().reach(wanted, uses_edges, self.copies.inner))
        elif num_layers not in self._flows:
            shares: list[Share | None] = [None] * num_layers
            if self._sharing is not None and self.exchange.group.world > 1:
                # Layers that read no edges share another's plan, so that fewer are held.
                of_layers = self._sharing.of_layers([None] * num_layers)
                shares = spared_shares(of_layers, uses_edges or [True] * num_layers)
            *before, last = shares
            plans, rows = [self._whole_plan(share) for share in before], None
            if len(self.part.schema.node_types) > 1 and self.labelled >= 0:
                rows = torch.arange(self.labelled_rows.start, self.labelled_rows.stop, device=self.settings.device)
                if self._splitter is not None:  # which computes all, with relations kept apart
                    plans.append(self._whole_plan(last))
                elif last is None or self.exchange.group.world == 1:
                    plans.append(self._whole_plan(last).only(self.labelled))
                else:
                    part, bounds = self._builder().only_into(self.labelled_rows)
                    plans.append(self._load(part, last, bounds))
            else:
                plans.append(self._whole_plan(last))
            self._flows[num_layers] = MessageFlow(tuple(plans), None, rows)
        return self._flows[num_layers]

    def _whole_plan(self, share: Share | None) -> LayerPlan:
        if self._splitter is not None:
            if self._split is None:
                self._split = self._splitter.split(lambda: (self.part, self.part.row_bounds))
            return self._split
        if share not in self._plans:
            self._plans[share] = self._load(self._looped_part, share)
        return self._plans[share]

    def _load(self, part: Part, share: Share | None, out_bounds: tuple[int, ...] | None = None) -> LayerPlan:
        return load_shared_plan(part, self.settings, self.exchange.group, share, out_bounds=out_bounds)

    def flow(self, wanted: np.ndarray, uses_edges: list[bool]) -> MessageFlow:
        """Only what reaches the wanted rows, bool [N]; ``whole`` where these are all rows of the labelled type."""
        left_out = (self.labelled_rows.stop - self.labelled_rows.start) - int(wanted.sum())
        if self.copies is not None:  # a server's answer need not be another's
            left_out = 1
        if not int(self.exchange.group.sum_(torch.tensor(left_out, dtype=torch.int64))):
            return self.whole(len(uses_edges), uses_edges)
        return self.flow_of(self.reach(wanted, uses_edges))

    def reach(self, wanted: np.ndarray, uses_edges: Sequence[bool]) -> Reach:
        """What the wanted rows, bool [N], depend on."""
        return self._builder().reach(wanted, uses_edges)

    def flow_of(self, reach: Reach, *, shared: bool = True) -> MessageFlow:
        """The message flow of what rows depend on. ``shared``: cut edges are shared out."""
        share = self._sharing.of_layers if shared and self._sharing is not None else None
        return self.counting(self._builder().flow_of(reach, share))

    def _builder(self) -> FlowBuilder:
        return FlowBuilder(self._looped_part, self.settings, self.exchange, splitter=self._splitter)

    def counting(self, flow: MessageFlow) -> MessageFlow:
        """The flow, where copies are not to count in statistics over rows with the rows that do."""
        return flow if self.copies is None else self.copies.counting(flow)

    @property
    def drawer(self) -> FlowDrawer:
        """Made the first time, and kept. All workers must ask for it together."""
        if self._drawer is None:
            from sargnn.plan.drawn import FlowDrawer

            self._drawer = FlowDrawer(
                self._looped_part,
                self.settings,
                self.exchange,
                own_loops=self._add_self_loops,
                splitter=self._splitter,
                copies=self.copies,
            )
        return self._drawer

    @property
    def _looped_part(self) -> Part:
        if not self._add_self_loops:
            return self.part
        if self._looped is None:
            self._looped = with_self_loops(self.part, self.rank, means=self.settings.loop_means)
        return self._looped

    def release(self, *, mapped_only: bool = False) -> None:
        """Let go of all edges that no plan holds; they are read and made again if needed.

        ``mapped_only``: of those that are mapped from the store, which cost little to read again.
        """
        if not mapped_only:
            self._looped = None
        release(self.part)

    def neighbourhood(self) -> LayerPlan:
        """The labelled nodes with the edges between them, as the data has them."""
        share = None if self._sharing is None else self._sharing.of_sums
        if not self.part.schema.typed:
            return self._load(self.part, share) if self._add_self_loops else self._whole_plan(share)
        return self._load(one_type(self.part, self.rank, self.labelled), share)
