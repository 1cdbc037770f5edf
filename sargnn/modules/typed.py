"""A typed sharded graph as a layer sees it: node types, relations, and each relation's graph by ``graph[etype]``.

Letters: T node types, R relations; N_t input rows and M_t output rows of a type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from sargnn.errors import nearest
from sargnn.modules.counts import Count
from sargnn.modules.frames import Frame
from sargnn.modules.graph import FOR_LAYERS, NODE_ID, SOME, Blocks, Etype, NodeBatch, ShardedGraph
from sargnn.modules.rows import Rows, tagged
from sargnn.modules.session import Session
from sargnn.shards.plan import LayerPlan

TYPE = "_TYPE"
"""The field of node types and relations in a joined graph, as DGL calls it."""


_JOINED = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}


class TypedGraph:
    """All relations of one layer.

    Args:
        session: of this forward pass. plan: the layer's, with ``relations``. level: the layer's number.
        blocks: of the whole model; None: this graph serves all layers.
    """

    is_homogeneous = False
    is_multigraph = True

    def __init__(self, session: Session, plan: LayerPlan, level: int, blocks: Blocks | None = None) -> None:
        self.session, self.plan, self.level = session, plan, level
        assert plan.relations is not None
        schema, self._blocks = plan.schema, blocks
        self.ntypes = list(schema.node_types)
        self._etypes: list[Etype] = [
            (schema.node_types[edge_type.source], edge_type.name, schema.node_types[edge_type.destination])
            for edge_type in schema.relations
        ]
        self.canonical_etypes = sorted(self._etypes)  # the order in which DGL has them
        self.is_block = session.totals(plan).is_block
        self._sources = [self._frame(t, outputs=False) for t in range(len(self.ntypes))]
        self._destinations = [self._frame(t, outputs=True) for t in range(len(self.ntypes))] if self.is_block else self._sources
        self.relation_graphs = [
            ShardedGraph(
                session,
                relation_plan,
                etype,
                self._sources[relation.source],
                self._destinations[relation.destination],
                relation=number,
                level=level,
                is_block=self.is_block,
            )
            for number, (relation_plan, relation, etype) in enumerate(
                zip(plan.relations, schema.relations, self._etypes, strict=True)
            )
        ]

    def _frame(self, node_type: int, *, outputs: bool) -> Frame:
        bounds = self.plan.out_bounds if outputs else self.plan.row_bounds
        count = bounds[node_type + 1] - bounds[node_type]
        first = self.plan.row_bounds[node_type]  # a type's output rows are the first of its input rows
        rows = Rows("nodes", node_type, self.level + outputs)
        ids = self.plan.node_ids[first : first + count] - self.plan.schema.offsets[node_type]
        return Frame(f"'{self.ntypes[node_type]}' nodes", rows, lambda: count, self.session.place, {NODE_ID: ids.clone})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = (*FOR_LAYERS, "nodes", "edges", "to_homogeneous")
        raise self.session.not_there("a typed sharded graph", name, known, SOME, "graph[etype] is one relation's graph")

    def __repr__(self) -> str:
        nodes = {name: int(self.number_of_src_nodes(name)) for name in self.ntypes}
        edges = {etype: int(graph.num_edges()) for etype, graph in zip(self._etypes, self.relation_graphs, strict=True)}
        return f"TypedGraph(this worker's: nodes {nodes}, edges {edges})"

    # What there is

    @property
    def etypes(self) -> list[str]:
        return [name for _, name, _ in self.canonical_etypes]

    @property
    def srctypes(self) -> list[str]:
        return self.ntypes

    @property
    def dsttypes(self) -> list[str]:
        return self.ntypes

    @property
    def device(self) -> torch.device:
        return self.session.engine.device

    @property
    def blocks(self) -> Blocks:
        """The graph of each layer in turn."""
        return self._blocks or Blocks(self.session, lambda number: self)

    @property
    def nodes(self) -> Nodes:
        """``nodes[ntype].data``: the fields of a type's rows."""
        return Nodes(self, self._sources)

    srcnodes = nodes

    @property
    def dstnodes(self) -> Nodes:
        """``dstnodes[ntype].data``: the fields of a type's output rows."""
        return Nodes(self, self._destinations)

    @property
    def edges(self) -> Relations:
        """``edges[etype].data``: the fields of a relation's edges."""
        return Relations(self)

    @property
    def ndata(self) -> ByType:
        """Fields of all types: mappings by node type."""
        return ByType(self, self._sources)

    srcdata = ndata

    @property
    def dstdata(self) -> ByType:
        return ByType(self, self._destinations)

    def __getitem__(self, etype: Any) -> ShardedGraph:
        """One relation's graph, by its name or (source type, name, destination type)."""
        return self.relation_graphs[self.number_of(etype)]

    def number_of(self, etype: Any) -> int:
        """A relation's number in the schema. Raises ``ConfigError`` where there is none, or several of that name."""
        if etype is None and len(self._etypes) == 1:
            return 0
        numbers = [number for number, relation in enumerate(self._etypes) if etype in (relation, relation[1])]
        if len(numbers) != 1:
            what = f"The graph has several relations '{etype}'." if numbers else f"The graph has no relation '{etype}'."
            names = [str(self._etypes[number]) for number in numbers] or nearest(str(etype), self.etypes)
            raise self.session.wrong(what, allowed=names or [str(relation) for relation in self.canonical_etypes])
        return numbers[0]

    def to_canonical_etype(self, etype: Any) -> Etype:
        return self._etypes[self.number_of(etype)]

    def type_number(self, ntype: str | None) -> int:
        """A node type's number. Raises ``ConfigError`` where there is none."""
        if ntype is None and len(self.ntypes) == 1:
            return 0
        if ntype not in self.ntypes:
            raise self.session.wrong(
                f"The graph has no node type '{ntype}'.", allowed=nearest(str(ntype), self.ntypes) or self.ntypes
            )
        return self.ntypes.index(ntype)

    def number_of_src_nodes(self, ntype: str | None = None) -> Count:
        return self._count(self.plan.row_bounds, ntype, outputs=False)

    def number_of_dst_nodes(self, ntype: str | None = None) -> Count:
        return self._count(self.plan.out_bounds, ntype, outputs=True)

    num_src_nodes = num_nodes = number_of_nodes = number_of_src_nodes
    num_dst_nodes = number_of_dst_nodes

    def _count(self, bounds: tuple[int, ...], ntype: str | None, *, outputs: bool) -> Count:
        totals = self.session.totals(self.plan)
        if ntype is None:
            return Count(bounds[-1], totals.outputs if outputs else totals.rows, "nodes")
        t = self.type_number(ntype)
        total = (totals.outputs_by_type if outputs else totals.rows_by_type)[t]
        rows = (self._destinations if outputs else self._sources)[t].rows
        return Count(bounds[t + 1] - bounds[t], total, "nodes", rows)

    def num_edges(self, etype: Any = None) -> Count:
        if etype is not None:
            return self[etype].num_edges()
        counts = [graph.num_edges() for graph in self.relation_graphs]
        return Count(sum(int(count) for count in counts), sum(count.total for count in counts), "edges")

    number_of_edges = num_edges

    def in_degrees(self, v: Any = None, etype: Any = None) -> Tensor:
        return self[etype].in_degrees(v)

    def out_degrees(self, u: Any = None, etype: Any = None) -> Tensor:
        return self[etype].out_degrees(u)

    def to(self, *args: Any, **kwargs: Any) -> TypedGraph:
        return self

    def to_homogeneous(self) -> ShardedGraph:
        """All nodes, type by type, and all edges as one relation's graph: what DGL's ``to_homogeneous`` gives.

        ``ndata['_TYPE']`` and ``edata['_TYPE']`` are the numbers of types in ``ntypes`` and of relations in
        ``canonical_etypes``. Rows are those of ``torch.cat`` over the types.

        Raises:
            ConfigError: with a message flow.
        """
        if self.is_block:
            raise self.session.wrong(
                "A block's types cannot be joined.",
                given="mfg=true, micro-batches, several steps or samples",
                allowed="mfg=false batches.count=1 batches.steps=1 sample.fanouts=null",
            )
        plan = self.plan.joined
        totals = self.session.totals(self.plan)
        rows = Rows("nodes", -1, self.level)
        counts = torch.tensor(self.plan.row_bounds).diff()
        types = torch.repeat_interleave(torch.arange(len(self.ntypes)), counts)
        nodes = Frame(
            "nodes", rows, lambda: self.plan.num_rows, self.session.place, {NODE_ID: plan.node_ids.clone, TYPE: types.clone}
        )
        edge_types = plan.edge_types
        assert edge_types is not None
        places = torch.tensor([self.canonical_etypes.index(etype) for etype in self._etypes])
        frame = Frame(
            "edges",
            Rows("edges", -1, self.level),
            lambda: plan.num_edges,
            self.session.place,
            {TYPE: lambda: places[edge_types]},
        )
        return ShardedGraph(
            self.session,
            plan,
            ("_N", "_E", "_N"),
            nodes,
            nodes,
            relation=-1,
            level=self.level,
            edata=frame,
            totals=totals,
        )

    # Fields

    @contextmanager
    def local_scope(self) -> Iterator[None]:
        """Fields that are set inside are gone afterwards."""
        with ExitStack() as stack:
            for graph in self.relation_graphs:
                stack.enter_context(graph.local_scope())
            frames = {id(node_frame): node_frame for node_frame in (*self._sources, *self._destinations)}.values()
            saved = [(frame, frame.saved()) for frame in frames]
            try:
                yield
            finally:
                for frame, fields in saved:
                    frame.restore(fields)

    def local_var(self) -> TypedGraph:
        """The same graph with frames of its own, which begin with the same fields."""
        other = TypedGraph(self.session, self.plan, self.level, self._blocks)
        for mine, theirs in zip((*self._sources, *self._destinations), (*other._sources, *other._destinations), strict=True):
            theirs.restore(mine.saved())
        for graph, another in zip(self.relation_graphs, other.relation_graphs, strict=True):
            another.edata.restore(graph.edata.saved())
        return other

    # Messages

    def apply_edges(self, func: Any, edges: Any = None, etype: Any = None) -> None:
        """Set fields of one relation's edges, or of several: a mapping from relations to functions."""
        for relation, function in func.items() if isinstance(func, Mapping) else [(etype, func)]:
            self[relation].apply_edges(function)

    def apply_nodes(self, func: Callable[[Any], dict[str, Any]], v: Any = None, ntype: str | None = None) -> None:
        """Set fields of a type's output rows."""
        t = self.type_number(ntype)
        frame = self._destinations[t]
        frame.update(func(NodeBatch(frame, {}, int(self.number_of_dst_nodes(self.ntypes[t])), frame[NODE_ID])))

    def update_all(
        self, message_func: Any, reduce_func: Any, apply_node_func: Callable[[Any], Any] | None = None, etype: Any = None
    ) -> None:
        """As on one relation's graph."""
        self[etype].update_all(message_func, reduce_func, apply_node_func)

    def multi_update_all(
        self, functions: Mapping[Any, tuple[Any, ...]], cross_reducer: Any, apply_node_func: Callable[[Any], Any] | None = None
    ) -> None:
        """Fold every relation's messages, then join what ends in the same type.

        Args:
            functions: relation to (message function, reduce function, function of nodes or nothing).
            cross_reducer: ``sum``, ``mean``, ``max``, ``min``, ``stack``, or a function of a list of tensors.
        """
        folded: dict[tuple[int, str], list[Tensor]] = {}
        for etype in functions:
            message, reduce, *after = functions[etype]
            number = self.number_of(etype)
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

    def _joined(self, tables: Sequence[Tensor], by: Any) -> Tensor:
        if callable(by):
            result: Tensor = by(list(tables))
            return result
        stacked = torch.stack(list(tables), 1)
        if by == "stack":
            return stacked
        if by not in _JOINED:
            raise self.session.wrong(
                "Relations are not joined so.", given=by, allowed="sum, mean, max, min, stack, or a function"
            )
        joined: Tensor = getattr(torch, _JOINED[by])(stacked, 1)
        return joined


class Nodes:
    """Frames by node type."""

    def __init__(self, graph: TypedGraph, frames: Sequence[Frame]) -> None:
        self._graph, self._frames = graph, frames

    def __getitem__(self, ntype: str) -> HasData:
        return HasData(self._frames[self._graph.type_number(ntype)])


class Relations:
    """Frames by relation."""

    def __init__(self, graph: TypedGraph) -> None:
        self._graph = graph

    def __getitem__(self, etype: Any) -> HasData:
        return HasData(self._graph[etype].edata)


class HasData:
    """What DGL gives for a type: its fields as ``data``."""

    def __init__(self, data: Frame) -> None:
        self.data = data


class ByType(Mapping[str, dict[str, Any]]):
    """Fields of all node types: name to a mapping by node type."""

    def __init__(self, graph: TypedGraph, frames: Sequence[Frame]) -> None:
        self._graph, self._frames = graph, frames

    def __getitem__(self, name: str) -> dict[str, Any]:
        by_type = {ntype: frame[name] for ntype, frame in zip(self._graph.ntypes, self._frames, strict=True) if name in frame}
        if not by_type:
            self._frames[0][name]  # says what there is
        return by_type

    def __setitem__(self, name: str, values: Mapping[str, Any]) -> None:
        if not isinstance(values, Mapping):
            raise self._graph.session.wrong(
                f"The field '{name}' of a typed graph is a mapping by node type.",
                given=f"a {type(values).__name__}",
                allowed=self._graph.ntypes,
            )
        for ntype, value in values.items():
            self._frames[self._graph.type_number(ntype)][name] = value

    def update(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Set several fields."""
        for name, by_type in values.items():
            self[name] = by_type

    def pop(self, name: str) -> dict[str, Any]:
        """A field, which is gone afterwards."""
        by_type = self[name]
        for frame in self._frames:
            frame._fields.pop(name, None)
        return by_type

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for frame in self._frames for name in frame))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def make_typed(session: Session, plans: Sequence[LayerPlan]) -> Any:
    """The graph that ``forward`` gets: of one layer's plan, or with ``blocks`` of several."""
    if all(plan is plans[0] for plan in plans) and not session.totals(plans[0]).is_block:
        return TypedGraph(session, plans[0], 0)
    made: dict[int, TypedGraph] = {}

    def block(number: int) -> TypedGraph:
        if number not in made:
            made[number] = TypedGraph(session, plans[number], number, blocks)
        return made[number]

    blocks = Blocks(session, block)
    from sargnn.modules.make import BlockGraph

    return BlockGraph(session, len(plans), block(0), blocks)
