"""Exchanges, partial results and collectives, each checked by the ranks that do them: what several transports are tested on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from sargnn.backends.cpu.folds import CpuMoves
from sargnn.comm.exchange import Exchange
from sargnn.comm.group import Group
from sargnn.comm.lists import Column, HaloLists, PartialLists, PartialRound, Piece
from sargnn.comm.partial_rounds import PartialRounds

ROWS, WORLD = 3000, 4
WIDTHS = (30, 1)
FORMATS = ("fp32", "bf16 rows", "bf16 wire")
"""All fp32; bf16 rows with an fp32 score; fp32 rows that are rounded on their way, and a score that is not."""
ROW_BYTES = {"fp32": 4 * 31, "bf16 rows": 2 * 30 + 4, "bf16 wire": 2 * 30 + 4}


def needed(sender: int, receiver: int, step: int = 2) -> torch.Tensor:
    """Which of the sender's rows the receiver needs: none two ranks on, so that a round without a message lies between.

    Args:
        step: every which row; of 50 and 40 messages of two or three ranks are put together.
    """
    if (receiver - sender) % WORLD in (0, 2):
        return torch.zeros(0, dtype=torch.int32)
    return torch.arange(receiver, ROWS, step, dtype=torch.int32)


def lists_of(rank: int, message_rows: int, step: int = 2) -> HaloLists:
    return HaloLists(
        message_rows=message_rows,
        send_rows=tuple(needed(rank, q, step) for q in range(WORLD)),
        receive_rows=tuple(len(needed(q, rank, step)) for q in range(WORLD)),
        windows={2: (), 50: (1, 2), 40: (1,)}[step],
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


def assert_near(found: Tensor, wanted: Tensor) -> None:
    """As ``torch.testing.assert_close``, for which each process would import SymPy, two thirds of a second."""
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    assert torch.allclose(found, wanted, rtol=1.6e-2 if found.dtype == torch.bfloat16 else 1.3e-6, atol=1e-5)


def expected_of(
    lists: HaloLists, rank: int, piece: Piece, step: int, rows: Callable[[int], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """What a piece brings of each table.

    Args:
        rows: all of a peer's, as they arrive.
    """
    runs = next(now.runs for now in lists.arrivals(rank) if now.piece == piece)
    parts = [[table[needed(run.peer, rank, step).long()[run.first : run.last]] for table in rows(run.peer)] for run in runs]
    return tuple(torch.cat(tables) for tables in zip(*parts, strict=True))


def run(
    group: Group, depth: int, slow: int, message_rows: int, widths: tuple[int, ...] = WIDTHS, form: str = "fp32",
    keep: bool = False, step: int = 2,
) -> dict[str, Any]:  # fmt: skip
    wire = torch.bfloat16 if form == "bf16 wire" else None
    exchange, lists = Exchange(group, depth, CpuMoves(), wire), lists_of(group.rank, message_rows, step)
    group.traffic.reset()
    for repeat in range(3):
        if group.rank == slow:
            time.sleep(0.2)  # long enough for a fast peer to reuse a buffer that it must not touch yet
        own = rows_of(group.rank, repeat, widths, form)

        def of_peer(peer: int, repeat: int = repeat) -> tuple[Tensor, ...]:
            return rows_of(peer, repeat, widths, form)

        pieces = []
        for piece, found in iterate(exchange.rows(lists, own, exact=(1,), keep=keep), keep=keep):
            pieces.append(piece)
            if piece.peer == group.rank:
                assert found[0] is own[0]
                continue
            wanted = expected_of(lists, group.rank, piece, step, lambda peer: arrived(of_peer(peer), form))
            assert all(torch.equal(tensor, other) for tensor, other in zip(found, wanted, strict=True))
        assert pieces == [(group.rank, 0), *(now.piece for now in lists.arrivals(group.rank))]
        if group.rank == slow:
            time.sleep(0.2)
        targets = tuple(torch.zeros_like(one) for one in own)
        with exchange.gradients(lists, targets, exact=(1,)) as errors:
            for piece in errors.pieces:
                wanted = expected_of(lists, group.rank, piece, step, of_peer)
                for view, rows in zip(errors.buffer(piece), wanted, strict=True):
                    view.copy_(rows)
                errors.send(piece)
        # every peer sent an own row's value back once
        times = torch.zeros(ROWS)
        for q in range(WORLD):
            times[needed(group.rank, q, step).long()] += 1
        for target, rows in zip(targets, arrived(own, form), strict=True):
            assert_near(target, (rows.float() * times[:, None]).to(target.dtype))
    return {"sent": group.traffic.sent_bytes, "held": exchange.most_held}


def iterate(pieces: Iterator[Any], *, keep: bool) -> Iterator[Any]:
    """All at once, where they outlive the iteration."""
    return iter(list(pieces)) if keep else pieces


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


def own_of(rank: int, size: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return (1000 * torch.randn(size, generator=generator, dtype=torch.float64)).to(dtype)


def in_servers(group: Group, servers: int) -> Group:
    return group.again(servers=servers)


def collectives(group: Group, servers: int, size: int) -> dict[str, Any]:
    group = in_servers(group, servers)
    found: dict[str, Any] = {}
    for dtype in (torch.float64, torch.int64, torch.float32):
        given = own_of(group.rank, size, dtype)
        total = group.sum_(given)
        assert total is given
        found[str(dtype)] = total.numpy()
    found["between"] = group.traffic.between_bytes
    found["table"] = group.sum_(own_of(group.rank, 12, torch.float64).view(3, 4).T).numpy()
    found["gathered"] = [one.numpy() for one in group.gather(own_of(group.rank, 5, torch.float64))]
    found["one number"] = [int(one) for one in group.gather(torch.tensor(group.rank))]
    found["folded"] = group.fold(own_of(group.rank, 6, torch.float64), lambda parts: torch.stack(list(parts)).amax(0)).numpy()
    found["sent"] = group.traffic.sent_bytes
    found["within"] = group.within.sum_(torch.tensor([float(group.rank), 1.0])).numpy()
    return found
