"""The row exchange: rows travel to the peers that need them, gradients return to their owners.

In step k = 1 .. P - 1 of rank p rows go to rank p + k and come from p - k; their gradients later go to p - k and come from
p + k. A long list travels in pieces, one a round, so that buffers stay small whatever the partition. Sends and receives
are posted together and ``prefetch_depth`` rounds ahead, so the wire works while the kernel computes. Several tensors
of one exchange (a row and its attention score, say) share one message. Rows without columns are not sent, but every piece
comes in its turn. With ``wire`` fp32 rows and their gradients are rounded to bf16 for their way, and widened when they arrive;
scores are not, nor is anything that stays.

Ranks of one process whose rows are read where they lie (``HaloLists.near``) send nothing: each shows the others its tables, and
one that needs rows takes them from there, several pieces at once; their gradients are added to the owner's tables. One that
shows tables stays until all others have read them, or gives them away.

No deadlock: a rank takes part in every round (k, piece), also in those that bring it nothing; every transfer is posted
without waiting, and a rank waits only for transfers of its current or earlier rounds. Whoever is in the lowest round
waits for peers that have all posted theirs. So it is with windows of rounds (``HaloLists.windows``), whose rows are put
together before they are computed with: all ranks have the same ones, and no row of a window waits for a gradient of it.

Of ranks in one process rows come from those below this one first and from those above it last. So gradients for a rank come
first from those above it, in their order, then from other processes, then from those below it: who adds to a rank below waits
for ranks below, who adds to one above for ranks above.

Memory: 1 + d buffers for the rows of a peer (rows coming in, or their gradients going out) and as many for own rows, each of
the largest piece, given back when the exchange ends. Where rows are fetched while gradients return, one more of each. What is
rounded on its way takes one more of a peer's rows, two of them then, to be widened in. ``HaloLists.buffer_bytes`` says how
much all that is. Buffers for rows of ranks in one process are the process's: one for rows, one for gradients.

Letters: N own rows, H halo rows, F features, P ranks, d prefetch depth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from sargnn.backends.base import Moves
from sargnn.comm.gradient_rounds import GRADIENTS_TAG, GradientRounds
from sargnn.comm.group import MOST_AHEAD, Expected, Group, Work
from sargnn.comm.lists import Arrival, HaloLists, Layout, Piece, copy_sections, most_rows
from sargnn.comm.near import Near, Show, Shown
from sargnn.profile import PACKING

ROWS_TAG = 1
Buffers = dict[tuple[str, int, torch.dtype], Tensor]
Take = Callable[[int, int, Tensor], Tensor]


class Exchange:
    """Moves rows and gradients between the ranks of a group. ``most_held``: bytes of buffers, the most since the last reset.

    Args:
        prefetch_depth: d, at most ``MOST_AHEAD``; 0 overlaps nothing.
        moves: what takes rows into messages, and adds messages to rows.
        wire: what fp32 rows and gradients are rounded to on their way; None: nothing is.
        show: called with tensors that other ranks of this process are about to read or write to; what it returns is called
            when they have (``backends.memory.Pool.show``).
        take: gives memory for buffers (``backends.memory.Pool.empty``): they go back when no exchange is under way, so that a
            layer's other tables may lie there. None: they stay.
    """

    def __init__(
        self,
        group: Group,
        prefetch_depth: int,
        moves: Moves,
        wire: torch.dtype | None = None,
        show: Show = lambda tensors: lambda: None,
        take: Take | None = None,
    ) -> None:
        self.group = group
        self.moves = moves
        self.prefetch_depth = min(prefetch_depth, MOST_AHEAD)
        self.wire = wire
        self.most_held = 0
        self._show, self._take, self._under_way = show, take, 0
        self._given: list[Shown] = []
        self._buffers: Buffers = {}
        self._lent: Buffers = {}
        self._near_buffers: Buffers = group.board.setdefault("buffers", {}) if group.near else {}

    def held_bytes(self) -> int:
        """Bytes of all buffers held at present."""
        return sum(buffer.numel() * buffer.element_size() for buffer in (self._buffers | self._near_buffers).values())

    def reset(self) -> None:
        """Give all buffers back to the system; not while an exchange is under way."""
        self._give_back()
        self.group.clear_lent()
        self._near_buffers.clear()
        self.most_held = 0

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Buffers are held within it."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if self._take is not None and not self._under_way:
                self._give_back()

    def rows(
        self,
        lists: HaloLists,
        tensors: Sequence[Tensor],
        *,
        keep: bool = False,
        exact: Container[int] = (),
        before: Callable[[Piece], None] | None = None,
        given: bool = False,
    ) -> Iterator[tuple[Piece, tuple[Tensor, ...]]]:
        """The own rows, then every piece of the peers' rows in turn.

        Args:
            tensors: [N, F_t] each, contiguous.
            keep: give every piece memory of its own, so that it outlives the iteration.
            exact: which of the tensors are not rounded on their way.
            before: called before a piece of ranks in this process is read: what the consumer would wait for with it in hand.
            given: nobody writes to the tensors any more, so that ranks of this process may still read them afterwards.

        Yields:
            (piece, rows): for the own rank ``tensors`` themselves, then for each round [rows, F_t] for each tensor, also where
            it brings 0 rows. Valid until the next step of the iteration, unless ``keep``.
        """
        with self.under_way():
            yield from self._rows(lists, tuple(tensors), keep, exact, before, given)

    def _rows(
        self,
        lists: HaloLists,
        tensors: tuple[Tensor, ...],
        keep: bool,
        exact: Container[int],
        before: Callable[[Piece], None] | None,
        given: bool,
    ) -> Iterator[tuple[Piece, tuple[Tensor, ...]]]:
        group, depth = self.group, self.prefetch_depth
        group.traffic.begun += 1
        layout = Layout.of(tensors, self.wire, exact)
        width, unit = layout.width, tensors[0].new_empty(0, dtype=layout.unit)
        rounds, arrivals = lists.rounds(group.rank), lists.arrivals(group.rank)
        largest_in, largest_out, largest_near, largest_joined = most_rows(lists, group.rank)
        near = Near(group, lists, tensors, self._show)
        incoming: dict[int, Expected] = {}
        outgoing: dict[int, tuple[Work, int]] = {}  # by slot: a slot's last send may lie several rounds back
        own_memory = keep and not layout.rounds
        posted = 0
        single = [not now.joins for now in arrivals for _ in now.rounds]

        def post(r: int) -> None:
            now, slot = rounds[r], r % (1 + depth)
            numel = now.receive_rows * width
            if numel:
                room = partial(self.buffer, "halo", slot, largest_in * width, numel, unit)
                if own_memory and single[r]:
                    room = partial(unit.new_empty, numel)
                incoming[r] = group.expect(room, numel, unit, now.source, ROWS_TAG, r)
            if now.send_rows * width:
                if slot in outgoing:
                    group.wait(*outgoing.pop(slot), "sending rows")
                message = self.outgoing("own", slot, largest_out * width, now.send_rows * width, unit)
                with self.group.profile.span(PACKING):
                    self.group.profile.work(PACKING, 2 * message.numel() * message.element_size())
                    for tensor, section in zip(tensors, layout.sections(message, now.send_rows), strict=True):
                        self.moves.take(tensor, now.send, section)
                outgoing[slot] = (group.hand(message, now.to, ROWS_TAG, r), now.to)
            group.end_round(ROWS_TAG, r)

        def post_until(count: int) -> None:
            nonlocal posted
            while posted < min(count, len(rounds)):
                post(posted)
                posted += 1

        def take(r: int) -> tuple[Expected | None, Tensor]:
            post_until(r + 1 + depth)
            expected = incoming.pop(r, None)
            return expected, unit.new_empty(0) if expected is None else group.take(expected, "receiving rows")

        def read(now: Arrival) -> Tensor:
            near.wait_for(now)
            if before is not None:
                before(now.piece)
            numel = now.rows * width
            message = unit.new_empty(numel) if own_memory else self._near_buffer(0, largest_near * width, numel, unit)
            sections = layout.sections(message, now.rows)
            with self.group.profile.span(PACKING):
                self.group.profile.work(PACKING, 2 * message.numel() * message.element_size())
                owners, runs, chosen = near.rows_of(now)
                for owner, run in zip(owners, runs, strict=True):
                    owner.traffic.sent_bytes += (run.stop - run.start) * layout.row_bytes
                for t, section in enumerate(sections):
                    self.moves.take_runs([owner.tensors[t] for owner in owners], runs, chosen, section)
            return message

        def join(now: Arrival) -> tuple[Tensor, ...]:
            joined = self._joined(0, layout, largest_joined, now, tensors[0], keep=keep)
            for r, (run, at) in zip(now.rounds, now.places(), strict=True):
                expected, message = take(r)
                if expected is not None:
                    with self.group.profile.span(PACKING):
                        copy_sections(layout.sections(message, run.rows), [table[at] for table in joined])
                    group.leave(expected)
            return joined

        def computed(now: Arrival, message: Tensor) -> tuple[Tensor, ...]:
            sections = layout.sections(message, now.rows)
            if not layout.rounds:
                return sections
            wide = layout.wide(sections, None if keep else self._room(0, layout, lists, now, tensors[0]))
            copy_sections(sections, wide)
            if keep:  # the message is used again
                wide = tuple(rows.clone() if rows is given else rows for rows, given in zip(wide, sections, strict=True))
            return wide

        post_until(depth)
        yield Piece(group.rank, 0), tensors
        for now in arrivals:
            if now.joins:
                yield now.piece, join(now)
                continue
            if now.near:
                yield now.piece, computed(now, read(now))
                continue
            expected, message = take(now.rounds[0])
            if own_memory and expected is not None and expected.shared:
                message = message.clone()
            yield now.piece, computed(now, message)
            del message
            if expected is not None:
                group.leave(expected)
        for work, peer in outgoing.values():
            group.wait(work, peer, "sending rows")
        near.leave(waits=not given)
        if given:
            self._given = [shown for shown in (*self._given, near.own) if shown.readers]

    def wait_for_readers(self) -> None:
        """Wait until all ranks of this process have read what this one has given them."""
        if self._given:
            self.group.until(lambda: not any(shown.readers for shown in self._given), "until others have read")
            self._given = []

    def gradients(
        self, lists: HaloLists, targets: Sequence[Tensor], *, beside_rows: bool = False, exact: Container[int] = ()
    ) -> GradientRounds:
        """Return gradients to their owners round by round, and add those of the own rows to ``targets``; a context manager.

        Args:
            targets: [N, F_t] each; gradients from the peers are added, in the order of the rounds.
            beside_rows: rows are fetched at the same time: gradients then take buffers of their own and do not run ahead.
            exact: as for ``rows``.
        """
        return GradientRounds(self, lists, tuple(targets), beside_rows, exact)

    def all_rows(
        self, lists: HaloLists, tensors: Sequence[Tensor], outs: Sequence[Tensor], *, exact: Container[int] = ()
    ) -> None:
        """All peers' rows, by peer in rank order, into ``outs``, [H, F_t] each; otherwise as ``rows``."""
        arrivals = {now.piece: now for now in lists.arrivals(self.group.rank)}
        for piece, rows in self.rows(lists, tensors, exact=exact):
            if piece in arrivals and len(rows[0]):
                for at, place in lists.places(arrivals[piece]):
                    for out, arrived in zip(outs, rows, strict=True):
                        out[place] = arrived[at]

    def all_gradients(
        self, lists: HaloLists, grads: Sequence[Tensor], targets: Sequence[Tensor], *, exact: Container[int] = ()
    ) -> None:
        """The adjoint of ``all_rows``: gradients [H, F_t] return and are added to ``targets`` [N, F_t], round by round."""
        with self.gradients(lists, targets, exact=exact) as returning:
            returning.begin()
            for piece, now in returning.arrivals.items():
                rooms = returning.buffer(piece)
                if len(rooms[0]):
                    for at, place in lists.places(now):
                        for room, grad in zip(rooms, grads, strict=True):
                            room[at] = grad[place]
                returning.send(piece)

    def to_owners(self, lists: HaloLists, halos: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Send what halo rows ([H, F_t] each, by peer in rank order) hold here to the ranks that own them, in one round. Gives
        for each peer what it holds of the rows that it needs: [len(send_rows[peer]), F_t] each.
        """
        group, ends = self.group, list(accumulate(lists.receive_rows))
        group.traffic.begun += 1
        told = [tuple(h.new_empty(len(rows), h.shape[1]) for h in halos) for rows in lists.send_rows]
        works = []
        for k in range(1, group.world):
            asker, owner = (group.rank + k) % group.world, (group.rank - k) % group.world
            for t, (halo, room) in enumerate(zip(halos, told[asker], strict=True)):
                at = k * len(halos) + t
                if room.numel():
                    works.append((group.receive(room, asker, GRADIENTS_TAG, at), asker))
                said = halo[ends[owner] - lists.receive_rows[owner] : ends[owner]].contiguous()
                if said.numel():
                    works.append((group.send(said, owner, GRADIENTS_TAG, at), owner))
                group.end_round(GRADIENTS_TAG, at)
        for work, peer in works:
            group.wait(work, peer, "telling owners of rows")
        return told

    def buffer(self, kind: str, slot: int, largest: int, numel: int, like: Tensor) -> Tensor:
        """The first ``numel`` numbers of a buffer that is used again: one for each kind, slot and dtype (``like``).
        ``largest``: how many numbers it will be asked for at most in this exchange.
        """
        return self._of(self._buffers, (kind, slot, like.dtype), largest, numel, like)

    def outgoing(self, kind: str, slot: int, largest: int, numel: int, like: Tensor) -> Tensor:
        """``buffer``, for what goes out: the memory is shared with peers where that is possible."""
        key = (kind, slot, like.dtype)
        if key not in self._buffers or self._buffers[key].numel() < largest:
            if key in self._lent:
                self.group.take_back(self._lent.pop(key))
            room = self.group.lend(largest, like)
            if room is not None:
                self._buffers[key] = self._lent[key] = room
                self.most_held = max(self.most_held, self.held_bytes())
        return self.buffer(kind, slot, largest, numel, like)

    def _give_back(self) -> None:
        for room in self._lent.values():
            self.group.take_back(room)
        self._lent.clear()
        self._buffers.clear()

    def _near_buffer(self, slot: int, largest: int, numel: int, like: Tensor) -> Tensor:
        """The same for all ranks of this process: it is in use while one of them has the turn."""
        return self._of(self._near_buffers, ("near", slot, like.dtype), largest, numel, like)

    def _room(self, slot: int, layout: Layout, lists: HaloLists, now: Arrival, like: Tensor) -> Tensor:
        """Where rows of a piece are computed with that are rounded on their way."""
        arrivals = lists.arrivals(self.group.rank)
        largest = max(arrival.rows for arrival in arrivals if arrival.near == now.near and not arrival.joins)
        key, width = ("wide", slot, torch.float32), layout.rounded_width
        buffers, like = self._near_buffers if now.near else self._buffers, like.new_empty(0, dtype=torch.float32)
        return self._of(buffers, key, largest * width, now.rows * width, like)

    def _joined(
        self, slot: int, layout: Layout, largest: int, now: Arrival, like: Tensor, *, keep: bool = False
    ) -> tuple[Tensor, ...]:
        """Where the at most ``largest`` rows of a piece of several messages lie, in the dtypes that they are computed with."""
        held = dataclasses.replace(layout, dtypes=layout.held)
        numel, unit = now.rows * held.width, like.new_empty(0, dtype=held.unit)
        room = unit.new_empty(numel) if keep else self.buffer("joined", slot, largest * held.width, numel, unit)
        return held.sections(room, now.rows)

    def _of(self, buffers: Buffers, key: tuple[str, int, torch.dtype], largest: int, numel: int, like: Tensor) -> Tensor:
        buffer = buffers.get(key)
        if buffer is None or buffer.numel() < largest:
            buffers.pop(key, None)  # freed before its successor is allocated
            del buffer
            take = self._take if buffers is self._buffers else None
            buffers[key] = buffer = like.new_empty(largest) if take is None else take(1, largest, like).view(-1)
            self.most_held = max(self.most_held, self.held_bytes())
        return buffer[:numel]
