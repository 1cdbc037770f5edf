"""Where a worker's time goes: named spans, recorded only while a ``Spans`` is installed.

Code marks what it does with ``span(LINEAR)``; spans nest, and a span's own time is what its inner spans leave. Whatever
happens inside an evaluation counts as evaluation. Beside the time stands the work done, ``count_work(NODEWISE, bytes)``, so
that a part's speed can be set against the machine's.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from sargnn.profile import (  # noqa: F401
    AGGREGATION,
    ALL_REDUCE,
    CATEGORIES,
    EVALUATION,
    EXCHANGE_WAIT,
    LINEAR,
    NODEWISE,
    OPTIMIZER,
    PACKING,
    REST,
    Profile,
)  # fmt: skip

Spans = Profile
_installed: Spans | None = None


def install(spans: Spans | None) -> None:
    """Record into ``spans`` from now on, or not at all."""
    global _installed
    _installed = spans


def span(category: str) -> AbstractContextManager[None]:
    """Mark what the code inside does; costs next to nothing while nobody records."""
    return nullcontext() if _installed is None else _installed.span(category)


def count_work(category: str, amount: float) -> None:
    """Say how much the code at hand does; costs next to nothing while nobody records."""
    if _installed is not None:
        _installed.work(category, amount)


def inside(category: str) -> bool:
    """Whether somebody records, and the innermost span is of this category."""
    return _installed is not None and _installed.inside(category)


def recording() -> bool:
    """Whether somebody records."""
    return _installed is not None


def installed() -> Profile:
    """The recorder, or one that records nothing."""
    return _installed or Profile(recording=False)
