"""The sharded graph as a layer sees it: what a DGL graph has for message passing, over one layer plan.

Every worker holds the rows of its own nodes and the edges into them. ``update_all`` is one aggregation of the engine; what
``apply_edges`` gives is an expression that later calls take up (``messages.edges``). Whatever steers a layer's branches,
such as ``num_edges() == 0``, is answered for all workers together.

Letters: N input rows, M output rows, E edges of this worker.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from sargnn.engine.reducers.base import Reducer, Tensors
from sargnn.engine.reducers.generic import EdgeRun
from sargnn.errors import ConfigError
from sargnn.graph.edge_columns import WEIGHT as WEIGHT_COLUMN
from sargnn.messages.counts import Count
from sargnn.messages.edges import EdgeTensor
from sargnn.messages.expressions import Field, Node, Where
from sargnn.messages.fold import edge_table, fold
from sargnn.messages.frames import Frame
from sargnn.messages.functions import describe, message_nodes
from sargnn.messages.reduce import NodeBatch, reduced
from sargnn.messages.rows import Rows, tagged
from sargnn.messages.session import Session, Totals
from sargnn.messages.user_functions import EdgeCalls
from sargnn.rng import Draw
from sargnn.shards.plan import LayerPlan

NODE_ID = "_ID"
"""The field of original ids, as DGL calls it."""
WEIGHT = "w"
"""The field of the graph's edge weights, [E], where it has any."""
MOST_BLOCKS = 256
"""Where nobody knows yet how many there are."""
Etype = tuple[str, str, str]
FOR_LAYERS = tuple(
    """ndata srcdata dstdata edata local_scope local_var update_all apply_edges apply_nodes multi_update_all edge_softmax blocks
    in_degrees out_degrees num_nodes num_edges num_src_nodes num_dst_nodes number_of_dst_nodes is_block device ntypes etypes
    canonical_etypes""".split()
)
"""What a layer may ask a graph for."""
SOME = "update_all, apply_edges, ndata, edata, in_degrees, blocks, ... (docs/EXTENDING.md)"
_LOOPS = frozenset("add_self_loop remove_self_loop to_canonical_etype add_edges has_edges_between".split())
"""What DGL's functions that add or remove self-loops ask for."""


class ShardedGraph:
    """The edges of one relation, or of a homogeneous graph, with the fields of their ends.

    Args:
        session: of this forward pass. plan: the layer's graph. etype: (source type, relation, destination type).
        srcdata, dstdata: frames of the nodes; the same one where the layer computes all of its rows of one type.
        relation: its number. level: the layer's number.
        edata: the edges' frame; an empty one if not given. totals: of the plan, where the session does not know them.
        is_block: whether the layer computes fewer rows than it reads, as DGL's blocks do; the same on all
            workers. As the totals say if not given.
    """

    is_homogeneous = True
    is_multigraph = True
    is_pinned = False

    def __init__(
        self,
        session: Session,
        plan: LayerPlan,
        etype: Etype,
        srcdata: Frame,
        dstdata: Frame,
        *,
        relation: int = 0,
        level: int = 0,
        edata: Frame | None = None,
        totals: Totals | None = None,
        is_block: bool | None = None,
    ) -> None:
        self.session, self.plan = session, plan
        self.canonical_etypes, self._relation, self.level = [etype], relation, level
        self.srcdata, self.dstdata = srcdata, dstdata
        self._totals = totals or session.totals(plan)
        self.is_block = self._totals.is_block if is_block is None else is_block
        if edata is None:
            edata = Frame("edges", Rows("edges", relation, level), self.num_edges, session.place)
        if plan.weighted:
            edata.fix(WEIGHT, self._edge_weights)
        self.edata = edata

    @property
    def _graph(self) -> GraphIndex:
        """What functions of DGL's look into; held by nobody, so that a graph goes when its last reader does."""
        return GraphIndex(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _LOOPS:
            hint = "the graph cannot be changed; dataset.add_self_loops=true gives each node a self-loop"
            raise self.wrong(f"A sharded graph has no '{name}'.", hint=hint)
        hint = "edges and nodes of other workers are not here; messages reach them"
        raise self.session.not_there("a sharded graph", name, FOR_LAYERS, SOME, hint)

    def __repr__(self) -> str:
        source, relation, destination = self.canonical_etypes[0]
        return (
            f"ShardedGraph(this worker's: {self.plan.num_rows} '{source}' nodes, {self.plan.num_edges} '{relation}' edges into "
            f"{self.plan.num_out} '{destination}' nodes; srcdata: {list(self.srcdata)}, dstdata: {list(self.dstdata)}, "
            f"edata: {list(self.edata)})"
        )

    # What there is

    @property
    def ndata(self) -> Frame:
        """The nodes' fields. Raises ``ConfigError`` for a block, which has two sets of nodes."""
        if self.srcdata is not self.dstdata:
            raise self.wrong("A block has source and destination nodes.", allowed=["graph.srcdata", "graph.dstdata"])
        return self.srcdata

    @property
    def device(self) -> torch.device:
        return self.session.engine.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows that travel."""
        return self.session.engine.dtype

    @property
    def idtype(self) -> torch.dtype:
        return torch.int64

    @property
    def etypes(self) -> list[str]:
        return [etype for _, etype, _ in self.canonical_etypes]

    @property
    def ntypes(self) -> list[str]:
        source, _, destination = self.canonical_etypes[0]
        return [source] if source == destination else [source, destination]

    @property
    def srctypes(self) -> list[str]:
        return [self.canonical_etypes[0][0]]

    @property
    def dsttypes(self) -> list[str]:
        return [self.canonical_etypes[0][2]]

    @property
    def is_unibipartite(self) -> bool:
        return self.is_block or len(self.ntypes) > 1

    @property
    def blocks(self) -> Blocks:
        """The graph of each layer in turn: this one for all, where every layer computes all rows."""
        return Blocks(self.session, lambda number: self)

    def num_nodes(self, ntype: str | None = None) -> Count:
        """N; M of the destination type."""
        destination = ntype is not None and ntype == self.dsttypes[0] != self.srctypes[0]
        return self.number_of_dst_nodes() if destination else self.number_of_src_nodes()

    def number_of_src_nodes(self, ntype: str | None = None) -> Count:
        """N."""
        return Count(self.plan.num_rows, self._totals.rows, "nodes", self.srcdata.rows)

    def number_of_dst_nodes(self, ntype: str | None = None) -> Count:
        """M."""
        return Count(self.plan.num_out, self._totals.outputs, "nodes", self.dstdata.rows)

    def num_edges(self, etype: Any = None) -> Count:
        """E; equal to 0 only where no worker has an edge."""
        return Count(self.plan.num_edges, self._totals.edges, "edges", self.edata.rows)

    num_src_nodes, num_dst_nodes = number_of_src_nodes, number_of_dst_nodes
    number_of_nodes, number_of_edges = num_nodes, num_edges

    def in_degrees(self, v: Any = None, etype: Any = None) -> Tensor:
        """int64 [M], edges into each output row in the whole graph."""
        return self._of_nodes(self.plan.in_degrees, v, self.dstdata.rows)

    def out_degrees(self, u: Any = None, etype: Any = None) -> Tensor:
        """int64 [N], edges out of each input row in the whole graph."""
        return self._of_nodes(self.plan.out_degrees, u, self.srcdata.rows)

    def _of_nodes(self, degrees: Tensor, which: Any, rows: Rows) -> Tensor:
        if isinstance(which, Tensor):
            return degrees[which]
        return tagged(degrees.clone(), rows)

    def to(self, *args: Any, **kwargs: Any) -> ShardedGraph:
        """Itself: a graph stays where it is."""
        return self

    def __getitem__(self, etype: Any) -> ShardedGraph:
        """Itself, by its relation's name."""
        known = [*self.etypes, *self.canonical_etypes]
        if etype not in known:
            raise self.wrong(f"The graph has no relation '{etype}'.", allowed=[str(relation) for relation in known])
        return self

    # Fields

    @contextmanager
    def local_scope(self) -> Iterator[None]:
        """Fields that are set inside are gone afterwards."""
        frames = (self.srcdata, self.dstdata, self.edata)
        saved = [frame.saved() for frame in frames]
        try:
            yield
        finally:
            for frame, fields in zip(frames, saved, strict=True):
                frame.restore(fields)

    def local_var(self) -> ShardedGraph:
        """The same graph with frames of its own, which begin with the same fields."""
        source = self.srcdata.copy()
        destination = source if self.dstdata is self.srcdata else self.dstdata.copy()
        return ShardedGraph(
            self.session,
            self.plan,
            self.canonical_etypes[0],
            source,
            destination,
            relation=self._relation,
            level=self.level,
            edata=self.edata.copy(),
            totals=self._totals,
            is_block=self.is_block,
        )

    def apply_nodes(self, func: Callable[[Any], dict[str, Any]], v: Any = None, ntype: Any = None) -> None:
        """Set fields of the destination nodes to what ``func`` gives for them."""
        self.dstdata.update(func(self._node_batch()))

    def _node_batch(self) -> NodeBatch:
        return NodeBatch(self.dstdata, {}, int(self.number_of_dst_nodes()), self.destination_ids())

    # Messages

    def apply_edges(self, func: Any, edges: Any = None, etype: Any = None) -> None:
        """Set fields of the edges to messages, as expressions; nothing is computed yet."""
        for name, node in message_nodes(self, func).items():
            self.edata[name] = EdgeTensor(self, node)

    def update_all(
        self, message_func: Any, reduce_func: Any, apply_node_func: Callable[[Any], Any] | None = None, etype: Any = None
    ) -> None:
        """Set fields of the destination nodes to folded messages; all workers must call it.

        Args:
            message_func: one of ``dgl.function``, or a function of edges that gives a mapping.
            reduce_func: one of ``dgl.function``, or a function of nodes that gives a mapping.
            apply_node_func: a function of nodes, applied afterwards.
        """
        for name, rows in self.messages_folded(message_func, reduce_func).items():
            self.dstdata[name] = rows
        if apply_node_func is not None:
            self.apply_nodes(apply_node_func)

    def messages_folded(self, message_func: Any, reduce_func: Any) -> dict[str, Tensor]:
        """What ``update_all`` sets."""
        folded = reduced(self, message_nodes(self, message_func), reduce_func, describe(message_func))
        rows = {name: tagged(field, self.dstdata.rows) for name, field in folded.items()}
        self.session.seen("update_all", list(rows.values()))
        return rows

    def multi_update_all(
        self, functions: dict[Any, tuple[Any, ...]], cross_reducer: Any, apply_node_func: Callable[[Any], Any] | None = None
    ) -> None:
        """As ``update_all``; of one relation there is nothing to join."""
        (pair,) = functions.values()
        self.update_all(pair[0], pair[1], apply_node_func)

    def edge_softmax(self, logits: Any, norm_by: str = "dst") -> EdgeTensor:
        """Softmax over the edges of each destination; as an expression."""
        if norm_by != "dst":
            raise self.wrong(
                "A softmax over a source's edges needs edges of other workers.",
                given=f"norm_by={norm_by!r}",
                allowed="norm_by='dst'",
            )
        if isinstance(logits, Tensor):
            logits = EdgeTensor(self, self.field("e", logits))
        if not isinstance(logits, EdgeTensor):
            raise self.wrong("A softmax over edges is taken of a field of the edges.", given=f"a {type(logits).__name__}")
        return logits.softmax_over_edges()

    # For what works on expressions

    @property
    def holds_all_rows(self) -> bool:
        """Whether the mode has all rows of a layer at one time."""
        return self.session.engine.mode.layout == "merged"

    @property
    def mode_name(self) -> str:
        return self.session.engine.mode.name

    def field(self, where: Where, tensor: Tensor) -> Field:
        """A tensor's rows as an expression."""
        count = {"u": self.plan.num_rows, "v": self.plan.num_out, "e": self.plan.num_edges}[where]
        if not tensor.dim() or len(tensor) != count:
            what = {"u": "source nodes", "v": "destination nodes", "e": "edges"}[where]
            raise self.wrong(
                f"A tensor has not one row for each of the {what}.", given=f"shape {tuple(tensor.shape)} for {count}"
            )
        return Field(tuple(tensor.shape[1:]), tensor.dtype, where, tensor)

    def folded(self, wanted: Sequence[tuple[str, Node]], called: str) -> list[Tensor]:
        """Messages folded over each destination's edges, [M, ...] each.

        Args:
            wanted: (``sum``, ``mean``, ``max``, ``min`` or ``logsumexp``; message). called: what the log calls it.
        """
        return [tagged(fold(self, kind, node, called), self.dstdata.rows) for kind, node in wanted]

    def _edge_weights(self) -> EdgeTensor:
        """The graph's weights, [E], constant. An expression, so that their number is told for all workers."""
        weights = tagged(self.plan.edge_column(WEIGHT_COLUMN), self.edata.rows, shared=True)
        return EdgeTensor(self, Field((), weights.dtype, "e", weights))

    def edge_values(self, node: Node) -> Tensor:
        """An expression's values for all edges of this worker, [E, ...]; all workers must call it."""
        if isinstance(node, Field) and node.where == "e":
            return node.tensor
        values = tagged(edge_table(self, node), self.edata.rows)
        self.session.seen("the values of an edge field", values)
        return values

    def aggregate(self, reducer: Reducer, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        """``Engine.aggregate`` on this graph's plan."""
        with self.session.paused():
            return self.session.engine.aggregate(self.plan, reducer, exchanged, dest_local, params)

    def kept(self, name: str, compute: Callable[[], Tensors]) -> Tensors:
        """What ``compute()`` gives of the source type's constant rows: kept from epoch to epoch where that is allowed.

        Args:
            name: of the reducer.
        """
        return self.session.kept((name, self.srcdata.rows.type), self.plan, compute)

    def destination_ids(self) -> Tensor:
        """int64 [M], original ids of the output rows."""
        shards = [self.plan.merged] if self.plan.shards is None else list(self.plan.shards.values())
        assert shards[0] is not None
        return shards[0].block.dst_ids

    def note(self, line: str) -> None:
        """A line for the log, with the user's place."""
        self.session.report.add(f"{self.session.place()}: {line}")

    def wrong(self, what: str, **more: Any) -> ConfigError:
        return self.session.wrong(what, **more)

    def place_of(self, func: Any) -> str:
        """Where a function of the user's is defined."""
        code = getattr(func, "__code__", None)
        return self.session.place() if code is None else f"{code.co_filename} line {code.co_firstlineno}"

    def place_of_error(self, error: BaseException) -> str:
        return self.session.place_of_error(error)

    def paused(self) -> AbstractContextManager[None]:
        return self.session.paused()

    def new_draws(self) -> dict[int, Draw]:
        """The draws of one message function, none so far."""
        return {}

    def calls_of_edges(self, draws: dict[int, Draw], run: EdgeRun | None) -> EdgeCalls:
        return self.session.calls_of_edges(draws, run)


class GraphIndex:
    """What ``dgl.ops.edge_softmax`` asks of a graph (``messages.dgl_hook``)."""

    def __init__(self, graph: ShardedGraph) -> None:
        self.graph = graph

    def number_of_etypes(self) -> int:
        return 1

    def __getattr__(self, name: str) -> Any:
        raise self.graph.wrong(
            "A function of DGL's looks into the graph, which is sharded.",
            given=f"graph._graph.{name}",
            allowed="update_all, apply_edges and edge_softmax",
            hint="functions that make another graph have none to make it from",
        )


class Blocks(Sequence[Any]):
    """The graphs of a model's layers, which can be unpacked, indexed and counted as DGL's list.

    Args:
        session: knows how many layers there are, or notes what is asked while nobody knows it.
        graph: the graph of a layer by its number.
    """

    def __init__(self, session: Session, graph: Callable[[int], Any]) -> None:
        self._session, self._graph = session, graph

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[index] for index in range(len(self))[number]]
        number = operator.index(number)
        if number < 0:
            number += len(self)
        known = self._session.num_blocks
        if not 0 <= number < (MOST_BLOCKS if known is None else known):
            raise IndexError(f"there is no block {number}")
        self._session.asked.numbers.add(number)
        return self._graph(number)

    def __iter__(self) -> Iterator[Any]:
        known = self._session.num_blocks
        for number in range(MOST_BLOCKS if known is None else known):
            self._session.asked.drawn = max(self._session.asked.drawn, number + 1)
            yield self[number]

    def __len__(self) -> int:
        if self._session.num_blocks is None:
            self._session.asked.counted = True
            raise self._session.wrong("How many blocks there are was asked before anybody knows it.")
        return self._session.num_blocks
