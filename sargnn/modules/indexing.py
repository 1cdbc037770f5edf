"""What an index does to rows: ``x[...]`` along the dimension in which they run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sargnn.modules.marks import Mark, Marked, along, mark_of

PART = "a part of them was taken"


def row_item(key: Any, dim: int, ndim: int) -> tuple[Any, int]:
    """What indexes dimension ``dim`` of a tensor of ``ndim`` dimensions, and where that dimension is in the result (-1: gone).

    Args:
        key: as ``__getitem__`` gets it.
    """
    items = key if isinstance(key, tuple) else (key,)
    fill = ndim - sum(_consumes(item) for item in items)
    read = written = 0
    advanced = False
    for item in items:
        if item is None or item is True or item is False:
            written += 1
            continue
        if item is Ellipsis:
            if read <= dim < read + fill:
                return slice(None), written + dim - read
            read, written = read + fill, written + fill
            continue
        width = _consumes(item)
        if read <= dim < read + width:
            return item, -1 if isinstance(item, int) else written
        read += width
        if isinstance(item, slice) or not (isinstance(item, int) or advanced):
            written += 1
            advanced = advanced or not isinstance(item, slice)
    return slice(None), written + dim - read


def _consumes(item: Any) -> int:
    """How many dimensions an index takes."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.dim() if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8) else 1


def is_prefix(item: Any) -> bool:
    """Whether an index takes the first rows, in their order."""
    if isinstance(item, slice):
        return item.start in (None, 0) and item.step in (None, 1)
    if mark_of(item) is not None or not isinstance(item, (Tensor, list)):
        return False
    index = torch.as_tensor(item)
    if index.dim() != 1 or index.dtype == torch.bool:
        return False
    return torch.equal(index, torch.arange(len(index), device=index.device, dtype=index.dtype))


def indexed(name: str, out: Tensor, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], marked: Marked) -> Mark | None:
    """The mark of what ``__getitem__`` or ``index_select`` gives: the first rows of a type are rows of that type."""
    tensor, mark = args[0], mark_of(args[0])
    if mark is None:  # a parameter's rows, one for each of the rows that the index runs over
        return along(out, marked, name)
    if name == "index_select":
        dim, item = (*args[1:], *(kwargs[key] for key in ("dim", "index") if key in kwargs))[:2]
        item, at = (item if dim % tensor.dim() == mark.dim else slice(None)), mark.dim
    else:
        item, at = row_item(args[1], mark.dim, tensor.dim())
    if at < 0 or not 0 <= at < out.dim():
        return None
    if isinstance(item, slice) and out.shape[at] == tensor.shape[mark.dim] and item.step in (None, 1):
        return mark._replace(dim=at)
    if is_prefix(item) and mark.number == tensor.shape[mark.dim]:
        return mark._replace(dim=at, number=out.shape[at])
    return Mark(None, at, out.shape[at], PART)
