"""Who needs which rows of whom, in what rounds they travel, and how the rows of several tensors stand in one flat message.

Letters: N rows, F features, H halo rows, P ranks.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, starmap, zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor

NEAR_PIECES = 2
"""Messages' worth of rows of ranks in this process that are read together, about what the buffers of an exchange hold."""
_JOINED_ROWS = 512
"""Up to here messages are put together before they are computed with: with fewer rows a call costs more than what it does."""


class Piece(NamedTuple):
    """Halo rows that are computed with together: which peer's, or the first peer's, and a number, below 0 where they are made
    of several messages' worth of rows."""

    peer: int
    number: int


class Run(NamedTuple):
    """A message's worth of a peer's halo rows, from ``first`` to ``last`` of those needed here; ``ends``: the last ones."""

    peer: int
    first: int
    last: int
    ends: bool

    @property
    def rows(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class Arrival:
    """What comes of a piece, made of ``runs`` one behind the other, in a round each; where their owners run in this process
    (``near``) their rows are read where they lie. ``joins``: its messages are put together; one of them, too, where others
    put several together (``HaloLists.windows``).
    """

    piece: Piece
    runs: tuple[Run, ...]
    rounds: range = range(0)
    near: bool = False
    joins: bool = False

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)

    def places(self) -> Iterator[tuple[Run, slice]]:
        """Each run, and where its rows lie in the piece."""
        first = 0
        for run in self.runs:
            yield run, slice(first, first + run.rows)
            first += run.rows


@dataclass(frozen=True)
class Round:
    """One step of the exchange with other processes: the ``send_rows`` own rows ``send`` (int32) to rank ``to``, and
    ``receive_rows`` from rank ``source``; of both there may be none."""

    to: int
    send: Tensor
    send_rows: int
    source: int
    receive_rows: int


def cut_list(count: int, message_rows: int) -> list[tuple[int, int]]:
    """(start, end) of pieces of equal size, none of more than ``message_rows``."""
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
        windows: steps k of the exchange (``rounds``) whose messages are put together: the first of each such run of steps. The
            same on all ranks, or they would wait for each other. (): each step by itself.
        near_rows: int32, of which of their rows the pieces consist; known once they were read.
    """

    send_rows: tuple[Tensor, ...]
    receive_rows: tuple[int, ...]
    message_rows: int = 2**31
    near: range = range(0)
    windows: tuple[int, ...] = ()
    near_rows: dict[Piece, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    _rounds: dict[int, tuple[list[Round], list[Arrival]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_rounds": {}, "near_rows": {}}

    @property
    def halo_rows(self) -> int:
        return sum(self.receive_rows)

    @property
    def sent_rows(self) -> int:
        """In one exchange."""
        return sum(len(rows) for rows in self.send_rows)

    def pieces(self, count: int) -> list[tuple[int, int]]:
        return cut_list(count, self.message_rows)

    def places(self, arrival: Arrival) -> list[tuple[slice, slice]]:
        """Where rows of a piece lie in it, and among all halo rows, which go by peer in rank order."""
        places = []
        for run, at in arrival.places():
            begin = sum(self.receive_rows[: run.peer]) + run.first
            places.append((at, slice(begin, begin + run.rows)))
        return places

    def rounds(self, rank: int) -> list[Round]:
        """All messages of rank ``rank``, in order of k = 1 .. P - 1, rows to rank + k and from rank - k, and of pieces."""
        return self._of(rank)[0]

    def arrivals(self, rank: int) -> list[Arrival]:
        """What the messages bring, in order; those of a window are put together. Of ranks in this process those below this one
        are the first that rows come from, and those above it the last.
        """
        return self._of(rank)[1]

    def _of(self, rank: int) -> tuple[list[Round], list[Arrival]]:
        if rank not in self._rounds:
            world, near = len(self.send_rows), self.near
            below, above = range(rank - 1, near.start - 1, -1), range(near.stop - 1, rank, -1)
            rounds: list[Round] = []
            arrivals = self._near_arrivals(below if near else (), 0)
            for steps in starmap(range, pairwise((*(self.windows or range(1, world)), world))):
                first, runs = len(rounds), list[Run]()
                for k in steps:
                    to, source = (rank + k) % world, (rank - k) % world
                    sent = [] if to in near else self.pieces(len(self.send_rows[to]))
                    received = [] if source in near else self._runs(source)
                    for part, run in zip_longest(sent, received):
                        start, end = part or (0, 0)
                        runs.append(run or Run(source, 0, 0, ends=True))
                        rounds.append(Round(to, self.send_rows[to][start:end], end - start, source, runs[-1].rows))
                if len(steps) > 1 and runs:
                    piece = Piece(runs[0].peer, -1 - len(arrivals))
                    arrivals.append(Arrival(piece, tuple(runs), range(first, len(rounds)), joins=True))
                    continue
                for r, run in enumerate(runs, first):
                    arrivals.append(Arrival(Piece(run.peer, r - first), (run,), range(r, r + 1)))
            self._rounds[rank] = rounds, arrivals + self._near_arrivals(above if near else (), len(arrivals))
        return self._rounds[rank]

    def _runs(self, peer: int) -> list[Run]:
        pieces = self.pieces(self.receive_rows[peer])
        return [Run(peer, first, last, j + 1 == len(pieces)) for j, (first, last) in enumerate(pieces)]

    def _near_arrivals(self, peers: Iterable[int], number: int) -> list[Arrival]:
        """As many of these peers' pieces together as ``NEAR_PIECES`` messages may hold. ``number``: of the first."""
        runs = [run for peer in peers for run in self._runs(peer)]
        groups = _groups(runs, NEAR_PIECES * self.message_rows)
        return [Arrival(Piece(group[0].peer, -1 - number - g), group, near=True) for g, group in enumerate(groups)]

    def buffer_bytes(
        self, rank: int, row_bytes: int, prefetch_depth: int, *, refetch: bool = False, widened_bytes: int = 0
    ) -> int:
        """Bytes that exchanges hold at most on rank ``rank``.

        Args:
            row_bytes: of a row of all tensors, as it travels.
            refetch: the backward pass fetches rows again, while gradients return (case 2).
            widened_bytes: of what of a row is rounded on its way, when it is not.
        """
        rounds, arrivals = self.rounds(rank), self.arrivals(rank)
        slots = min(1 + prefetch_depth, len(rounds)) + (refetch and len(rounds) > 0)
        received = max((r.receive_rows for r in rounds), default=0)
        largest = received + max((r.send_rows for r in rounds), default=0)
        near = max((now.rows for now in arrivals if now.near), default=0)
        joined = max((now.rows for now in arrivals if now.joins), default=0)
        widened = max((now.rows for now in arrivals if not now.joins), default=0)
        one_each = near * row_bytes + joined * (row_bytes + widened_bytes // 2) + widened * widened_bytes
        return slots * largest * row_bytes + (1 + refetch) * one_each


def join_windows(received: Sequence[Sequence[int]], message_rows: int) -> tuple[int, ...]:
    """``HaloLists.windows``, from how many rows each rank gets from each other one at most, [P][P]."""
    world = len(received)
    most = max(map(max, received))
    room = min(message_rows, max(_JOINED_ROWS, most))
    windows: list[int] = []
    rows = [room + 1] * world  # the first step begins a window
    for k in range(1, world):
        for rank in range(world):
            rows[rank] += received[rank][(rank - k) % world]
        if max(rows) > room:
            windows.append(k)
            rows = [received[rank][(rank - k) % world] for rank in range(world)]
    return tuple(windows)


def _groups(runs: Sequence[Run], room: int) -> list[tuple[Run, ...]]:
    """Consecutive runs together, as long as they have no more than ``room`` rows."""
    groups: list[list[Run]] = []
    left = 0
    for run in runs:
        if not groups or left < run.rows:
            groups.append([])
            left = room
        left -= run.rows
        groups[-1].append(run)
    return [tuple(group) for group in groups]


@dataclass(frozen=True)
class PartialRound:
    """One step of the exchange of partial results: of ``served`` rows, a peer's piece ``to``, this rank computes them; for the
    own output rows ``wanted``, int32, the peer of ``piece`` does. There may be none of both.
    """

    to: Piece
    served: int
    piece: Piece
    wanted: Tensor


@dataclass(frozen=True)
class PartialLists:
    """For whose output rows partial results are computed where: per peer, int32 own output rows, ascending, whose edges from
    there the peer aggregates; and for how many of the peer's rows this rank does so.
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
        return cut_list(count, self.message_rows)

    def rounds(self, rank: int) -> list[PartialRound]:
        """In order of k = 1 .. P - 1, where this rank computes for rank + k, and rank - k for this one, and of pieces."""
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
        """Bytes that an exchange holds at most on rank ``rank``, from those of a row's request and answer, as they travel, and,
        ``widened``, of what of each is rounded on its way, when it is not.
        """
        rounds = self.rounds(rank)
        slots = min(1 + prefetch_depth, len(rounds))
        served, wanted = max((r.served for r in rounds), default=0), max((len(r.wanted) for r in rounds), default=0)
        return slots * (served + wanted) * (asked_bytes + answered_bytes) + max(served, wanted) * sum(widened_bytes)


class Column(NamedTuple):
    """One tensor of a message: numbers of a row, the dtype that it is computed with, and whether it is never rounded."""

    width: int
    dtype: torch.dtype
    exact: bool = False


Columns = tuple[Column, ...]


@dataclass(frozen=True)
class Layout:
    """How the rows of several tensors [N, F_t] stand in one flat message: one table after the other, the widest dtype first.
    ``dtypes`` are those that travel, ``held`` those that the tensors have.
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
        return self.dtypes != self.held

    @property
    def rounded_width(self) -> int:
        """Of what of a row travels in another dtype than it is held in."""
        return sum(width for width, *both in zip(self.widths, self.dtypes, self.held, strict=True) if both[0] != both[1])

    def sections(self, message: Tensor, rows: int) -> tuple[Tensor, ...]:
        """Contiguous [rows, F_t] views of a message, one for each tensor. The message is counted in units, or in bytes."""
        sections: list[Tensor] = [message] * len(self.widths)
        start, item = 0, message.element_size()
        for t, width, dtype in self._order:
            numel = rows * width * dtype.itemsize // item
            part = message[start : start + numel]
            sections[t] = (part if part.dtype == dtype else part.view(dtype)).view(rows, width)
            start += numel
        return tuple(sections)

    @cached_property
    def _order(self) -> list[tuple[int, int, torch.dtype]]:
        """In which the tensors stand, each with its width and dtype: each begins where its dtype may."""
        order = sorted(range(len(self.widths)), key=lambda t: -self.dtypes[t].itemsize)
        return [(t, self.widths[t], self.dtypes[t]) for t in order]

    def wide(self, sections: Sequence[Tensor], room: Tensor | None = None) -> tuple[Tensor, ...]:
        """What the sections of a message hold, in room [rows x ``rounded_width``] or memory of its own, in the dtypes that the
        tensors have. Nothing is copied.
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


def most_rows(lists: HaloLists, rank: int) -> tuple[int, int, int, int]:
    """The most rows of a message that comes, of one that goes, of a piece of ranks in this process, and of several messages."""
    rounds, arrivals = lists.rounds(rank), lists.arrivals(rank)
    return (
        max((now.receive_rows for now in rounds), default=0),
        max((now.send_rows for now in rounds), default=0),
        max((now.rows for now in arrivals if now.near), default=0),
        max((now.rows for now in arrivals if now.joins), default=0),
    )
