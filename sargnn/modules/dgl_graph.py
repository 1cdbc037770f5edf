"""The sharded graph as a layer of DGL's sees it: what a DGL graph has for message passing, over one layer plan.

Every worker holds the rows of its own nodes and the edges into them. ``update_all`` is one aggregation of the engine; what
``apply_edges`` gives is an expression that later calls take up (``lazy.py``). Whatever steers a layer's branches, such
as ``num_edges() == 0``, is answered for all workers together. Nothing here computes messages, or knows of more relations than
its own (``dgl_typed.py``). DGL is not imported.

Letters: N input rows, M output rows, E edges of this worker.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sargnn.errors import ConfigError, nearest
from sargnn.modules.expressions import Softmax
from sargnn.modules.folds import Edges
from sargnn.modules.lazy import EdgeRows, edge_rows
from sargnn.modules.message_functions import describe, message_nodes
from sargnn.modules.reduce_functions import NodeBatch, reduced
from sargnn.modules.session import Session, Totals
from sargnn.modules.tag import Count, Rows, is_shared, rows_of, set_mark, tagged
from sargnn.plan.layer_plan import LayerPlan

NODE_ID = "_ID"
"""The field of original ids, as DGL calls it."""
WEIGHT = "w"
"""The field of the graph's edge weights, [E], where it has any."""
FEATURES = "feat"
"""The field of the graph's features of edges, [E, D], where it has any, as DGL's data sets call it."""
MOST_BLOCKS = 256
"""Where nobody knows yet how many there are."""
Etype = tuple[str, str, str]
FOR_LAYERS = tuple(
    """ndata srcdata dstdata edata local_scope local_var update_all apply_edges apply_nodes multi_update_all edge_softmax blocks
    in_degrees out_degrees num_nodes num_edges num_src_nodes num_dst_nodes number_of_dst_nodes is_block device ntypes etypes
    canonical_etypes""".split()
)
"""What a layer may ask a graph for."""
SOME = "update_all, apply_edges, ndata, edata, in_degrees, blocks, ... (sargnn help DGL)"
_LOOPS = frozenset("add_self_loop remove_self_loop to_canonical_etype add_edges has_edges_between".split())
"""What DGL's functions that add or remove self-loops ask for."""
_OF_DATA = frozenset("feat feats feature features attr x".split())
"""What fields of features are called in DGL's data sets."""
_OF_WEIGHTS = frozenset("w weight weights edge_weight edge_weights".split())


class MissingField(ConfigError, KeyError):
    """A field that is not there."""

    __str__ = ConfigError.__str__


class Frame(MutableMapping[str, Any]):
    """Fields of the same rows by name, as a layer sets and reads them.

    Args:
        kind: what an error calls the rows, such as ``source nodes``.
        rows: what a tensor's rows are from now on.
        fixed: fields that are made whenever they are read, until another is set, such as original ids.
    """

    def __init__(
        self, session: Session, kind: str, rows: Rows, count: int, fixed: Mapping[str, Callable[[], Any]] | None = None
    ) -> None:
        self.session, self.kind, self.rows, self.count = session, kind, rows, count
        self.fixed = dict(fixed or {})
        self.fields: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name in self.fields:
            return self.fields[name]
        if name in self.fixed:
            field = self.fixed[name]()
            return set_mark(field, None, shared=True) if isinstance(field, EdgeRows) else tagged(field, self.rows, shared=True)
        hint = None
        if name in _OF_DATA and self.rows.kind == "edges":
            hint = "the run's graph has no edge features (sargnn help own data)"
            if FEATURES in self:
                hint = f"the graph's features of edges are edata['{FEATURES}']"
        elif name in _OF_DATA:
            hint = "features are what forward gets beside the graph"
        elif self.rows.kind == "edges" and name in _OF_WEIGHTS:
            hint = "the run's graph has no edge weights (sargnn help own data)"
            if WEIGHT in self:
                hint = f"the graph's weights are edata['{WEIGHT}']"
        raise MissingField(
            f"The {self.kind} have no field '{name}'.",
            given=self.session.place(),
            allowed=nearest(name, self.fields) or list(self.fields) or "none was set",
            hint=hint,
        )

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and not isinstance(value, EdgeRows):
            if not value.dim() or len(value) != self.count:
                raise self.session.wrong(
                    f"The field '{name}' has not one row for each of the {self.kind}.",
                    given=f"shape {tuple(value.shape)} for {self.count}",
                )
            if rows_of(value) is None:
                self.session.takes_rows(value, self.rows, f"a field of the {self.kind}")
                tagged(value, self.rows, shared=is_shared(value))
        elif not isinstance(value, EdgeRows):
            raise self.session.wrong(
                f"The field '{name}' is no tensor.",
                given=f"a {type(value).__name__}",
                allowed=f"a tensor with a row for each of the {self.kind}",
            )
        self.fields[name] = value

    def __repr__(self) -> str:
        return f"Frame({self.kind}: {', '.join(self.fields) or 'no fields'})"

    def __delitem__(self, name: str) -> None:
        self[name]
        self.fields.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self.fields or name in self.fixed

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def copy(self) -> Frame:
        frame = Frame(self.session, self.kind, self.rows, self.count, self.fixed)
        frame.fields = dict(self.fields)
        return frame


class AnyGraph:
    """What graphs of one relation and of several answer alike; ``canonical_etypes`` are in DGL's order."""

    session: Session
    canonical_etypes: list[Etype]
    is_multigraph = True
    is_pinned = False
    idtype = torch.int64

    def all_frames(self) -> Iterable[Frame]:
        raise NotImplementedError

    def alone(self, otherwise: str) -> Any:
        """Itself: the graph of all layers. Where each has one of its own, an error that says what to do ``otherwise``."""
        return self

    @property
    def device(self) -> torch.device:
        return self.session.engine.device

    @property
    def etypes(self) -> list[str]:
        return [name for _, name, _ in self.canonical_etypes]

    def check_all(self, numbers: Any, name: str) -> None:
        """Raise ``ConfigError`` where a call is of some nodes or edges alone, told by their numbers."""
        if numbers is not None and not (isinstance(numbers, str) and numbers == "__ALL__"):
            raise self.session.wrong(
                "Nodes and edges are not known by their numbers, which mean others on each worker.",
                given=f"graph.{name} of some",
                allowed="that of all, and masks of rows, such as torch.where(x[:, :1] > 0, ...)",
            )

    def to(self, *args: Any, **kwargs: Any) -> AnyGraph:
        """Itself: a graph stays where it is."""
        return self

    @contextmanager
    def local_scope(self) -> Iterator[None]:
        """Fields that are set inside are gone afterwards."""
        saved = [(frame, dict(frame.fields)) for frame in self.all_frames()]
        try:
            yield
        finally:
            for frame, fields in saved:
                frame.fields = fields


class ShardedGraph(AnyGraph, Edges):
    """The edges of one relation, or of a homogeneous graph, with the fields of their ends.

    Args:
        etype: (source type, relation, destination type).
        srcdata, dstdata: frames of the nodes; the same one where the layer computes all of its rows of one type.
        rows: of the edges.
        edata: the edges' frame; an empty one if not given.
        totals: of the plan, where the session does not know them.
    """

    is_homogeneous = True

    def __init__(
        self,
        session: Session,
        plan: LayerPlan,
        etype: Etype,
        srcdata: Frame,
        dstdata: Frame,
        rows: Rows,
        edata: Frame | None = None,
        totals: Totals | None = None,
    ) -> None:
        super().__init__(session, plan, srcdata.rows, dstdata.rows, rows, totals)
        self.canonical_etypes = [etype]
        self.srcdata, self.dstdata = srcdata, dstdata
        self.edata = Frame(session, "edges", rows, plan.num_edges) if edata is None else edata
        # Of edges that know no frames: in a cycle with these, rows would stay until Python looks for cycles.
        self.bare = edges = Edges(session, plan, srcdata.rows, dstdata.rows, rows, self._totals)
        if plan.weighted:  # an expression, so that the number of weights is told for all workers
            self.edata.fixed[WEIGHT] = lambda: edge_rows(edges, edges.field("e", edges.weights()))
        if (features := self.features()) is not None:
            self.edata.fixed[FEATURES] = lambda: edge_rows(edges, features)

    @property
    def frames(self) -> dict[str, Frame]:
        """By DGL's letter for whose fields they are: the edges' sources, their destinations, the edges."""
        return {"u": self.srcdata, "v": self.dstdata, "e": self.edata}

    def all_frames(self) -> Iterable[Frame]:
        return self.frames.values()

    @property
    def _graph(self) -> GraphIndex:
        """What functions of DGL's look into; held by nobody, so that a graph goes when its last reader does."""
        return GraphIndex(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _LOOPS:
            hint = "the graph cannot be changed; dataset.add_self_loops=true gives each node a self-loop"
            raise self.session.wrong(f"A sharded graph has no '{name}'.", hint=hint)
        hint = "edges and nodes of other workers are not here; messages reach them"
        raise self.session.not_there("a sharded graph", name, FOR_LAYERS, SOME, hint)

    def __repr__(self) -> str:
        source, relation, destination = self.canonical_etypes[0]
        return (
            f"ShardedGraph(this worker's: {self.plan.num_rows} '{source}' nodes, {self.plan.num_edges} '{relation}' edges into "
            f"{self.plan.num_out} '{destination}' nodes; srcdata: {list(self.srcdata)}, dstdata: {list(self.dstdata)}, "
            f"edata: {list(self.edata)})"
        )

    @property
    def is_block(self) -> bool:
        """Whether the layer computes fewer rows than it reads, as DGL's blocks do; the same on all workers."""
        return self.srcdata.rows.level != self.dstdata.rows.level

    @property
    def ndata(self) -> Frame:
        """The nodes' fields. Raises ``ConfigError`` for a block, which has two sets of nodes."""
        if self.srcdata is not self.dstdata:
            raise self.session.wrong("A block has source and destination nodes.", allowed=["graph.srcdata", "graph.dstdata"])
        return self.srcdata

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

    num_src_nodes, num_dst_nodes = Edges.number_of_src_nodes, Edges.number_of_dst_nodes
    number_of_nodes, number_of_edges = num_nodes, Edges.num_edges

    def in_degrees(self, v: Any = None, etype: Any = None) -> Tensor:
        """int64 [M], edges into each output row in the whole graph."""
        self.check_all(v, "in_degrees")
        return tagged(self.plan.in_degrees.clone(), self.dstdata.rows)

    def out_degrees(self, u: Any = None, etype: Any = None) -> Tensor:
        """int64 [N], edges out of each input row in the whole graph."""
        self.check_all(u, "out_degrees")
        return tagged(self.plan.out_degrees.clone(), self.srcdata.rows)

    def __getitem__(self, etype: Any) -> ShardedGraph:
        known = [*self.etypes, *self.canonical_etypes]
        if etype not in known:
            raise self.session.wrong(f"The graph has no relation '{etype}'.", allowed=[str(relation) for relation in known])
        return self

    def local_var(self) -> ShardedGraph:
        """The same graph with frames of its own, which begin with the same fields."""
        source = self.srcdata.copy()
        destination = source if self.dstdata is self.srcdata else self.dstdata.copy()
        etype, edata = self.canonical_etypes[0], self.edata.copy()
        return ShardedGraph(self.session, self.plan, etype, source, destination, edata.rows, edata, self._totals)

    def apply_nodes(self, func: Callable[[Any], dict[str, Any]], v: Any = None, ntype: Any = None) -> None:
        self.check_all(v, "apply_nodes")
        self.dstdata.update(func(NodeBatch(self.dstdata, {}, self.number_of_dst_nodes(), self.destination_ids())))

    def apply_edges(self, func: Any, edges: Any = None, etype: Any = None) -> None:
        """Set fields of the edges to messages, as expressions; nothing is computed yet."""
        self.check_all(edges, "apply_edges")
        for name, node in message_nodes(self, func).items():
            self.edata[name] = edge_rows(self.bare, node)

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
        self.session.calls.seen("update_all", list(rows.values()))
        return rows

    def multi_update_all(
        self, functions: dict[Any, tuple[Any, ...]], cross_reducer: Any, apply_node_func: Callable[[Any], Any] | None = None
    ) -> None:
        """As ``update_all``; of one relation there is nothing to join."""
        (pair,) = functions.values()
        self.update_all(pair[0], pair[1], apply_node_func)

    def edge_softmax(self, logits: Any, norm_by: str = "dst") -> EdgeRows:
        """Softmax over the edges of each destination; as an expression."""
        if norm_by != "dst":
            raise self.session.wrong(
                "A softmax over a source's edges needs edges of other workers.",
                given=f"norm_by={norm_by!r}",
                allowed="norm_by='dst'",
            )
        if isinstance(logits, Tensor) and not isinstance(logits, EdgeRows):
            logits = edge_rows(self.bare, self.field("e", logits))
        if not isinstance(logits, EdgeRows):
            what = "A softmax over edges is taken of a field of the edges."
            raise self.session.wrong(what, given=f"a {type(logits).__name__}")
        return edge_rows(self.bare, Softmax(logits.node.shape, logits.node.dtype, logits.node))


class GraphIndex:
    """What ``dgl.ops.edge_softmax`` asks of a graph (``install_edge_softmax``)."""

    def __init__(self, graph: ShardedGraph) -> None:
        self.graph = graph

    def number_of_etypes(self) -> int:
        return 1

    def __getattr__(self, name: str) -> Any:
        raise self.graph.session.wrong(
            "A function of DGL's looks into the graph, which is sharded.",
            given=f"graph._graph.{name}",
            allowed="update_all, apply_edges and edge_softmax",
            hint="functions that make another graph have none to make it from",
        )


def install_edge_softmax() -> None:
    """Let ``dgl.ops.edge_softmax``, from wherever a layer has imported it, work on a sharded graph. Once is enough.

    DGL's function hands its graph's index to a function of its backend, which it looks up when it is called. That one is
    replaced by one that knows both kinds of graph. Nothing else of DGL is touched, and DGL is not imported here: a layer has
    done that.
    """
    module: Any = sys.modules.get("dgl.ops.edge_softmax")
    if module is None or getattr(module.edge_softmax_internal, "knows_sharded", False):
        return
    stock = module.edge_softmax_internal

    def edge_softmax_internal(index: Any, logits: Any, eids: Any = None, norm_by: str = "dst") -> Any:
        if not isinstance(index, GraphIndex):
            return stock(index, logits, eids=eids, norm_by=norm_by)
        if eids is not None and not module.is_all(eids):
            what = "A softmax over some edges needs their numbers, which are not here."
            raise index.graph.session.wrong(what, given="eids")
        return index.graph.edge_softmax(logits, norm_by)

    edge_softmax_internal.knows_sharded = True  # type: ignore[attr-defined]
    module.edge_softmax_internal = edge_softmax_internal


class Blocks(Sequence[Any]):
    """The graphs of a model's layers, which can be unpacked, indexed and counted as DGL's list. ``session`` knows how many
    there are, or notes what is asked while nobody knows it."""

    def __init__(self, session: Session, graph: Callable[[int], Any]) -> None:
        self._session, self._graph = session, graph

    def _most(self) -> int:
        known = self._session.num_blocks
        return MOST_BLOCKS if known is None else known

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[index] for index in range(len(self))[number]]
        number = operator.index(number)
        if number < 0:
            number += len(self)
        if not 0 <= number < self._most():
            raise IndexError(f"there is no block {number}")
        self._session.asked.numbers.add(number)
        return self._graph(number)

    def __iter__(self) -> Iterator[Any]:
        for number in range(self._most()):
            self._session.asked.drawn = max(self._session.asked.drawn, number + 1)
            yield self[number]

    def __len__(self) -> int:
        if self._session.num_blocks is None:
            self._session.asked.counted = True
            raise self._session.wrong("How many blocks there are was asked before anybody knows it.")
        return self._session.num_blocks
