"""A group of ranks: who takes part, and what was sent and waited for."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from sargnn.comm.collectives import Combine, fold_in_servers, gather_by_messages, sum_by_messages, sum_in_order
from sargnn.profile import ALL_REDUCE, BETWEEN_WAIT, EXCHANGE_WAIT, Profile

if TYPE_CHECKING:
    from sargnn.comm.join import Host

SMALL_BYTES = 1 << 16
"""Up to here every rank gathers all terms of a sum and adds them itself; larger tensors are summed piece by piece."""

MOST_AHEAD = 7
"""Rounds of an exchange that are posted ahead at most: as many messages and one more may wait for a peer (``comm.shared``)."""

Leave = Callable[[], Callable[[], None]]


class Work(Protocol):
    """A transfer under way, as a transport gives it."""

    def wait(self) -> Any:
        """Returns when it is done."""


@dataclass(eq=False)
class Expected:
    """A message of an exchange that comes, ``numel`` of the dtype of ``like``.

    ``room`` makes where it arrives, contiguous, unless it is read in place, where it lies in memory that its sender shares.
    ``work`` is what is waited for; of a message that may be shared, until its sender says so.
    """

    room: Callable[[], Tensor]
    numel: int
    like: Tensor
    peer: int
    tag: int
    at: int
    work: Work | None = None
    message: Tensor | None = None
    shared: bool = False


@dataclass
class Traffic:
    """What one rank sent and how long it waited since the last reset.

    Attributes:
        sent_bytes: payload of row exchange sent by this rank; collectives are not counted.
        wait_s: seconds spent waiting for rows, gradients and collectives.
        between_bytes: of all that this rank sent, collectives included, what went to another server.
        between_wait_s: of ``wait_s`` what was waited for ranks of other servers.
        begun: exchanges and collectives that were begun, the same number on every rank that is as far; never reset.
    """

    sent_bytes: int = 0
    wait_s: float = 0.0
    begun: int = 0
    between_bytes: int = 0
    between_wait_s: float = 0.0

    def reset(self) -> None:
        self.sent_bytes, self.wait_s, self.between_bytes, self.between_wait_s = 0, 0.0, 0, 0.0


class Group(ABC):
    """P ranks that exchange rows and sum small tensors. ``Group.single()`` is the group of one, without communication.

    A transport says how a message is posted and waited for. All sums are taken in the order of ranks (with servers: within each
    server, then over servers), so that every transport gives the same bits.

    Args:
        world: P.
        profile: where time is recorded; nowhere if not given.
        servers: S; ranks [s G, (s + 1) G) are server s, with G = P / S. Collectives go within servers first.
        first: of a part of a larger group: the rank there of this group's rank 0.

    Attributes:
        hosts: of each rank; () where all run on one, or that is not known.
        within: the ranks of this rank's server as a group of their own, with the same traffic and profile.
        near: the ranks of this process, this one among them, if they read each other's rows where they lie; else none.
        board: where these show each other what is to be read, by the number of the exchange and the rank.
        mates: ranks of this server, this one among them.
        partners: in every server the rank in this one's place.
    """

    hosts: tuple[Host, ...] = ()
    near: range = range(0)
    board: dict[Any, Any]

    def __init__(
        self,
        rank: int,
        world: int,
        traffic: Traffic | None = None,
        profile: Profile | None = None,
        *,
        servers: int = 1,
        first: int | None = None,
    ) -> None:
        self.rank, self.world, self.servers = rank, world, servers
        self.traffic = traffic or Traffic()
        self.profile = profile or Profile(recording=False)
        self._first, self._is_whole = first or 0, first is None
        size = world // servers
        begin = rank // size * size
        self.mates = tuple(range(begin, begin + size))
        self.partners = tuple(range(rank % size, world, size))
        if servers == 1:
            self.within: Group = self
        else:
            self.within = self._made(rank - begin, size, self.traffic, self.profile, first=self._first + begin)

    @property
    def first(self) -> int:
        return self._first

    @staticmethod
    def single(profile: Profile | None = None) -> Group:
        return SingleGroup(0, 1, profile=profile)

    def again(self, *, servers: int = 1, profile: Profile | None = None) -> Group:
        """The same ranks over the same transport, with a traffic of their own; all ranks call it alike."""
        return self._made(self.rank, self.world, None, profile, servers=servers)

    @abstractmethod
    def _made(
        self,
        rank: int,
        world: int,
        traffic: Traffic | None,
        profile: Profile | None,
        *,
        servers: int = 1,
        first: int | None = None,
    ) -> Group:
        """Ranks of the same transport as a group: all of them, or with ``first`` those from there on."""

    @abstractmethod
    def _post_send(self, tensor: Tensor, peer: int, tag: int) -> Work:
        """Start sending a contiguous tensor, which stays as it is until the work is done."""

    @abstractmethod
    def _post_receive(self, tensor: Tensor, peer: int, tag: int) -> Work:
        """Start receiving into a contiguous tensor, which holds nothing of meaning until the work is done."""

    def _post_in_round(self, tensor: Tensor, peer: int, tag: int, at: int, *, sends: bool) -> Work:
        return self._post_send(tensor, peer, tag) if sends else self._post_receive(tensor, peer, tag)

    @abstractmethod
    def _finish(self, work: Work, peer: int, doing: str) -> None:
        """As ``wait``."""

    def close(self) -> None:  # noqa: B027 - what has no connections has nothing to leave
        """Leave the group."""

    def putting_away(self, leave: Leave) -> AbstractContextManager[None]:
        """Within it, ``leave`` has put away what this rank has set for its whole process; what it returns takes it up again."""
        return nullcontext()

    def until(self, ready: Callable[[], bool], doing: str) -> None:
        """Let other ranks of this process run until ``ready()``, which they bring about."""
        raise AssertionError("no other rank runs in this process")

    def send(self, tensor: Tensor, peer: int, tag: int, at: int | None = None) -> Work:
        """Start sending a contiguous tensor to ``peer``; its bytes are counted. Raises ``CommError`` if the peer has gone.

        ``at``: the round of an exchange that it belongs to, from 0: it is waited for once ``end_round`` was called.
        """
        self._count(tensor, peer)
        return self.send_quietly(tensor, peer, tag, at)

    def _count(self, tensor: Tensor, peer: int) -> None:
        self.traffic.sent_bytes += tensor.numel() * tensor.element_size()
        where = EXCHANGE_WAIT if peer in self.mates else BETWEEN_WAIT
        self.profile.work(where, tensor.numel() * tensor.element_size())

    def _count_between(self, tensor: Tensor, peer: int) -> None:
        if peer not in self.mates:
            self.traffic.between_bytes += tensor.numel() * tensor.element_size()

    def send_quietly(self, tensor: Tensor, peer: int, tag: int, at: int | None = None) -> Work:
        """The same for what is no row exchange: it is counted only where it goes to another server."""
        self._count_between(tensor, peer)
        return self._post_send(tensor, peer, tag) if at is None else self._post_in_round(tensor, peer, tag, at, sends=True)

    def receive(self, tensor: Tensor, peer: int, tag: int, at: int | None = None) -> Work:
        """Start receiving from ``peer`` into a contiguous tensor. Raises ``CommError`` if the peer has gone."""
        return self._post_receive(tensor, peer, tag) if at is None else self._post_in_round(tensor, peer, tag, at, sends=False)

    def lend(self, numel: int, like: Tensor) -> Tensor | None:
        """Room for messages that peers may read in place, ``numel`` of the dtype of ``like``; None: there is none."""
        return None

    def take_back(self, room: Tensor) -> None:  # noqa: B027 - who lends nothing gets nothing back
        """Room that was lent, and whose messages have all been read, is free again."""

    def clear_lent(self) -> None:  # noqa: B027 - who lends nothing has nothing
        """Give the memory of room that is free back to the system."""

    def hand(self, message: Tensor, peer: int, tag: int, at: int) -> Work:
        """``send``, of a message that the peer gets by ``expect``: it may lie in room that was lent, and is then read there."""
        return self.send(message, peer, tag, at)

    def expect(self, room: Callable[[], Tensor], numel: int, like: Tensor, peer: int, tag: int, at: int) -> Expected:
        """``receive``, of what the peer gives by ``hand``: ``numel`` of the dtype of ``like``, to where ``room`` makes room."""
        expected = Expected(room, numel, like, peer, tag, at)
        expected.message = room()
        expected.work = self.receive(expected.message, peer, tag, at)
        return expected

    def take(self, expected: Expected, doing: str) -> Tensor:
        """Wait for a message and read it, until ``leave``. Raises ``CommError`` as ``wait`` does."""
        assert expected.work is not None and expected.message is not None
        self.wait(expected.work, expected.peer, doing)
        return expected.message

    def leave(self, expected: Expected) -> None:  # noqa: B027 - what has arrived in room of the receiver's is nobody else's
        """A message that was taken has been read."""

    def end_round(self, tag: int, at: int) -> None:  # noqa: B027 - where each message is known by its tag there is nothing to do
        """All messages of a tag that this rank sends or receives in this round of an exchange, or before, have been posted."""

    def wait(self, work: Work, peer: int, doing: str) -> None:
        """Wait for a transfer. Raises ``CommError`` that names the peer if it died or did not answer in time."""
        started = time.perf_counter()
        with self.profile.span(EXCHANGE_WAIT if peer in self.mates else BETWEEN_WAIT):
            self._finish(work, peer, doing)
        self.profile.wait(self._first + peer, self._waited(peer, started))

    def wait_all(self, works: Sequence[tuple[Work, int]]) -> None:
        """Wait for the transfers of a collective, each with its peer. Raises ``CommError`` as ``wait`` does."""
        for work, peer in works:
            started = time.perf_counter()
            self._finish(work, peer, "in a collective")
            self._waited(peer, started)

    def _waited(self, peer: int, started: float) -> float:
        seconds = time.perf_counter() - started
        self.traffic.wait_s += seconds
        if peer not in self.mates:
            self.traffic.between_wait_s += seconds
        return seconds

    def sum_(self, tensor: Tensor) -> Tensor:
        """All-reduce (SUM) in place, in the order of ranks: the same bits on every rank and every transport."""
        with self._collective():
            if self.world == 1:
                return tensor
            if self.servers > 1 or (self.world > 2 and tensor.numel() * tensor.element_size() > SMALL_BYTES):
                return self._sum_large(tensor)
            return tensor.copy_(sum_in_order(self._gather(tensor)))

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor (same shape), in rank order."""
        with self._collective():
            return [tensor] if self.world == 1 else self._gather(tensor)

    def fold(self, tensor: Tensor, combine: Combine) -> Tensor:
        """What ``combine`` makes of every rank's tensor in rank order; with servers, of each and then of their results."""
        if self.servers == 1:
            return combine(self.gather(tensor))
        with self._collective():
            return fold_in_servers(self, tensor, combine)

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        return gather_by_messages(self, tensor)

    def _sum_large(self, tensor: Tensor) -> Tensor:
        return sum_by_messages(self, tensor)

    @contextmanager
    def _collective(self) -> Iterator[None]:
        self.traffic.begun += 1
        with self.profile.span(ALL_REDUCE) if self.world > 1 else nullcontext():  # alone there is nothing to record
            yield


class SingleGroup(Group):
    def _made(self, rank: int, world: int, *given: Any, **placed: Any) -> Group:
        return SingleGroup(rank, world, *given, **placed)

    def _post_send(self, tensor: Tensor, peer: int, tag: int) -> Work:
        raise AssertionError("this group has no transport")

    _post_receive = _post_send

    def _finish(self, work: Work, peer: int, doing: str) -> None:
        raise AssertionError("this group has no transport")


def sum_flat(group: Group, tensors: Sequence[Tensor]) -> None:
    """Sum several tensors of one dtype over all ranks, in place, in ONE flattened all-reduce."""
    if group.world == 1 or not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    group.sum_(flat)
    start = 0
    for tensor in tensors:
        tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()


def bytes_of(tensor: Tensor) -> Tensor:
    """A contiguous tensor's memory, which any transport carries, whether or not it knows the dtype (MPI has no bf16).

    One of a single number may have any stride, such as 0 where it was expanded.
    """
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
