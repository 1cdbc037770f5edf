"""Memory of large tensors, used again: the first write to a fresh page costs more than the arithmetic on it.

What was handed out is free again when nobody holds its storage: no tensor, no view, no saved tensor, no array. The pool never
holds more than was in use at once at some time: before it asks for more, it lets go of what lies idle.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SMALLEST = 1 << 20  # bytes; what is smaller malloc keeps by itself
_IDLE = 2  # holders of an idle storage: the pool's tensor, and the one that asks
_use_count = getattr(torch._C, "_storage_Use_Count", None)


class Pool:
    """Storages of one process.

    Attributes:
        most_used: bytes that were in use at once.
        enabled: if not, every tensor is a fresh one.
    """

    def __init__(self) -> None:
        self.most_used = 0
        self.enabled = False
        self._owned: list[Tensor] = []

    def empty(self, rows: int, width: int, like: Tensor) -> Tensor:
        """[rows, width], not initialised, with the dtype and on the device of ``like``."""
        size = rows * width * like.element_size()
        if not self.enabled or _use_count is None or size < _SMALLEST or like.device.type != "cpu":
            return like.new_empty(rows, width)
        idle = [one for one in self._owned if _is_idle(one)]
        found = next((one for one in idle if one.dtype == like.dtype and one.numel() == rows * width), None)
        if found is None:
            used = sum(_bytes(one) for one in self._owned) - sum(_bytes(one) for one in idle)
            self.most_used = max(self.most_used, used + size)
            room = self.most_used - used - size
            for one in idle:  # the oldest ones stay while there is room for them
                if _bytes(one) <= room:
                    room -= _bytes(one)
                else:
                    self._owned = [other for other in self._owned if other is not one]
            del idle
            found = like.new_empty(rows * width)
            self._owned.append(found)
        # Not a view, which autograd would not let anyone write to.
        return torch.empty(0, dtype=like.dtype).set_(found.untyped_storage(), 0, (rows, width), (width, 1))

    def empty_like(self, like: Tensor) -> Tensor:
        """The same, as large as ``like`` [rows, width]."""
        return self.empty(like.shape[0], like.shape[1], like)

    def zeros(self, rows: int, width: int, like: Tensor) -> Tensor:
        """The same, all zeros."""
        return self.empty(rows, width, like).zero_()

    def held_bytes(self) -> int:
        """Bytes in use and idle."""
        return sum(_bytes(one) for one in self._owned)

    def forget(self) -> None:
        """Let go of everything idle."""
        self._owned = [one for one in self._owned if not _is_idle(one)]


def _is_idle(one: Tensor) -> bool:
    assert _use_count is not None
    return bool(_use_count(one.untyped_storage()._cdata) <= _IDLE)


def _bytes(one: Tensor) -> int:
    return one.numel() * one.element_size()


POOL = Pool()
"""This process's."""
