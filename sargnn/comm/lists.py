"""Who needs which rows of whom, and in what rounds they travel.

Letters: H halo rows, P ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Piece(NamedTuple):
    """A message's worth of a peer's halo rows: which peer, and which piece of its rows."""

    peer: int
    number: int


@dataclass(frozen=True)
class Round:
    """One step of the exchange: own rows ``send`` (int32, may be empty) to rank ``to``, rows of ``piece`` from its owner.

    Attributes:
        receive_rows: rows in ``piece``; 0 if the owner has no such piece.
    """

    to: int
    send: Tensor
    piece: Piece
    receive_rows: int


def cut_list(count: int, message_rows: int) -> list[tuple[int, int]]:
    """The pieces of a list of ``count`` rows: (start, end) each, of equal size, none of more than ``message_rows``."""
    number = -(-count // message_rows)
    return [(count * j // number, count * (j + 1) // number) for j in range(number)]


@dataclass(frozen=True)
class HaloLists:
    """Who needs which rows of whom.

    Attributes:
        send_rows: per peer, int32 own rows that it needs, ascending; empty for the own rank.
        receive_rows: per peer, how many of its rows are needed here; 0 for the own rank.
        message_rows: no message holds more rows; longer lists travel in pieces of equal size. The same on all ranks.
    """

    send_rows: tuple[Tensor, ...]
    receive_rows: tuple[int, ...]
    message_rows: int = 2**31

    @property
    def halo_rows(self) -> int:
        """H, all peers together."""
        return sum(self.receive_rows)

    @property
    def sent_rows(self) -> int:
        """Rows that this rank sends in one exchange, all peers together."""
        return sum(len(rows) for rows in self.send_rows)

    def pieces(self, count: int) -> list[tuple[int, int]]:
        """The pieces of a list of ``count`` rows: (start, end) each."""
        return cut_list(count, self.message_rows)

    def places(self, piece: Piece) -> slice:
        """Where a piece's rows lie among all halo rows, which go by peer in rank order. There must be such a piece."""
        first, last = self.pieces(self.receive_rows[piece.peer])[piece.number]
        before = sum(self.receive_rows[: piece.peer])
        return slice(before + first, before + last)

    def rounds(self, rank: int) -> list[Round]:
        """All rounds of rank ``rank``, in order: k = 1 .. P - 1, and for each k the pieces."""
        world = len(self.send_rows)
        rounds = []
        for k in range(1, world):
            to, source = (rank + k) % world, (rank - k) % world
            sent, received = self.pieces(len(self.send_rows[to])), self.pieces(self.receive_rows[source])
            for j in range(max(len(sent), len(received))):
                start, end = sent[j] if j < len(sent) else (0, 0)
                first, last = received[j] if j < len(received) else (0, 0)
                rounds.append(Round(to, self.send_rows[to][start:end], Piece(source, j), last - first))
        return rounds

    def buffer_bytes(
        self, rank: int, row_bytes: int, prefetch_depth: int, *, refetch: bool = False, widened_bytes: int = 0
    ) -> int:
        """Bytes that exchanges hold at most on rank ``rank``.

        Args:
            row_bytes: of a row of all tensors, as it travels.
            refetch: the backward pass fetches rows again, while gradients return (case 2).
            widened_bytes: of what of a row is rounded on its way, when it is not.
        """
        rounds = self.rounds(rank)
        slots = min(1 + prefetch_depth, len(rounds)) + (refetch and len(rounds) > 0)
        received = max((r.receive_rows for r in rounds), default=0)
        largest = received + max((len(r.send) for r in rounds), default=0)
        return slots * largest * row_bytes + (1 + refetch) * received * widened_bytes


@dataclass(frozen=True)
class PartialRound:
    """One step of the exchange of partial results.

    Attributes:
        to: the piece of a peer's rows that this rank computes for. served: rows in it; 0 if there is no such piece.
        piece: the piece of own rows that the peer computes for; its ``peer`` is who does.
        wanted: int32, these own output rows; may be empty.
    """

    to: Piece
    served: int
    piece: Piece
    wanted: Tensor


@dataclass(frozen=True)
class PartialLists:
    """For whose output rows partial results are computed where.

    Attributes:
        wanted_rows: per peer, int32 own output rows whose edges from there the peer aggregates, ascending; empty for the own
            rank.
        served_rows: per peer, for how many of its output rows this rank does so; 0 for the own rank.
        message_rows: as in ``HaloLists``.
    """

    wanted_rows: tuple[Tensor, ...]
    served_rows: tuple[int, ...]
    message_rows: int = 2**31

    @property
    def all_wanted(self) -> int:
        """Partial results that come here in one exchange."""
        return sum(len(rows) for rows in self.wanted_rows)

    @property
    def all_served(self) -> int:
        """Partial results that are computed here in one exchange."""
        return sum(self.served_rows)

    def pieces(self, count: int) -> list[tuple[int, int]]:
        """As of ``HaloLists``."""
        return cut_list(count, self.message_rows)

    def rounds(self, rank: int) -> list[PartialRound]:
        """All rounds of rank ``rank``, in order: k = 1 .. P - 1, and for each k the pieces.

        In step k this rank computes for rank + k, and rank - k for this one.
        """
        world = len(self.wanted_rows)
        rounds = []
        for k in range(1, world):
            to, source = (rank + k) % world, (rank - k) % world
            served, wanted = self.pieces(self.served_rows[to]), self.pieces(len(self.wanted_rows[source]))
            for j in range(max(len(served), len(wanted))):
                start, end = served[j] if j < len(served) else (0, 0)
                first, last = wanted[j] if j < len(wanted) else (0, 0)
                rounds.append(PartialRound(Piece(to, j), end - start, Piece(source, j), self.wanted_rows[source][first:last]))
        return rounds

    def buffer_bytes(
        self, rank: int, asked_bytes: int, answered_bytes: int, prefetch_depth: int, *, widened_bytes: tuple[int, int] = (0, 0)
    ) -> int:
        """Bytes that an exchange holds at most on rank ``rank``.

        Args:
            asked_bytes, answered_bytes: of a row's request and answer, as they travel.
            widened_bytes: of what of each is rounded on its way, when it is not.
        """
        rounds = self.rounds(rank)
        slots = min(1 + prefetch_depth, len(rounds))
        served, wanted = max((r.served for r in rounds), default=0), max((len(r.wanted) for r in rounds), default=0)
        return slots * (served + wanted) * (asked_bytes + answered_bytes) + max(served, wanted) * sum(widened_bytes)
