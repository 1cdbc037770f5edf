"""The row exchange by itself: empty messages between full ones, a slow receiver, several tensors in a message."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from sargnn.comm.exchange import Exchange, HaloLists
from sargnn.comm.group import Group
from tests.parity.covering import spread
from tests.pool import pool

ROWS, WORLD = 3000, 4
WIDTHS = (30, 1)


def needed(sender: int, receiver: int) -> torch.Tensor:
    """Which of the sender's rows the receiver needs: none two ranks on, so that a round without a message lies between."""
    if (receiver - sender) % WORLD in (0, 2):
        return torch.zeros(0, dtype=torch.int32)
    return torch.arange(receiver, ROWS, 2, dtype=torch.int32)


def lists_of(rank: int, message_rows: int) -> HaloLists:
    return HaloLists(
        message_rows=message_rows,
        send_rows=tuple(needed(rank, q) for q in range(WORLD)),
        receive_rows=tuple(len(needed(q, rank)) for q in range(WORLD)),
    )


def rows_of(rank: int, repeat: int, widths: tuple[int, ...] = WIDTHS) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(100 * rank + repeat)
    return tuple(torch.randn(ROWS, width, generator=generator) for width in widths)


def span_of(lists: HaloLists, peer: int, number: int) -> tuple[int, int]:
    spans = lists.pieces(lists.receive_rows[peer])
    return spans[number] if number < len(spans) else (0, 0)


def run(group: Group, depth: int, slow: int, message_rows: int, widths: tuple[int, ...] = WIDTHS) -> dict[str, Any]:
    exchange, lists = Exchange(group, depth), lists_of(group.rank, message_rows)
    group.traffic.reset()
    for repeat in range(3):
        if group.rank == slow:
            time.sleep(0.2)  # long enough for a fast peer to reuse a buffer that it must not touch yet
        seen: dict[int, int] = {}
        for (peer, number), found in exchange.rows(lists, rows_of(group.rank, repeat, widths)):
            seen[peer] = seen.get(peer, 0) + len(found[0])
            if peer != group.rank:
                start, end = span_of(lists, peer, number)
                for tensor, whole in zip(found, rows_of(peer, repeat, widths), strict=True):
                    assert torch.equal(tensor, whole[needed(peer, group.rank).long()[start:end]])
        assert next(iter(seen)) == group.rank
        assert {q: n for q, n in seen.items() if n} == {
            group.rank: ROWS,
            **{q: n for q, n in enumerate(lists.receive_rows) if n},
        }
        if group.rank == slow:
            time.sleep(0.2)
        targets = tuple(torch.zeros(ROWS, width) for width in widths)
        with exchange.gradients(lists, targets) as errors:
            for piece in errors.pieces:
                start, end = span_of(lists, *piece)
                for view, whole in zip(errors.buffer(piece), rows_of(piece.peer, repeat, widths), strict=True):
                    view.copy_(whole[needed(piece.peer, group.rank).long()[start:end]])
                errors.send(piece)
        # every peer sent an own row's value back once
        times = torch.zeros(ROWS)
        for q in range(WORLD):
            times[needed(group.rank, q).long()] += 1
        for target, own in zip(targets, rows_of(group.rank, repeat, widths), strict=True):
            torch.testing.assert_close(target, own * times[:, None])
    return {"sent": group.traffic.sent_bytes, "held": exchange.held_bytes()}


@pytest.mark.parametrize(("depth", "slow", "message_rows"), spread([0, 1, 2], [0, 3], [2**31, 64]))
def test_buffers_are_not_reused_while_they_travel(depth: int, slow: int, message_rows: int) -> None:
    answers = pool(WORLD)(run, depth, slow, message_rows)
    for rank, answer in enumerate(answers):
        lists = lists_of(rank, message_rows)
        assert answer["sent"] == 3 * (lists.sent_rows + lists.halo_rows) * sum(WIDTHS) * 4
        assert answer["held"] == lists.buffer_bytes(rank, sum(WIDTHS), 4, depth) > 0
        assert answer["held"] <= 2 * (1 + depth) * min(message_rows, ROWS) * sum(WIDTHS) * 4


def all_at_once(group: Group, widths: tuple[int, ...]) -> int:
    exchange, lists = Exchange(group, 1), lists_of(group.rank, 2**31)
    group.traffic.reset()
    own = rows_of(group.rank, 0, widths)
    halos = tuple(torch.full((lists.halo_rows, width), torch.nan) for width in widths)
    exchange.all_rows(lists, own, halos)
    peers = [[one[needed(q, group.rank).long()] for one in rows_of(q, 0, widths)] for q in range(WORLD)]
    for halo, whole in zip(halos, zip(*peers, strict=True), strict=True):
        assert torch.equal(halo, torch.cat(whole))
    targets = tuple(torch.zeros(ROWS, width) for width in widths)
    exchange.all_gradients(lists, halos, targets)
    times = sum(torch.zeros(ROWS).index_fill_(0, needed(group.rank, q).long(), 1) for q in range(WORLD))
    assert isinstance(times, torch.Tensor)
    for target, rows in zip(targets, own, strict=True):
        torch.testing.assert_close(target, rows * times[:, None])
    return group.traffic.sent_bytes


@pytest.mark.parametrize("widths", [(0,), (0, 0), (5, 0), (0, 5)])
def test_rows_without_columns_cost_nothing_and_every_piece_comes(widths: tuple[int, ...]) -> None:
    lists = [lists_of(rank, 64) for rank in range(WORLD)]
    expected = [(one.sent_rows + one.halo_rows) * sum(widths) * 4 for one in lists]
    for depth in (0, 1):
        answers = pool(WORLD)(run, depth, 1, 64, widths)
        assert [answer["sent"] for answer in answers] == [3 * size for size in expected]
        assert sum(widths) or not any(answer["held"] for answer in answers)
    assert pool(WORLD)(all_at_once, widths) == expected
