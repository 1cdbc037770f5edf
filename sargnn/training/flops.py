"""Floating-point operations of linear maps, counted while somebody records where time goes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from sargnn.spans import LINEAR, count_work, inside, recording

_PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::addmm_": 1}
"""Where an operator's first factor stands; the second one follows it."""


class _Counting(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        at = _PRODUCTS.get(func._schema.name)  # type: ignore[attr-defined]
        if at is not None and inside(LINEAR):
            one, other = args[at], args[at + 1]
            count_work(LINEAR, 2.0 * one.shape[0] * one.shape[1] * other.shape[1])
        return func(*args, **(kwargs or {}))


def counting() -> AbstractContextManager[Any]:
    """Count what is multiplied until the context is left; nothing while nobody records."""
    return _Counting() if recording() else nullcontext()
