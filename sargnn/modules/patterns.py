"""Expressions that a fused reducer computes, and the parts that they are known by.

| messages and fold | reducer |
|---|---|
| ``copy_u``, sum, mean or max | ``Sum``, ``Mean``, ``Max`` |
| ``u_mul_e`` with one number per edge, sum or mean | ``WeightedSum``, ``WeightedMean`` |
| ``u_mul_e`` with a row of a table for each edge, by its number, the same in all blocks of a row; sum | ``ScaledSum`` |
| GAT's: u_add_v, LeakyReLU, edge softmax, dropout, u_mul_e, sum | ``Gat`` |
| GATv2's: u_add_v, LeakyReLU, a product with a vector summed, edge softmax, dropout, u_mul_e, sum | ``GatV2`` |
| ``u_dot_v``, times numbers, edge softmax, dropout, u_mul_e, sum | ``DotAttention`` |
| the same of rows of the sources plus a linear map of one field of the edges | ``EdgeDotAttention`` |

Letters: E edges, K heads, C and D columns of a head, F columns of an edge.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sargnn.engine.reducers.base import Reducer, Tensors
from sargnn.engine.reducers.gat import DotAttention, EdgeDotAttention, Gat, GatV2
from sargnn.engine.reducers.max import Max
from sargnn.engine.reducers.sum import Mean, ScaledSum, Sum, WeightedMean, WeightedSum
from sargnn.modules.expressions import Call, Column, Dropped, Field, Node, Softmax, Written, flat, function_of
from sargnn.modules.session import paused
from sargnn.modules.tag import mark_of, tagged
from sargnn.rng import Draw

if TYPE_CHECKING:
    from sargnn.modules.folds import Edges


def unshaped(node: Any) -> Any:
    """What a node has the numbers of, in another shape."""
    while function_of(node) in ("unsqueeze", "squeeze", "view", "reshape", "flatten") and isinstance(node.args[0], Node):
        if node.dtype != node.args[0].dtype:
            break
        node = node.args[0]
    return node


def over_columns(total: Call) -> bool:
    """Whether a sum of [E, K, D] is over D."""
    dims = total.kwargs.get("dim", total.kwargs.get("axis", total.args[1] if len(total.args) > 1 else None))
    return dims in (-1, 2, [-1], [2], (-1,), (2,))


def scaled(node: Any) -> tuple[Any, float]:
    """A node without the numbers that it is multiplied with and divided by, and these."""
    scale = 1.0
    while True:
        node = unshaped(node)
        if function_of(node) not in ("mul", "rmul", "div", "truediv", "true_divide") or len(node.args) != 2 or node.kwargs:
            return node, scale
        divides = "div" in function_of(node)
        numbers = [arg for arg in node.args if isinstance(arg, int | float)]
        inner = [arg for arg in node.args if isinstance(arg, Node)]
        if len(numbers) != 1 or len(inner) != 1 or (divides and (node.args[0] is not inner[0] or not numbers[0])):
            return node, scale
        node, scale = inner[0], scale / numbers[0] if divides else scale * numbers[0]


def dot_products(node: Any, heads: int) -> tuple[Field, Field, float] | None:
    """Of ``scale * p * sum over C of (k_j * q_i)``: k of the sources and p q of the destinations, [K, C] each, and the scale.
    p [K] is the same for all edges."""
    total, scale = scaled(node)
    by_head: Tensor | None = None
    while function_of(total) == "mul" and len(total.args) == 2 and by_head is None:
        rows = [arg for arg in total.args if function_of(arg) == "same_row" and arg.shape == (heads,)]
        if len(rows) != 1:
            break
        by_head = rows[0].args[0]
        total, factor = scaled(next(arg for arg in total.args if arg is not rows[0]))
        scale *= factor
    if function_of(total) != "sum" or total.shape not in ((heads,), (heads, 1)) or not over_columns(total):
        return None
    product, factor = scaled(total.args[0])
    scale *= factor
    if function_of(product) != "mul" or len(product.args) != 2 or len(product.shape) != 2 or product.shape[0] != heads:
        return None
    fields = {}
    for arg in product.args:
        field, factor = scaled(arg)
        scale *= factor
        if isinstance(field, Field) and field.shape == product.shape:
            fields[field.where] = field
    if set(fields) != {"u", "v"}:
        return None
    keys, queries = fields["u"], fields["v"]
    if by_head is not None:
        with paused():
            queries = dataclasses.replace(queries, tensor=queries.tensor * by_head[:, None])
    return keys, queries, scale


def plus_edges(node: Any, shape: tuple[int, int]) -> tuple[Field, Field, Tensor] | None:
    """Of ``u + W f`` with rows [K, D]: u of the sources, f [F] of the edges, W [K D, F]."""
    if function_of(node) not in ("add", "radd") or len(node.args) != 2 or node.kwargs:
        return None
    for rows, other in (node.args, node.args[::-1]):
        mapped = unshaped(other)
        if not isinstance(rows, Field) or rows.where != "u" or rows.shape != shape or function_of(mapped) != "linear":
            continue
        given: list[Any] = [*mapped.args, *mapped.kwargs.values()]
        field, weight, without_bias = given[0], given[1], all(value is None for value in given[2:])
        if isinstance(field, Field) and field.where == "e" and len(field.shape) == 1 and without_bias and other.shape == shape:
            return rows, field, weight
    return None


def scaled_rows(edges: Edges, node: Node) -> tuple[Node, Tensor | None] | None:
    """Rows of sources times numbers: those of a source are taken into its rows, those of a destination out of the sum.

    Returns the rows, times a number of each edge if any, and the destinations' numbers [M]; None for other messages.
    """
    rows: Field | None = None
    of_sources: list[Tensor] = []
    of_destinations: list[Tensor] = []
    of_edges: list[Node] = []
    number = 1.0
    for factor in _all_factors(node):
        scalar = isinstance(factor, Node) and math.prod(factor.shape) == 1 and factor.shape != node.shape
        if isinstance(factor, (int, float)):
            number *= factor
        elif isinstance(factor, Call) and factor.func is torch.full:
            number *= factor.args[1]
        elif isinstance(factor, Field) and factor.where == "u" and scalar:
            of_sources.append(factor.tensor)
        elif isinstance(factor, Field) and factor.where == "v" and scalar:
            of_destinations.append(factor.tensor)
        elif isinstance(factor, Field) and factor.where == "u" and factor.shape == node.shape and rows is None:
            rows = factor
        elif scalar and _needs_no_source(factor):
            of_edges.append(factor)
        else:
            return None
    if rows is None or len(of_edges) > 1 or not (of_sources or of_destinations or of_edges or number != 1):
        return None
    with paused():
        table = rows.tensor
        for scale in of_sources:
            table = table * scale.view(-1, *[1] * (table.dim() - 1))
        if number != 1:
            table = table * number
        by_destination = None
        for scale in of_destinations:
            by_destination = scale.reshape(-1) if by_destination is None else by_destination * scale.reshape(-1)
    if table is not rows.tensor:
        rows = dataclasses.replace(rows, tensor=tagged(table, edges.sources))
    if not of_edges:
        return rows, by_destination
    (weight,) = of_edges
    column = Field((1,) * len(rows.shape), rows.dtype, "e", edges.edge_values(weight).reshape(-1, *[1] * len(rows.shape)))
    return Call(rows.shape, rows.dtype, torch.mul, (rows, column), {}), by_destination


def is_weighted(node: Node) -> bool:
    """Whether messages are rows of sources times a field of the edges with one number each."""
    pair = product_of(node)
    return pair is not None and isinstance(pair[1], Field) and pair[1].where == "e" and math.prod(pair[1].shape) == 1


def _needs_no_source(node: Any) -> bool:
    """Whether an expression reads nothing of the edges' sources but who they are."""
    if isinstance(node, Field):
        return node.where != "u"
    if isinstance(node, Written):
        return not node.params and all(_needs_no_source(of) for _, _, of in node.fields)
    if isinstance(node, Call):
        return all(_needs_no_source(part) for part in flat((node.args, node.kwargs)))
    return isinstance(node, Column) or not isinstance(node, Node)


def _all_factors(node: Any) -> list[Any]:
    if function_of(node) == "mul" and len(node.args) == 2:
        return [factor for arg in node.args for factor in _all_factors(arg)]
    if function_of(node) in ("view", "unsqueeze", "reshape") and math.prod(node.shape) == 1 and isinstance(node.args[0], Node):
        return _all_factors(node.args[0])
    return [node]


def product_of(node: Any) -> tuple[Field, Node] | None:
    """Rows of the sources, and what they are multiplied with."""
    if function_of(node) == "mul" and len(node.args) == 2 and not node.kwargs:
        for rows, weight in (node.args, node.args[::-1]):
            if isinstance(rows, Field) and rows.where == "u" and isinstance(weight, Node) and rows.shape == node.shape:
                return rows, weight
    return None


@dataclass(frozen=True)
class Fused:
    """A call of a fused reducer, as ``Engine.aggregate`` has it, with rows of ``shape``. ``of_edges``: W of
    ``EdgeDotAttention``, [K D, F], and K; None: another reducer."""

    reducer: Reducer
    exchanged: Tensors
    dest_local: Tensors
    params: Tensors
    shape: tuple[int, ...]
    of_edges: tuple[Tensor, int] | None = None


def table_rows(node: Any) -> tuple[Field, Tensor] | None:
    """Of ``w[k]`` with whole numbers k of the edges: k, and w [K, ...], the same on all workers."""
    name = function_of(node)
    if name == "embedding":
        options = [*node.args[2:], *node.kwargs.values()]
        given = (node.args[1], node.args[0]) if all(value in (None, False, 2.0) for value in options) else ()
    elif name == "rows_by_number":
        given = node.args
    elif name == "index_select" and len(node.args) == 3 and node.args[1] == 0:
        given = node.args[::2]
    else:
        return None
    if len(given) != 2 or not isinstance(given[0], Tensor) or given[0].dim() < 2 or mark_of(given[0]) is not None:
        return None
    table, kinds = given
    whole = isinstance(kinds, Field) and kinds.where == "e" and not kinds.shape and not kinds.dtype.is_floating_point
    return (kinds, table) if whole and kinds.dtype != torch.bool else None


def softmax_of(node: Any) -> Softmax | None:
    """The softmax that a node is, perhaps dropped or in another shape."""
    node = unshaped(node)
    if isinstance(node, Dropped):
        node = node.of
    return node if isinstance(node, Softmax) else None


Read = Callable[[Tensor], Tensor]
"""Gives a table of rows to one more reader."""


def recognise(fold: str, node: Node, read: Read) -> Fused | str:
    """A fused reducer's call for messages and a fold, or why there is none."""
    if (inner := unshaped(node)) is not node:
        call = recognise(fold, inner, read)
        return dataclasses.replace(call, shape=node.shape) if isinstance(call, Fused) else call
    if isinstance(node, Field) and node.where == "u":
        makers: dict[str, Callable[[], Reducer]] = {"sum": Sum, "mean": Mean, "max": Max}
        if fold not in makers:
            return f"no fused kernel folds by '{fold}'"
        return Fused(makers[fold](), (_flat(read(node.tensor)),), (), (), node.shape)
    pair = product_of(node)
    if pair is None and fold == "sum" and (with_edges := _edge_attention(node, read)) is not None:
        return with_edges
    if pair is None:
        return "messages are neither rows of the sources nor these times a number per edge"
    rows, weight = pair[0], unshaped(pair[1])
    if isinstance(weight, Field):
        return _weighted(fold, rows, weight, read)
    if fold == "sum" and (table := table_rows(weight)) is not None:
        kinds, vectors = table
        shape = tuple(vectors.shape[1:])
        if rows.shape[-len(shape) :] == shape and pair[1].shape == (1,) * (len(pair[1].shape) - len(shape)) + shape:
            vectors = vectors.reshape(len(vectors), math.prod(shape)).to(rows.dtype)
            return Fused(ScaledSum(), (_flat(read(rows.tensor)),), (kinds.tensor,), (vectors,), rows.shape)
    if fold != "sum":
        return f"attention is summed, not '{fold}'"
    softmax = softmax_of(weight)
    if softmax is None:
        return "weights are neither a field of the edges nor a softmax over them"
    if len(rows.shape) != 2 or pair[1].shape != (rows.shape[0], 1) or weight.shape[:1] != rows.shape[:1]:
        return f"rows are not [heads, width] with a weight per head: {rows.shape} and {pair[1].shape}"
    return _attention(rows, softmax.logits, weight.draw if isinstance(weight, Dropped) else None, read)


def _flat(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() == 2 else tensor.reshape(len(tensor), math.prod(tensor.shape[1:]))


def _weighted(fold: str, rows: Field, weight: Field, read: Read) -> Fused | str:
    if weight.where != "e" or math.prod(weight.shape) != 1:
        return f"the kernel takes one number per edge, not {weight.shape}"
    if fold not in ("sum", "mean"):
        return f"no fused kernel folds weighted rows by '{fold}'"
    number = weight.tensor.reshape(-1).to(rows.dtype)
    made = (WeightedSum if fold == "sum" else WeightedMean)(learned=number.requires_grad)
    return Fused(made, (_flat(read(rows.tensor)),), (number,), (), rows.shape)


def _attention(rows: Field, logits: Node, draw: Draw | None, read: Read) -> Fused | str:
    heads, width = rows.shape
    scored = _leaky(logits)
    if scored is not None and (ends := _sum_of_ends(scored[0], (heads, 1)) or _sum_of_ends(scored[0], (heads,))) is not None:
        of_sources, of_destinations = (end.tensor.reshape(-1, heads) for end in ends)
        exchanged = _flat(read(rows.tensor)), of_sources
        return Fused(Gat(heads, scored[1], draw), exchanged, (of_destinations,), (), rows.shape)
    if (products := dot_products(logits, heads)) is not None:
        keys, queries, scale = products
        exchanged = _flat(read(rows.tensor)), *(() if keys.tensor is rows.tensor else (_flat(read(keys.tensor)),))
        return Fused(DotAttention(heads, scale, draw), exchanged, (_flat(read(queries.tensor)),), (), rows.shape)
    inner, vector = _projected(logits, heads, width) or (None, None)
    scored = _leaky(inner)
    ends = None if scored is None else _sum_of_ends(scored[0], (heads, width))
    if scored is None or ends is None or vector is None or ends[0].tensor is not rows.tensor:
        return "scores are neither GAT's nor GATv2's nor products of both ends' rows"
    sent, local = (_flat(read(rows.tensor)),), (_flat(read(ends[1].tensor)),)
    return Fused(GatV2(heads, scored[1], draw), sent, local, (vector.reshape(-1),), rows.shape)


def _leaky(node: Any) -> tuple[Node, float] | None:
    """What LeakyReLU is taken of, and its slope."""
    if function_of(node) != "leaky_relu" or not isinstance(node.args[0], Node):
        return None
    slope = node.args[1] if len(node.args) > 1 else node.kwargs.get("negative_slope", 0.01)
    return (node.args[0], float(slope)) if 0 <= float(slope) <= 1 else None


def _sum_of_ends(node: Any, shape: tuple[int, ...]) -> tuple[Field, Field] | None:
    """The field of the sources and that of the destinations in a sum of both, of that shape."""
    if function_of(node) != "add" or len(node.args) != 2 or node.kwargs:
        return None
    fields = {field.where: field for field in node.args if isinstance(field, Field) and field.shape == shape}
    return (fields["u"], fields["v"]) if set(fields) == {"u", "v"} else None


def _projected(node: Any, heads: int, width: int) -> tuple[Node, Tensor] | None:
    """Of ``sum over D of (x * vector)`` with [K, 1] columns: x [K, D] and the vector, K D numbers."""
    while function_of(node) in ("unsqueeze", "view", "reshape"):
        node = node.args[0]
    if function_of(node) != "sum" or node.shape not in ((heads,), (heads, 1)) or not over_columns(node):
        return None
    product = node.args[0]
    if function_of(product) != "mul" or product.shape != (heads, width):
        return None
    for inner, vector in (product.args, product.args[::-1]):
        if isinstance(inner, Node) and isinstance(vector, Tensor) and vector.numel() == heads * width:
            return inner, vector
    return None


def _edge_attention(node: Any, read: Read) -> Fused | None:
    """Attention by products where keys and values are rows of the sources plus a linear map of one field of the edges."""
    if function_of(node) != "mul" or len(node.args) != 2 or len(node.shape) != 2:
        return None
    for values, other in (node.args, node.args[::-1]):
        weight, (heads, width) = unshaped(other), node.shape
        softmax, parts = softmax_of(weight), plus_edges(values, (heads, width))
        if softmax is None or parts is None or other.shape != (heads, 1) or weight.shape[:1] != (heads,):
            continue
        total, scale = scaled(softmax.logits)
        if function_of(total) != "sum" or total.shape not in ((heads,), (heads, 1)) or not over_columns(total):
            continue
        product, factor = scaled(total.args[0])
        if function_of(product) != "mul" or len(product.args) != 2:
            continue
        for of_keys, queries in (product.args, product.args[::-1]):
            keys = plus_edges(of_keys, (heads, width))
            q, of_queries = scaled(queries)
            same = keys is not None and keys[1] is parts[1] and keys[2] is parts[2]
            if keys is None or not same or not isinstance(q, Field) or q.where != "v" or q.shape != (heads, width):
                continue
            v, field, matrix = parts
            draw, number = weight.draw if isinstance(weight, Dropped) else None, field.tensor.to(v.dtype)
            reducer = EdgeDotAttention(heads, scale * factor * of_queries, draw, learned=number.requires_grad)
            rows = _flat(read(v.tensor)), *(() if keys[0].tensor is v.tensor else (_flat(read(keys[0].tensor)),))
            return Fused(reducer, rows, (_flat(read(q.tensor)), number), (), v.shape, (matrix, heads))
    return None
