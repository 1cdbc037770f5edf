"""Rows by NCCL, where each process has a GPU of its own. NOT RUN until there is a machine with two GPUs: tested on CPUs only.

Messages of exchanges go from GPU to GPU. All else (integers, sums, control) stays with gloo, by way of the host.

NCCL knows no tags, and does one thing after the other: ranks that give it their messages in different orders wait for each
other for ever. So each tag has a communicator of its own, and what a rank sends and receives in one round is one batch. Batches
go in the order of rounds. That is the order of steps and of pieces (``comm.exchange``), in which all ranks go through them: a
batch waits only for batches of the same step and piece, and for those before.

The host waits for no message: the stream that rows are computed on does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sargnn.comm.distributed import DistributedGroup, RankProcesses
from sargnn.comm.exchange import ROWS_TAG
from sargnn.comm.gradient_rounds import GRADIENTS_TAG
from sargnn.comm.group import Group, Work, bytes_of
from sargnn.comm.partial_rounds import ANSWER_TAG, ASK_TAG
from sargnn.errors import CommError

TAGS = (ROWS_TAG, GRADIENTS_TAG, ASK_TAG, ANSWER_TAG)
_NAME_BYTES = 64


@dataclass(eq=False)
class _Message:
    """One end of a message: kept until its round ends."""

    tensor: Tensor
    peer: int
    at: int
    sends: bool
    works: Sequence[Work] = ()

    def wait(self) -> None:
        assert self.works, "a message is waited for once its round has ended"
        for work in self.works:
            work.wait()


@dataclass(eq=False)
class _Line:
    """A tag's communicator, and the messages that it has not got yet."""

    group: dist.ProcessGroup
    kept: list[_Message] = field(default_factory=list)

    def end_round(self, at: int) -> None:
        """Give it the round's batch."""
        batch = [message for message in self.kept if message.at == at]
        self.kept = [message for message in self.kept if message.at != at]
        if batch:
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(
                        dist.isend if message.sends else dist.irecv,
                        bytes_of(message.tensor),
                        group=self.group,
                        group_peer=message.peer,
                    )
                    for message in batch
                ]
            )
            for message in batch:
                message.works = works


class Lines:
    """A communicator for each tag of an exchange. What they do not carry stays with gloo, on all ranks alike."""

    def __init__(
        self, groups: Mapping[int, dist.ProcessGroup], carries: Callable[[Tensor], bool] = lambda tensor: tensor.is_cuda
    ) -> None:
        self.carries = carries
        self._lines = {tag: _Line(group) for tag, group in groups.items()}

    def post(self, tensor: Tensor, peer: int, tag: int, at: int, *, sends: bool) -> Work:
        """One end of a message, whose batch goes when its round ends. ``peer``: among all ranks."""
        message = _Message(tensor, peer, at, sends)
        self._lines[tag].kept.append(message)
        return message

    def end_round(self, tag: int, at: int) -> None:
        self._lines[tag].end_round(at)


class NcclGroup(DistributedGroup):
    """A group whose exchanges go from GPU to GPU. NOT RUN yet."""

    def __init__(self, rank: int, world: int, processes: RankProcesses, lines: Lines, *given: Any, **placed: Any) -> None:
        self._lines = lines
        super().__init__(rank, world, processes, *given, **placed)

    def _made(self, rank: int, world: int, *given: Any, **placed: Any) -> Group:
        return NcclGroup(rank, world, self.processes, self._lines, *given, **placed)

    def _post_in_round(self, tensor: Tensor, peer: int, tag: int, at: int, *, sends: bool) -> Work:
        if not self._lines.carries(tensor):
            return super()._post_in_round(tensor, peer, tag, at, sends=sends)
        return self._lines.post(tensor, self._first + peer, tag, at, sends=sends)

    def end_round(self, tag: int, at: int) -> None:
        try:
            self._lines.end_round(tag, at)
        except RuntimeError as error:
            raise self._lost("a peer", "in an exchange", error) from error


def by_nccl(group: DistributedGroup) -> DistributedGroup:
    """The group with rows by NCCL; as it is, said in one line, where two ranks have one GPU, which NCCL refuses. NOT RUN yet.

    All ranks call it, and each takes its process's current GPU. Raises ``CommError`` where this PyTorch has no NCCL.
    """
    if not dist.is_nccl_available():
        raise CommError("This PyTorch has no NCCL.", given="comm.backend=nccl", allowed=["comm.backend=gloo"])
    device = torch.device("cuda", torch.cuda.current_device())
    name = str(torch.cuda.get_device_properties(device).uuid).encode()
    names = group.gather(torch.tensor(list(name.ljust(_NAME_BYTES)), dtype=torch.uint8))
    if len({bytes(other.tolist()) for other in names}) < group.world:
        if group.rank == 0:
            print("comm.backend=nccl needs a GPU for each process, and some share one: rows go by gloo", flush=True)
        return group
    groups = {}
    for tag in TAGS:
        made = dist.new_group(backend="nccl")
        assert isinstance(made, dist.ProcessGroup)
        dist.all_reduce(torch.zeros(1, device=device), group=made)  # the first call must be one of all ranks
        groups[tag] = made
    torch.cuda.synchronize(device)
    given = group.traffic, group.profile
    return NcclGroup(group.rank, group.world, group.processes, Lines(groups), *given, servers=group.servers)
