"""Ranks of several processes, several in each: they take turns in their process, and reach ranks of others over gloo.

Letters: P ranks, R processes, P / R ranks in each: process r has [r P / R, (r + 1) P / R).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sargnn.comm.distributed import DistributedGroup
from sargnn.comm.group import Group, Traffic, Work
from sargnn.comm.turns import End, Turns, TurnsGroup
from sargnn.profile import Profile


class Parts(Turns):
    """The ranks of this process. ``processes`` are the ranks of its group; ``traffics`` gets those of the ranks."""

    def __init__(
        self,
        processes: Group,
        world: int,
        *,
        servers: int = 1,
        profiles: bool = False,
        traffics: list[Traffic] | None = None,
    ) -> None:
        count = world // processes.world
        super().__init__(count, near=True, first=processes.rank * count)
        self.processes, self.world, self.servers, self.profiles = processes, world, servers, profiles
        self.traffics = [] if traffics is None else traffics

    def group(self, rank: int) -> Group:
        self.traffics.append(Traffic())
        return PartsGroup(self, rank, self.world, self.traffics[-1], Profile(self.profiles), servers=self.servers)

    def complete(self, rank: int, parts: dict[int, Tensor]) -> None:
        if self.processes.world > 1:
            own = torch.stack([parts[other] for other in self.ranks])
            every: list[Tensor] = []
            self.outside(rank, lambda: every.extend(self.processes.gather(own)))
            parts.update(enumerate(torch.cat(every)))


class PartsGroup(TurnsGroup):
    _turns: Parts

    def __init__(self, turns: Parts, rank: int, world: int, *given: Any, **placed: Any) -> None:
        super().__init__(turns, rank, world, *given, **placed)
        of_process = len(turns.ranks)
        if isinstance(turns.processes, DistributedGroup) and turns.processes.hosts:
            self.hosts = tuple(turns.processes.hosts[(self._first + r) // of_process] for r in range(world))

    def _made(self, rank: int, world: int, *given: Any, **placed: Any) -> Group:
        return PartsGroup(self._turns, rank, world, *given, **placed)

    def _post_send(self, tensor: Tensor, peer: int, tag: int) -> Work:
        if self._is_here(peer):
            return super()._post_send(tensor, peer, tag)
        return self._turns.processes._post_send(tensor.detach(), *self._place(self.rank, peer, tag))

    def _post_receive(self, tensor: Tensor, peer: int, tag: int) -> Work:
        if self._is_here(peer):
            return super()._post_receive(tensor, peer, tag)
        _, tag = self._place(peer, self.rank, tag)
        return self._turns.processes._post_receive(tensor.detach(), (self._first + peer) // len(self._turns.ranks), tag)

    def _finish(self, work: Any, peer: int, doing: str) -> None:
        if isinstance(work, End):
            super()._finish(work, peer, doing)
            return
        process = (self._first + peer) // len(self._turns.ranks)
        self._turns.outside(self._first + self.rank, lambda: self._turns.processes._finish(work, process, doing))

    def _is_here(self, peer: int) -> bool:
        return self._first + peer in self._turns.ranks

    def _place(self, sender: int, receiver: int, tag: int) -> tuple[int, int]:
        """The receiver's process, and a tag that no other pair of ranks of the two processes has."""
        of_process = len(self._turns.ranks)
        process, to = divmod(self._first + receiver, of_process)
        return process, (tag * of_process + (self._first + sender) % of_process) * of_process + to
