"""Memory that processes of one machine share: messages that lie where their receiver reads them, and sums.

Each process has a segment without a name, which ends with the last process that has it open, however that ends. A segment is
counters and offsets, in words, and behind them room for messages. A sender writes a message into its own segment and says
where it lies; the receiver reads it there, and says when it has. For each pair of processes and each tag messages are counted
from 1 on both sides, so that a count says it all.

What finds no room, or is for a process elsewhere, travels as any message does; a pair that shares memory says so of each.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.group import MOST_AHEAD, bytes_of
from sargnn.native import Entry

_BYTES = 1 << 33  # of addresses: a page is memory once it was written to
_PAGE = mmap.PAGESIZE
_WORDS_OF_LINE = 8
_KEY_AT, _KEY_BYTES = 16, 16
_GATHERED, _GATHERED_AT, _FIRST_PAIR = 24, 32, 40
_MOST_WAITING = 1 + MOST_AHEAD
_PAIR_WORDS = 2 * _WORDS_OF_LINE + _MOST_WAITING
_TAGS = 2  # rows, and gradients
TRAVELS = -1
"""In place of where a message lies: it comes over the group's transport."""
_LOOK_S = 0.2
_AROUND = 16 * _PAGE  # what a kernel maps of a file at the first touch of a page
_MADV_REMOVE = 9

_set_word = Entry("set_word", "words l W, at int, value int, bell l V, me int")
_wait_word = Entry("wait_word", "words l W, at int, value int, bell l V, peer int, nanoseconds int")


class LostPeerError(RuntimeError):
    """A process that was waited for has ended, or did not come in time; ``peer``: which."""

    def __init__(self, peer: int, text: str) -> None:
        super().__init__(text)
        self.peer = peer


class Segment:
    """A process's segment, mapped here: its beginning as int64, for compiled code and for Python, and all of it as uint8."""

    def __init__(self, file: int, world: int) -> None:
        self.memory = mmap.mmap(file, _BYTES)
        self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8)
        self.first = -(-8 * (_FIRST_PAIR + world * _TAGS * _PAIR_WORDS) // _PAGE) * _PAGE
        self.words = self.bytes[: self.first].view(torch.int64)
        self.numbers = memoryview(self.memory)[: self.first].cast("q")

    def forget(self, first: int, last: int) -> None:
        """Unmap what lies between two bytes, with what the kernel has mapped around it; it stays in the segment."""
        begin, end = max(first // _AROUND * _AROUND, self.first), min(-(-last // _AROUND) * _AROUND, _BYTES)
        self.memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)


@dataclass(eq=False)
class Waiting:
    shared: Shared
    segment: Segment
    at: int
    value: int
    peer: int

    def wait(self) -> None:
        """Raises ``LostPeerError``."""
        self.shared.until(self.segment, self.at, self.value, self.peer)


class Shared:
    """This process's view of its machine's shared memory.

    Args:
        rank: of this process, among all.
        others: segments of the processes that share memory with it, by rank; ``all``: every process of the run is one of them.
        alive: what the kernel tells their end by, by rank: a file of each.
        timeout_s: how long a word is waited for.
    """

    def __init__(
        self, rank: int, world: int, own: Segment, others: dict[int, Segment], alive: dict[int, int], timeout_s: float
    ) -> None:
        self.rank, self.own, self.others = rank, own, others
        self.all = len(others) == world - 1
        self._world, self._alive, self._timeout_s = world, alive, timeout_s
        self._sent: dict[tuple[int, int], int] = {}
        self._received: dict[tuple[int, int], int] = {}
        self._gathers = 0
        self._given: dict[int, int] = {}  # where a piece of room begins, and ends
        self._of_gathers: dict[int, Tensor] = {}

    def lend(self, count: int) -> Tensor | None:
        """Room for a message: uint8 [count] of this process's segment, until ``take_back``; None where there is none left."""
        begin = self.own.first
        size = max(_PAGE, -(-count // _PAGE) * _PAGE)
        for first, last in sorted(self._given.items()):
            if first - begin >= size:
                break
            begin = last
        if begin + size > _BYTES:
            return None
        self._given[begin] = begin + size
        return self.own.bytes[begin : begin + count]

    def take_back(self, room: Tensor) -> None:
        self._given.pop(self._offset(room))

    def clear(self) -> None:
        """Give free pages behind all lent ones back to the system."""
        last = max(self._given.values(), default=self.own.first)
        with suppress(OSError):  # where the kernel cannot, they stay
            self.own.memory.madvise(_MADV_REMOVE, last, _BYTES - last)

    def post(self, message: Tensor, peer: int, tag: int) -> Waiting | None:
        """Say where a message lies; None: it does not lie here, and the peer was told that it travels."""
        lies_here = self._lies_here(message)
        number = self._sent[peer, tag] = self._sent.get((peer, tag), 0) + 1
        place = _pair(peer, tag)
        read = place + _WORDS_OF_LINE
        if number > _MOST_WAITING:
            self.until(self.own, read, number - _MOST_WAITING, peer)
        self.own.numbers[read + _WORDS_OF_LINE + number % _MOST_WAITING] = self._said(message) if lies_here else TRAVELS
        _set_word(self.own.words, place, number, self.others[peer].words, self.rank)
        return Waiting(self, self.own, read, number, peer) if lies_here else None

    def expect(self, peer: int, tag: int) -> Waiting:
        number = self._received[peer, tag] = self._received.get((peer, tag), 0) + 1
        return Waiting(self, self.others[peer], _pair(self.rank, tag), number, peer)

    def message(self, waited: Waiting, count: int) -> Tensor | None:
        """What was waited for: uint8 [count], to be read until ``leave``; None: it travels."""
        place = waited.at + 2 * _WORDS_OF_LINE + waited.value % _MOST_WAITING
        return self._found(waited.segment, waited.segment.numbers[place], count)

    def leave(self, waited: Waiting, message: Tensor | None) -> None:
        if message is not None:
            first = message.data_ptr() - waited.segment.bytes.data_ptr()
            waited.segment.forget(first, first + message.nbytes)
        _set_word(waited.segment.words, waited.at + _WORDS_OF_LINE, waited.value, waited.segment.words, self.rank)

    @contextmanager
    def gather(self, tensor: Tensor) -> Iterator[list[Tensor]]:
        """Every process's tensor (same shape), in the order of ranks, where it lies. All processes call it together."""
        flat = bytes_of(tensor.contiguous())
        number = self._gathers + 1
        if (room := self._of_gathers.pop(number % 2, None)) is not None:
            self.take_back(room)  # all have read it: they have begun the gather after it
        room = self.lend(max(len(flat), 1))
        assert room is not None, "the addresses are enough for two sums of parameters"
        self._gathers, self._of_gathers[number % 2] = number, room
        room[: len(flat)] = flat
        self.own.numbers[_GATHERED_AT + number % 2] = self._offset(room)
        for other in self.others.values():
            _set_word(self.own.words, _GATHERED, number, other.words, self.rank)
        tensors = []
        for rank in range(self._world):
            segment = self.own if rank == self.rank else self.others[rank]
            if rank != self.rank:
                self.until(segment, _GATHERED, number, rank)
            first = segment.numbers[_GATHERED_AT + number % 2]
            tensors.append(segment.bytes[first : first + len(flat)].view(tensor.dtype).view(tensor.shape))
        yield tensors
        for other in self.others.values():
            first = other.numbers[_GATHERED_AT + number % 2]
            other.forget(first, first + len(flat))

    def until(self, segment: Segment, at: int, value: int, peer: int) -> None:
        nanoseconds, words, bell = int(_LOOK_S * 1e9), segment.words, self.own.words
        if _wait_word(words, at, value, bell, peer, nanoseconds):
            return
        deadline = time.monotonic() + self._timeout_s
        while not _wait_word(words, at, value, bell, peer, nanoseconds):
            if self._has_ended(peer) and not _wait_word(words, at, value, bell, peer, 0):  # it may have written before it ended
                raise LostPeerError(peer, "the process has ended")
            if time.monotonic() > deadline:
                raise LostPeerError(peer, f"nothing came within {self._timeout_s:g} s")

    def _has_ended(self, peer: int) -> bool:
        looked = select.poll()
        looked.register(self._alive[peer], select.POLLIN)
        return bool(looked.poll(0))

    def close(self) -> None:
        """What others still read stays until they close, too."""
        for file in self._alive.values():
            os.close(file)
        self._alive.clear()

    def _offset(self, tensor: Tensor) -> int:
        return tensor.data_ptr() - self.own.bytes.data_ptr()

    def _lies_here(self, message: Tensor) -> bool:
        return 0 <= self._offset(message) < _BYTES

    def _said(self, message: Tensor) -> int:
        return self._offset(message)

    def _found(self, segment: Segment, said: int, count: int) -> Tensor | None:
        return None if said == TRAVELS else segment.bytes[said : said + count]


def _pair(receiver: int, tag: int) -> int:
    """Of a sender's words: how many messages a receiver is sent; a line further, how many it has read; then where they lie."""
    return _FIRST_PAIR + (receiver * _TAGS + tag % _TAGS) * _PAIR_WORDS


def share(
    rank: int, world: int, timeout_s: float, gather: Callable[[Tensor], Sequence[Tensor]], make: type[Shared] = Shared
) -> Shared | None:
    """What this process shares with others on its machine; None if nothing. All processes must call it.

    Two share memory if each can open the other's segment, which the kernel allows processes of one user. ``gather`` gives every
    process's tensor, in the order of ranks.
    """
    key, file, own = os.urandom(_KEY_BYTES), -1, None
    try:
        file = os.memfd_create("sargnn")
        os.ftruncate(file, _BYTES)
        own = Segment(file, world)
        own.bytes[8 * _KEY_AT : 8 * _KEY_AT + _KEY_BYTES] = torch.frombuffer(bytearray(key), dtype=torch.uint8)
    except (OSError, ValueError):  # such as a limit of addresses
        own = None
    said = np.frombuffer(key + _machine(), np.int64)
    told = [each.tolist() for each in gather(torch.tensor([os.getpid(), file if own is not None else -1, *said]))]
    others, alive = {}, {}
    for peer, (process, number, *words) in enumerate(told):
        if peer == rank or own is None or number < 0 or words[2:] != told[rank][4:]:
            continue
        with suppress(OSError, ValueError):
            theirs = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
            try:
                segment = Segment(theirs, world)
            finally:
                os.close(theirs)
            if segment.words[_KEY_AT : _KEY_AT + 2].tolist() == words[:2]:
                alive[peer] = os.pidfd_open(process)
                others[peer] = segment
    opened = [each.tolist() for each in gather(torch.tensor([int(peer in others) for peer in range(world)]))]
    if file >= 0:
        os.close(file)
    for peer in [peer for peer in others if not opened[peer][rank]]:
        del others[peer]
        os.close(alive.pop(peer))
    return make(rank, world, own, others, alive, timeout_s) if own is not None and others else None


def _machine() -> bytes:
    """16 bytes that processes of one host have in common: a kernel that runs, a space of ids, in which they see each other's,
    and a network. A host that lies in a network of its own is lost with its link."""
    with suppress(OSError):
        spaces = (os.readlink(f"/proc/self/ns/{space}") for space in ("pid", "net"))
        text = Path("/proc/sys/kernel/random/boot_id").read_text() + "".join(spaces)
        return hashlib.sha256(text.encode()).digest()[:16]
    return os.urandom(16)
