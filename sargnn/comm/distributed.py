"""Ranks that are processes, over torch.distributed: gloo or MPI. Tensors on a GPU travel by way of the host, or by NCCL. Rows
of processes on one machine lie in memory that they share (``comm.shared``)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sargnn.comm.collectives import sum_in_order
from sargnn.comm.group import Expected, Group, Traffic, Work, bytes_of
from sargnn.comm.join import Host, join, named_in, silent
from sargnn.comm.shared import LostPeerError, Shared, Waiting, share
from sargnn.comm.staging import Staging
from sargnn.errors import CommError
from sargnn.profile import Profile


@dataclass(frozen=True)
class RankProcesses:
    """The processes that ranks are, and their hosts, () where all run on one or MPI has started them.

    ``mute`` hosts never answer a probe, such as those behind a firewall: their silence says nothing. ``shared``: memory that
    this process shares with others.
    """

    group: dist.ProcessGroup | None
    hosts: tuple[Host, ...] = ()
    mute: Collection[Host] = ()
    staging: Staging = field(default_factory=Staging)
    shared: Shared | None = None


class DistributedGroup(Group):
    """A ``Group`` over a process group of torch's. ``processes``: all of them, also where this group is of a part."""

    def __init__(
        self,
        rank: int,
        world: int,
        processes: RankProcesses,
        traffic: Traffic | None = None,
        profile: Profile | None = None,
        *,
        servers: int = 1,
        first: int | None = None,
    ) -> None:
        self.processes = processes
        self.hosts = processes.hosts[first or 0 :][:world]
        super().__init__(rank, world, traffic, profile, servers=servers, first=first)

    @classmethod
    def from_environment(
        cls,
        backend: str,
        timeout_s: float,
        rank: int,
        world: int,
        traffic: Traffic | None = None,
        profile: Profile | None = None,
        *,
        servers: int = 1,
        shares: bool = False,
    ) -> Group:
        """Join the group that the environment names (``comm.join``). Raises ``CommError`` where others cannot be reached.

        Args:
            backend: gloo, mpi or nccl, which takes this process's current GPU.
            timeout_s: how long the others are waited for, also later.
            world: P, 2 or more.
            shares: processes of one machine share memory; alike on all.
        """
        group, hosts = join("gloo" if backend == "nccl" else backend, timeout_s, rank, world, os.environ)
        mute = silent([host for host in hosts if host != hosts[rank]])
        made = cls(rank, world, RankProcesses(group, hosts, mute), traffic, profile, servers=servers)
        if shares:
            shared = share(rank, world, timeout_s, made.gather)
            made = cls(rank, world, RankProcesses(group, hosts, mute, shared=shared), traffic, profile, servers=servers)
        if backend == "nccl":
            from sargnn.comm.nccl import by_nccl

            return by_nccl(made)
        return made

    def _made(self, rank: int, world: int, *given: Any, **placed: Any) -> Group:
        return DistributedGroup(rank, world, self.processes, *given, **placed)

    def close(self) -> None:
        self.processes.staging.close()
        if self.processes.shared is not None:
            self.processes.shared.close()
        dist.destroy_process_group()

    def lend(self, numel: int, like: Tensor) -> Tensor | None:
        shared = self.processes.shared
        room = None if shared is None or not like.is_cpu else shared.lend(numel * like.element_size())
        return None if room is None else room.view(like.dtype)

    def take_back(self, room: Tensor) -> None:
        assert self.processes.shared is not None
        self.processes.shared.take_back(room)

    def clear_lent(self) -> None:
        if self.processes.shared is not None:
            self.processes.shared.clear()

    def hand(self, message: Tensor, peer: int, tag: int, at: int) -> Work:
        if (shared := self._shared_with(peer)) is None:
            return super().hand(message, peer, tag, at)
        with self._losing(peer, "sending"):
            work = shared.post(message, self._first + peer, tag)
        if work is None:
            return self.send(message, peer, tag, at)
        self._count(message, peer)
        self._count_between(message, peer)
        return work

    def expect(self, room: Callable[[], Tensor], numel: int, like: Tensor, peer: int, tag: int, at: int) -> Expected:
        if (shared := self._shared_with(peer)) is None:
            return super().expect(room, numel, like, peer, tag, at)
        return Expected(room, numel, like, peer, tag, at, shared.expect(self._first + peer, tag))

    def take(self, expected: Expected, doing: str) -> Tensor:
        shared, work, like = self._shared_with(expected.peer), expected.work, expected.like
        if shared is None:
            return super().take(expected, doing)
        assert isinstance(work, Waiting)
        self.wait(work, expected.peer, doing)
        message = shared.message(work, expected.numel * like.element_size())
        if message is not None:
            expected.message, expected.shared = message.view(like.dtype), True
            return expected.message
        arriving = expected.room()
        self.wait(self.receive(arriving, expected.peer, expected.tag, expected.at), expected.peer, doing)
        return arriving

    def leave(self, expected: Expected) -> None:
        if (shared := self._shared_with(expected.peer)) is not None:
            assert isinstance(expected.work, Waiting)
            shared.leave(expected.work, expected.message if expected.shared else None)

    def _shared_with(self, peer: int) -> Shared | None:
        shared = self.processes.shared
        return shared if shared is not None and self._first + peer in shared.others else None

    @property
    def _shared_by_all(self) -> Shared | None:
        """What all processes share, where collectives go by this group as a whole."""
        shared = self.processes.shared
        return shared if shared is not None and shared.all and self._is_whole and self.servers == 1 else None

    def _post_send(self, tensor: Tensor, peer: int, tag: int) -> Work:
        def post(memory: Tensor) -> Work:
            work = dist.isend(memory, group=self.processes.group, tag=tag, group_dst=self._first + peer)
            assert work is not None
            return work

        with self._losing(peer, "sending"):
            return self.processes.staging.send(tensor, post)

    def _post_receive(self, tensor: Tensor, peer: int, tag: int) -> Work:
        def post(memory: Tensor) -> Work:
            work = dist.irecv(memory, group=self.processes.group, tag=tag, group_src=self._first + peer)
            assert work is not None
            return work

        with self._losing(peer, "receiving"):
            return self.processes.staging.receive(tensor, post)

    def _finish(self, work: Work, peer: int, doing: str) -> None:
        with self._losing(peer, doing):
            work.wait()

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        """One call of the backend's, where the group is all of its ranks and none of them is far."""
        if self.servers > 1 or not self._is_whole:
            return super()._gather(tensor)
        started = time.perf_counter()
        if (shared := self._shared_by_all) is not None:
            with self._losing_any(), shared.gather(tensor) as parts:
                copies = [part.clone() for part in parts]
            self.traffic.wait_s += time.perf_counter() - started
            return copies
        own = tensor.cpu().contiguous()
        parts = [torch.empty_like(own) for _ in range(self.world)]
        with self._losing_any():
            dist.all_gather([bytes_of(part) for part in parts], bytes_of(own), group=self.processes.group)
        self.traffic.wait_s += time.perf_counter() - started
        return [part.to(tensor.device) for part in parts]

    def _sum_large(self, tensor: Tensor) -> Tensor:
        """Where all share memory each rank adds up a piece of all tensors, and reads the other pieces' sums."""
        if (shared := self._shared_by_all) is None:
            return super()._sum_large(tensor)
        flat = tensor.reshape(-1)
        size = -(-len(flat) // self.world)
        begin = min(self.rank * size, len(flat))
        own = flat.new_zeros(size)
        with self._losing_any(), shared.gather(flat) as parts:
            piece = sum_in_order([part[begin : begin + size] for part in parts])
            own[: len(piece)] = piece
        with self._losing_any(), shared.gather(own) as parts:
            return tensor.copy_(torch.cat(parts)[: len(flat)].view(tensor.shape))

    @contextmanager
    def _losing_any(self) -> Iterator[None]:
        """An error within it is the loss of somebody in a collective."""
        try:
            yield
        except RuntimeError as error:
            peer = error.peer if isinstance(error, LostPeerError) else None
            raise self._lost("a peer" if peer is None else f"rank {peer}", "in a collective", error) from error

    @contextmanager
    def _losing(self, peer: int, doing: str) -> Iterator[None]:
        """An error within it is the loss of a peer."""
        try:
            yield
        except RuntimeError as error:
            when = doing if doing.startswith("in ") else f"while {doing}"
            raise self._lost(f"rank {self._first + peer}", when, error, peer) from error

    def _lost(self, who: str, doing: str, error: RuntimeError, peer: int | None = None) -> CommError:
        """What to say, in one line: of several hosts also which one does not answer, or where the lost peer ran."""
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        others = [host for host in self.hosts if host != self.hosts[self.rank]]
        where = ""
        if quiet := silent([host for host in others if host not in self.processes.mute]):
            where = f"; {', '.join(map(str, quiet))} {'does' if len(quiet) == 1 else 'do'} not answer"
        elif host := named_in(reason, others) or (self.hosts[peer] if self.hosts and peer is not None else None):
            where = f", {host}"
        return CommError(f"Rank {self._first + self.rank} lost {who} {doing}{where}: {reason}")
