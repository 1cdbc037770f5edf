"""A pool of the memory of large tensors. The first write to a fresh page costs more than the arithmetic on it.

A tensor's memory returns to the pool when nothing holds its storage any more: no tensor, no view, no saved tensor, no array
(a bare ``UntypedStorage`` does not count). The pool never holds more than was in use at one time since its last reset: before
it allocates, it frees memory that lies idle. Phases with tables of other sizes, such as an evaluation, begin and end with a
reset. Each engine has a pool of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

PuttingAway = Callable[[Callable[[], Callable[[], None]]], AbstractContextManager[None]]
_use_count = getattr(torch._C, "_storage_Use_Count", None)
COUNTS = _use_count is not None and hasattr(Tensor, "_use_count")
"""Whether this PyTorch tells."""


def holders(tensor: Tensor) -> int:
    """How many hold the tensor's memory: other tensors, views, arrays, and the one that asks. ``COUNTS`` must be true."""
    assert _use_count is not None
    return int(_use_count(tensor.untyped_storage()._cdata))


def is_held_once(tensor: Tensor) -> bool:
    """Whether nothing but one Python object holds the tensor itself; its memory may have other holders. A second Python name
    for the same object is not noticed."""
    return COUNTS and tensor._use_count() == 1  # type: ignore[attr-defined]


SMALLEST = 1 << 20
"""Bytes; what is smaller malloc keeps by itself."""


@dataclass
class Moved:
    """What a rank has had written to disk and read from it since the last reset: bytes, and the seconds that it waited."""

    written_bytes: int = 0
    read_bytes: int = 0
    wait_s: float = 0.0

    def reset(self) -> None:
        self.written_bytes, self.read_bytes, self.wait_s = 0, 0, 0.0


@dataclass(eq=False)
class Storage:
    """A storage, held by this tensor alone as long as it is idle.

    Attributes:
        idle_count: how many holders PyTorch counts then, the one that asks among them.
        used: how many of its bytes, from the first one, somebody was given last.
    """

    tensor: Tensor
    idle_count: int
    used: int = 0

    @property
    def is_idle(self) -> bool:
        return holders(self.tensor) == self.idle_count

    @property
    def bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()


class Pool:
    """One engine's storages; where it is not ``enabled`` every tensor is a fresh one.

    Attributes:
        most_used: bytes that were in use at one time since the last reset.
        slack: memory up to this share larger serves a tensor, too, and new memory is half of that larger: for steps of which
            each has other numbers of rows. What nothing is written to is not resident.
    """

    spills = False
    """Whether tables may lie on disk."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.most_used = 0
        self.enabled = enabled
        self.slack = 0.0
        self.largest = 0
        self._owned: list[Storage] = []

    @property
    def moved(self) -> Moved:
        """Of the rank that asks."""
        return Moved()

    @property
    def on_disk(self) -> int:
        """The most bytes that the process has had there at one time."""
        return 0

    @contextmanager
    def within(self, putting_away: PuttingAway) -> Iterator[None]:
        """Within it the pool serves a rank, in this thread. ``putting_away``: of the rank's ``comm.group.Group``."""
        yield

    def begin(self) -> None:
        """A rank begins an epoch, in which it takes the same tables as in the last one."""

    def keep(self, tensor: Tensor) -> Callable[[], Tensor]:
        """A tensor for later, which nobody writes to until then: what gives it."""
        kept = tensor.detach()
        return lambda: kept

    def show(self, tensors: Sequence[Tensor]) -> Callable[[], None]:
        """Other ranks of this process may read or write to these tensors until what is returned is called."""
        return lambda: None

    def lay(self, tensor: Tensor) -> Tensor:
        """A tensor that is never written to any more, where it lies best."""
        return tensor

    def lasting(self, rows: int, width: int, like: Tensor) -> Tensor:
        """[rows, width], zeros, of what stays and changes from step to step, with the dtype and on the device of ``like``."""
        return like.new_zeros(rows, width)

    def rest(self, tensor: Tensor) -> None:
        """Nobody reads or writes what is ``lasting``, or a contiguous part of it, for a while."""

    def discard(self, tensor: Tensor) -> None:
        """What is in a tensor is of no more use to whoever holds this one; its memory is, after ``renew``."""

    def renew(self, tensor: Tensor) -> None:
        """A discarded tensor is written to from now on."""

    def room(self) -> int:
        """Bytes that tables may take at present."""
        return 1 << 62

    def overwrite(self, tensor: Tensor) -> None:
        """A tensor that is kept is written to after all, since nobody else asks for it any more."""

    def empty(self, rows: int, width: int, like: Tensor) -> Tensor:
        """[rows, width], not initialised, with the dtype and on the device of ``like``."""
        size = rows * width * like.element_size()
        if not self.enabled or not COUNTS or size < SMALLEST or like.device.type != "cpu":
            return like.new_empty(rows, width)
        idle = [storage for storage in self._owned if storage.is_idle]
        least, most = rows * width, int(rows * width * (1 + self.slack))
        fits = [storage for storage in idle if storage.tensor.dtype == like.dtype and least <= storage.tensor.numel() <= most]
        if fits:
            chosen = min(fits, key=lambda storage: storage.tensor.numel())
            held = chosen.tensor.detach()  # from here on it is in use
            del idle, fits
            self._give(chosen, size)
            tensor = _shaped(chosen.tensor, rows, width)
            del held
            return tensor
        used = self.held_bytes() - sum(storage.bytes for storage in idle)
        self.most_used = max(self.most_used, used + size)
        del idle, fits  # they hold what is to be freed
        self._free_idle(self.most_used - used - size)
        room = self.largest if rows <= self.largest <= rows * (1 + self.slack) else rows * (1 + self.slack / 2)
        fresh = like.new_empty(int(room * width))
        owned = self._owns(fresh)
        tensor = _shaped(fresh, rows, width)
        if holders(fresh) == owned.idle_count + 1:  # else this PyTorch counts otherwise, and nothing is used again
            self._give(owned, size, fresh=True)
            self._owned.append(owned)
        return tensor

    def _owns(self, tensor: Tensor) -> Storage:
        return Storage(tensor, holders(tensor))

    def _give(self, storage: Storage, used: int, *, fresh: bool = False) -> None:
        """Called before the first ``used`` bytes of a storage come to be used; fresh: nobody has written to it yet."""
        storage.used = used

    def _let_go(self, storage: Storage) -> None:
        """Called before an idle storage is freed."""

    def _free_idle(self, room: int) -> None:
        """Free idle memory until at most ``room`` bytes of it are left; the oldest stay."""
        for storage in [storage for storage in self._owned if storage.is_idle]:
            if storage.bytes <= room:
                room -= storage.bytes
            else:
                self._let_go(storage)
                self._owned.remove(storage)

    def empty_like(self, like: Tensor) -> Tensor:
        return self.empty(like.shape[0], like.shape[1], like)

    def zeros(self, rows: int, width: int, like: Tensor) -> Tensor:
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

    def close(self) -> None:
        """Nothing that it gave is read any more."""

    def held_bytes(self) -> int:
        """Bytes in use and idle."""
        return sum(storage.bytes for storage in self._owned)

    def reset(self) -> None:
        """Free all idle memory, and forget how much was in use."""
        self._free_idle(0)
        self.most_used = self.held_bytes()


def _shaped(flat: Tensor, rows: int, width: int) -> Tensor:
    """Not a view, which autograd would not let anyone write to."""
    return torch.empty(0, dtype=flat.dtype).set_(flat.untyped_storage(), 0, (rows, width), (width, 1))
