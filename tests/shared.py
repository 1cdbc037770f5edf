"""Shared memory that makes mistakes show: messages come late, nobody changes them, and they hold NaN once they were left."""

from __future__ import annotations

import random
import time
import zlib

import torch
from torch import Tensor

from sargnn.comm import shared
from sargnn.comm.shared import Segment, Shared, Waiting

_DIGEST_BITS = 24


class AdversarialShared(Shared):
    """Of one message in eight the receiver hears late. Where a message lies is told with its digest: the receiver looks whether
    it still has that when it takes the message, and when it leaves it, and then overwrites it."""

    refuses = False
    """Whether no room is lent: every message travels."""

    def lend(self, count: int) -> Tensor | None:
        return None if self.refuses and count else super().lend(count)

    def expect(self, peer: int, tag: int) -> Waiting:
        waiting = super().expect(peer, tag)
        if random.Random(f"{self.rank} {peer} {waiting.value}").random() < 1 / 8:
            time.sleep(0.002)
        return waiting

    def leave(self, waited: Waiting, message: Tensor | None) -> None:
        if message is not None:
            whole = message.view(torch.uint8)
            place = waited.at + 2 * shared._WORDS_OF_LINE + waited.value % shared._MOST_WAITING
            self._found(waited.segment, waited.segment.numbers[place], len(whole))
            whole.fill_(255)  # NaN in every float
        super().leave(waited, message)

    def _said(self, message: Tensor) -> int:
        return super()._said(message) << _DIGEST_BITS | _digest(message)

    def _found(self, segment: Segment, said: int, count: int) -> Tensor | None:
        if said == shared.TRAVELS:
            return None
        message = super()._found(segment, said >> _DIGEST_BITS, count)
        assert message is not None
        if _digest(message) != said & ((1 << _DIGEST_BITS) - 1):
            raise AssertionError(f"A message of {count} bytes was written to before it was left.")
        return message


def _digest(message: Tensor) -> int:
    return zlib.crc32(message.view(torch.uint8).numpy().data) & ((1 << _DIGEST_BITS) - 1)
