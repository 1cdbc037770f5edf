"""The transport of one process as tests use it: whatever a transport may do to a program's mistakes, it does."""

from __future__ import annotations

import ctypes
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.turns import End, Turns
from sargnn.errors import CommError


@dataclass(eq=False)
class _Message:
    """What a sender's end held when it was posted, and what was taken of it."""

    digest: int
    taken: np.ndarray | None = None


class AdversarialTurns(Turns):
    """A message is taken as late as a transport may: when one of its ends is waited for.

    A send buffer that has changed until then is found by its digest. A receive buffer holds NaN (or its type's largest number)
    from its post to its wait. At the end everything must have been waited for.
    """

    def __init__(self, world: int, seed: int, *, near: bool = False) -> None:
        super().__init__(world, seed, near=near)
        self._messages: dict[End, _Message] = {}
        self._pending: dict[End, None] = {}

    def posted(self, end: End) -> None:
        self._pending[end] = None
        if end.sends:
            self._messages[end] = _Message(digest(end.tensor))
        else:
            poison(end.tensor)

    def met(self, send: End, receive: End) -> None:
        """Nothing arrives before it is waited for."""

    def taken(self, end: End) -> None:
        self._pending.pop(end, None)
        send, receive = (end, end.other) if end.sends else (end.other, end)
        assert send is not None and receive is not None
        message = self._messages.get(send)
        if message is None:  # it has arrived
            return
        if message.taken is None:
            if digest(send.tensor) != message.digest:
                raise CommError(f"A send buffer was written to before it was sent: {send}.")
            message.taken = _memory(send.tensor).copy()  # by numpy: no record of PyTorch's allocations sees it
        if end is receive:
            np.copyto(_memory(receive.tensor), message.taken)
            del self._messages[send]

    def check_ends(self) -> None:
        super().check_ends()
        if self._pending:
            raise CommError(f"Nobody waited for {'; '.join(str(end) for end in list(self._pending)[:5])}.")


def digest(tensor: Tensor) -> int:
    """Of a contiguous tensor's bytes."""
    return zlib.crc32(_memory(tensor).data)


def _memory(tensor: Tensor) -> np.ndarray:
    """The bytes of a contiguous tensor, by no operator: a record of another rank's would hold its memory."""
    return np.frombuffer(memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr() or 1)).cast("B"), np.uint8)


def poison(tensor: Tensor) -> None:
    """NaN in every float that bytes may be read as; the largest number of other types."""
    if tensor.is_floating_point():
        tensor.fill_(torch.nan)
    elif tensor.dtype != torch.bool:
        tensor.fill_(torch.iinfo(tensor.dtype).max)
