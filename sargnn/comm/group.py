"""The process group: who takes part, and what was sent and waited for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from sargnn.comm.hosts import Host, named_in, silent
from sargnn.comm.join import join
from sargnn.comm.servers import Combine, fold_in_servers, gather_in_servers, sum_in_servers
from sargnn.errors import CommError
from sargnn.profile import ALL_REDUCE, BETWEEN_WAIT, EXCHANGE_WAIT, Profile


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
        """Start counting anew."""
        self.sent_bytes, self.wait_s, self.between_bytes, self.between_wait_s = 0, 0.0, 0, 0.0


class Group:
    """P ranks that exchange rows and sum small tensors. ``Group.single()`` is the group of one, without communication.

    Args:
        rank: this rank. world: P.
        process_group: torch's group; None for a group of one.
        traffic: what is sent is counted in it. profile: where time is recorded; nowhere if not given.
        hosts: of each rank; () where all run on one, or MPI has started them.
        mute: hosts that never answer a probe, such as those behind a firewall: their silence says nothing.
        servers: S; ranks [s G, (s + 1) G) are server s, with G = P / S. Collectives go by messages, within servers first.
        first: the rank in ``process_group`` of this group's rank 0, where that has others, too.

    Attributes:
        within: the ranks of this rank's server as a group of their own, with the same traffic and profile.
        mates: ranks of this server, this one among them. partners: in every server the rank in this one's place.
    """

    def __init__(
        self, rank: int, world: int, process_group: dist.ProcessGroup | None, traffic: Traffic | None = None,
        profile: Profile | None = None, hosts: Sequence[Host] = (), mute: Sequence[Host] = (), *, servers: int = 1,
        first: int | None = None,
    ) -> None:  # fmt: skip
        self.servers, self._first, self._by_messages = servers, first or 0, servers > 1 or first is not None
        size = world // servers
        begin = rank // size * size
        self.mates = tuple(range(begin, begin + size))
        self.partners = tuple(range(rank % size, world, size))
        self.hosts, self._mute = tuple(hosts), frozenset(mute)
        self.rank, self.world = rank, world
        self.process_group = process_group
        self.traffic = traffic or Traffic()
        self.profile = profile or Profile(recording=False)
        self.within = self
        if servers > 1:
            own_hosts = [self.hosts[mate] for mate in self.mates] if self.hosts else ()
            one = process_group if size > 1 else None
            self.within = Group(
                rank - begin, size, one, self.traffic, self.profile, own_hosts, mute, first=self._first + begin
            )  # fmt: skip

    @classmethod
    def single(cls, profile: Profile | None = None) -> Group:
        """A group of one."""
        return cls(0, 1, None, profile=profile)

    @classmethod
    def from_environment(
        cls, backend: str, timeout_s: float, rank: int, world: int, traffic: Traffic | None = None,
        profile: Profile | None = None, *, servers: int = 1,
    ) -> Group:  # fmt: skip
        """Join the group that the environment names (``comm.join``). ``traffic``, ``profile``: what to record in.
        ``servers``: in how many it runs.

        Raises:
            CommError: the others could not be reached.
        """
        if world == 1:
            return cls.single(profile)
        group, hosts = join(backend, timeout_s, rank, world, os.environ)
        mute = silent([host for host in hosts if host != hosts[rank]])
        return cls(rank, world, group, traffic, profile, hosts, mute, servers=servers)

    def close(self) -> None:
        """Leave the group."""
        if self.process_group is not None:
            dist.destroy_process_group()

    def send(self, tensor: Tensor, peer: int, tag: int) -> dist.Work:
        """Start sending a contiguous tensor to ``peer``; its bytes are counted. Raises ``CommError`` if the peer has gone."""
        self.traffic.sent_bytes += tensor.numel() * tensor.element_size()
        where = EXCHANGE_WAIT if peer in self.mates else BETWEEN_WAIT
        self.profile.work(where, tensor.numel() * tensor.element_size())
        return self.send_quietly(tensor, peer, tag)

    def send_quietly(self, tensor: Tensor, peer: int, tag: int) -> dist.Work:
        """The same for what is no row exchange: it is counted only where it goes to another server."""
        if peer not in self.mates:
            self.traffic.between_bytes += tensor.numel() * tensor.element_size()
        return self._post(dist.isend, tensor, peer, tag, "sending", group_dst=self._first + peer)

    def receive(self, tensor: Tensor, peer: int, tag: int) -> dist.Work:
        """Start receiving from ``peer`` into a contiguous tensor. Raises ``CommError`` if the peer has gone."""
        return self._post(dist.irecv, tensor, peer, tag, "receiving", group_src=self._first + peer)

    def _post(
        self, post: Callable[..., dist.Work | None], tensor: Tensor, peer: int, tag: int, doing: str, **end: int
    ) -> dist.Work:  # fmt: skip
        try:
            work = post(_bytes_of(tensor), group=self.process_group, tag=tag, **end)
        except RuntimeError as error:
            raise self._lost(f"rank {self._first + peer}", f"while {doing}", error, peer) from error
        assert work is not None
        return work

    def wait(self, work: dist.Work, peer: int, doing: str) -> None:
        """Wait for a transfer. Raises ``CommError`` that names the peer if it died or did not answer in time."""
        started = time.perf_counter()
        try:
            with self.profile.span(EXCHANGE_WAIT if peer in self.mates else BETWEEN_WAIT):
                work.wait()
        except RuntimeError as error:
            raise self._lost(f"rank {self._first + peer}", f"while {doing}", error, peer) from error
        self._waited(peer, time.perf_counter() - started)

    def _waited(self, peer: int, seconds: float) -> None:
        self.traffic.wait_s += seconds
        if peer not in self.mates:
            self.traffic.between_wait_s += seconds
        self.profile.wait(self._first + peer, seconds)

    def wait_all(self, works: Sequence[tuple[dist.Work, int]]) -> None:
        """Wait for the transfers of a collective, each with its peer. Raises ``CommError`` as ``wait`` does."""
        for work, peer in works:
            started = time.perf_counter()
            try:
                work.wait()
            except RuntimeError as error:
                raise self._lost(f"rank {self._first + peer}", "in a collective", error, peer) from error
            waited = time.perf_counter() - started
            self.traffic.wait_s += waited
            if peer not in self.mates:
                self.traffic.between_wait_s += waited

    def sum_(self, tensor: Tensor) -> Tensor:
        """All-reduce (SUM) in place; the same bits on every rank."""
        self.traffic.begun += 1
        if self.process_group is not None and self._by_messages:
            with self.profile.span(ALL_REDUCE):
                return sum_in_servers(self, tensor)
        if self.process_group is not None:
            started = time.perf_counter()
            try:
                with self.profile.span(ALL_REDUCE):
                    dist.all_reduce(tensor, group=self.process_group)
            except RuntimeError as error:
                raise self._lost("a peer", "in an all-reduce", error) from error
            self.traffic.wait_s += time.perf_counter() - started
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor (same shape), in rank order."""
        self.traffic.begun += 1
        if self.process_group is None:
            return [tensor]
        if self._by_messages:
            with self.profile.span(ALL_REDUCE):
                return gather_in_servers(self, tensor)
        started = time.perf_counter()
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        try:
            with self.profile.span(ALL_REDUCE):
                dist.all_gather(parts, tensor, group=self.process_group)
        except RuntimeError as error:
            raise self._lost("a peer", "in an all-gather", error) from error
        self.traffic.wait_s += time.perf_counter() - started
        return parts

    def fold(self, tensor: Tensor, combine: Combine) -> Tensor:
        """What ``combine`` makes of every rank's tensor in rank order; with servers, of each and then of their results."""
        if self.servers == 1 or self.process_group is None:
            return combine(self.gather(tensor))
        self.traffic.begun += 1
        with self.profile.span(ALL_REDUCE):
            return fold_in_servers(self, tensor, combine)

    def _lost(self, who: str, doing: str, error: RuntimeError, peer: int | None = None) -> CommError:
        """What to say, in one line: of several hosts also which one does not answer, or where the lost peer ran."""
        reason = _first_line(error)
        others = [host for host in self.hosts if host != self.hosts[self.rank]]
        where = ""
        if quiet := silent([host for host in others if host not in self._mute]):
            where = f"; {', '.join(map(str, quiet))} {'does' if len(quiet) == 1 else 'do'} not answer"
        elif host := named_in(reason, others) or (self.hosts[peer] if self.hosts and peer is not None else None):
            where = f", {host}"
        return CommError(f"Rank {self._first + self.rank} lost {who} {doing}{where}: {reason}")


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


def _bytes_of(tensor: Tensor) -> Tensor:
    """What a backend carries, whether or not it knows the dtype (MPI has no bf16); without a copy.

    A contiguous tensor of one number may have any stride, such as 0 where it was expanded.
    """
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _first_line(error: RuntimeError) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
