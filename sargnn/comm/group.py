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
from sargnn.errors import CommError
from sargnn.profile import ALL_REDUCE, EXCHANGE_WAIT, Profile


@dataclass
class Traffic:
    """What one rank sent and how long it waited since the last reset.

    Attributes:
        sent_bytes: payload of row exchange sent by this rank; collectives are not counted.
        wait_s: seconds spent waiting for rows, gradients and collectives.
        begun: exchanges and collectives that were begun, the same number on every rank that is as far; never reset.
    """

    sent_bytes: int = 0
    wait_s: float = 0.0
    begun: int = 0

    def reset(self) -> None:
        """Start counting anew."""
        self.sent_bytes, self.wait_s = 0, 0.0


class Group:
    """P ranks that exchange rows and sum small tensors. ``Group.single()`` is the group of one, without communication.

    Args:
        rank: this rank. world: P.
        process_group: torch's group; None for a group of one.
        traffic: what is sent is counted in it. profile: where time is recorded; nowhere if not given.
        hosts: of each rank; () where all run on one, or MPI has started them.
        mute: hosts that never answer a probe, such as those behind a firewall: their silence says nothing.
    """

    def __init__(
        self, rank: int, world: int, process_group: dist.ProcessGroup | None, traffic: Traffic | None = None,
        profile: Profile | None = None, hosts: Sequence[Host] = (), mute: Sequence[Host] = (),
    ) -> None:  # fmt: skip
        self.hosts, self._mute = tuple(hosts), frozenset(mute)
        self.rank, self.world = rank, world
        self.process_group = process_group
        self.traffic = traffic or Traffic()
        self.profile = profile or Profile(recording=False)

    @classmethod
    def single(cls, profile: Profile | None = None) -> Group:
        """A group of one."""
        return cls(0, 1, None, profile=profile)

    @classmethod
    def from_environment(
        cls, backend: str, timeout_s: float, rank: int, world: int, traffic: Traffic | None = None,
        profile: Profile | None = None,
    ) -> Group:  # fmt: skip
        """Join the group that the environment names (``comm.join``). ``traffic``, ``profile``: what to record in.

        Raises:
            CommError: the others could not be reached.
        """
        if world == 1:
            return cls.single(profile)
        group, hosts = join(backend, timeout_s, rank, world, os.environ)
        mute = silent([host for host in hosts if host != hosts[rank]])
        return cls(rank, world, group, traffic, profile, hosts, mute)

    def close(self) -> None:
        """Leave the group."""
        if self.process_group is not None:
            dist.destroy_process_group()

    def send(self, tensor: Tensor, peer: int, tag: int) -> dist.Work:
        """Start sending a contiguous tensor to ``peer``; its bytes are counted. Raises ``CommError`` if the peer has gone."""
        self.traffic.sent_bytes += tensor.numel() * tensor.element_size()
        self.profile.work(EXCHANGE_WAIT, tensor.numel() * tensor.element_size())
        return self._post(dist.isend, tensor, peer, tag, "sending", group_dst=peer)

    def receive(self, tensor: Tensor, peer: int, tag: int) -> dist.Work:
        """Start receiving from ``peer`` into a contiguous tensor. Raises ``CommError`` if the peer has gone."""
        return self._post(dist.irecv, tensor, peer, tag, "receiving", group_src=peer)

    def _post(
        self, post: Callable[..., dist.Work | None], tensor: Tensor, peer: int, tag: int, doing: str, **end: int
    ) -> dist.Work:  # fmt: skip
        try:
            work = post(_bytes_of(tensor), group=self.process_group, tag=tag, **end)
        except RuntimeError as error:
            raise self._lost(f"rank {peer}", f"while {doing}", error, peer) from error
        assert work is not None
        return work

    def wait(self, work: dist.Work, peer: int, doing: str) -> None:
        """Wait for a transfer. Raises ``CommError`` that names the peer if it died or did not answer in time."""
        started = time.perf_counter()
        try:
            with self.profile.span(EXCHANGE_WAIT):
                work.wait()
        except RuntimeError as error:
            raise self._lost(f"rank {peer}", f"while {doing}", error, peer) from error
        waited = time.perf_counter() - started
        self.traffic.wait_s += waited
        self.profile.wait(peer, waited)

    def sum_(self, tensor: Tensor) -> Tensor:
        """All-reduce (SUM) in place; the same bits on every rank."""
        self.traffic.begun += 1
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
        started = time.perf_counter()
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        try:
            with self.profile.span(ALL_REDUCE):
                dist.all_gather(parts, tensor, group=self.process_group)
        except RuntimeError as error:
            raise self._lost("a peer", "in an all-gather", error) from error
        self.traffic.wait_s += time.perf_counter() - started
        return parts

    def _lost(self, who: str, doing: str, error: RuntimeError, peer: int | None = None) -> CommError:
        """What to say, in one line: of several hosts also which one does not answer, or where the lost peer ran."""
        reason = _first_line(error)
        others = [host for host in self.hosts if host != self.hosts[self.rank]]
        where = ""
        if quiet := silent([host for host in others if host not in self._mute]):
            where = f"; {', '.join(map(str, quiet))} {'does' if len(quiet) == 1 else 'do'} not answer"
        elif host := named_in(reason, others) or (self.hosts[peer] if self.hosts and peer is not None else None):
            where = f", {host}"
        return CommError(f"Rank {self.rank} lost {who} {doing}{where}: {reason}")


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
    """What a backend carries, whether or not it knows the dtype (MPI has no bf16); without a copy."""
    return tensor.view(-1).view(torch.uint8)


def _first_line(error: RuntimeError) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
