"""Ranks that take turns in one process: messages, collectives, and every mistake that the transport is to find."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sargnn.bf16 import multiplies_in_bf16, products_in_bf16
from sargnn.comm.group import SMALL_BYTES, Group
from sargnn.comm.turns import DeadlockError, Turns
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.errors import CommError
from tests.pool import processes
from tests.turns import AdversarialTurns

TAG = 3
KINDS: list[Callable[[int], Turns]] = [Turns, lambda world: AdversarialTurns(world, 1)]
LARGE = SMALL_BYTES // 4 + 7


def around(group: Group) -> list[float]:
    """What the last rank sent, of each round."""
    to, source = (group.rank + 1) % group.world, (group.rank - 1) % group.world
    found = []
    for number in range(3):
        room = torch.empty(2)
        sent = group.send(torch.tensor([float(group.rank), float(number)]), to, TAG)
        group.wait(group.receive(room, source, TAG), source, "receiving")
        group.wait(sent, to, "sending")
        found += room.tolist()
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [2, 5])
def test_messages_arrive_in_order(kind: Callable[[int], Turns], world: int) -> None:
    answers = kind(world).run(around)
    assert answers == [
        [float((rank - 1) % world), 0, float((rank - 1) % world), 1, float((rank - 1) % world), 2] for rank in range(world)
    ]


def sums(group: Group) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(group.rank)
    small, large = torch.randn(5, generator=generator), torch.randn(LARGE, generator=generator)
    return [group.sum_(small.clone()), group.sum_(large.clone()), *group.gather(small), large]


@pytest.mark.parametrize("world", [2, 3, 5])
def test_sums_are_taken_in_the_order_of_ranks(world: int) -> None:
    """Of small and of large tensors."""
    answers = AdversarialTurns(world, 2).run(sums)
    small, large = answers[0][2].clone(), answers[0][-1].clone()
    for rank in range(1, world):
        small += answers[rank][2 + rank]
        large += answers[rank][-1]
    for found in answers:
        assert torch.equal(found[0], small) and torch.equal(found[1], large)


@pytest.mark.parametrize("world", [2, 3, 5])
def test_sums_over_gloo_have_the_same_bits(world: int) -> None:
    for here, there in zip(AdversarialTurns(world, 2).run(sums), processes(world)(sums), strict=True):
        assert all(map(torch.equal, here, there))


def test_turns_are_drawn_from_the_seed() -> None:
    def order(seed: int | None) -> list[int]:
        seen: list[int] = []

        def work(group: Group) -> None:
            for _ in range(4):
                seen.append(group.rank)
                group.sum_(torch.ones(1))

        (AdversarialTurns(4, seed) if seed is not None else Turns(4)).run(work)
        return seen

    assert order(1) == order(1) != order(2)
    assert order(None)[:4] == [0, 1, 2, 3]


def forgets_a_message(group: Group) -> None:
    room = torch.empty(1)
    if group.rank == 2:
        group.wait(group.receive(room, 0, TAG), 0, "receiving rows")
    group.sum_(torch.ones(3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_deadlock_is_told_at_once(kind: Callable[[int], Turns]) -> None:
    """With what each rank waits for: call, peer, tag and line."""
    started = time.perf_counter()
    with pytest.raises(DeadlockError) as caught:
        kind(3).run(forgets_a_message)
    assert time.perf_counter() - started < 2
    said = str(caught.value)
    assert re.search(
        r"rank 2 waits receiving rows: rank 2 receives \[1\] float32 from rank 0, tag 3, at comm/test_turns.py:\d+", said
    )
    assert re.search(r"rank 0 waits in a collective, .*\[3\] float32.* comm/test_turns.py:\d+", said)


def leaves_early(group: Group) -> None:
    if group.rank:
        group.sum_(torch.ones(1))


def test_waiting_for_a_rank_that_has_ended() -> None:
    with pytest.raises(DeadlockError, match="rank 0 has ended"):
        Turns(3).run(leaves_early)


def another_size(group: Group) -> None:
    if group.rank:
        group.wait(group.receive(torch.empty(3), 0, TAG), 0, "receiving")
    else:
        group.wait(group.send(torch.empty(2), 1, TAG), 1, "sending")


def other_collectives(group: Group) -> None:
    group.sum_(torch.ones(2 + group.rank))


def never_received(group: Group) -> None:
    if group.rank:
        group.send(torch.ones(1), 0, TAG)


@pytest.mark.parametrize(
    ("work", "said"),
    [(another_size, "two ends"), (other_collectives, "different tensors"),
     (never_received, "one end only")],
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_ends_that_do_not_match(kind: Callable[[int], Turns], work: Callable[[Group], None], said: str) -> None:
    with pytest.raises(CommError, match=said):
        kind(2).run(work)


def writes_too_soon(group: Group) -> None:
    message = torch.ones(4)
    if group.rank:
        sent = group.send(message, 0, TAG)
        message[2] = 7
        group.wait(sent, 0, "sending")
    else:
        group.wait(group.receive(message, 1, TAG), 1, "receiving")


def waits_for_nothing(group: Group) -> None:
    message = torch.ones(4)
    work = group.send(message, 0, TAG) if group.rank else group.receive(message, 1, TAG)
    if not group.rank:
        group.wait(work, 1, "receiving")


@pytest.mark.parametrize(
    ("work", "said"),
    [(writes_too_soon, "A send buffer"), (waits_for_nothing, "Nobody waited")],
)
def test_what_only_a_careless_transport_would_forgive(work: Callable[[Group], None], said: str) -> None:
    for seed in range(6):
        with pytest.raises(CommError, match=said):
            AdversarialTurns(2, seed).run(work)


def reads_too_soon(group: Group) -> bool:
    message = torch.zeros(4)
    if group.rank:
        group.wait(group.send(message, 0, TAG), 0, "sending")
        return True
    work = group.receive(message, 1, TAG)
    early = bool(message.isnan().all())
    group.wait(work, 1, "receiving")
    return early and bool((message == 0).all())


def test_a_receive_buffer_holds_nothing_before_its_wait() -> None:
    for seed in range(6):
        assert AdversarialTurns(2, seed).run(reads_too_soon) == [True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_a_rank_ends_the_others(kind: Callable[[int], Turns]) -> None:
    ended: list[int] = []

    def work(group: Group) -> None:
        if group.rank == 1:
            raise ValueError("mine")
        try:
            group.sum_(torch.ones(1))
        finally:
            ended.append(group.rank)

    with pytest.raises(ValueError, match="mine"):
        kind(4).run(work)
    assert 1 not in ended and len(ended) <= 3


def differentiates(group: Group) -> tuple[Any, ...]:
    """A backward pass that waits in the middle, for other ranks that are in the middle of theirs."""

    class Summed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return group.sum_(x.clone())

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return group.sum_(grad.clone())

    x = torch.full((2,), float(group.rank + 1), requires_grad=True)
    y = Summed.apply(Summed.apply(x) * group.rank)
    y.sum().backward()
    assert x.grad is not None
    return y.tolist(), x.grad.tolist()


def test_backward_stays_in_the_thread_of_its_rank() -> None:
    world = 4
    total = sum(range(1, world + 1)) * sum(range(world))
    for answer in AdversarialTurns(world, 3).run(differentiates):
        assert answer == ([total] * 2, [world * sum(range(world))] * 2)


def precision_elsewhere(group: Group) -> list[bool]:
    """Whether products are rounded, before, within and after a pass of rank 0's, on each rank."""
    engine, seen, x = Engine(group, EngineSettings(mode="sar", half_products=group.rank == 0)), [], torch.ones(1)
    for _ in range(3):
        with engine.rounds_products():
            seen.append(multiplies_in_bf16(x))
            group.sum_(torch.ones(1))
            seen.append(multiplies_in_bf16(x))
    return seen


def test_the_precision_of_products_is_the_rank_s_own() -> None:
    """PyTorch has one for a process: whose pass rounds them does not change another rank's."""
    for seed in range(4):
        assert AdversarialTurns(3, seed).run(precision_elsewhere) == [[True] * 6, [False] * 6, [False] * 6]
    with products_in_bf16():
        assert multiplies_in_bf16(torch.ones(1))
    assert not multiplies_in_bf16(torch.ones(1))
