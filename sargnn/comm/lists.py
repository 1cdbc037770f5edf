"""Who needs which rows of whom, in what rounds they travel, and how the rows of several tensors stand in one flat message.

Letters: N rows, F features, H halo rows, P ranks.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import torch
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
            for j, ((start, end), (first, last)) in enumerate(zip_longest(sent, received, fillvalue=(0, 0))):
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
        to: the piece of a peer's rows that this rank computes for.
        served: rows in it; 0 if there is no such piece.
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
            for j, ((start, end), (first, last)) in enumerate(zip_longest(served, wanted, fillvalue=(0, 0))):
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


class Column(NamedTuple):
    """One tensor of a message.

    Attributes:
        width: numbers of a row.
        dtype: that it is computed with.
        exact: it is never rounded on its way.
    """

    width: int
    dtype: torch.dtype
    exact: bool = False


Columns = tuple[Column, ...]


@dataclass(frozen=True)
class Layout:
    """How the rows of several tensors [N, F_t] stand in one flat message: one table after the other, the widest dtype first.

    Attributes:
        widths: of each tensor's rows.
        dtypes: as they travel.
        held: the dtypes that the tensors have.
    """

    widths: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    held: tuple[torch.dtype, ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor], wire: torch.dtype | None = None, exact: Container[int] = ()) -> Layout:
        """``wire``: what fp32 rows are rounded to on their way, but for the tensors ``exact``; None: nothing is."""
        return cls.of_columns([Column(tensor.shape[1], tensor.dtype, t in exact) for t, tensor in enumerate(tensors)], wire)

    @classmethod
    def of_columns(cls, columns: Sequence[Column], wire: torch.dtype | None = None) -> Layout:
        """The same for tensors that are not there yet."""
        travel = tuple(
            column.dtype if wire is None or column.exact or column.dtype != torch.float32 else wire for column in columns
        )
        return cls(tuple(column.width for column in columns), travel, tuple(column.dtype for column in columns))

    @property
    def row_bytes(self) -> int:
        """Of a row of all tensors, as it travels."""
        return sum(width * dtype.itemsize for width, dtype in zip(self.widths, self.dtypes, strict=True))

    @property
    def unit(self) -> torch.dtype:
        """A message is counted in elements of the narrowest."""
        return min(self.dtypes, key=lambda dtype: dtype.itemsize)

    @property
    def width(self) -> int:
        """Of a row of all tensors, in units."""
        return sum(width * dtype.itemsize for width, dtype in zip(self.widths, self.dtypes, strict=True)) // self.unit.itemsize

    @property
    def rounds(self) -> bool:
        """Whether anything travels in another dtype than it is held in."""
        return self.dtypes != self.held

    @property
    def rounded_width(self) -> int:
        """Of a row of what does."""
        return sum(width for width, *both in zip(self.widths, self.dtypes, self.held, strict=True) if both[0] != both[1])

    def sections(self, message: Tensor, rows: int) -> tuple[Tensor, ...]:
        """Contiguous [rows, F_t] views of a message, one for each tensor. The message is counted in units, or in bytes."""
        if len(self.widths) == 1:
            return (message.view(self.dtypes[0]).view(rows, self.widths[0]),)
        sections, start = {}, 0
        for t in sorted(range(len(self.widths)), key=lambda t: -self.dtypes[t].itemsize):  # each begins where its dtype may
            numel = rows * self.widths[t] * (self.dtypes[t].itemsize // message.element_size())
            sections[t] = message[start : start + numel].view(self.dtypes[t]).view(rows, self.widths[t])
            start += numel
        return tuple(sections[t] for t in range(len(self.widths)))

    def wide(self, sections: Sequence[Tensor], room: Tensor | None = None) -> tuple[Tensor, ...]:
        """Where what the sections of a message hold is computed with: in the dtypes that the tensors have. Nothing is copied.

        Args:
            room: at least rows x ``rounded_width`` numbers; memory of their own if not given.
        """
        out, start = [], 0
        for section, dtype in zip(sections, self.held, strict=True):
            if section.dtype == dtype:
                out.append(section)
            elif room is None:
                out.append(torch.empty(section.shape, dtype=dtype, device=section.device))
            else:
                out.append(room[start : start + section.numel()].view(section.shape))
                start += section.numel()
        return tuple(out)


def copy_sections(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """What is the same tensor on both sides stays."""
    for source, target in zip(sources, targets, strict=True):
        if source is not target:
            target.copy_(source)
