"""Makes the graphs that a user's forward gets, over the layer plans of a view."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from sargnn.engine.aggregate import Engine
from sargnn.modules import dgl_hook
from sargnn.modules.frames import Frame
from sargnn.modules.graph import NODE_ID, Blocks, ShardedGraph
from sargnn.modules.rows import Rows
from sargnn.modules.session import Owner, Report, Session, Totals
from sargnn.modules.stock_calls import StockCalls
from sargnn.shards.plan import LayerPlan

_TOTALS = "totals"
"""Of a plan's ``Totals`` among what is kept with it: they go where the plan goes, to a file and back."""


class GraphMaker:
    """Makes graphs for one engine.

    Args:
        path: the user's file, for errors.

    Attributes:
        report: what calls became, for the log.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path, self.report = path, Report()
        self._owners: dict[Hashable, Owner] = {}

    def prepare(self, engine: Engine, plans: Sequence[LayerPlan]) -> None:
        """Count what plans hold over all workers; all of them must call it together, before a plan is first used."""
        for plan in plans:
            for layer_plan in (plan, *(plan.relations or ())):
                if _TOTALS not in layer_plan.kept:
                    layer_plan.kept[_TOTALS] = _count(engine, layer_plan)

    def session(self, engine: Engine, calls: StockCalls, *, training: bool = True, num_blocks: int | None = None) -> Session:
        """For one forward pass, whose calls are watched; the arguments are those of ``Session``."""
        dgl_hook.install()
        return Session(
            engine,
            lambda plan: plan.kept[_TOTALS],
            self.path,
            self.report,
            calls.edge_draw,
            self._owner,
            calls.seen,
            training=training,
            num_blocks=num_blocks,
        )

    def _owner(self, name: Hashable, training: bool) -> Owner | None:
        """Who owns what is kept under a name; nobody, until training has asked."""
        if training:
            self._owners.setdefault(name, Owner())
        return self._owners.get(name)

    def graph(self, session: Session, plans: Sequence[LayerPlan]) -> Any:
        """The graph that ``forward`` gets: a sharded graph; for plans that differ one that has ``blocks``."""
        if plans[0].schema.typed:
            from sargnn.modules.typed import make_typed

            return make_typed(session, plans)
        first = _homogeneous(session, plans[0], 0)
        if all(plan is plans[0] for plan in plans) and not first.is_block:
            return first
        made: dict[int, ShardedGraph] = {0: first}

        def block(number: int) -> ShardedGraph:
            if number not in made:
                made[number] = _homogeneous(session, plans[number], number)
            return made[number]

        return BlockGraph(session, len(plans), first, Blocks(session, block))


class BlockGraph:
    """What ``forward`` gets with a message flow: blocks, one for each layer, and nothing else but what a single one has."""

    def __init__(self, session: Session, count: int, first: Any, blocks: Blocks) -> None:
        self._session, self._count, self._first, self.blocks = session, count, first, blocks

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._count == 1 or name in _OF_ALL_LAYERS:
            return getattr(self._first, name)
        raise self._session.wrong(
            "In a message flow each layer has a block of its own.",
            given=f"graph.{name}",
            hint="for layer, block in zip(self.layers, graph.blocks): h = layer(block, h); without one it works as well",
        )

    def __getitem__(self, key: Any) -> Any:
        return self._first[key] if self._count == 1 else self.__getattr__("__getitem__(...)")


_OF_ALL_LAYERS = ("ntypes", "etypes", "canonical_etypes", "device", "is_homogeneous", "idtype", "to")


def _homogeneous(session: Session, plan: LayerPlan, level: int) -> ShardedGraph:
    place = session.place
    rows, outputs = Rows("nodes", 0, level), Rows("nodes", 0, level + 1)
    source = Frame("nodes", rows, lambda: plan.num_rows, place, {NODE_ID: lambda: plan.node_ids.clone()})
    destination = source
    if session.totals(plan).is_block:
        source.kind = "source nodes"
        ids = {NODE_ID: lambda: plan.self_rows(plan.node_ids).clone()}
        destination = Frame("destination nodes", outputs, lambda: plan.num_out, place, ids)
    return ShardedGraph(session, plan, ("_N", "_E", "_N"), source, destination, level=level)


def _count(engine: Engine, plan: LayerPlan) -> Totals:
    by_type = [b - a for bounds in (plan.row_bounds, plan.out_bounds) for a, b in zip(bounds, bounds[1:], strict=False)]
    totals = engine.group.sum_(torch.tensor([plan.num_edges, *by_type], dtype=torch.int64)).tolist()
    types = len(plan.row_bounds) - 1
    return Totals(tuple(totals[1 : types + 1]), tuple(totals[types + 1 :]), totals[0])
