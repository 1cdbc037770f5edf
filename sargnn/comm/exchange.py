"""The row exchange: rows travel to the peers that need them, gradients return to their owners.

In step k = 1 .. P - 1 of rank p rows go to rank p + k and come from p - k; their gradients later go to p - k and come from
p + k. A long list travels in pieces, one a round, so that buffers stay small whatever the partition. Sends and receives
are posted together and ``prefetch_depth`` rounds ahead, so the wire works while the kernel computes. Several tensors
of one exchange (a row and its attention score, say) share one message, also where scores have a wider dtype than rows. Rows
without columns are not sent, but every piece comes in its turn. With ``wire`` fp32 rows and their gradients are rounded to
bf16 for their way, and widened when they arrive; scores are not, nor is anything that stays.

No deadlock: a rank takes part in every round (k, piece), also in those that bring it nothing; every transfer is posted
without waiting, and a rank waits only for transfers of its current or earlier rounds. Whoever is in the lowest round
waits for peers that have all posted theirs.

Memory: 1 + d buffers for the rows of a peer (rows coming in, or their gradients going out) and as many for own rows (rows
going out, or gradients coming in), each of the largest piece, reused over layers and epochs (d = prefetch depth). Where
rows are fetched while gradients return, one more of each. What is rounded on its way takes one more of a peer's rows, two of
them then, to be widened in. ``HaloLists.buffer_bytes`` says how much all that is. The consumer's rows are valid until it asks
for the next ones.

Letters: N own rows, H halo rows, F features, P ranks, d prefetch depth.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.comm.rows import add_rows, take_rows
from sargnn.profile import PACKING

ROWS_TAG, GRADIENTS_TAG = 1, 2


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
        number = -(-count // self.message_rows)
        return [(count * j // number, count * (j + 1) // number) for j in range(number)]

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
    ) -> int:  # fmt: skip
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


class Exchange:
    """Moves rows and gradients between the ranks of a group.

    Args:
        group: the ranks.
        prefetch_depth: d, how many rounds are posted ahead of the one being consumed; 0 overlaps nothing.

    Attributes:
        wire: what fp32 rows and gradients are rounded to on their way; None: nothing is.
    """

    def __init__(self, group: Group, prefetch_depth: int, wire: torch.dtype | None = None) -> None:
        self.group = group
        self.prefetch_depth = prefetch_depth
        self.wire = wire
        self._buffers: dict[tuple[str, int, torch.dtype], Tensor] = {}

    def held_bytes(self) -> int:
        """Bytes of all buffers held at present."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self._buffers.values())

    def reset(self) -> None:
        """Give all buffers back; not while an exchange is under way."""
        self._buffers.clear()

    def rows(
        self, lists: HaloLists, tensors: Sequence[Tensor], *, keep: bool = False, exact: Container[int] = ()
    ) -> Iterator[tuple[Piece, tuple[Tensor, ...]]]:
        """The own rows, then every piece of the peers' rows in turn.

        Args:
            tensors: [N, F_t] each, contiguous.
            keep: give every piece memory of its own, so that it outlives the iteration.
            exact: which of the tensors are not rounded on their way.

        Yields:
            (piece, rows): for the own rank ``tensors`` themselves, then for each round one [rows, F_t] for each tensor, also
            where it brings 0 rows. Valid until the next step of the iteration, unless ``keep``.
        """
        group, depth = self.group, self.prefetch_depth
        group.traffic.begun += 1
        tensors = tuple(tensors)
        layout = _Layout.of(tensors, self.wire, exact)
        width, unit = layout.width, tensors[0].new_empty(0, dtype=layout.unit)
        rounds = lists.rounds(group.rank)
        largest_in = max((r.receive_rows for r in rounds), default=0) * width
        largest_out = max((len(r.send) for r in rounds), default=0) * width
        incoming: dict[int, tuple[Tensor, dist.Work | None]] = {}
        outgoing: dict[int, tuple[dist.Work, int]] = {}  # by slot: a slot's last send may lie several rounds back

        def post(r: int) -> None:
            now, slot = rounds[r], r % (1 + depth)
            numel = now.receive_rows * width
            own = keep and not layout.rounds
            message = unit.new_empty(numel) if own else self._buffer("halo", slot, largest_in, numel, unit)
            incoming[r] = (message, group.receive(message, now.piece.peer, ROWS_TAG) if numel else None)
            if len(now.send) * width:
                if slot in outgoing:
                    group.wait(*outgoing.pop(slot), "sending rows")
                message = self._buffer("own", slot, largest_out, len(now.send) * width, unit)
                with self.group.profile.span(PACKING):
                    self.group.profile.work(PACKING, 2 * message.numel() * message.element_size())
                    for tensor, section in zip(tensors, layout.sections(message, len(now.send)), strict=True):
                        take_rows(tensor, now.send, section)
                outgoing[slot] = (group.send(message, now.to, ROWS_TAG), now.to)

        posted = 0
        while posted < min(depth, len(rounds)):
            post(posted)
            posted += 1
        yield Piece(group.rank, 0), tensors
        for r, now in enumerate(rounds):
            while posted < min(r + 1 + depth, len(rounds)):
                post(posted)
                posted += 1
            message, work = incoming.pop(r)
            if work is not None:
                group.wait(work, now.piece.peer, "receiving rows")
            sections = layout.sections(message, now.receive_rows)
            if layout.rounds:
                wide = layout.wide(sections, None if keep else self._room(0, layout, rounds, now.receive_rows, tensors[0]))
                _copy(sections, wide)
                if keep:  # the message is used again
                    wide = tuple(one.clone() if one is given else one for one, given in zip(wide, sections, strict=True))
                sections = wide
                del wide
            yield now.piece, sections
            del message, sections
        for work, peer in outgoing.values():
            group.wait(work, peer, "sending rows")

    def gradients(
        self, lists: HaloLists, targets: Sequence[Tensor], *, beside_rows: bool = False, exact: Container[int] = ()
    ) -> GradientRounds:  # fmt: skip
        """Return gradients to their owners round by round, and add those of the own rows to ``targets``; a context manager.

        Args:
            targets: [N, F_t] each; gradients from the peers are added, in the order of the rounds.
            beside_rows: rows are fetched at the same time: gradients then take buffers of their own and do not run ahead.
            exact: as for ``rows``.
        """
        return GradientRounds(self, lists, tuple(targets), beside_rows, exact)

    def all_rows(
        self, lists: HaloLists, tensors: Sequence[Tensor], outs: Sequence[Tensor], *, exact: Container[int] = ()
    ) -> None:  # fmt: skip
        """All peers' rows in one round.

        Args:
            tensors: [N, F_t] each. outs: [H, F_t] each, written; rows by peer in rank order.
            exact: as for ``rows``.
        """
        layout = _Layout.of(tensors, self.wire, exact)
        with self.group.profile.span(PACKING):
            to_send = [
                tuple(
                    take_rows(tensor, rows, tensor.new_empty(len(rows), tensor.shape[1], dtype=dtype))
                    for tensor, dtype in zip(tensors, layout.dtypes, strict=True)
                ) if len(rows) else ()
                for rows in lists.send_rows
            ]  # fmt: skip
            self.group.profile.work(PACKING, 2 * sum(one.numel() * one.element_size() for part in to_send for one in part))
        to_fill = [tuple(out[start:end] for out in outs) for start, end in _runs(lists.receive_rows)]
        self._one_round(layout, to_send, to_fill, ROWS_TAG, "exchanging rows")

    def all_gradients(
        self, lists: HaloLists, grads: Sequence[Tensor], targets: Sequence[Tensor], *, exact: Container[int] = ()
    ) -> None:  # fmt: skip
        """The adjoint of ``all_rows``: halo gradients return in one round and are added to ``targets`` in rank order.

        Args:
            grads: [H, F_t] each, by peer in rank order. targets: [N, F_t] each.
            exact: as for ``rows``.
        """
        layout = _Layout.of(grads, self.wire, exact)
        for rows, received in zip(lists.send_rows, self._to_owners(lists, grads, layout), strict=True):
            with self.group.profile.span(PACKING):
                for target, grad in zip(targets, received if len(rows) else (), strict=bool(len(rows))):
                    self.group.profile.work(PACKING, 3 * grad.numel() * grad.element_size())
                    add_rows(target, rows, grad)

    def to_owners(self, lists: HaloLists, halos: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Send what halo rows hold here to the ranks that own them, in one round.

        Args:
            halos: [H, F_t] each, by peer in rank order.

        Returns:
            For each peer what it holds of the rows that it needs: [len(send_rows[peer]), F_t] each.
        """
        return self._to_owners(lists, halos, _Layout.of(halos))

    def _to_owners(self, lists: HaloLists, halos: Sequence[Tensor], layout: _Layout) -> list[tuple[Tensor, ...]]:
        to_send = [
            tuple(h[start:end].to(dtype) for h, dtype in zip(halos, layout.dtypes, strict=True)) if end > start else ()
            for start, end in _runs(lists.receive_rows)
        ]
        to_fill = [
            tuple(h.new_empty(len(rows), h.shape[1], dtype=d) for h, d in zip(halos, layout.dtypes, strict=True))
            for rows in lists.send_rows
        ]
        self._one_round(layout, to_send, to_fill, GRADIENTS_TAG, "returning gradients")
        return to_fill

    def _one_round(
        self, layout: _Layout, to_send: list[tuple[Tensor, ...]], to_fill: list[tuple[Tensor, ...]], tag: int, doing: str
    ) -> None:  # fmt: skip
        """``to_send`` has the dtypes in which it travels, ``to_fill`` those or wider ones."""
        group = self.group
        group.traffic.begun += 1
        works: list[tuple[dist.Work, int]] = []
        arrivals: list[tuple[Tensor, tuple[Tensor, ...]]] = []
        for k in range(1, group.world):
            to, source = (group.rank + k) % group.world, (group.rank - k) % group.world
            fill = to_fill[source]
            if any(f.numel() for f in fill):
                message = fill[0]
                if len(fill) > 1 or not message.is_contiguous() or message.dtype != layout.dtypes[0]:
                    message = message.new_empty(len(fill[0]) * layout.width, dtype=layout.unit)
                    arrivals.append((message, fill))
                works.append((group.receive(message, source, tag), source))
            if any(part.numel() for part in to_send[to]):
                parts = to_send[to]
                message = parts[0].contiguous()
                if len(parts) > 1:
                    message = message.new_empty(len(parts[0]) * layout.width, dtype=layout.unit)
                    _copy(parts, layout.sections(message, len(parts[0])))
                works.append((group.send(message, to, tag), to))
        for work, peer in works:
            group.wait(work, peer, doing)
        for message, fill in arrivals:
            _copy(layout.sections(message, len(fill[0])), fill)

    def _buffer(self, kind: str, slot: int, largest: int, numel: int, like: Tensor) -> Tensor:
        key = (kind, slot, like.dtype)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < largest:
            self._buffers.pop(key, None)  # freed before its successor is allocated
            buffer = self._buffers[key] = like.new_empty(largest)
        return buffer[:numel]

    def _room(self, slot: int, layout: _Layout, rounds: list[Round], rows: int, like: Tensor) -> Tensor:
        """Where rows of a piece are computed with that are rounded on their way."""
        width, largest = layout.rounded_width, max(r.receive_rows for r in rounds)
        return self._buffer("wide", slot, largest * width, rows * width, like.new_empty(0, dtype=torch.float32))


class GradientRounds:
    """One exchange of gradients, made by ``Exchange.gradients``: the rounds of ``rows``, with the directions turned round.

    Per piece, in the order of ``pieces``, also for those without rows: write the gradients of its rows into ``buffer``, then
    ``send`` them. Leaving the context waits for what is still under way.
    """

    def __init__(
        self, exchange: Exchange, lists: HaloLists, targets: tuple[Tensor, ...], beside_rows: bool, exact: Container[int]
    ) -> None:  # fmt: skip
        self._exchange, self._targets = exchange, targets
        self._layout = layout = _Layout.of(targets, exchange.wire, exact)
        self._wide_slot = int(beside_rows)
        self._depth = 0 if beside_rows else exchange.prefetch_depth
        self._first_slot = 1 + exchange.prefetch_depth if beside_rows else 0
        self._width, self._unit = layout.width, targets[0].new_empty(0, dtype=layout.unit)
        self._rounds = lists.rounds(exchange.group.rank)
        self._number = {now.piece: r for r, now in enumerate(self._rounds)}
        self._largest_in = max((len(r.send) for r in self._rounds), default=0) * self._width
        self._largest_out = max((r.receive_rows for r in self._rounds), default=0) * self._width
        self._incoming: dict[int, tuple[Tensor, dist.Work]] = {}
        self._outgoing: dict[int, tuple[dist.Work, int]] = {}  # by slot, as in ``Exchange.rows``
        self._messages: dict[int, tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]] = {}
        self._posted = self._added = 0
        self.pieces = tuple(self._number)

    def __enter__(self) -> GradientRounds:
        self._exchange.group.traffic.begun += 1
        self._post_until(1 + self._depth)
        return self

    def buffer(self, piece: Piece) -> tuple[Tensor, ...]:
        """Where the gradients of the piece's rows go: [rows, F_t] for each tensor, to be overwritten."""
        r = self._number[piece]
        slot = r % (1 + self._depth)
        if slot in self._outgoing:
            self._exchange.group.wait(*self._outgoing.pop(slot), "sending gradients")
        rows = self._rounds[r].receive_rows
        message = self._exchange._buffer("halo", self._first_slot + slot, self._largest_out, rows * self._width, self._unit)
        written = sections = self._layout.sections(message, rows)
        if self._layout.rounds:
            room = self._exchange._room(self._wide_slot, self._layout, self._rounds, rows, self._targets[0])
            written = self._layout.wide(sections, room)
        self._messages[r] = message, sections, written
        return written

    def send(self, piece: Piece) -> None:
        """Start sending what was written to ``buffer(piece)``; add what has arrived ``depth`` rounds ago."""
        r = self._number[piece]
        message, sections, written = self._messages.pop(r)
        if message.numel():
            _copy(written, sections)
            work = self._exchange.group.send(message, piece.peer, GRADIENTS_TAG)
            self._outgoing[r % (1 + self._depth)] = (work, piece.peer)
        while self._added + self._depth <= r:
            self._add_next()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            return
        while self._added < len(self._rounds):
            self._add_next()
        for work, peer in self._outgoing.values():
            self._exchange.group.wait(work, peer, "sending gradients")

    def _post_until(self, count: int) -> None:
        while self._posted < min(count, len(self._rounds)):
            r, now = self._posted, self._rounds[self._posted]
            self._posted += 1
            numel = len(now.send) * self._width
            if numel:
                slot = self._first_slot + r % (1 + self._depth)
                message = self._exchange._buffer("own", slot, self._largest_in, numel, self._unit)
                self._incoming[r] = (message, self._exchange.group.receive(message, now.to, GRADIENTS_TAG))

    def _add_next(self) -> None:
        r, now = self._added, self._rounds[self._added]
        self._added += 1
        if r in self._incoming:
            message, work = self._incoming.pop(r)
            self._exchange.group.wait(work, now.to, "receiving gradients")
            with self._exchange.group.profile.span(PACKING):
                self._exchange.group.profile.work(PACKING, 3 * message.numel() * message.element_size())
                for target, section in zip(self._targets, self._layout.sections(message, len(now.send)), strict=True):
                    add_rows(target, now.send, section)
        self._post_until(r + 2 + self._depth)


@dataclass(frozen=True)
class _Layout:
    """How the rows of several tensors [N, F_t] stand in one flat message: one table after the other, the widest dtype first.

    Attributes:
        widths, dtypes: of each tensor's rows as they travel. held: the dtypes that the tensors have.
    """

    widths: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    held: tuple[torch.dtype, ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor], wire: torch.dtype | None = None, exact: Container[int] = ()) -> _Layout:
        """``wire``: what fp32 rows are rounded to on their way, but for the tensors ``exact``; None: nothing is."""
        held = tuple(tensor.dtype for tensor in tensors)
        rounded = (
            dtype if wire is None or t in exact or dtype != torch.float32 else wire for t, dtype in enumerate(held)
        )  # fmt: skip
        return cls(tuple(tensor.shape[1] for tensor in tensors), tuple(rounded), held)

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
        """Contiguous [rows, F_t] views of a message, one for each tensor."""
        if len(self.widths) == 1:
            return (message.view(rows, self.widths[0]),)
        sections, start = {}, 0
        for t in sorted(range(len(self.widths)), key=lambda t: -self.dtypes[t].itemsize):  # each begins where its dtype may
            numel = rows * self.widths[t] * (self.dtypes[t].itemsize // self.unit.itemsize)
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


def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """What is the same tensor on both sides stays."""
    for source, target in zip(sources, targets, strict=True):
        if source is not target:
            target.copy_(source)


def _runs(counts: Sequence[int]) -> list[tuple[int, int]]:
    runs, start = [], 0
    for count in counts:
        runs.append((start, start + count))
        start += count
    return runs
