"""Rows on a device: messages that go by way of the host, and exchanges that never wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sargnn.backends.torch.backend import TorchMoves
from sargnn.comm.collectives import gather_table
from sargnn.comm.distributed import DistributedGroup, RankProcesses
from sargnn.comm.exchange import Exchange
from sargnn.comm.group import Group
from sargnn.comm.lists import HaloLists
from sargnn.comm.staging import Staging
from sargnn.comm.turns import Turns
from tests.comm.exchanges import ROW_BYTES, ROWS, WIDTHS, WORLD, asks, collectives, lists_of, rows_of, run, wanted
from tests.device.pretended import DEVICE, Present, Pretended, host_of, noted
from tests.pool import Pool, near, pool, processes

FILL = 255
"""A byte whose repetition is NaN in fp32."""


class LateCopies:
    """Stages all tensors. Copies are made as late as a device may make them; until then there is nothing of meaning."""

    def __init__(self, stages: Callable[[Tensor], bool] = lambda tensor: True) -> None:
        self.stages = stages

    def down(self, tensor: Tensor) -> tuple[Tensor, Callable[[], object]]:
        host = torch.full(tensor.shape, FILL, dtype=torch.uint8)

        def wait() -> None:
            time.sleep(0.002)
            host.copy_(host_of(tensor))

        return host, wait

    def room(self, tensor: Tensor) -> tuple[Tensor, Callable[[], object]]:
        host = torch.full(tensor.shape, FILL, dtype=torch.uint8)
        host_of(tensor).fill_(FILL)
        return host, lambda: host_of(tensor).copy_(host)


def staged(group: Group, stages: Callable[[Tensor], bool] = lambda tensor: True) -> DistributedGroup:
    """The same ranks, with messages by way of the host."""
    assert isinstance(group, DistributedGroup)
    ranks = RankProcesses(group.processes.group, staging=Staging(LateCopies(stages)))
    return DistributedGroup(group.rank, group.world, ranks)


def run_staged(group: Group, *arguments: Any) -> dict[str, Any]:
    return run(staged(group), *arguments)


@pytest.mark.parametrize(("depth", "message_rows", "form"), [(0, 64, "fp32"), (1, 2**31, "bf16 wire"), (2, 64, "bf16 rows")])
def test_staged_messages_bring_the_same_rows(depth: int, message_rows: int, form: str) -> None:
    for rank, answer in enumerate(processes(WORLD)(run_staged, depth, 0, message_rows, WIDTHS, form)):
        lists = lists_of(rank, message_rows)
        assert answer["sent"] == 3 * (lists.sent_rows + lists.halo_rows) * ROW_BYTES[form]


def ask_staged(group: Group, *arguments: Any) -> list[tuple[int, int]]:
    return asks(staged(group), *arguments)


def test_staged_requests_get_their_answers() -> None:
    for rank, answers in enumerate(processes(WORLD)(ask_staged, 3, 1)):
        assert sorted(answers) == [(q, row) for q in range(WORLD) for row in range(wanted(rank, q))]


def sums(group: Group, servers: int) -> list[dict[str, Any]]:
    return [collectives(ranks, servers, 100_003) for ranks in (group, staged(group))]


@pytest.mark.parametrize("servers", [1, 2])
def test_staged_collectives_have_the_same_bits(servers: int) -> None:
    for plain, by_host in processes(WORLD)(sums, servers):
        for key, expected in plain.items():
            np.testing.assert_array_equal(by_host[key], expected, err_msg=key)


def mixed(group: Group) -> list[float]:
    """Messages of one tag, by way of the host and not, in turn."""
    group, count = staged(group, lambda tensor: tensor[0].item() % 2 == 0), 20
    peer = 1 - group.rank
    received = [torch.zeros(8, dtype=torch.uint8) for _ in range(count)]
    works = [group.receive(room, peer, 7) for room in received]
    works += [group.send(torch.full((8,), number, dtype=torch.uint8), peer, 7) for number in range(count)]
    group.wait_all([(work, peer) for work in works])
    return [float(room[-1]) for room in received]


def test_messages_of_one_tag_keep_their_order() -> None:
    assert processes(2)(mixed) == [list(range(20))] * 2


class Done:
    """A transfer that is over."""

    def wait(self) -> None:
        """At once."""


def test_who_sends_does_not_wait_for_the_copy_and_no_message_goes_before_it() -> None:
    posted: list[int] = []
    copied, staging = threading.Event(), Staging()

    class Held(LateCopies):
        def down(self, tensor: Tensor) -> tuple[Tensor, Callable[[], object]]:
            return tensor, lambda: copied.wait(60)

    def post(memory: Tensor) -> Done:
        posted.append(int(memory[0]))
        return Done()

    staging = Staging(Held(lambda tensor: tensor[0].item() == 0))
    works = [staging.send(torch.full((4,), number, dtype=torch.uint8), post) for number in range(2)]
    assert posted == []
    copied.set()
    for work in works:
        work.wait()
    assert posted == [0, 1]
    staging.close()


def test_what_fails_when_it_is_posted_is_told_when_it_is_waited_for() -> None:
    def post(memory: Tensor) -> Done:
        raise RuntimeError("Connection closed by peer")

    group = DistributedGroup(0, 2, RankProcesses(None, staging=Staging(LateCopies())))
    work = group.processes.staging.send(torch.zeros(4), post)
    with pytest.raises(Exception, match="Rank 0 lost rank 1 while sending rows: Connection closed"):
        group.wait(work, 1, "sending rows")


def lists_on(device: torch.device, group: Group, message_rows: int) -> HaloLists:
    lists = lists_of(group.rank, message_rows)
    return HaloLists(tuple(rows.to(device) for rows in lists.send_rows), lists.receive_rows, message_rows, group.near)


def exchanged(group: Group, device: torch.device) -> dict[str, Any]:
    """Rows of all peers, and their gradients back: their numbers, and what the host waited for meanwhile."""
    if device == DEVICE and isinstance(group, DistributedGroup):
        group = staged(group, lambda tensor: isinstance(tensor, Pretended))
    with Present():
        lists = lists_on(device, group, 500)
        exchange = Exchange(group, 1, TorchMoves())
        own = tuple(rows.to(device) for rows in rows_of(group.rank, 0))
        halos = tuple(rows.new_zeros(lists.halo_rows, rows.shape[1]) for rows in own)
        targets = tuple(torch.zeros_like(rows) for rows in own)
        with noted("read", "size", "copy") as waits:
            exchange.all_rows(lists, own, halos)
            exchange.all_gradients(lists, halos, targets)
        total = group.sum_(targets[0].clone())
    numbers = (*halos, *targets, total)
    return {
        "numbers": [host_of(rows).cpu().numpy().copy() for rows in numbers],
        "waits": [str(wait) for wait in waits if "comm/exchange.py" in wait.place],
    }


@pytest.mark.parametrize("ranks", [pool, near, processes], ids=["turns", "near", "processes"])
def test_an_exchange_on_a_device_has_the_same_bits_and_never_waits_for_it(ranks: Callable[[int], Pool]) -> None:
    expected = pool(WORLD)(exchanged, torch.device("cpu"))
    for answer, other in zip(ranks(WORLD)(exchanged, DEVICE), expected, strict=True):
        assert answer["waits"] == []
        for numbers, right in zip(answer["numbers"], other["numbers"], strict=True):
            np.testing.assert_array_equal(numbers, right)


def table(group: Group) -> np.ndarray | None:
    whole: list[np.ndarray] = []

    def create(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        whole.append(np.zeros(shape, dtype))
        return whole[0]

    with Present():
        own = (torch.arange(12.0).view(4, 3) + 100 * group.rank).to(DEVICE)
        gather_table(group, own, np.arange(4) * group.world + group.rank, create, "writing a table")
    return whole[0] if whole else None


def test_a_table_on_a_device_is_gathered() -> None:
    whole = pool(3)(table)[0]
    for rank in range(3):
        np.testing.assert_array_equal(whole[rank::3], np.arange(12.0).reshape(4, 3) + 100 * rank)


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@NO_GPU
@pytest.mark.parametrize("ranks", ["turns", "near", "processes"])
def test_an_exchange_on_a_gpu_has_the_same_bits(ranks: str) -> None:
    gpu = torch.device("cuda")
    if ranks == "processes":
        answers = processes(WORLD)(exchanged, gpu)
    else:
        answers = Turns(WORLD, near=ranks == "near").run(lambda group: exchanged(group, gpu))
    for answer, other in zip(answers, pool(WORLD)(exchanged, torch.device("cpu")), strict=True):
        for numbers, right in zip(answer["numbers"], other["numbers"], strict=True):
            np.testing.assert_array_equal(numbers, right)


@NO_GPU
def test_copies_from_and_to_a_gpu_that_is_busy() -> None:
    """What is sent has been computed, and may be written to once it is sent; what has arrived is there for what comes next."""
    staging, sent = Staging(), list[Tensor]()
    busy = torch.randn(4096, 4096, device="cuda")

    def send(memory: Tensor) -> Done:
        sent.append(memory.clone())
        return Done()

    def arrive(memory: Tensor) -> Done:
        memory.copy_(sent[0])
        return Done()

    for _ in range(20):
        busy = torch.nn.functional.normalize(busy @ busy)
    rows = (busy[0, 0] * 0 + torch.arange(ROWS, device="cuda")).float()
    room = busy.new_zeros(ROWS)
    sending = staging.send(rows, send)
    sending.wait()
    rows.fill_(-1)
    for _ in range(20):
        busy = torch.nn.functional.normalize(busy @ busy)
    room += busy[0, 0]
    arriving = staging.receive(room, arrive)
    arriving.wait()
    assert torch.equal(room + 1, torch.arange(ROWS, device="cuda") + 1.0)
    staging.close()
