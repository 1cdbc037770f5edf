"""Parts of expressions that fused operators are known by: rows of sources times numbers; of attention by products, sums over a
head, numbers beside them, edges' rows.

Letters: E edges, K heads, C and D columns of a head, F columns of an edge.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sargnn.modules.expressions import Call, Column, Field, Node, Written, function_of, map_values
from sargnn.modules.session import paused
from sargnn.modules.tag import tagged

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

    Returns:
        The rows, times a number of each edge where there is one, and the destinations' numbers [M]; None for other messages.
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
        parts: list[Any] = []
        map_values((node.args, node.kwargs), parts.append)
        return all(_needs_no_source(part) for part in parts)
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
