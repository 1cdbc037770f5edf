"""Aggregations that a fused reducer computes, found in expressions.

| messages and fold | reducer |
|---|---|
| ``copy_u``, sum, mean or max | ``Sum``, ``Mean``, ``Max`` |
| ``u_mul_e`` with one number per edge, sum or mean | ``WeightedSum``, ``WeightedMean`` |
| GAT's: u_add_v, LeakyReLU, edge softmax, dropout, u_mul_e, sum | ``Gat`` |
| GATv2's: u_add_v, LeakyReLU, a product with a vector summed, edge softmax, dropout, u_mul_e, sum | ``GatV2`` |

Letters: N input rows, M output rows, E edges, K heads, D columns of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sargnn.engine.reducers.base import Reducer, Tensors
from sargnn.engine.reducers.gat import Gat, GatV2
from sargnn.engine.reducers.max import Max
from sargnn.engine.reducers.mean import Mean
from sargnn.engine.reducers.sum import Sum
from sargnn.engine.reducers.weighted import WeightedMean, WeightedSum
from sargnn.modules.expressions import Call, Dropped, Field, Node, Softmax
from sargnn.rng import Draw


@dataclass(frozen=True)
class Recognised:
    """A call of a fused reducer. Attributes: as ``Engine.aggregate``. shape: of an output row."""

    reducer: Reducer
    exchanged: Tensors
    dest_local: Tensors
    params: Tensors
    shape: tuple[int, ...]


def recognise(fold: str, node: Node, read: Callable[[Tensor], Tensor]) -> Recognised | str:
    """A fused reducer's call for messages and a fold, or why there is none.

    Args:
        read: gives a table of rows to one more reader.
    """
    if isinstance(node, Field) and node.where == "u":
        return _copied(fold, node, read)
    pair = _product(node)
    if pair is None:
        return "messages are neither rows of the sources nor these times a number per edge"
    rows, weight = pair
    if isinstance(weight, Field):
        return _weighted(fold, rows, weight, read)
    if fold != "sum":
        return f"attention is summed, not '{fold}'"
    draw, softmax = (weight.draw, weight.of) if isinstance(weight, Dropped) else (None, weight)
    if not isinstance(softmax, Softmax):
        return "weights are neither a field of the edges nor a softmax over them"
    if len(rows.shape) != 2 or weight.shape != (rows.shape[0], 1):
        return f"rows are not [heads, width] with a weight per head: {rows.shape} and {weight.shape}"
    return _attention(rows, softmax.logits, draw, read)


def _copied(fold: str, node: Field, read: Callable[[Tensor], Tensor]) -> Recognised | str:
    makers: dict[str, Callable[[], Reducer]] = {"sum": Sum, "mean": Mean, "max": Max}
    if fold not in makers:
        return f"no fused kernel folds by '{fold}'"
    return Recognised(makers[fold](), (_flat(read(node.tensor)),), (), (), node.shape)


def _flat(tensor: Tensor) -> Tensor:
    """[N, F]: the tensor itself if it is that."""
    return tensor if tensor.dim() == 2 else tensor.reshape(len(tensor), math.prod(tensor.shape[1:]))


def _product(node: Node) -> tuple[Field, Node] | None:
    """Rows of the sources, and what they are multiplied with."""
    if not (isinstance(node, Call) and _name(node) == "mul" and len(node.args) == 2 and not node.kwargs):
        return None
    for rows, weight in (node.args, node.args[::-1]):
        if isinstance(rows, Field) and rows.where == "u" and isinstance(weight, Node) and rows.shape == node.shape:
            return rows, weight
    return None


def _name(node: Any) -> str:
    return str(getattr(node.func, "__name__", "")).strip("_") if isinstance(node, Call) else ""


def _weighted(fold: str, rows: Field, weight: Field, read: Callable[[Tensor], Tensor]) -> Recognised | str:
    if weight.where != "e" or math.prod(weight.shape) != 1:
        return f"the kernel takes one number per edge, not {weight.shape}"
    if fold not in ("sum", "mean"):
        return f"no fused kernel folds weighted rows by '{fold}'"
    number = weight.tensor.reshape(-1).to(rows.dtype)
    made = (WeightedSum if fold == "sum" else WeightedMean)(learned=number.requires_grad)
    return Recognised(made, (_flat(read(rows.tensor)),), (number,), (), rows.shape)


def _attention(rows: Field, logits: Node, draw: Draw | None, read: Callable[[Tensor], Tensor]) -> Recognised | str:
    heads, width = rows.shape
    scored = _leaky(logits)
    if scored is not None and (ends := _sum_of_ends(scored[0], (heads, 1))) is not None:
        of_sources, of_destinations = (end.tensor.reshape(-1, heads) for end in ends)
        return Recognised(
            Gat(heads, scored[1], draw), (_flat(read(rows.tensor)), of_sources), (of_destinations,), (), rows.shape
        )
    if (projected := _projected(logits, heads, width)) is None:
        return "scores are neither GAT's nor GATv2's"
    inner, vector = projected
    scored = _leaky(inner)
    ends = None if scored is None else _sum_of_ends(scored[0], (heads, width))
    if scored is None or ends is None or ends[0].tensor is not rows.tensor:
        return "scores are neither GAT's nor GATv2's"
    return Recognised(
        GatV2(heads, scored[1], draw),
        (_flat(read(rows.tensor)),),
        (_flat(read(ends[1].tensor)),),
        (vector.reshape(-1),),
        rows.shape,
    )


def _leaky(node: Node) -> tuple[Node, float] | None:
    """What LeakyReLU is taken of, and its slope."""
    if not (isinstance(node, Call) and _name(node) == "leaky_relu" and isinstance(node.args[0], Node)):
        return None
    slope = node.args[1] if len(node.args) > 1 else node.kwargs.get("negative_slope", 0.01)
    return (node.args[0], float(slope)) if 0 <= float(slope) <= 1 else None


def _sum_of_ends(node: Node, shape: tuple[int, ...]) -> tuple[Field, Field] | None:
    """The field of the sources and that of the destinations in a sum of both, of that shape."""
    if not (isinstance(node, Call) and _name(node) == "add" and len(node.args) == 2 and not node.kwargs):
        return None
    fields = {field.where: field for field in node.args if isinstance(field, Field) and field.shape == shape}
    return (fields["u"], fields["v"]) if set(fields) == {"u", "v"} else None


def _projected(node: Node, heads: int, width: int) -> tuple[Node, Tensor] | None:
    """Of ``sum over D of (x * vector)`` with [K, 1] columns: x [K, D] and the vector, K D numbers."""
    while isinstance(node, Call) and _name(node) in ("unsqueeze", "view", "reshape"):
        node = node.args[0]
    if not (isinstance(node, Call) and _name(node) == "sum" and node.shape in ((heads,), (heads, 1))):
        return None
    product = node.args[0]
    if not (isinstance(product, Call) and _name(product) == "mul" and product.shape == (heads, width)):
        return None
    for inner, vector in (product.args, product.args[::-1]):
        if isinstance(inner, Node) and isinstance(vector, Tensor) and vector.numel() == heads * width:
            return inner, vector
    return None
