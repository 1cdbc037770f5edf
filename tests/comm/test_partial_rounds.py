"""The exchange of partial results by itself: every request gets its own answer, however unlike the lists of the ranks are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sargnn.backends.cpu.folds import CpuMoves
from sargnn.comm.exchange import Exchange
from sargnn.comm.group import Group
from sargnn.comm.lists import Column, PartialLists, PartialRound, Piece
from sargnn.comm.partial_rounds import PartialRounds
from tests.pool import pool

NUMBER = (Column(1, torch.float64),)


def wanted(asker: int, server: int) -> int:
    """For how many rows of a rank another one computes: none of some, so that some take many rounds and others none."""
    return 0 if asker == server else (5 * asker + 3 * server) % 11


def asks(group: Group, message_rows: int, depth: int) -> list[tuple[int, int]]:
    """Rows with a partial result, by peer."""
    rank, peers = group.rank, range(group.world)
    lists = PartialLists(
        tuple(torch.arange(wanted(rank, q), dtype=torch.int32) for q in peers),
        tuple(wanted(q, rank) for q in peers),
        message_rows,
    )

    def ask(now: PartialRound, out: tuple[Tensor, ...]) -> None:
        out[0][:, 0] = 100 * rank + now.wanted

    def serve(piece: Piece, requests: tuple[Tensor, ...], out: tuple[Tensor, ...]) -> None:
        assert (requests[0][:, 0] // 100 == piece.peer).all()
        torch.add(requests[0], 1000 * rank, out=out[0])

    found = []
    rounds = PartialRounds(Exchange(group, depth, CpuMoves()), lists, NUMBER, NUMBER, ask, serve, torch.empty(0))
    rounds.begin(serve=depth > 0)
    for now, answers in rounds:
        assert torch.equal(answers[0][:, 0], 1000.0 * now.piece.peer + 100 * rank + now.wanted)
        found += [(now.piece.peer, int(row)) for row in now.wanted]
    return found


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("message_rows", [1, 3, 100])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_every_request_gets_its_answer(world: int, message_rows: int, depth: int) -> None:
    for rank, found in enumerate(pool(world)(asks, message_rows, depth)):
        assert sorted(found) == [(q, row) for q in range(world) for row in range(wanted(rank, q))]
