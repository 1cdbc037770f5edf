"""Tensors that a module makes with as many rows as the graph has, such as ``torch.ones(graph.num_edges(), 1)``.

Such a size says what the rows are, so that they are dropped by original ids, and random numbers for them are refused.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sargnn.modules.counts import Count
from sargnn.modules.refusals import check_random
from sargnn.modules.rows import Rows

_FILLED = frozenset("ones zeros full new_ones new_zeros new_full".split())
_DRAWN = frozenset("rand randn".split())
_DRAWN_BELOW = frozenset("randint".split())
"""With limits before the size, which are no sizes."""
MAKERS = _FILLED | _DRAWN | _DRAWN_BELOW


def rows_asked_for(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Rows | None:
    """What rows a tensor of ``MAKERS`` will have, told by its first size; None where that is no graph's number of rows.

    Args:
        name: of the function, as PyTorch calls it.

    Raises:
        ConfigError: they would be random.
    """
    sizes = [size for size in (*args, kwargs.get("size")) if not isinstance(size, Tensor)]
    if name in _DRAWN_BELOW:
        sizes = [size for size in sizes if isinstance(size, (tuple, list))]
    first = sizes[0] if sizes else None
    if isinstance(first, (tuple, list)):
        first = first[0] if first else None
    rows = first.rows if isinstance(first, Count) else None
    if rows is not None and name not in _FILLED:
        check_random(name, args, kwargs, None)
    return rows
