"""Whether a tensor has no name where a call gets it, as ``f(x)`` in ``f(x) + y``: then the result may take its memory.

Python counts references. What it counts for a value without a name is measured once, on this interpreter; where it cannot be
told from one with a name, nothing is ever taken for one without.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def is_temporary(args: tuple[Any, ...]) -> bool:
    """Whether nothing but the call itself knows ``args[0]``; asked by ``__torch_function__``, of its own ``args``."""
    return sys.getrefcount(args[0]) <= _most()


class _Counts(TorchFunctionMode):
    """Notes what is counted for the first operand of sums."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "add":
            self.found.append(_count(args))
        return func(*args, **(kwargs or {}))


def _count(args: tuple[Any, ...]) -> int:
    return sys.getrefcount(args[0])


def _made() -> Tensor:
    return torch.zeros(1)


@cache
def _most() -> int:
    """References to a value without a name; -1 where names make no difference."""
    with _Counts() as counts:
        _made() + 1.0
        named = _made()
        named + 1.0
        torch.add(named, 1.0)
        named.add(1.0)
        held = [_made()]
        held[0] + 1.0
    without, *others = counts.found
    return without if len(others) == 4 and all(count > without for count in others) else -1
