"""Memory that processes share: what travels otherwise, who ends meanwhile, and what is left."""

from __future__ import annotations

import os
import re
import select
import signal
import time
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from sargnn.comm import shared
from sargnn.comm.distributed import DistributedGroup
from sargnn.comm.exchange import ROWS_TAG
from sargnn.comm.group import Group
from sargnn.comm.shared import Shared, share
from sargnn.errors import CommError
from tests.comm.exchanges import FORMATS, ROW_BYTES, WIDTHS, WORLD, lists_of, run
from tests.parity.covering import spread
from tests.pool import Processes, processes, sharing


def shared_of(group: Group) -> Shared:
    assert isinstance(group, DistributedGroup) and group.processes.shared is not None
    return group.processes.shared


def refuse(group: Group, refuses: bool) -> None:
    shared_of(group).refuses = refuses and group.rank % 2 == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(("form", "step"), spread(FORMATS, [2, 40]))
def test_what_finds_no_room_travels(form: str, step: int) -> None:
    """Half of the ranks lend none: the others' messages lie in memory, theirs do not."""
    try:
        sharing(WORLD)(refuse, True)
        answers = sharing(WORLD)(run, 1, 0, 64, WIDTHS, form, False, step)
    finally:
        sharing(WORLD)(refuse, False)
    for rank, answer in enumerate(answers):
        lists = lists_of(rank, 64, step)
        assert answer["sent"] == 3 * (lists.sent_rows + lists.halo_rows) * ROW_BYTES[form]


def lends(group: Group) -> list[bool]:
    memory = shared_of(group)
    return [memory.lend(count) is not None for count in (shared._BYTES, shared._BYTES - memory.own.first + 1)]


def test_nothing_is_lent_that_is_not_there() -> None:
    assert sharing(2)(lends) == [[False, False]] * 2


def test_more_rounds_ahead_than_messages_may_wait() -> None:
    """All pieces for a peer are posted before anybody reads."""
    answers = sharing(WORLD)(run, 40, 0, 64)
    assert all(answer["sent"] > 0 for answer in answers)


def sums(group: Group) -> list[Tensor]:
    generator = torch.Generator().manual_seed(group.rank)
    found = []
    for size in (1, 5, 1000, 300_007, 3, 100_001):
        own = torch.randn(size, generator=generator)
        found += [*group.gather(own), group.sum_(own.clone())]
    return [one.clone() for one in found]


@pytest.mark.parametrize("world", [2, 4])
def test_sums_have_the_bits_of_messages(world: int) -> None:
    by_messages, in_memory = processes(world)(sums), sharing(world)(sums)
    for ranks in zip(*by_messages, *in_memory, strict=True):
        assert all(torch.equal(one, ranks[0]) for one in ranks)


def send_and_stay(group: Group) -> float:
    """Rank 0 reads what rank 1 has sent, which is killed meanwhile, and waits for more."""
    if group.rank == 1:
        room = group.lend(1000, torch.empty(0))
        assert room is not None
        group.hand(room.fill_(7.0), 0, ROWS_TAG, 0)
        os.kill(os.getpid(), signal.SIGKILL)
    expected = group.expect(lambda: torch.empty(1000), 1000, torch.empty(0), 1, ROWS_TAG, 0)
    message = group.take(expected, "receiving rows")
    select.select([shared_of(group)._alive[1]], [], [])  # it has ended
    assert expected.shared and (message == 7).all()
    group.leave(expected)
    started = time.monotonic()
    more = group.expect(lambda: torch.empty(1000), 1000, torch.empty(0), 1, ROWS_TAG, 1)
    with pytest.raises(CommError, match=r"^Rank 0 lost rank 1 while receiving rows: the process has ended$"):
        group.take(more, "receiving rows")
    with pytest.raises(CommError, match=r"^Rank 0 lost rank 1 in a collective: the process has ended$"):
        group.gather(torch.zeros(3))
    return time.monotonic() - started


def test_a_peer_that_is_killed_while_another_reads() -> None:
    """What it has sent can be read to the end; then whoever waits for it says so, within a second."""
    pair = Processes(2, shares=True)
    try:
        pair._pipes[0].send((send_and_stay, ()))
        pair._pipes[1].send((send_and_stay, ()))
        assert pair._pipes[0].poll(60)
        fine, seconds = pair._pipes[0].recv()
        assert fine, seconds
        assert seconds < 2
    finally:
        pair.close()


def stay(group: Group) -> None:
    room = group.lend(1 << 20, torch.empty(0))
    assert room is not None
    room.fill_(1.0)
    group.gather(torch.zeros(100_000))


def test_nothing_is_left_of_processes_that_are_killed() -> None:
    """No name anywhere, and no process that has a segment open."""
    before = set(os.listdir("/dev/shm"))
    killed = Processes(3, shares=True)
    killed(stay)
    assert len([name for name in map(_segments_of, killed.ids) if name]) == 3
    for process in killed.ids:
        os.kill(process, signal.SIGKILL)
    killed.close()
    assert set(os.listdir("/dev/shm")) <= before
    assert not any(_segments_of(process) for process in killed.ids)


def _segments_of(process: int) -> set[str]:
    try:
        return set(re.findall(r"memfd:sargnn", Path(f"/proc/{process}/maps").read_text()))
    except OSError:
        return set()


def test_processes_that_cannot_see_each_other_share_nothing() -> None:
    """Other machines, or other spaces of process ids; and a process that gets no segment."""
    told: list[Tensor] = []

    def gather(tensor: Tensor) -> list[Tensor]:
        told.append(tensor)
        other = tensor.clone()
        if len(tensor) == 6:
            other[0] = os.getppid()
            other[2:] += 1
        return [tensor, other]

    assert share(0, 2, 1.0, gather) is None
    assert told[1].tolist() == [0, 0]
    with patch.object(shared.os, "memfd_create", side_effect=OSError("none")):
        assert share(0, 2, 1.0, gather) is None
    assert told[2][1] == -1


@pytest.mark.parametrize("space", ["pid", "net"])
def test_what_tells_hosts_apart(space: str) -> None:
    """Hosts of ``scripts/hosts.py`` have one kernel, and ids that all see."""
    own, real = shared._machine(), os.readlink
    assert own == shared._machine()
    with patch.object(shared.os, "readlink", lambda path: f"{real(path)}{'0' * path.endswith(space)}"):
        assert shared._machine() != own
