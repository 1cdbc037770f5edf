"""What a worker says of a peer that is lost, where workers run on several hosts; and what memory travels."""

from __future__ import annotations

import pytest
import torch

from sargnn.comm.distributed import DistributedGroup, RankProcesses
from sargnn.comm.group import bytes_of
from sargnn.comm.join import Host
from sargnn.errors import CommError

HERE, THERE, ELSEWHERE = Host("one", "10.0.0.1"), Host("two", "10.0.0.2"), Host("three", "10.0.0.3")


class LostWork:
    """A transfer whose peer is gone."""

    def wait(self) -> None:
        raise RuntimeError("Connection closed by peer [10.0.0.2]:4711\nmore")


@pytest.mark.parametrize(
    ("quiet", "mute", "said"),
    [
        ({THERE}, set(), "; host two (10.0.0.2) does not answer: Connection"),
        ({THERE, ELSEWHERE}, set(), "do not answer"),
        (set(), set(), ", host two (10.0.0.2): Connection"),
        ({THERE, ELSEWHERE}, {THERE, ELSEWHERE}, ", host two (10.0.0.2): Connection"),  # they never answer anybody
        ({THERE, ELSEWHERE}, {THERE}, "; host three (10.0.0.3) does not answer"),
    ],
)
def test_the_host_that_is_named(quiet: set[Host], mute: set[Host], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sargnn.comm.distributed.silent", lambda hosts: sorted(quiet & set(hosts)))
    group = DistributedGroup(0, 3, RankProcesses(None, (HERE, THERE, ELSEWHERE), mute))
    with pytest.raises(Exception, match="lost rank 1") as caught:
        group.wait(LostWork(), 1, "receiving rows")
    assert said in str(caught.value)


def test_a_peer_that_is_gone_when_a_message_is_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    def post(*arguments: object, **settings: object) -> None:
        raise RuntimeError("Connection closed by peer [10.0.0.2]:4711")

    monkeypatch.setattr("sargnn.comm.distributed.silent", lambda hosts: [])
    monkeypatch.setattr("torch.distributed.isend", post)
    monkeypatch.setattr("torch.distributed.irecv", post)
    group = DistributedGroup(0, 3, RankProcesses(None, (HERE, THERE, ELSEWHERE)))
    for start in (group.send, group.receive):
        with pytest.raises(CommError, match=r"lost rank 1 while \w+, host two \(10.0.0.2\): Connection closed"):
            start(torch.zeros(3), 1, 7)


def test_a_number_travels_whatever_its_stride() -> None:
    """PyTorch calls a tensor of one number contiguous, however it came to it."""
    table = torch.arange(12, dtype=torch.float64).view(3, 4)
    for one in (table[1:2, 2:3], table.t()[2:3, 1:2], table[1, 2].expand(1, 1), table[1, 2]):
        assert one.is_contiguous()
        assert bytes_of(one).view(torch.float64).tolist() == [6.0]
    assert bytes_of(table[:0]).numel() == 0
