"""A typed sharded graph as a layer of DGL's sees it: node types, relations, and each relation's graph by ``graph[etype]``.

``GraphMaker`` makes the graphs that a user's forward gets, typed or not, over the layer plans of a view. Nothing here knows how
messages are folded.

Letters: T node types, R relations; N_t input rows and M_t output rows of a type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from sargnn.engine.aggregate import Engine
from sargnn.errors import nearest
from sargnn.modules.calls import StockCalls
from sargnn.modules.dgl_graph import (
    FOR_LAYERS,
    NODE_ID,
    SOME,
    AnyGraph,
    Blocks,
    Etype,
    Frame,
    ShardedGraph,
    install_edge_softmax,
)
from sargnn.modules.reduce_functions import NodeBatch
from sargnn.modules.session import Maker, Session
from sargnn.modules.tag import Count, Rows, tagged
from sargnn.plan.layer_plan import LayerPlan

TYPE = "_TYPE"
"""The field of node types and relations in a joined graph, as DGL calls it."""
_JOINED = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}


class TypedGraph(AnyGraph):
    """All relations of one layer.

    Args:
        level: the layer's number.
        blocks: of the whole model; None: this graph serves all layers.
        of_rows: the levels of the rows that it reads and gives.
    """

    is_homogeneous = False

    def __init__(
        self, session: Session, plan: LayerPlan, level: int, blocks: Blocks | None = None, of_rows: tuple[int, int] = (0, 0)
    ) -> None:
        self.session, self.plan, self.level, self._of_rows = session, plan, level, of_rows
        assert plan.relations is not None
        schema, self._blocks = plan.schema, blocks
        self.ntypes = self.srctypes = self.dsttypes = list(schema.node_types)
        self.relation_types: list[Etype] = [
            (schema.node_types[edge_type.source], edge_type.name, schema.node_types[edge_type.destination])
            for edge_type in schema.relations
        ]
        self.canonical_etypes = sorted(self.relation_types)  # the order in which DGL has them
        self.is_block = session.totals(plan).is_block
        self._sources = [self._frame(t, outputs=False) for t in range(len(self.ntypes))]
        self._destinations = [self._frame(t, outputs=True) for t in range(len(self.ntypes))] if self.is_block else self._sources

    @cached_property
    def relation_graphs(self) -> list[ShardedGraph]:
        assert self.plan.relations is not None
        return [
            ShardedGraph(
                self.session,
                self.plan.relations.plans[number],
                self.relation_types[number],
                self._sources[relation.source],
                self._destinations[relation.destination],
                Rows("edges", number, self.level),
            )
            for number, relation in enumerate(self.plan.schema.relations)
        ]

    def _frame(self, node_type: int, *, outputs: bool) -> Frame:
        bounds = self.plan.out_bounds if outputs else self.plan.row_bounds
        count = bounds[node_type + 1] - bounds[node_type]
        first = self.plan.row_bounds[node_type]  # a type's output rows are the first of its input rows
        rows = Rows("nodes", node_type, self._of_rows[outputs])
        ids = self.plan.node_ids[first : first + count] - self.plan.schema.offsets[node_type]
        return Frame(self.session, f"'{self.ntypes[node_type]}' nodes", rows, count, {NODE_ID: ids.clone})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = (*FOR_LAYERS, "nodes", "edges", "to_homogeneous")
        raise self.session.not_there("a typed sharded graph", name, known, SOME, "graph[etype] is one relation's graph")

    def __repr__(self) -> str:
        nodes = {name: self.number_of_src_nodes(name).own for name in self.ntypes}
        edges = {etype: graph.num_edges().own for etype, graph in zip(self.relation_types, self.relation_graphs, strict=True)}
        return f"TypedGraph(this worker's: nodes {nodes}, edges {edges})"

    def all_frames(self) -> Iterable[Frame]:
        return [*self._sources, *self._destinations, *(graph.edata for graph in self.relation_graphs)]

    @property
    def blocks(self) -> Blocks:
        return self._blocks or Blocks(self.session, lambda number: self)

    @property
    def nodes(self) -> _DataOf:
        """``nodes[ntype].data``: the fields of a type's rows."""
        return _DataOf(lambda ntype: self._sources[self._type_number(ntype)])

    srcnodes = nodes

    @property
    def dstnodes(self) -> _DataOf:
        """``dstnodes[ntype].data``: the fields of a type's output rows."""
        return _DataOf(lambda ntype: self._destinations[self._type_number(ntype)])

    @property
    def edges(self) -> _DataOf:
        """``edges[etype].data``: the fields of a relation's edges."""
        return _DataOf(lambda etype: self[etype].edata)

    @property
    def ndata(self) -> _ByType:
        """Fields of all types: mappings by node type."""
        return _ByType(self, self._sources)

    srcdata = ndata

    @property
    def dstdata(self) -> _ByType:
        return _ByType(self, self._destinations)

    def __getitem__(self, etype: Any) -> ShardedGraph:
        return self.relation_graphs[self._number_of(etype)]

    def _number_of(self, etype: Any) -> int:
        """A relation's number in the schema. Raises ``ConfigError`` where there is none, or several of that name."""
        if etype is None and len(self.relation_types) == 1:
            return 0
        numbers = [number for number, relation in enumerate(self.relation_types) if etype in (relation, relation[1])]
        if len(numbers) != 1:
            what = f"The graph has several relations '{etype}'." if numbers else f"The graph has no relation '{etype}'."
            names = [str(self.relation_types[number]) for number in numbers] or nearest(str(etype), self.etypes)
            raise self.session.wrong(what, allowed=names or [str(relation) for relation in self.canonical_etypes])
        return numbers[0]

    def to_canonical_etype(self, etype: Any) -> Etype:
        return self.relation_types[self._number_of(etype)]

    def _type_number(self, ntype: str | None) -> int:
        if ntype is None and len(self.ntypes) == 1:
            return 0
        if ntype not in self.ntypes:
            what = f"The graph has no node type '{ntype}'."
            raise self.session.wrong(what, allowed=nearest(str(ntype), self.ntypes) or self.ntypes)
        return self.ntypes.index(ntype)

    def number_of_src_nodes(self, ntype: str | None = None) -> Count:
        return self._count(self._sources, self.session.totals(self.plan).rows_by_type, ntype)

    def number_of_dst_nodes(self, ntype: str | None = None) -> Count:
        return self._count(self._destinations, self.session.totals(self.plan).outputs_by_type, ntype)

    num_src_nodes = num_nodes = number_of_nodes = number_of_src_nodes
    num_dst_nodes = number_of_dst_nodes

    def _count(self, frames: list[Frame], totals: tuple[int, ...], ntype: str | None) -> Count:
        if ntype is None:
            return Count(sum(frame.count for frame in frames), sum(totals), "nodes")
        t = self._type_number(ntype)
        return Count(frames[t].count, totals[t], "nodes", frames[t].rows)

    def num_edges(self, etype: Any = None) -> Count:
        if etype is not None:
            return self[etype].num_edges()
        counts = [graph.num_edges() for graph in self.relation_graphs]
        return Count(sum(count.own for count in counts), sum(count.total for count in counts), "edges")

    number_of_edges = num_edges

    def in_degrees(self, v: Any = None, etype: Any = None) -> Tensor:
        return self[etype].in_degrees(v)

    def out_degrees(self, u: Any = None, etype: Any = None) -> Tensor:
        return self[etype].out_degrees(u)

    def to_homogeneous(self) -> ShardedGraph:
        """All nodes, type by type, and all edges as one relation's graph: what DGL's ``to_homogeneous`` gives.

        ``ndata['_TYPE']`` and ``edata['_TYPE']`` are the numbers of types in ``ntypes`` and of relations in
        ``canonical_etypes``. Rows are those of ``torch.cat`` over the types. Raises ``ConfigError`` with a message flow.
        """
        if self.is_block:
            raise self.session.wrong(
                "A block's types cannot be joined.",
                given="mfg=true, micro-batches, several steps or samples",
                allowed="mfg=false batches.count=1 batches.steps=1 sample.fanouts=null",
            )
        assert self.plan.relations is not None
        session, (plan, edge_types) = self.session, self.plan.relations.joined
        types = torch.repeat_interleave(torch.arange(len(self.ntypes)), torch.tensor(self.plan.row_bounds).diff())
        fixed = {NODE_ID: plan.node_ids.clone, TYPE: types.clone}
        nodes = Frame(session, "nodes", Rows("nodes", -1, self.level), self.plan.num_rows, fixed)
        numbers = torch.tensor([self.canonical_etypes.index(etype) for etype in self.relation_types])
        rows = Rows("edges", -1, self.level)
        edata = Frame(session, "edges", rows, plan.num_edges, {TYPE: lambda: numbers[edge_types]})
        return ShardedGraph(session, plan, ("_N", "_E", "_N"), nodes, nodes, rows, edata, session.totals(self.plan))

    def local_var(self) -> TypedGraph:
        other = TypedGraph(self.session, self.plan, self.level, self._blocks)
        for mine, theirs in zip(self.all_frames(), other.all_frames(), strict=True):
            theirs.fields = dict(mine.fields)
        return other

    def apply_edges(self, func: Any, edges: Any = None, etype: Any = None) -> None:
        """Set fields of one relation's edges, or of several: a mapping from relations to functions."""
        for relation, function in func.items() if isinstance(func, Mapping) else [(etype, func)]:
            self[relation].apply_edges(function, edges)

    def apply_nodes(self, func: Callable[[Any], dict[str, Any]], v: Any = None, ntype: str | None = None) -> None:
        self.check_all(v, "apply_nodes")
        frame = self._destinations[self._type_number(ntype)]
        frame.update(func(NodeBatch(frame, {}, frame.count, frame[NODE_ID])))

    def update_all(
        self, message_func: Any, reduce_func: Any, apply_node_func: Callable[[Any], Any] | None = None, etype: Any = None
    ) -> None:
        self[etype].update_all(message_func, reduce_func, apply_node_func)

    def multi_update_all(
        self, functions: Mapping[Any, tuple[Any, ...]], cross_reducer: Any, apply_node_func: Callable[[Any], Any] | None = None
    ) -> None:
        """Fold every relation's messages, then join what ends in the same type.

        Args:
            functions: relation to (message function, reduce function, function of nodes or nothing).
            cross_reducer: ``sum``, ``mean``, ``max``, ``min``, ``stack``, or a function of a list of tensors.
            apply_node_func: a function of nodes, applied to each of these types afterwards.
        """
        folded: dict[tuple[int, str], list[Tensor]] = {}
        for etype in functions:
            message, reduce, *after = functions[etype]
            number = self._number_of(etype)
            graph, t = self.relation_graphs[number], self.plan.schema.relations[number].destination
            if after and after[0] is not None:
                with graph.local_scope():
                    graph.update_all(message, reduce, after[0])
                    rows = {name: graph.dstdata[name] for name in graph.dstdata}
            else:
                rows = graph.messages_folded(message, reduce)
            for name, table in rows.items():
                folded.setdefault((t, name), []).append(table)
        for (t, name), tables in folded.items():
            self._destinations[t][name] = tagged(self._joined(tables, cross_reducer), self._destinations[t].rows)
        if apply_node_func is not None:
            for t in {t for t, _ in folded}:
                self.apply_nodes(apply_node_func, ntype=self.ntypes[t])

    def _joined(self, tables: list[Tensor], by: Any) -> Tensor:
        if callable(by):
            result: Tensor = by(tables)
            return result
        stacked = torch.stack(tables, 1)
        if by == "stack":
            return stacked
        if by not in _JOINED:
            allowed = "sum, mean, max, min, stack, or a function"
            raise self.session.wrong("Relations are not joined so.", given=by, allowed=allowed)
        joined: Tensor = getattr(torch, _JOINED[by])(stacked, 1)
        return joined


class _DataOf:
    """What DGL gives for a type: its fields as ``data``."""

    def __init__(self, frame: Callable[[Any], Frame]) -> None:
        self._frame = frame

    def __getitem__(self, name: Any) -> SimpleNamespace:
        return SimpleNamespace(data=self._frame(name))


class _ByType(Mapping[str, dict[str, Any]]):
    """Fields of all node types: name to a mapping by node type."""

    def __init__(self, graph: TypedGraph, frames: Sequence[Frame]) -> None:
        self._session, self._frames = graph.session, dict(zip(graph.ntypes, frames, strict=True))
        self._of_type = lambda ntype: frames[graph._type_number(ntype)]

    def __getitem__(self, name: str) -> dict[str, Any]:
        by_type = {ntype: frame[name] for ntype, frame in self._frames.items() if name in frame}
        if not by_type:
            next(iter(self._frames.values()))[name]  # says what there is
        return by_type

    def __setitem__(self, name: str, values: Mapping[str, Any]) -> None:
        if not isinstance(values, Mapping):
            raise self._session.wrong(
                f"The field '{name}' of a typed graph is a mapping by node type.",
                given=f"a {type(values).__name__}",
                allowed=list(self._frames),
            )
        for ntype, value in values.items():
            self._of_type(ntype)[name] = value

    def update(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        for name, by_type in values.items():
            self[name] = by_type

    def pop(self, name: str) -> dict[str, Any]:
        by_type = self[name]
        for frame in self._frames.values():
            frame.fields.pop(name, None)
        return by_type

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for frame in self._frames.values() for name in frame))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class GraphMaker(Maker):
    def session(self, engine: Engine, calls: StockCalls, *, training: bool = True, num_blocks: int | None = None) -> Session:
        """For one forward pass, whose calls are watched; the arguments are those of ``Session``."""
        install_edge_softmax()
        return Session(self, engine, calls, training=training, num_blocks=num_blocks)

    def graph(self, session: Session, plans: Sequence[LayerPlan]) -> Any:
        """A sharded graph; for plans that differ one that has ``blocks``."""
        typed = plans[0].schema.typed
        if all(plan is plans[0] for plan in plans) and not session.totals(plans[0]).is_block:
            return TypedGraph(session, plans[0], 0) if typed else _homogeneous(session, plans[0], 0)
        made: dict[int, Any] = {}
        levels = [0]  # rows of a layer that computes all that it reads are those that the next one reads
        for number, plan in enumerate(plans, start=1):
            levels.append(number if session.totals(plan).is_block else levels[-1])

        def block(number: int) -> Any:
            if number not in made:
                plan, of_rows = plans[number], (levels[number], levels[number + 1])
                made[number] = (
                    TypedGraph(session, plan, number, blocks, of_rows)
                    if typed
                    else _homogeneous(session, plan, number, of_rows)
                )
            return made[number]

        blocks = Blocks(session, block)
        return _BlockGraph(session, len(plans), block(0), blocks)


class _BlockGraph:
    """What ``forward`` gets with a message flow: blocks, one for each layer, and nothing else but what a single one has."""

    def __init__(self, session: Session, count: int, first: Any, blocks: Blocks) -> None:
        self._session, self._count, self._first, self.blocks = session, count, first, blocks

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        of_all_layers = ("ntypes", "etypes", "canonical_etypes", "relation_types", "device", "is_homogeneous", "idtype", "to")
        if self._count == 1 or name in of_all_layers:
            return getattr(self._first, name)
        raise self._session.wrong(
            "In a message flow each layer has a block of its own.",
            given=f"graph.{name}",
            hint="for layer, block in zip(self.layers, graph.blocks): h = layer(block, h); without one it works as well",
        )

    def alone(self, otherwise: str) -> Any:
        """The graph of the only layer. Raises ``ConfigError`` where there are several; ``otherwise``: what to do."""
        if self._count == 1:
            return self._first
        raise self._session.wrong(
            "In a message flow each layer has edges of its own.",
            allowed="mfg=false batches.count=1 batches.steps=1 sample.fanouts=null",
            hint=otherwise,
        )

    def __getitem__(self, key: Any) -> Any:
        return self._first[key] if self._count == 1 else self.__getattr__("__getitem__(...)")


def _homogeneous(session: Session, plan: LayerPlan, level: int, of_rows: tuple[int, int] = (0, 0)) -> ShardedGraph:
    is_block = session.totals(plan).is_block
    ids = {NODE_ID: plan.node_ids.clone}
    sources = Frame(session, "source nodes" if is_block else "nodes", Rows("nodes", 0, of_rows[0]), plan.num_rows, ids)
    destinations = sources
    if is_block:
        of_outputs = {NODE_ID: lambda: plan.self_rows(plan.node_ids).clone()}
        destinations = Frame(session, "destination nodes", Rows("nodes", 0, of_rows[1]), plan.num_out, of_outputs)
    return ShardedGraph(session, plan, ("_N", "_E", "_N"), sources, destinations, Rows("edges", 0, level))
