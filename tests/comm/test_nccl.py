"""Rows in batches, as NCCL takes them: over gloo here, with NCCL's rules in a simulation of what each rank gives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from sargnn.backends.cpu.folds import CpuMoves
from sargnn.comm.distributed import DistributedGroup
from sargnn.comm.exchange import Exchange
from sargnn.comm.group import Group
from sargnn.comm.nccl import TAGS, Lines, NcclGroup, by_nccl
from tests.comm.exchanges import WIDTHS, WORLD, asks, lists_of, rows_of, run, wanted
from tests.parity.covering import spread
from tests.pool import processes

Message = tuple[int, int]
"""Sender and receiver."""


@dataclass
class Batch:
    """What a rank gives a communicator at once."""

    tag: int
    messages: list[Message]


@dataclass
class Log:
    """What a rank gives NCCL, and what its stream waits for: batches, and numbers of batches among the entries."""

    entries: list[Batch | int] = field(default_factory=list)


@dataclass
class Logged:
    """A batch's works."""

    log: Log
    number: int
    works: list[Any]

    def wait(self) -> None:
        self.log.entries.append(self.number)
        while self.works:  # NCCL's may be waited for again, gloo's may not
            self.works.pop().wait()


@cache
def communicators() -> dict[int, dist.ProcessGroup]:
    return {tag: dist.new_group(backend="gloo") for tag in TAGS}


def logged(group: Group, function: Callable[..., Any], *arguments: Any) -> tuple[Any, Log]:
    """A function's answer with rows in batches."""
    assert isinstance(group, DistributedGroup)
    made, log, post = communicators(), Log(), dist.batch_isend_irecv
    tags = {id(communicator): tag for tag, communicator in made.items()}

    def post_logged(operations: list[dist.P2POp]) -> list[Any]:
        ends = [(operation.op is dist.isend, operation.group_peer) for operation in operations]
        messages = [(group.rank, peer) if sends else (peer, group.rank) for sends, peer in ends]
        log.entries.append(Batch(tags[id(operations[0].group)], messages))
        return [Logged(log, len(log.entries) - 1, post(operations))]

    lines = Lines(made, lambda tensor: True)
    with patch("torch.distributed.batch_isend_irecv", post_logged):
        return function(NcclGroup(group.rank, group.world, group.processes, lines), *arguments), log


def stuck(logs: list[Log]) -> list[Batch]:
    """The batches that never end, where a communicator does one batch after the other, a batch begins once the stream has seen
    the end of all that it was to wait for, and a message needs both of its ends under way."""
    left = {
        (rank, number): [*entry.messages]
        for rank, log in enumerate(logs)
        for number, entry in enumerate(log.entries)
        if isinstance(entry, Batch)
    }

    def has_begun(rank: int, number: int) -> bool:
        tag = logs[rank].entries[number].tag  # type: ignore[union-attr]
        for earlier, entry in enumerate(logs[rank].entries[:number]):
            waited = earlier if isinstance(entry, Batch) and entry.tag == tag else entry
            if isinstance(waited, int) and (rank, waited) in left:
                return False
        return True

    moved = True
    while moved:
        moved = False
        begun = [key for key in left if has_begun(*key)]
        for rank, number in begun:
            tag = logs[rank].entries[number].tag  # type: ignore[union-attr]
            for peer, other in begun:
                if peer > rank and logs[peer].entries[other].tag == tag:  # type: ignore[union-attr]
                    for message in set(left[rank, number]) & set(left[peer, other]):
                        left[rank, number].remove(message)
                        left[peer, other].remove(message)
        for key in begun:
            if not left[key]:
                del left[key]
                moved = True
    return [logs[rank].entries[number] for rank, number in left]  # type: ignore[misc]


def one_by_one(log: Log) -> Log:
    """The same messages, each in a batch of its own."""
    made, numbers = Log(), dict[int, int]()
    for number, entry in enumerate(log.entries):
        if isinstance(entry, Batch):
            made.entries += [Batch(entry.tag, [message]) for message in entry.messages]
            numbers[number] = len(made.entries) - 1
        else:
            made.entries.append(numbers[entry])
    return made


def exchange_in_batches(group: Group, *arguments: Any) -> Log:
    return logged(group, run, *arguments)[1]


def refetch(group: Group, depth: int, message_rows: int) -> list[torch.Tensor]:
    """Rows are fetched while gradients return."""
    exchange, lists = Exchange(group, depth, CpuMoves()), lists_of(group.rank, message_rows)
    own = rows_of(group.rank, 0)
    targets = tuple(torch.zeros_like(rows) for rows in own)
    with exchange.gradients(lists, targets, beside_rows=True) as returning:
        returning.begin()
        for piece, rows in exchange.rows(lists, own):
            if piece.peer != group.rank:
                for room, arrived in zip(returning.buffer(piece), rows, strict=True):
                    room.copy_(arrived)
                returning.send(piece)
    return list(targets)


def refetch_in_batches(group: Group, *arguments: Any) -> Log:
    expected = refetch(group, *arguments)
    answer, log = logged(group, refetch, *arguments)
    assert all(torch.equal(rows, other) for rows, other in zip(answer, expected, strict=True))
    return log


def ask_in_batches(group: Group, *arguments: Any) -> Log:
    answers, log = logged(group, asks, *arguments)
    rank = group.rank
    assert sorted(answers) == [(q, row) for q in range(group.world) for row in range(wanted(rank, q))]
    return log


@pytest.mark.parametrize(("depth", "message_rows"), [(0, 64), (1, 2**31), (2, 640)])
def test_rows_and_gradients_in_batches(depth: int, message_rows: int) -> None:
    logs = processes(WORLD)(exchange_in_batches, depth, -1, message_rows, WIDTHS)
    assert any(len(entry.messages) > 1 for log in logs for entry in log.entries if isinstance(entry, Batch))
    assert stuck(logs) == []


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_rows_beside_gradients_in_batches(depth: int) -> None:
    assert stuck(processes(WORLD)(refetch_in_batches, depth, 200)) == []


@pytest.mark.parametrize(("world", "message_rows", "depth"), spread([(2, 1), (4, 1), (4, 3)], [0, 1, 3]))
def test_partial_results_in_batches(world: int, message_rows: int, depth: int) -> None:
    assert stuck(processes(world)(ask_in_batches, message_rows, depth)) == []


def test_without_batches_two_ranks_wait_for_each_other() -> None:
    """The simulation finds what NCCL would do with them."""
    logs = processes(2)(ask_in_batches, 1, 1)
    assert stuck(logs) == []
    assert stuck([one_by_one(log) for log in logs])


def shared(group: Group, gpus: int) -> str:
    """Which kind of group a rank gets where there are so many GPUs."""

    class Properties:
        uuid = f"GPU-{group.rank % gpus}"

    assert isinstance(group, DistributedGroup)
    with (
        patch("torch.cuda.current_device", lambda: 0),
        patch("torch.cuda.get_device_properties", lambda device: Properties),
        patch("torch.distributed.is_nccl_available", lambda: True),
        patch("torch.zeros", lambda size, device: torch.ones(size)),
        patch("torch.distributed.all_reduce", lambda tensor, group: None),
        patch("torch.distributed.new_group", lambda backend: communicators()[TAGS[0]]),
        patch("torch.cuda.synchronize", lambda device: None),
    ):
        return type(by_nccl(group)).__name__


def test_ranks_that_share_a_gpu_stay_with_gloo() -> None:
    assert processes(2)(shared, 1) == ["DistributedGroup"] * 2
    assert processes(2)(shared, 2) == ["NcclGroup"] * 2
