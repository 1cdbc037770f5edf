"""Questions about all rows, answered for the rows of all workers, so that a module takes the same branch everywhere.

``(degrees == 0).any()`` and the like: any, all, counts, sums of integers, largest and smallest values without gradient. Their
answers do not depend on the order of the rows, so they are exact. Other sums over rows stay this worker's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.modules.mark_rules import reduced_dims
from sargnn.modules.marks import mark_of

COMBINED = frozenset("any all sum count_nonzero max min amax amin equal allclose".split())
"""Names of the functions that ``combine`` knows."""


def combine(group: Group, name: str, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The answer for the rows of all workers; ``NotImplemented`` where the rows are not reduced or the answer is not exact.

    Args:
        name: one of ``COMBINED``. call: the function. args, kwargs: with a marked tensor among them.
    """
    if group.world == 1 or "out" in kwargs or not args:
        return NotImplemented
    if name in ("equal", "allclose"):
        return bool(group.sum_(torch.tensor([int(call(*args, **kwargs))])).item() == group.world)
    tensor, mark = args[0], mark_of(args[0])
    dims = reduced_dims(name, args, kwargs)
    if mark is None or dims is None or mark.dim not in dims:
        return NotImplemented
    if name in ("any", "all", "count_nonzero") or (name == "sum" and not _is_inexact(tensor)):
        total = group.sum_(call(*args, **kwargs).to(torch.int64))
        if name in ("any", "all"):
            return total > 0 if name == "any" else total == group.world
        return total
    if name in ("amax", "amin") or (name in ("max", "min") and len(dims) == tensor.dim() and not _has_dim(args, kwargs)):
        return NotImplemented if tensor.requires_grad else _extreme(group, name[-3:], call, args, kwargs)
    return NotImplemented


def _extreme(group: Group, name: str, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A worker without rows has no say; where none has any, PyTorch says what is wrong."""
    tensor, mark = args[0], mark_of(args[0])
    assert mark is not None
    counts = group.gather(torch.tensor([tensor.shape[mark.dim]]))
    if tensor.shape[mark.dim] or not any(count.item() for count in counts):
        own = call(*args, **kwargs)
    else:
        shape = list(tensor.shape)
        shape[mark.dim] = 1
        own = call(tensor.new_zeros(shape), *args[1:], **kwargs)
    parts = [part for part, count in zip(group.gather(own.contiguous()), counts, strict=True) if count.item()]
    return torch.stack(parts).amax(0) if name == "max" else torch.stack(parts).amin(0)


def _is_inexact(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _has_dim(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return len(args) > 1 or "dim" in kwargs
