"""The row exchange by itself: empty messages between full ones, a slow receiver, several tensors in a message."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sargnn.backends.cpu.folds import CpuMoves
from sargnn.comm.exchange import Exchange
from sargnn.comm.group import Group
from sargnn.comm.lists import HaloLists
from tests.parity.covering import spread
from tests.pool import processes

ROWS, WORLD = 3000, 4
WIDTHS = (30, 1)
FORMATS = ("fp32", "bf16 rows", "bf16 wire")
"""All fp32; bf16 rows with an fp32 score; fp32 rows that are rounded on their way, and a score that is not."""
ROW_BYTES = {"fp32": 4 * 31, "bf16 rows": 2 * 30 + 4, "bf16 wire": 2 * 30 + 4}


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


def rows_of(rank: int, repeat: int, widths: tuple[int, ...] = WIDTHS, form: str = "fp32") -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(100 * rank + repeat)
    rows = [torch.randn(ROWS, width, generator=generator) for width in widths]
    if form == "bf16 rows":
        rows[0] = rows[0].bfloat16()
    return tuple(rows)


def arrived(sent: tuple[torch.Tensor, ...], form: str) -> tuple[torch.Tensor, ...]:
    """Rows as a peer gets them."""
    return (sent[0].bfloat16().float(), *sent[1:]) if form == "bf16 wire" else sent


def span_of(lists: HaloLists, peer: int, number: int) -> tuple[int, int]:
    spans = lists.pieces(lists.receive_rows[peer])
    return spans[number] if number < len(spans) else (0, 0)


def run(
    group: Group, depth: int, slow: int, message_rows: int, widths: tuple[int, ...] = WIDTHS, form: str = "fp32",
    keep: bool = False,
) -> dict[str, Any]:  # fmt: skip
    wire = torch.bfloat16 if form == "bf16 wire" else None
    exchange, lists = Exchange(group, depth, CpuMoves(), wire), lists_of(group.rank, message_rows)
    group.traffic.reset()
    for repeat in range(3):
        if group.rank == slow:
            time.sleep(0.2)  # long enough for a fast peer to reuse a buffer that it must not touch yet
        seen: dict[int, int] = {}
        own = rows_of(group.rank, repeat, widths, form)
        for (peer, number), found in _iterate(exchange.rows(lists, own, exact=(1,), keep=keep), keep=keep):
            seen[peer] = seen.get(peer, 0) + len(found[0])
            if peer != group.rank:
                start, end = span_of(lists, peer, number)
                for tensor, whole in zip(found, arrived(rows_of(peer, repeat, widths, form), form), strict=True):
                    assert torch.equal(tensor, whole[needed(peer, group.rank).long()[start:end]])
        assert next(iter(seen)) == group.rank
        assert {q: n for q, n in seen.items() if n} == {
            group.rank: ROWS,
            **{q: n for q, n in enumerate(lists.receive_rows) if n},
        }
        if group.rank == slow:
            time.sleep(0.2)
        targets = tuple(torch.zeros_like(one) for one in own)
        with exchange.gradients(lists, targets, exact=(1,)) as errors:
            for piece in errors.pieces:
                start, end = span_of(lists, *piece)
                for view, whole in zip(errors.buffer(piece), rows_of(piece.peer, repeat, widths, form), strict=True):
                    view.copy_(whole[needed(piece.peer, group.rank).long()[start:end]])
                errors.send(piece)
        # every peer sent an own row's value back once
        times = torch.zeros(ROWS)
        for q in range(WORLD):
            times[needed(group.rank, q).long()] += 1
        for target, rows in zip(targets, arrived(own, form), strict=True):
            torch.testing.assert_close(target, (rows.float() * times[:, None]).to(target.dtype))
    return {"sent": group.traffic.sent_bytes, "held": exchange.most_held}


def _iterate(pieces: Iterator[Any], *, keep: bool) -> Iterator[Any]:
    """All at once, where they outlive the iteration."""
    return iter(list(pieces)) if keep else pieces


@pytest.mark.parametrize(("depth", "slow", "message_rows", "form"), spread([0, 1, 2], [0, 3], [2**31, 64], FORMATS, strength=1))
def test_buffers_are_not_reused_while_they_travel(depth: int, slow: int, message_rows: int, form: str) -> None:
    answers = processes(WORLD)(run, depth, slow, message_rows, WIDTHS, form)
    for rank, answer in enumerate(answers):
        lists = lists_of(rank, message_rows)
        widened = 4 * WIDTHS[0] if form == "bf16 wire" else 0
        assert answer["sent"] == 3 * (lists.sent_rows + lists.halo_rows) * ROW_BYTES[form]
        assert answer["held"] == lists.buffer_bytes(rank, ROW_BYTES[form], depth, widened_bytes=widened) > 0
        assert answer["held"] <= (2 * (1 + depth) * ROW_BYTES[form] + widened) * min(message_rows, ROWS)


@pytest.mark.parametrize("form", FORMATS)
def test_pieces_that_are_kept_outlive_the_iteration(form: str) -> None:
    answers = processes(WORLD)(run, 1, 0, 64, WIDTHS, form, True)
    assert all(answer["sent"] > 0 for answer in answers)


def all_at_once(group: Group, widths: tuple[int, ...], form: str = "fp32") -> int:
    wire = torch.bfloat16 if form == "bf16 wire" else None
    exchange, lists = Exchange(group, 1, CpuMoves(), wire), lists_of(group.rank, 2**31)
    group.traffic.reset()
    own = rows_of(group.rank, 0, widths, form)
    halos = tuple(one.new_full((lists.halo_rows, one.shape[1]), torch.nan) for one in own)
    exchange.all_rows(lists, own, halos, exact=(1,))
    peers = [[one[needed(q, group.rank).long()] for one in arrived(rows_of(q, 0, widths, form), form)] for q in range(WORLD)]
    for halo, whole in zip(halos, zip(*peers, strict=True), strict=True):
        assert torch.equal(halo, torch.cat(whole))
    targets = tuple(torch.zeros_like(one) for one in own)
    exchange.all_gradients(lists, halos, targets, exact=(1,))
    times = sum(torch.zeros(ROWS).index_fill_(0, needed(group.rank, q).long(), 1) for q in range(WORLD))
    assert isinstance(times, torch.Tensor)
    for target, rows in zip(targets, arrived(own, form), strict=True):
        torch.testing.assert_close(target, (rows.float() * times[:, None]).to(target.dtype))
    return group.traffic.sent_bytes


@pytest.mark.parametrize("form", FORMATS)
def test_one_round_carries_every_format(form: str) -> None:
    for rank, sent in enumerate(processes(WORLD)(all_at_once, WIDTHS, form)):
        lists = lists_of(rank, 2**31)
        assert sent == (lists.sent_rows + lists.halo_rows) * ROW_BYTES[form]


@pytest.mark.parametrize("widths", [(0,), (0, 0), (5, 0), (0, 5)])
def test_rows_without_columns_cost_nothing_and_every_piece_comes(widths: tuple[int, ...]) -> None:
    lists = [lists_of(rank, 64) for rank in range(WORLD)]
    expected = [(one.sent_rows + one.halo_rows) * sum(widths) * 4 for one in lists]
    for depth in (0, 1):
        answers = processes(WORLD)(run, depth, 1, 64, widths)
        assert [answer["sent"] for answer in answers] == [3 * size for size in expected]
        assert sum(widths) or not any(answer["held"] for answer in answers)
    assert processes(WORLD)(all_at_once, widths) == expected
