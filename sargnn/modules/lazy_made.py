"""Tables with one number in every place, as lazy tensors: those of each edge, and those that edges are folded into."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch

from sargnn.modules.joined import repeated
from sargnn.modules.lazy import EdgeCount, Handler, Lazy, UpTo, filled
from sargnn.modules.tag import mark_of


def made_of_edges(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], sizes_of_nodes: Container[int]) -> Any:
    """``torch.ones(edge_index.size(1))`` and its like, ``row.expand(edge_index.size(1), -1)``: the same for each edge; with
    ``int(edge_index.max()) + 1`` or one of ``sizes_of_nodes`` in that place what edges may be folded into; ``NotImplemented``
    for other sizes."""
    if name == "expand":
        sizes = _sizes(args[1:], kwargs)
        repeats = bool(sizes) and isinstance(sizes[0], EdgeCount) and args[0].dim() == len(sizes) and len(args[0]) == 1
        return repeated(args[0], sizes, sizes[0].edges) if repeats and mark_of(args[0]) is None else NotImplemented
    own, like = name.removeprefix("new_"), args[0] if name.startswith("new_") else None
    args = args if like is None else args[1:]
    shape = _sizes(args[:1] if own == "full" else args, kwargs)
    of_nodes = bool(shape) and (isinstance(shape[0], UpTo) or (type(shape[0]) is int and shape[0] in sizes_of_nodes))
    if not of_nodes and not (like is None and shape and isinstance(shape[0], EdgeCount)) or kwargs.get("requires_grad"):
        return NotImplemented
    number = {"ones": 1.0, "zeros": 0.0}.get(own)
    if number is None:
        number = kwargs["fill_value"] if "fill_value" in kwargs else args[1]
    dtype = kwargs.get("dtype") or (like.dtype if like is not None else torch.full((), number).dtype)
    return filled(shape, dtype, float(number))


def _sizes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    sizes = args or (kwargs.get("size", ()),)
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else tuple(sizes)


def new_full(func: Any, input: Any, size: Any, fill_value: float, *, dtype: Any = None, **named: Any) -> Any:
    return filled(tuple(size), dtype or input.dtype, float(fill_value))


def new_filled(number: float) -> Handler:
    """``rows.new_zeros(size)`` and its like."""

    def handler(func: Any, input: Any, *given: Any, size: Any = (), dtype: Any = None, **named: Any) -> Any:
        return filled(_sizes(given or (size,), {}), dtype or input.dtype, number)

    return handler


def full_like(func: Any, input: Any, fill_value: float, *, dtype: Any = None, **named: Any) -> Any:
    return filled(input.sizes(), dtype or input.dtype, float(fill_value)) if isinstance(input, Lazy) else NotImplemented
