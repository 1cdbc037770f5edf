"""Tensors that their readers need not keep, because they are cheap to compute again.

Normalising, activating and dropping rows takes one pass over memory. So what such a pass gives carries a function that
repeats it, and a linear map, which needs its input for its weights' gradient, keeps that function instead of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

_NAME = "_sargnn_rebuild"
Rebuild = Callable[[], Tensor]


def rebuilt_by(tensor: Tensor, rebuild: Rebuild) -> Tensor:
    """``tensor``, known to be what ``rebuild()`` gives; without autograd, as often as asked."""
    setattr(tensor, _NAME, rebuild)
    return tensor


def keep(ctx: Any, tensor: Tensor, *others: Tensor) -> None:
    """Save tensors for backward; the first one only if it cannot be rebuilt."""
    ctx.rebuild = getattr(tensor, _NAME, None)
    ctx.save_for_backward(*(() if ctx.rebuild else (tensor,)), *others)


def kept(ctx: Any) -> tuple[Tensor, ...]:
    """What ``keep`` was given."""
    saved: tuple[Tensor, ...] = ctx.saved_tensors
    if ctx.rebuild is None:
        return saved
    rebuild, ctx.rebuild = ctx.rebuild, None
    return (rebuild(), *saved)
