"""Parts of expressions that attention by products is known by: sums over a head, numbers beside them, edges' rows.

Letters: E edges, K heads, C and D columns of a head, F columns of an edge.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sargnn.modules.expressions import Call, Field, Node


def name_of(node: Any) -> str:
    """Of the function that a call is of, without underscores; empty for anything else."""
    return str(getattr(node.func, "__name__", "")).strip("_") if isinstance(node, Call) else ""


def unshaped(node: Any) -> Any:
    """What a node has the numbers of, in another shape."""
    while name_of(node) in ("unsqueeze", "squeeze", "view", "reshape", "flatten") and isinstance(node.args[0], Node):
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
        if name_of(node) not in ("mul", "rmul", "div", "truediv", "true_divide") or len(node.args) != 2 or node.kwargs:
            return node, scale
        divides = "div" in name_of(node)
        numbers = [arg for arg in node.args if isinstance(arg, int | float)]
        inner = [arg for arg in node.args if isinstance(arg, Node)]
        if len(numbers) != 1 or len(inner) != 1 or (divides and (node.args[0] is not inner[0] or not numbers[0])):
            return node, scale
        node, scale = inner[0], scale / numbers[0] if divides else scale * numbers[0]


def dot_products(node: Any, heads: int) -> tuple[Field, Field, float] | None:
    """Of ``scale * sum over C of (k_j * q_i)``: k of the sources and q of the destinations, [K, C] each, and the scale."""
    total, scale = scaled(node)
    if name_of(total) != "sum" or total.shape not in ((heads,), (heads, 1)) or not over_columns(total):
        return None
    product, factor = scaled(total.args[0])
    scale *= factor
    if name_of(product) != "mul" or len(product.args) != 2 or len(product.shape) != 2 or product.shape[0] != heads:
        return None
    fields = {}
    for arg in product.args:
        field, factor = scaled(arg)
        scale *= factor
        if isinstance(field, Field) and field.shape == product.shape:
            fields[field.where] = field
    return (fields["u"], fields["v"], scale) if set(fields) == {"u", "v"} else None


def plus_edges(node: Any, shape: tuple[int, int]) -> tuple[Field, Field, Tensor] | None:
    """Of ``u + W f`` with rows [K, D]: u of the sources, f [F] of the edges, W [K D, F]."""
    if name_of(node) not in ("add", "radd") or len(node.args) != 2 or node.kwargs:
        return None
    for rows, other in (node.args, node.args[::-1]):
        mapped = unshaped(other)
        if not isinstance(rows, Field) or rows.where != "u" or rows.shape != shape or name_of(mapped) != "linear":
            continue
        given: list[Any] = [*mapped.args, *mapped.kwargs.values()]
        field, weight, without_bias = given[0], given[1], all(value is None for value in given[2:])
        if isinstance(field, Field) and field.where == "e" and len(field.shape) == 1 and without_bias and other.shape == shape:
            return rows, field, weight
    return None
