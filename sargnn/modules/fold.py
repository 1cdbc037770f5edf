"""Folding messages: a fused reducer where one computes it, else the generic one.

Letters: M output rows, E edges, K heads.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sargnn.engine.rebuild import rebuilt_by
from sargnn.engine.reducers import folds
from sargnn.engine.reducers.folds import MessageFold
from sargnn.engine.reducers.generic import Generic
from sargnn.modules.expressions import (
    Call,
    Dropped,
    Field,
    Item,
    Node,
    Program,
    Softmax,
    Written,
    decode,
    encode,
    map_values,
    size,
)
from sargnn.modules.patterns import Recognised, recognise
from sargnn.modules.readers import reader
from sargnn.modules.row_operators import again_of
from sargnn.modules.rows import is_constant

if TYPE_CHECKING:
    from sargnn.modules.graph import ShardedGraph


def fold(graph: ShardedGraph, kind: str, node: Node, called: str) -> Tensor:
    """Messages folded over each destination's edges, [M, ...].

    Args:
        kind: ``sum``, ``mean``, ``max``, ``min`` or ``logsumexp``. called: what the log calls it.
    """
    if kind == "min":
        return -fold(graph, "max", Call(node.shape, node.dtype, torch.neg, (node,), {}), called)
    engine = graph.session.engine
    recognised = recognise(kind, node, lambda rows: reader(engine.pool, rows))
    if isinstance(recognised, Recognised):
        kernel = engine.kernel(recognised.reducer.operation).name
        graph.note(f"{called}: {recognised.reducer.name}, kernel {kernel}")
        return _recognised(graph, recognised, node)
    graph.note(f"{called}: messages computed run by run, not by a fused kernel: {recognised}")
    if kind == "sum" and (parts := _softmax_product(node)) is not None:
        logits, values = parts
        return _generic(graph, [logits, values], folds.SoftmaxSum(size(values), size(logits)), node.shape)
    made: dict[str, MessageFold] = {
        "sum": folds.Sum(size(node)),
        "mean": folds.Sum(size(node), mean=True),
        "max": folds.Max(size(node)),
        "logsumexp": folds.LogSumExp(size(node)),
    }
    return _generic(graph, [node], made[kind], node.shape)


def _recognised(graph: ShardedGraph, recognised: Recognised, node: Node) -> Tensor:
    """A fused reducer's output [M, ...].

    Of rows that never change it is kept. In a mode that fetches rows again, sums of rows that backward has anyway are computed
    again, too, where a linear map needs them: a table less for another exchange.
    """
    reducer = recognised.reducer
    copied = node.tensor if isinstance(node, Field) else None
    if copied is not None and is_constant(copied):
        (kept,) = graph.kept(reducer.name, lambda: graph.aggregate(reducer, recognised.exchanged, (), ()))
        return kept.view(len(kept), *recognised.shape)
    (out,) = graph.aggregate(reducer, recognised.exchanged, recognised.dest_local, recognised.params)
    out = out.view(len(out), *recognised.shape)
    if copied is None or not (
        reducer.linear and out.dim() == 2 and out.requires_grad and graph.session.engine.mode.fetches_again
    ):
        return out
    again = again_of(copied)

    def rebuild() -> Tensor:
        assert again is not None
        with torch.no_grad():
            (sums,) = graph.aggregate(reducer, (again(),), (), ())
        return sums

    return out if again is None else rebuilt_by(out, rebuild)


def edge_table(graph: ShardedGraph, node: Node) -> Tensor:
    """An expression's values for all edges of this worker, [E, ...]."""
    if isinstance(node, Field) and node.where == "e":
        return node.tensor
    graph.note(f"a field of all edges is held: {graph.plan.num_edges} edges x {size(node)}")
    if node.dtype.is_floating_point:
        return _generic(graph, [node], folds.Edges(size(node)), node.shape)
    columns = size(node) * torch.int64.itemsize // graph.dtype.itemsize
    bits = Call((columns,), graph.dtype, encode, (node, graph.dtype), {})
    return decode(_generic(graph, [bits], folds.Edges(columns), (columns,)), node.dtype, node.shape)


def _generic(graph: ShardedGraph, nodes: list[Node], into: MessageFold, shape: tuple[int, ...]) -> Tensor:
    program = Program([without_softmax(graph, node) for node in nodes], graph.dtype)
    sources, local = program.sources, (*program.destinations, *program.edges)
    if not sources:  # nothing travels
        sources = (torch.zeros(graph.plan.num_rows, 0, dtype=graph.dtype, device=graph.device),)
    messages = program.messages((into,))
    if not messages.source_grads:
        messages = dataclasses.replace(messages, source_grads=(False,))
    (out,) = graph.aggregate(Generic(messages), sources, local, messages.params)
    return out.view(len(out), *shape)


def _softmax_product(node: Node) -> tuple[Node, Node] | None:
    """Logits [E, K] and values [E, K, ...] of a product with one softmax in it, which weighs columns of the others."""
    factors = _factors(node)
    weights = [factor for factor in factors if isinstance(factor, (Softmax, Dropped)) and _softmax_of(factor) is not None]
    if len(weights) != 1 or len(factors) < 2:
        return None
    (weight,) = weights
    softmax = _softmax_of(weight)
    assert softmax is not None
    heads = math.prod(weight.shape)
    rows = node.shape
    if len(weight.shape) != len(rows) or any(w != r for w, r in zip(_without_ones(weight.shape), rows, strict=False)):
        return None
    values = [factor for factor in factors if factor is not weight]
    if isinstance(weight, Dropped):
        values.append(Dropped(weight.shape, weight.dtype, _ones(softmax), weight.draw))
    product = values[0]
    for factor in values[1:]:
        shape = tuple(torch.broadcast_shapes(product.shape, factor.shape))
        product = Call(shape, node.dtype, torch.mul, (product, factor), {})
    if product.shape != rows:
        product = Call(rows, node.dtype, _expanded, (product, rows), {})
    return (softmax.logits, product) if heads else None


def _ones(node: Node) -> Node:
    return Call(node.shape, node.dtype, torch.ones_like, (node.logits if isinstance(node, Softmax) else node,), {})


def _expanded(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    return rows.expand(len(rows), *shape)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without the 1s at its end."""
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _softmax_of(node: Node) -> Softmax | None:
    if isinstance(node, Dropped):
        node = node.of
    return node if isinstance(node, Softmax) else None


def _factors(node: Node) -> list[Node]:
    name = str(getattr(getattr(node, "func", None), "__name__", "")).strip("_")
    if isinstance(node, Call) and name == "mul" and len(node.args) == 2 and all(isinstance(arg, Node) for arg in node.args):
        if all(len(arg.shape) == len(node.shape) for arg in node.args):
            return [factor for arg in node.args for factor in _factors(arg)]
    return [node]


def without_softmax(graph: ShardedGraph, node: Node) -> Node:
    """The same values without ``Softmax``: exp(logit - log sum exp of the destination's), the latter folded first."""
    changed: Node = _WithoutSoftmax(graph).changed(node)
    return changed


class _WithoutSoftmax:
    """Changes expressions, each part once. (Local functions that call each other would hold its tensors as a cycle.)"""

    def __init__(self, graph: ShardedGraph) -> None:
        self._graph = graph
        self._memo: dict[int, Any] = {}

    def changed(self, value: Any) -> Any:
        """A node changed; anything else as it is."""
        if not isinstance(value, Node):
            return value
        if id(value) not in self._memo:
            self._memo[id(value)] = self._change(value)
        return self._memo[id(value)]

    def _change(self, node: Node) -> Node:
        if isinstance(node, Softmax):
            logits = self.changed(node.logits)
            total = fold(self._graph, "logsumexp", logits, "edge softmax")
            at_destination = self._graph.field("v", total)
            difference = Call(node.shape, node.dtype, torch.sub, (logits, at_destination), {})
            return Call(node.shape, node.dtype, torch.exp, (difference,), {})
        if isinstance(node, Dropped | Item):
            return dataclasses.replace(node, of=self.changed(node.of))
        if isinstance(node, Written):
            return dataclasses.replace(node, fields=tuple((where, name, self.changed(of)) for where, name, of in node.fields))
        if isinstance(node, Call):
            args, kwargs = map_values((node.args, node.kwargs), self.changed)
            same = all(a is b for a, b in zip(_flat((args, kwargs)), _flat((node.args, node.kwargs)), strict=True))
            return node if same else dataclasses.replace(node, args=args, kwargs=kwargs)
        return node


def _flat(values: Any) -> list[Any]:
    flat: list[Any] = []
    map_values(values, flat.append)
    return flat
