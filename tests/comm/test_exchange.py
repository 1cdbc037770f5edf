"""The row exchange by itself: empty messages between full ones, a slow receiver, several tensors in a message."""

from __future__ import annotations

import pytest
import torch

from sargnn.backends.cpu.folds import CpuMoves
from sargnn.comm.exchange import Exchange
from sargnn.comm.group import Group
from tests.comm.exchanges import FORMATS, ROW_BYTES, ROWS, WIDTHS, WORLD, arrived, assert_near, lists_of, needed, rows_of, run
from tests.parity.covering import spread
from tests.pool import processes, sharing

TRANSPORTS = {"messages": processes, "memory": sharing}


@pytest.mark.parametrize(
    ("transport", "depth", "slow", "message_rows", "form"),
    spread(list(TRANSPORTS), [0, 1, 2], [0, 3], [2**31, 64], FORMATS),
)
def test_buffers_are_not_reused_while_they_travel(transport: str, depth: int, slow: int, message_rows: int, form: str) -> None:
    answers = TRANSPORTS[transport](WORLD)(run, depth, slow, message_rows, WIDTHS, form)
    for rank, answer in enumerate(answers):
        lists = lists_of(rank, message_rows)
        widened = 4 * WIDTHS[0] if form == "bf16 wire" else 0
        assert answer["sent"] == 3 * (lists.sent_rows + lists.halo_rows) * ROW_BYTES[form]
        planned = lists.buffer_bytes(rank, ROW_BYTES[form], depth, widened_bytes=widened)
        assert answer["held"] == planned if transport == "messages" else 0 < answer["held"] <= planned
        assert answer["held"] <= (2 * (1 + depth) * ROW_BYTES[form] + widened) * min(message_rows, ROWS)


@pytest.mark.parametrize(("transport", "form", "step"), spread(list(TRANSPORTS), FORMATS, [2, 50]))
def test_pieces_that_are_kept_outlive_the_iteration(transport: str, form: str, step: int) -> None:
    answers = TRANSPORTS[transport](WORLD)(run, 1, 0, 64, WIDTHS, form, True, step)
    assert all(answer["sent"] > 0 for answer in answers)


@pytest.mark.parametrize(
    ("transport", "depth", "slow", "message_rows", "form", "step"),
    spread(list(TRANSPORTS), [0, 1, 2], [0, 3], [2**31, 25], FORMATS, [50, 40]),
)
def test_messages_that_are_put_together(transport: str, depth: int, slow: int, message_rows: int, form: str, step: int) -> None:
    answers = TRANSPORTS[transport](WORLD)(run, depth, slow, message_rows, WIDTHS, form, False, step)
    for rank, answer in enumerate(answers):
        lists = lists_of(rank, message_rows, step)
        assert any(now.joins for now in lists.arrivals(rank))
        widened = 4 * WIDTHS[0] if form == "bf16 wire" else 0
        assert answer["sent"] == 3 * (lists.sent_rows + lists.halo_rows) * ROW_BYTES[form]
        assert 0 < answer["held"] <= lists.buffer_bytes(rank, ROW_BYTES[form], depth, widened_bytes=widened)


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
        assert_near(target, (rows.float() * times[:, None]).to(target.dtype))
    return group.traffic.sent_bytes


@pytest.mark.parametrize("form", FORMATS)
def test_one_round_carries_every_format(form: str) -> None:
    for rank, sent in enumerate(processes(WORLD)(all_at_once, WIDTHS, form)):
        lists = lists_of(rank, 2**31)
        assert sent == (lists.sent_rows + lists.halo_rows) * ROW_BYTES[form]


@pytest.mark.parametrize("widths", [(0, 0), (0, 5)])
def test_rows_without_columns_cost_nothing_and_every_piece_comes(widths: tuple[int, ...]) -> None:
    lists = [lists_of(rank, 64) for rank in range(WORLD)]
    expected = [(one.sent_rows + one.halo_rows) * sum(widths) * 4 for one in lists]
    for depth in (0, 1):
        answers = processes(WORLD)(run, depth, 1, 64, widths)
        assert [answer["sent"] for answer in answers] == [3 * size for size in expected]
        assert sum(widths) or not any(answer["held"] for answer in answers)
    assert processes(WORLD)(all_at_once, widths) == expected
