"""Tensors that are computed again in backward instead of being kept, because they are cheap to compute.

Normalising, activating and dropping rows takes one pass over memory. Its result carries a function that repeats it, which a
linear map keeps instead of its input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from sargnn.backends.memory import Pool
from sargnn.plan.layer_plan import LayerPlan

_NAME = "_sargnn_rebuild"
Rebuild = Callable[[], Tensor]
ONE_PASS = "what this gradient needs was freed in the first backward pass: retain_graph is not supported"


def rebuilt_by(tensor: Tensor, rebuild: Rebuild) -> Tensor:
    """``tensor``, known to be what ``rebuild()`` gives as long as nobody writes to it; without autograd."""
    setattr(tensor, _NAME, (rebuild, tensor._version))
    return tensor


def rebuilt_from(pool: Pool, out: Tensor, forward: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """``out``, known to be ``forward(*tensors)`` as long as nobody writes to these; as it is where it needs no gradient."""
    if not out.requires_grad:
        return out
    versions, given = [tensor._version for tensor in tensors], [pool.keep(tensor) for tensor in tensors]

    def rebuild() -> Tensor:
        kept = [give() for give in given]
        assert [tensor._version for tensor in kept] == versions, "what rows are rebuilt from was written to"
        return forward(*kept)

    return rebuilt_by(out, rebuild)


def rebuilt_as(like: Tensor, tensor: Tensor) -> Tensor:
    """``tensor``, which holds the same as ``like``, rebuilt in the way that ``like`` is."""
    rebuild = rebuild_of(like)
    return tensor if rebuild is None else rebuilt_by(tensor, rebuild)


def self_rows(plan: LayerPlan, h: Tensor) -> Tensor:
    """``plan.self_rows(h)``, rebuilt in the way that ``h`` is."""
    rows = plan.self_rows(h)
    rebuild = rebuild_of(h)
    if rows is h or rebuild is None:
        return rows
    return rebuilt_by(rows, lambda: plan.self_rows(rebuild()))


def keep(ctx: Any, tensor: Tensor, *others: Tensor) -> None:
    """Save tensors for backward; the first one only if it cannot be rebuilt, or was written to since."""
    ctx.rebuild = rebuild_of(tensor)
    ctx.rebuilds = ctx.rebuild is not None
    ctx.save_for_backward(*(() if ctx.rebuilds else (tensor,)), *others)


def kept(ctx: Any) -> tuple[Tensor, ...]:
    """The tensors that ``keep`` was given; works once, because it drops what they are rebuilt from."""
    saved: tuple[Tensor, ...] = ctx.saved_tensors
    if not ctx.rebuilds:
        return saved
    if ctx.rebuild is None:
        raise RuntimeError(ONE_PASS)
    rebuild, ctx.rebuild = ctx.rebuild, None
    return (rebuild(), *saved)


def rebuild_of(tensor: Tensor) -> Rebuild | None:
    """None if it cannot be rebuilt, or was written to since."""
    rebuild, version = getattr(tensor, _NAME, (None, 0))
    return rebuild if version == tensor._version else None
