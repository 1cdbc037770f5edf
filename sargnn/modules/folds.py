"""The edges of one relation in one layer, and folds of messages over them: a fused reducer where one computes it
(``patterns.py``), else the generic one.

Whatever kind of graph a layer gets stands on ``Edges``. Nothing here knows what a layer may ask that graph for, or how its
expressions came about.

Letters: N input rows, M output rows, E edges of this worker, K heads, D columns of a head.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from sargnn.engine.rebuild import rebuilt_by
from sargnn.engine.reducers import folds
from sargnn.engine.reducers.base import Reducer, Tensors
from sargnn.engine.reducers.folds import MessageFold
from sargnn.engine.reducers.gat import DotAttention, EdgeDotAttention, edge_queries, edge_values
from sargnn.engine.reducers.generic import Generic
from sargnn.graph.edge_columns import ATTR, WEIGHT
from sargnn.modules.expressions import (
    Call,
    Changer,
    Column,
    Dropped,
    Field,
    Node,
    Program,
    Resolved,
    SharedSoftmax,
    Softmax,
    Where,
    decode,
    encode,
    function_of,
    size,
)
from sargnn.modules.patterns import Fused, is_weighted, recognise, scaled_rows, softmax_of
from sargnn.modules.row_operators import again_of, reader
from sargnn.modules.session import Session, Totals, paused
from sargnn.modules.tag import Count, Rows, mark_of, tag_of, tagged
from sargnn.plan.layer_plan import LayerPlan

_ENDS = {"u": "source nodes", "v": "destination nodes", "e": "edges"}


class Edges:
    """The edges of one relation, or of a homogeneous graph, in one layer.

    Args:
        sources, destinations: which rows the edges' ends are.
        rows: which rows a field of the edges has.
        totals: of the plan, where the session does not know them.
    """

    counts_sources = True

    def __init__(
        self,
        session: Session,
        plan: LayerPlan,
        sources: Rows,
        destinations: Rows,
        rows: Rows,
        totals: Totals | None = None,
    ) -> None:
        self.session, self.plan = session, plan
        self.sources, self.destinations, self.rows = sources, destinations, rows
        self._totals = totals or session.totals(plan)

    @property
    def device(self) -> torch.device:
        return self.session.engine.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows that travel."""
        return self.session.engine.dtype

    @property
    def totals(self) -> Totals:
        """What the plan has, counted over all workers."""
        return self._totals

    def out_degrees(self) -> Tensor:
        """int64 [N], edges out of each input row in the whole graph."""
        return self.plan.out_degrees

    def as_rows(self, values: Tensor) -> Tensor:
        """``values`` [E, ...] itself, noted to be of these edges."""
        return tagged(values, self.rows)

    @property
    def rows_key(self) -> Hashable:
        """``Mark.key`` of such values."""
        return self.rows

    def number_of_src_nodes(self, ntype: str | None = None) -> Count:
        return Count(self.plan.num_rows, self._totals.rows, "nodes", self.sources)

    def number_of_dst_nodes(self, ntype: str | None = None) -> Count:
        return Count(self.plan.num_out, self._totals.outputs, "nodes", self.destinations)

    def num_edges(self, etype: Any = None) -> Count:
        """E; equal to 0 only where no worker has an edge."""
        return Count(self.plan.num_edges, self._totals.edges, "edges", self.rows, (self.rows_key, 1, 0))

    def destination_ids(self) -> Tensor:
        """int64 [M], original ids of the output rows."""
        shards = [self.plan.merged] if self.plan.shards is None else list(self.plan.shards.values())
        assert shards[0] is not None
        return shards[0].block.dst_ids

    def weights(self) -> Tensor:
        """The graph's weights, [E], constant."""
        return tagged(self.plan.edge_column(WEIGHT), self.rows, shared=True)

    def features(self) -> Column | None:
        """The edges' features, [E, D], as an expression that is read run by run; None: the graph has none."""
        width = self.plan.column_width(ATTR)
        return None if width is None else Column((width,), self.dtype, ATTR)

    def column(self, node: Column) -> Tensor:
        """All that this worker's edges carry of a name, [E, D], in memory."""
        self.session.note(f"features of all edges are held: {self.plan.num_edges} edges x {size(node)}")
        like = torch.empty(0, dtype=node.dtype, device=self.device)
        return tagged(self.plan.edge_column(node.name, like), self.rows, shared=True)

    def field(self, where: Where, tensor: Tensor) -> Field:
        count = {"u": self.plan.num_rows, "v": self.plan.num_out, "e": self.plan.num_edges}[where]
        if not tensor.dim() or len(tensor) != count:
            what = f"A tensor has not one row for each of the {_ENDS[where]}."
            raise self.session.wrong(what, given=f"shape {tuple(tensor.shape)} for {count}")
        return Field(tuple(tensor.shape[1:]), tensor.dtype, where, tensor)

    def folded(self, kind: str, node: Node, called: str) -> Tensor:
        """Messages folded over each destination's edges, [M, ...].

        Args:
            kind: ``sum``, ``mean``, ``max``, ``min``, ``mul`` or ``logsumexp``.
            called: what the log calls the message.
        """
        return tagged(_fold(self, kind, Resolved().changed(node), called), self.destinations)

    def edge_values(self, node: Node) -> Tensor:
        """An expression's values for all edges of this worker, [E, ...]; all workers must call it."""
        node = Resolved().changed(node)
        if isinstance(node, Field) and node.where == "e":
            return node.tensor if mark_of(node.tensor) is not None else self.as_rows(node.tensor)
        if isinstance(node, Column):
            return self.column(node)
        self.session.note(f"a field of all edges is held: {self.plan.num_edges} edges x {size(node)}")
        if node.dtype.is_floating_point:
            values = _generic(self, [node], folds.Edges(size(node)), node.shape)
        else:
            columns = size(node) * torch.int64.itemsize // self.dtype.itemsize
            bits = Call((columns,), self.dtype, encode, (node, self.dtype), {})
            values = decode(_generic(self, [bits], folds.Edges(columns), (columns,)), node.dtype, node.shape)
        self.session.calls.seen("the values of an edge field", self.as_rows(values))
        return values

    def has_attention(self, node: Node) -> bool:
        """Whether a fused kernel sums attention by products, and gives the sums of its weights, too."""
        call = recognise("sum", node, lambda rows: rows)
        fused = isinstance(call, Fused) and type(call.reducer) is DotAttention
        return fused and not self.session.engine.mode.is_baseline

    def attention(self, node: Node) -> tuple[Tensor, Tensor]:
        """What ``has_attention`` says there is: sums [M, K D], and log of the sums of exp(logits) [M, K]."""
        engine = self.session.engine
        call = recognise("sum", node, lambda rows: reader(engine.pool, rows))
        assert isinstance(call, Fused) and isinstance(call.reducer, DotAttention)
        of = call.reducer.attention
        kernel = engine.kernel(call.reducer.operation).name
        self.session.note(f"sum over edges, joined with other sets of edges: {call.reducer.name}, kernel {kernel}")
        reducer = DotAttention(of.heads, of.factor, of.draw, log_sums=True)
        out, log_sums = self.aggregate(reducer, call.exchanged, call.dest_local, call.params)
        return out, log_sums

    def aggregate(self, reducer: Reducer, exchanged: Tensors, dest_local: Tensors, params: Tensors) -> Tensors:
        with paused():
            return self.session.engine.aggregate(self.plan, reducer, exchanged, dest_local, params)


def _fold(edges: Edges, kind: str, node: Node, called: str) -> Tensor:
    if kind == "min":
        return -_fold(edges, "max", Call(node.shape, node.dtype, torch.neg, (node,), {}), called)
    engine = edges.session.engine
    if kind in ("sum", "mean") and not is_weighted(node) and (factored := scaled_rows(edges, node)) is not None:
        rows, factor = factored
        out = _fold(edges, kind, rows, called)
        return out if factor is None else out * factor.view(-1, *[1] * (out.dim() - 1))
    fused = recognise(kind, node, lambda rows: reader(engine.pool, rows))
    if isinstance(fused, Fused) and isinstance(fused.reducer, EdgeDotAttention):
        if not getattr(engine.operation(fused.reducer.operation), "takes_edge_rows", False):
            fused = "this kernel's attention takes no rows of edges"
    if isinstance(fused, Fused):
        kernel = engine.kernel(fused.reducer.operation).name
        edges.session.note(f"{called}: {fused.reducer.name}, kernel {kernel}")
        return _fused(edges, fused, node)
    edges.session.note(f"{called}: messages computed run by run, not by a fused kernel: {fused}")
    if kind == "sum" and (parts := _softmax_product(node)) is not None:
        logits, values = parts
        return _generic(edges, [logits, values], folds.SoftmaxSum(size(values), size(logits)), node.shape)
    made: dict[str, MessageFold] = {
        "sum": folds.Sum(size(node)),
        "mean": folds.Sum(size(node), mean=True),
        "max": folds.Max(size(node)),
        "mul": folds.Product(size(node)),
        "logsumexp": folds.LogSumExp(size(node)),
    }
    return _generic(edges, [node], made[kind], node.shape)


def _fused(edges: Edges, call: Fused, node: Node) -> Tensor:
    """A fused reducer's output [M, ...].

    Of rows that never change it is kept. In a mode that fetches rows again, sums of rows that backward has anyway are computed
    again, too, where a linear map needs them: a table less for another exchange.
    """
    reducer = call.reducer
    if call.of_edges is not None:
        weight, heads = call.of_edges
        with paused():
            q, f = call.dest_local
            out, sums = edges.aggregate(reducer, call.exchanged, (q, edge_queries(q, weight.to(q.dtype), heads), f), ())
            return (out + edge_values(sums, weight.to(q.dtype), heads)).view(len(out), *call.shape)
    copied = node.tensor if isinstance(node, Field) else None
    if copied is not None and tag_of(copied).constant:
        name = reducer.name, edges.sources.type
        (out,) = edges.session.kept(name, edges.plan, lambda: edges.aggregate(reducer, call.exchanged, (), ()))
        return out.view(len(out), *call.shape)
    (out,) = edges.aggregate(reducer, call.exchanged, call.dest_local, call.params)
    out = out.view(len(out), *call.shape)
    fetches_again = edges.session.engine.mode.fetches_again
    if copied is None or not (reducer.linear and out.dim() == 2 and out.requires_grad and fetches_again):
        return out
    again = again_of(copied)

    def rebuild() -> Tensor:
        assert again is not None
        with torch.no_grad():
            (sums,) = edges.aggregate(reducer, (again(),), (), ())
        return sums

    return out if again is None else rebuilt_by(out, rebuild)


def _generic(edges: Edges, nodes: list[Node], into: MessageFold, shape: tuple[int, ...]) -> Tensor:
    without_softmax = _WithoutSoftmax(edges)
    program = Program([without_softmax.changed(node) for node in nodes], edges.dtype)
    with paused():
        sources, local = program.fields("u"), (*program.fields("v"), *program.fields("e"))
        if not sources:  # nothing travels
            sources = (torch.zeros(edges.plan.num_rows, 0, dtype=edges.dtype, device=edges.device),)
        messages = program.messages((into,))
        if not messages.source_grads:
            messages = dataclasses.replace(messages, source_grads=(False,))
        (out,) = edges.aggregate(Generic(messages), sources, local, messages.params)
        return out.view(len(out), *shape)


class _WithoutSoftmax(Changer):
    """Changes expressions into ones with the same values without ``Softmax``: exp(logit - log sum exp of the destination's),
    the latter folded first."""

    def __init__(self, edges: Edges) -> None:
        super().__init__()
        self._edges = edges

    def change(self, node: Node) -> Node:
        if isinstance(node, Softmax | SharedSoftmax):
            logits = self.changed(node.logits)
            if isinstance(node, SharedSoftmax):
                total = self._edges.field("v", node.group.total(node.run))
            else:
                total = self._edges.field("v", self._edges.folded("logsumexp", logits, "edge softmax"))
            difference = Call(node.shape, node.dtype, torch.sub, (logits, total), {})
            return Call(node.shape, node.dtype, torch.exp, (difference,), {})
        return super().change(node)


def _softmax_product(node: Node) -> tuple[Node, Node] | None:
    """Logits [E, K] and values [E, K, ...] of a product with one softmax in it, which weighs columns of the others."""
    factors = _factors(node)
    weights = [(factor, softmax) for factor in factors if (softmax := softmax_of(factor)) is not None]
    if len(weights) != 1 or len(factors) < 2:
        return None
    ((weight, softmax),) = weights
    rows, heads = node.shape, weight.shape
    while heads and heads[-1] == 1:
        heads = heads[:-1]
    if len(weight.shape) != len(rows) or heads != rows[: len(heads)] or not math.prod(weight.shape):
        return None
    values = [factor for factor in factors if factor is not weight]
    if isinstance(weight, Dropped):
        ones = Call(softmax.shape, softmax.dtype, torch.ones_like, (softmax.logits,), {})
        values.append(Dropped(weight.shape, weight.dtype, ones, weight.draw))
    product = values[0]
    for factor in values[1:]:
        shape = tuple(torch.broadcast_shapes(product.shape, factor.shape))
        product = Call(shape, node.dtype, torch.mul, (product, factor), {})
    if product.shape != rows:
        product = Call(rows, node.dtype, _expanded, (product, rows), {})
    return softmax.logits, product


def _expanded(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    return rows.expand(len(rows), *shape)


def _factors(node: Any) -> list[Node]:
    if function_of(node) == "mul" and len(node.args) == 2 and all(isinstance(arg, Node) for arg in node.args):
        if all(len(arg.shape) == len(node.shape) for arg in node.args):
            return [factor for arg in node.args for factor in _factors(arg)]
    return [node]
