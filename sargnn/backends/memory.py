"""A pool of the memory of large tensors. The first write to a fresh page costs more than the arithmetic on it.

A tensor's memory returns to the pool when nothing holds its storage any more: no tensor, no view, no saved tensor, no array
(a bare ``UntypedStorage`` does not count). The pool never holds more than was in use at one time since its last reset: before
it allocates, it frees memory that lies idle. Phases with tables of other sizes, such as an evaluation, begin and end with a
reset. Each engine has a pool of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

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


SMALLEST = 1 << 20
"""Bytes; what is smaller malloc keeps by itself."""


@dataclass(frozen=True, eq=False)
class _Owned:
    """A storage, held by this tensor alone as long as it is idle.

    Attributes:
        idle_count: how many holders PyTorch counts then, the one that asks among them.
    """

    tensor: Tensor
    idle_count: int

    @property
    def is_idle(self) -> bool:
        return holders(self.tensor) == self.idle_count

    @property
    def bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()


class Pool:
    """One engine's storages.

    Args:
        enabled: if not, every tensor is a fresh one.

    Attributes:
        most_used: bytes that were in use at one time since the last reset.
        slack: memory up to this share larger serves a tensor, too, and new memory is half of that larger: for steps of which
            each has other numbers of rows. What nothing is written to is not resident.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.most_used = 0
        self.enabled = enabled
        self.slack = 0.0
        self.largest = 0
        self._owned: list[_Owned] = []

    def empty(self, rows: int, width: int, like: Tensor) -> Tensor:
        """[rows, width], not initialised, with the dtype and on the device of ``like``."""
        size = rows * width * like.element_size()
        if not self.enabled or not COUNTS or size < SMALLEST or like.device.type != "cpu":
            return like.new_empty(rows, width)
        idle = [storage for storage in self._owned if storage.is_idle]
        least, most = rows * width, int(rows * width * (1 + self.slack))
        fits = [storage for storage in idle if storage.tensor.dtype == like.dtype and least <= storage.tensor.numel() <= most]
        if fits:
            return _shaped(min(fits, key=lambda storage: storage.tensor.numel()).tensor, rows, width)
        used = self.held_bytes() - sum(storage.bytes for storage in idle)
        self.most_used = max(self.most_used, used + size)
        del idle, fits  # they hold what is to be freed
        self._free_idle(self.most_used - used - size)
        room = self.largest if rows <= self.largest <= rows * (1 + self.slack) else rows * (1 + self.slack / 2)
        fresh = like.new_empty(int(room * width))
        owned = _Owned(fresh, holders(fresh))
        tensor = _shaped(fresh, rows, width)
        if holders(fresh) == owned.idle_count + 1:  # else this PyTorch counts otherwise, and nothing is used again
            self._owned.append(owned)
        return tensor

    def _free_idle(self, room: int) -> None:
        """Free idle memory until at most ``room`` bytes of it are left; the oldest stay."""
        for storage in [storage for storage in self._owned if storage.is_idle]:
            if storage.bytes <= room:
                room -= storage.bytes
            else:
                self._owned.remove(storage)

    def empty_like(self, like: Tensor) -> Tensor:
        """The same, as large as ``like`` [rows, width]."""
        return self.empty(like.shape[0], like.shape[1], like)

    def zeros(self, rows: int, width: int, like: Tensor) -> Tensor:
        """The same, all zeros."""
        return self.empty(rows, width, like).zero_()

    def is_only_holder(self, tensor: Tensor) -> bool:
        """Whether the caller may write to ``tensor`` unseen: nothing else holds it, and only this pool holds its storage.

        False where that cannot be told. A second Python name for the same object is not noticed: a hook on a gradient must
        clone what it keeps.
        """
        if not is_held_once(tensor) or not tensor.is_contiguous():
            return False
        where = tensor.untyped_storage().data_ptr()
        pooled = any(storage.tensor.data_ptr() == where for storage in self._owned)
        return holders(tensor) == holders(torch.empty(1)) + pooled

    def held_bytes(self) -> int:
        """Bytes in use and idle."""
        return sum(storage.bytes for storage in self._owned)

    def reset(self) -> None:
        """Free all idle memory, and forget how much was in use."""
        self._owned = [storage for storage in self._owned if not storage.is_idle]
        self.most_used = self.held_bytes()


def _shaped(flat: Tensor, rows: int, width: int) -> Tensor:
    """Not a view, which autograd would not let anyone write to."""
    return torch.empty(0, dtype=flat.dtype).set_(flat.untyped_storage(), 0, (rows, width), (width, 1))
