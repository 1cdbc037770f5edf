"""Floating-point operations of linear maps, counted while a profile records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from sargnn.backends.base import Rows
from sargnn.profile import LINEAR, Profile

_PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::addmm_": 1}
"""Where an operator's first factor stands; the second one follows it."""


class _Counting(TorchDispatchMode):
    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self._profile = profile

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        at = _PRODUCTS.get(func._schema.name)  # type: ignore[attr-defined]
        if at is not None and self._profile.inside(LINEAR):
            first, other = args[at], args[at + 1]
            self._profile.work(LINEAR, 2.0 * first.shape[0] * first.shape[1] * other.shape[1])
        return func(*args, **(kwargs or {}))


@contextmanager
def _counted(profile: Profile, rows: Rows) -> Iterator[None]:
    before = rows.uncounted_flops
    with _Counting(profile):
        yield
    profile.work(LINEAR, rows.uncounted_flops - before)


def count_products(profile: Profile, rows: Rows) -> AbstractContextManager[Any]:
    """Count what is multiplied until the context is left; nothing where the profile does not record.

    Args:
        profile: where it is counted.
        rows: an engine's, which multiplies beside PyTorch.
    """
    return _counted(profile, rows) if profile.recording else nullcontext()
