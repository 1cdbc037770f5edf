"""Who else holds a tensor or its memory, by counts that PyTorch keeps for itself: the one place that asks for them.

``tests/engine/test_holders.py`` fails where a new PyTorch counts otherwise. Where it does not count, nothing is taken for
unheld.
"""

from __future__ import annotations

import torch
from torch import Tensor

_use_count = getattr(torch._C, "_storage_Use_Count", None)
COUNTS = _use_count is not None and hasattr(Tensor, "_use_count")
"""Whether this PyTorch tells."""


def holders(tensor: Tensor) -> int:
    """How many hold the tensor's memory: other tensors, views, arrays, and the one that asks. ``COUNTS`` must be true."""
    assert _use_count is not None
    return int(_use_count(tensor.untyped_storage()._cdata))


def is_held_once(tensor: Tensor) -> bool:
    """Whether nothing but one Python object holds the tensor itself; its memory may have other holders.

    A second Python name for the same object is not noticed.
    """
    return COUNTS and tensor._use_count() == 1  # type: ignore[attr-defined]
