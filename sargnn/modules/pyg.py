"""How a module of PyG's takes its graph, read from the names of its forward's arguments, and what it gets for each of them.

``docs/howto/pyg-model.md`` has the arguments. Edges are given as ``lazy.EdgeIndex``; where all types are taken as one graph,
``metadata`` has the number of each relation and type. Nothing of PyG is imported. Whoever takes none of these names first is a
module for DGL's graphs.

Letters: N rows, E edges of this worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sargnn.graph.edge_columns import ATTR
from sargnn.graph.queries import Queries
from sargnn.modules.dgl_graph import FEATURES, WEIGHT
from sargnn.modules.lazy import EdgeRows, Hop, edge_index, edge_rows, values
from sargnn.modules.session import Session, paused
from sargnn.modules.tag import Rows, constant, mark_of, set_mark, tagged

_ONE_INDEX = ("edge_index", "adj_t", "adj")
_BY_LAYER = ("edge_indices", "edge_index_list", "adjs")
_BY_RELATION = ("edge_index_dict", "adj_t_dict")
_DATA = ("data", "batch")
_HOPS = ("num_sampled_nodes_per_hop", "num_sampled_edges_per_hop", "num_sampled_nodes_dict", "num_sampled_edges_dict")
FLOWS = "trim_to_layer with num_sampled_edges_per_hop, or an argument edge_indices with the edges of each layer"
"""How a forward takes a graph for each layer."""
_OF_EDGES = ("edge_weight", "edge_weight_dict", "edge_attr", "edge_attr_dict")
QUERIES = "queries"
KNOWN = (*_ONE_INDEX, *_BY_LAYER, *_BY_RELATION, *_OF_EDGES, "edge_type", "node_type", QUERIES, *_HOPS)


@dataclass(frozen=True)
class Signature:
    """The arguments of a forward that takes PyG's edges.

    Attributes:
        names: of all arguments that are no collections of others, in their order.
        required: those without a default.
        rows: the argument that gets the rows; None: there is none.
        wraps: the only argument is an object with everything.
    """

    names: tuple[str, ...]
    required: frozenset[str]
    rows: str | None
    wraps: bool = False

    @property
    def unknown(self) -> list[str]:
        """Required arguments that nothing is known for."""
        return [] if self.wraps else [name for name in self.names if name in self.required and name not in (*KNOWN, self.rows)]

    @property
    def asks(self) -> bool:
        """Whether it reads queries."""
        return QUERIES in self.names

    @property
    def trims(self) -> bool:
        """Whether it cuts the edges of a layer out of those of all."""
        return any(name in _HOPS for name in self.names)

    def __str__(self) -> str:
        return f"forward({', '.join(self.names)})"


def joins_types(signature: Signature | None) -> bool:
    """Whether a forward takes all nodes and edges of a typed graph as those of one graph."""
    return signature is not None and not {"edge_type", "node_type"}.isdisjoint(signature.names)


def signature_of(module: nn.Module) -> Signature | None:
    """How a module takes PyG's edges; None where it does not."""
    described: Any = getattr(module, "signature", None)  # of torch_geometric.nn.Sequential, whose forward takes anything
    if hasattr(described, "param_dict"):
        names = tuple(described.param_dict)
        return _signature(names, frozenset(names))
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except ValueError:
        return None
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [parameter for parameter in parameters if parameter.kind not in variable]
    required = frozenset(parameter.name for parameter in named if parameter.default is parameter.empty)
    return _signature(tuple(parameter.name for parameter in named), required)


def _signature(names: tuple[str, ...], required: frozenset[str]) -> Signature | None:
    if len(required) == 1 and names[0] in required and names[0] in _DATA:
        return Signature(names, required, None, wraps=True)
    edges = [name for name in names if name in (*_ONE_INDEX, *_BY_LAYER, *_BY_RELATION)]
    rows = next((name for name in names if name not in KNOWN), None)
    return Signature(names, required, rows) if edges and (rows is not None or QUERIES in names) else None


class HopCounts(list[Any]):
    """What ``trim_to_layer`` reads with the number of a layer: nothing, and which graph the layer has. Without ``graph``: of
    nodes, none of which are cut off."""

    def __init__(self, graph: Callable[[int], Any] | None = None) -> None:
        super().__init__()
        self._graph = graph

    def __getitem__(self, number: Any) -> Any:
        if not isinstance(number, int) or number >= 0:
            raise IndexError("numbers of rows in each hop are read by trim_to_layer alone")
        if self._graph is None:
            return 0
        return Hop.to(self._graph(-number))


class PygGraph:
    """The graph of one forward pass as a module of PyG's gets it.

    Args:
        rows: [N, F]; of typed graphs by node type.
        joined: of typed graphs [N, F], the rows of all types.
        labelled: the node type that has labels; below 0: all rows are outputs.
        queries: what is asked of the model; None: nothing.
    """

    def __init__(
        self, session: Session, graph: Any, rows: Any, joined: Tensor, labelled: int, queries: Queries | None = None
    ) -> None:
        self._session, self._graph, self._rows, self._queries = session, graph, rows, queries
        self._joined_rows, self._labelled = joined, labelled
        self._typed = isinstance(rows, Mapping)
        self._homogeneous: Any = None

    def call(self, module: nn.Module, signature: Signature) -> Any:
        """What the module's forward gives, computed. Raises ``ConfigError``: it asks for what the graph does not have."""
        for part in module.modules():
            if hasattr(part, "is_sorted") and hasattr(part, "num_types") and not isinstance(part.forward, _MapByType):
                part.forward = _MapByType(part.forward)
        if signature.wraps:
            return _numbers(module(_Data(self)))
        joins = self._typed and joins_types(signature)
        if joins:
            self.join()
        given: dict[str, Any] = {}
        for name in signature.names:
            value = None
            if name == signature.rows:
                value = self._joined_rows if joins else self._rows
            elif name in KNOWN:
                value = self.argument(name, trims=signature.trims)
            if value is not None:
                given[name] = value
            elif name in signature.required:
                raise self._session.wrong(
                    f"The model's forward needs '{name}', which the graph does not have.",
                    given=str(signature),
                    place=self._session.place_of(module.forward),
                    hint=_WHY_NOT.get(name, "give the argument a default"),
                )
        with torch.sparse.check_sparse_tensor_invariants():  # a matrix made of edge_index, which nobody sees, fails
            out = _numbers(module(**given))
        if not joins or not isinstance(out, Tensor):
            return out
        if self._labelled < 0:
            return out
        first, last = self._graph.plan.row_bounds[self._labelled : self._labelled + 2]
        with paused():
            return tagged(out[first:last], Rows("nodes", self._labelled))

    def join(self) -> None:
        """From now on all nodes and edges of a typed graph are those of one graph."""
        self._homogeneous = self._graph.alone(FLOWS).to_homogeneous()

    def argument(self, name: str, *, trims: bool = False) -> Any:
        """What an argument of that name gets; None: the graph has no such thing."""
        if name == QUERIES:
            if self._queries is not None and self._typed and self._homogeneous is None:
                raise self._session.wrong(
                    "Queries are asked on all relations as one graph.",
                    given="a forward without edge_type, of a typed graph",
                    allowed="forward(edge_index, edge_type, queries)",
                )
            return None if self._queries is None else _known(self._queries, Rows("nodes", -1 if self._typed else 0))
        if name in _BY_LAYER:
            return _Layers(self._graph.blocks, self._index_of)
        if name in ("num_sampled_nodes_per_hop", "num_sampled_nodes_dict"):
            return {name: HopCounts() for name in self._rows} if self._typed else HopCounts()
        if name in ("num_sampled_edges_per_hop", "num_sampled_edges_dict"):
            blocks = self._graph.blocks
            if not self._typed:
                return HopCounts(lambda number: blocks[number])
            return {etype: HopCounts(partial(_relation, blocks, etype)) for etype in self._graph.relation_types}
        graph = self._homogeneous or (self._graph.blocks[0] if trims else self._graph.alone(FLOWS))
        if name in (*_ONE_INDEX, *_BY_RELATION):
            return self._index_of(graph)
        if name in _OF_EDGES:
            weights = name.startswith("edge_weight")
            if not (graph.plan.weighted if weights else graph.plan.column_width(ATTR)):
                return None
            field = WEIGHT if weights else FEATURES
            if self._typed and self._homogeneous is None:
                return {etype: graph[etype].edata[field] for etype in graph.relation_types}
            return graph.edata[field]
        if self._homogeneous is None:
            return torch.zeros_like(self._graph.alone(FLOWS).plan.node_ids) if name == "node_type" else None
        if name == "node_type":
            return graph.ndata["_TYPE"]
        kept = graph.plan.kept
        if name not in kept:  # the same tensor in every pass, so that what is made of it is known again
            kept[name] = self._graph.alone(FLOWS).plan.relations.joined[1]
        return edge_rows(graph, graph.field("e", constant(kept[name])))

    def _index_of(self, graph: Any) -> Any:
        if not self._typed or graph is self._homogeneous:
            return edge_index(graph)
        return {etype: edge_index(graph[etype]) for etype in graph.relation_types}


class _MapByType:
    """``HeteroLinear``: row i is mapped by the weight of its type, so it is row by row, though it sorts its rows for that."""

    def __init__(self, forward: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._forward = forward

    def __call__(self, x: Any, type_vec: Any) -> Any:
        mark, of_types = mark_of(x), mark_of(type_vec)
        if mark is None or of_types is None or (mark.key, mark.before) != (of_types.key, of_types.before) or mark.dim:
            return self._forward(x, type_vec)
        with paused():
            return set_mark(self._forward(x, type_vec), mark, shared=False)


NO_FEATURES = "the run's graph has no edge features (sargnn help own data)"
_WHY_NOT = {
    QUERIES: "task=queries asks",
    "edge_weight": "the run's graph has no edge weights (sargnn help own data)",
    "edge_type": "the run's graph has one relation",
    **dict.fromkeys(("edge_attr", "edge_attr_dict"), NO_FEATURES),
}


def _relation(blocks: Any, etype: Any, number: int) -> Any:
    return blocks[number][etype]


def _known(queries: Queries, rows: Rows) -> Queries:
    """The same, noted to have these rows."""
    relations, is_head = queries.relations, queries.is_head
    relations = constant(set_mark(relations.view_as(relations), None, shared=True))
    return Queries(relations, tagged(is_head.view_as(is_head), rows, shared=True))


def _numbers(out: Any) -> Any:
    """The rows that a forward gives, computed."""
    if isinstance(out, Mapping):
        return {name: _numbers(value) for name, value in out.items()}
    out = values(out)
    return out.value() if isinstance(out, EdgeRows) else out


class _Layers(Sequence[Any]):
    """The edges of each layer. Who unpacks or counts them is answered as DGL's blocks answer."""

    def __init__(self, blocks: Any, index: Callable[[Any], Any]) -> None:
        self._blocks, self._index = blocks, index

    def __getitem__(self, number: Any) -> Any:
        blocks = self._blocks[number]
        return [self._index(block) for block in blocks] if isinstance(number, slice) else self._index(blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Any]:
        return map(self._index, self._blocks)


class _Data:
    """What ``forward(data)`` gets."""

    def __init__(self, graph: PygGraph) -> None:
        self._graph = graph

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        graph = self._graph
        value = None
        if name in ("x", "x_dict"):
            return graph._rows
        if name == "num_nodes":
            return next(iter(graph._rows.values())).size(0) if graph._typed else graph._rows.size(0)
        if name in KNOWN:
            value = graph.argument(name)
        if value is None and name not in ("edge_weight", "edge_attr", "batch", "pos", "y"):
            raise graph._session.wrong(
                f"The graph has no '{name}'.",
                given=f"data.{name}",
                allowed="x, edge_index, edge_weight, edge_attr, num_nodes, x_dict, ...",
            )
        return value

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)
