"""Who needs which rows of whom, in what rounds they travel, and how the rows of several tensors stand in one flat message.

Letters: N rows, F features, H halo rows, P ranks.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor

NEAR_PIECES = 2
"""Messages' worth of rows of ranks in this process that are read together, about what the buffers of an exchange hold."""


class Piece(NamedTuple):
    """A message's worth of a peer's halo rows: which peer, and which piece of its rows. Several pieces of ranks in one process
    that are read together have a number below 0."""

    peer: int
    number: int


class NearRun(NamedTuple):
    """A piece of the rows of a rank in this process, among others that are read together.

    Attributes:
        piece: which.
        first, last: where its rows lie among those that the rank has for this one.
        ends: it is the last piece of that rank's rows.
    """

    piece: Piece
    first: int
    last: int
    ends: bool


@dataclass(frozen=True)
class Round:
    """One step of the exchange: own rows ``send`` (int32, may be empty) to rank ``to``, rows of ``piece`` from its owner.

    Attributes:
        receive_rows: rows in ``piece``; 0 if the owner has no such piece.
        near: what ``piece`` is made of where its owners run in this process: no message, their rows are read where they lie.
    """

    to: int
    send: Tensor
    piece: Piece
    receive_rows: int
    near: tuple[NearRun, ...] = ()

    def near_runs(self) -> Iterator[tuple[NearRun, slice]]:
        """Each of ``near``, and where its rows lie in ``piece``."""
        first = 0
        for run in self.near:
            yield run, slice(first, first + run.last - run.first)
            first += run.last - run.first


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
        near: the ranks of this process, if their rows are read where they lie; else none.
        near_rows: int32, of which of their rows the pieces consist; known once they were read.
    """

    send_rows: tuple[Tensor, ...]
    receive_rows: tuple[int, ...]
    message_rows: int = 2**31
    near: range = range(0)
    near_rows: dict[Piece, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    _rounds: dict[int, list[Round]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_rounds": {}, "near_rows": {}}

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

    def places(self, now: Round) -> list[tuple[slice, slice]]:
        """Where rows of a round's piece lie in it, and among all halo rows, which go by peer in rank order."""
        peer, number = now.piece
        if now.near:
            runs = [(run.piece.peer, run.first, at) for run, at in now.near_runs()]
        else:
            first, last = self.pieces(self.receive_rows[peer])[number]
            runs = [(peer, first, slice(0, last - first))]
        places = []
        for owner, first, at in runs:
            begin = sum(self.receive_rows[:owner]) + first
            places.append((at, slice(begin, begin + at.stop - at.start)))
        return places

    def rounds(self, rank: int) -> list[Round]:
        """All rounds of rank ``rank``, in order: k = 1 .. P - 1, and for each k the pieces.

        Rows go to rank + k and come from rank - k. Of ranks in this process those below this one are the first that they come
        from, and those above it the last: their pieces are joined.
        """
        if rank not in self._rounds:
            world, near = len(self.send_rows), self.near
            below, above = range(rank - 1, near.start - 1, -1), range(near.stop - 1, rank, -1)
            rounds = self._near_rounds(rank, below if near else (), 0)
            for k in range(1, world):
                to, source = (rank + k) % world, (rank - k) % world
                sent = [] if to in near else self.pieces(len(self.send_rows[to]))
                received = [] if source in near else self.pieces(self.receive_rows[source])
                for j, ((start, end), (first, last)) in enumerate(zip_longest(sent, received, fillvalue=(0, 0))):
                    rounds.append(Round(to, self.send_rows[to][start:end], Piece(source, j), last - first))
            self._rounds[rank] = rounds + self._near_rounds(rank, above if near else (), len(rounds))
        return self._rounds[rank]

    def _near_rounds(self, rank: int, peers: Iterable[int], number: int) -> list[Round]:
        """The pieces of these peers, as many together as ``NEAR_PIECES`` messages may hold. ``number``: of the first."""
        groups: list[list[NearRun]] = []
        room = 0
        for peer in peers:
            pieces = self.pieces(self.receive_rows[peer])
            for j, (first, last) in enumerate(pieces):
                if not groups or room < last - first:
                    groups.append([])
                    room = NEAR_PIECES * self.message_rows
                room -= last - first
                groups[-1].append(NearRun(Piece(peer, j), first, last, j + 1 == len(pieces)))
        nothing = self.send_rows[rank][:0]
        return [
            Round(
                rank,
                nothing,
                Piece(runs[0].piece.peer, -1 - number - g),
                sum(run.last - run.first for run in runs),
                tuple(runs),
            )
            for g, runs in enumerate(groups)
        ]

    def buffer_bytes(
        self, rank: int, row_bytes: int, prefetch_depth: int, *, refetch: bool = False, widened_bytes: int = 0
    ) -> int:
        """Bytes that exchanges hold at most on rank ``rank``.

        Args:
            row_bytes: of a row of all tensors, as it travels.
            refetch: the backward pass fetches rows again, while gradients return (case 2).
            widened_bytes: of what of a row is rounded on its way, when it is not.
        """
        rounds = [now for now in self.rounds(rank) if not now.near]
        slots = min(1 + prefetch_depth, len(rounds)) + (refetch and len(rounds) > 0)
        received = max((r.receive_rows for r in rounds), default=0)
        largest = received + max((len(r.send) for r in rounds), default=0)
        near = max((now.receive_rows for now in self.rounds(rank) if now.near), default=0)
        return slots * largest * row_bytes + (1 + refetch) * (near * row_bytes + max(near, received) * widened_bytes)


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
