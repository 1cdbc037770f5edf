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
from itertools import accumulate
from types import TracebackType

import torch
from torch import Tensor

from sargnn.backends.base import Moves
from sargnn.comm.group import Group, Work
from sargnn.comm.lists import HaloLists, Layout, Piece, Round, copy_sections
from sargnn.profile import PACKING

ROWS_TAG, GRADIENTS_TAG = 1, 2


class Exchange:
    """Moves rows and gradients between the ranks of a group.

    Args:
        group: the ranks.
        prefetch_depth: d, how many rounds are posted ahead of the one being consumed; 0 overlaps nothing.
        moves: what takes rows into messages, and adds messages to rows.
        wire: what fp32 rows and gradients are rounded to on their way; None: nothing is.
    """

    def __init__(self, group: Group, prefetch_depth: int, moves: Moves, wire: torch.dtype | None = None) -> None:
        self.group = group
        self.moves = moves
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
        layout = Layout.of(tensors, self.wire, exact)
        width, unit = layout.width, tensors[0].new_empty(0, dtype=layout.unit)
        rounds = lists.rounds(group.rank)
        largest_in = max((r.receive_rows for r in rounds), default=0) * width
        largest_out = max((len(r.send) for r in rounds), default=0) * width
        incoming: dict[int, tuple[Tensor, Work | None]] = {}
        outgoing: dict[int, tuple[Work, int]] = {}  # by slot: a slot's last send may lie several rounds back

        def post(r: int) -> None:
            now, slot = rounds[r], r % (1 + depth)
            numel = now.receive_rows * width
            own = keep and not layout.rounds
            message = unit.new_empty(numel) if own else self.buffer("halo", slot, largest_in, numel, unit)
            incoming[r] = (message, group.receive(message, now.piece.peer, ROWS_TAG) if numel else None)
            if len(now.send) * width:
                if slot in outgoing:
                    group.wait(*outgoing.pop(slot), "sending rows")
                message = self.buffer("own", slot, largest_out, len(now.send) * width, unit)
                with self.group.profile.span(PACKING):
                    self.group.profile.work(PACKING, 2 * message.numel() * message.element_size())
                    for tensor, section in zip(tensors, layout.sections(message, len(now.send)), strict=True):
                        self.moves.take(tensor, now.send, section)
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
                copy_sections(sections, wide)
                if keep:  # the message is used again
                    wide = tuple(rows.clone() if rows is given else rows for rows, given in zip(wide, sections, strict=True))
                sections = wide
                del wide
            yield now.piece, sections
            del message, sections
        for work, peer in outgoing.values():
            group.wait(work, peer, "sending rows")

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
        """All peers' rows, piece after piece.

        Args:
            tensors: [N, F_t] each.
            outs: [H, F_t] each, written; rows by peer in rank order.
            exact: as for ``rows``.
        """
        for piece, rows in self.rows(lists, tensors, exact=exact):
            if piece.peer != self.group.rank and len(rows[0]):
                for out, arrived in zip(outs, rows, strict=True):
                    out[lists.places(piece)] = arrived

    def all_gradients(
        self, lists: HaloLists, grads: Sequence[Tensor], targets: Sequence[Tensor], *, exact: Container[int] = ()
    ) -> None:
        """The adjoint of ``all_rows``: halo gradients return and are added to ``targets`` in the order of the rounds.

        Args:
            grads: [H, F_t] each, by peer in rank order.
            targets: [N, F_t] each.
            exact: as for ``rows``.
        """
        with self.gradients(lists, targets, exact=exact) as returning:
            for piece in returning.pieces:
                for room, grad in zip(returning.buffer(piece), grads, strict=True):
                    if len(room):
                        room.copy_(grad[lists.places(piece)])
                returning.send(piece)

    def to_owners(self, lists: HaloLists, halos: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Send what halo rows hold here to the ranks that own them, in one round.

        Args:
            halos: [H, F_t] each, by peer in rank order.

        Returns:
            For each peer what it holds of the rows that it needs: [len(send_rows[peer]), F_t] each.
        """
        group, ends = self.group, list(accumulate(lists.receive_rows))
        group.traffic.begun += 1
        told = [tuple(h.new_empty(len(rows), h.shape[1]) for h in halos) for rows in lists.send_rows]
        works = []
        for k in range(1, group.world):
            asker, owner = (group.rank + k) % group.world, (group.rank - k) % group.world
            for halo, room in zip(halos, told[asker], strict=True):
                if room.numel():
                    works.append((group.receive(room, asker, GRADIENTS_TAG), asker))
                said = halo[ends[owner] - lists.receive_rows[owner] : ends[owner]].contiguous()
                if said.numel():
                    works.append((group.send(said, owner, GRADIENTS_TAG), owner))
        for work, peer in works:
            group.wait(work, peer, "telling owners of rows")
        return told

    def buffer(self, kind: str, slot: int, largest: int, numel: int, like: Tensor) -> Tensor:
        """The first ``numel`` numbers of a buffer that is used again: one for each kind, slot and dtype (``like``).

        Args:
            largest: how many numbers it will be asked for at most in this exchange.
        """
        key = (kind, slot, like.dtype)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < largest:
            self._buffers.pop(key, None)  # freed before its successor is allocated
            buffer = self._buffers[key] = like.new_empty(largest)
        return buffer[:numel]

    def _room(self, slot: int, layout: Layout, rounds: list[Round], rows: int, like: Tensor) -> Tensor:
        """Where rows of a piece are computed with that are rounded on their way."""
        width, largest = layout.rounded_width, max(r.receive_rows for r in rounds)
        return self.buffer("wide", slot, largest * width, rows * width, like.new_empty(0, dtype=torch.float32))


class GradientRounds:
    """One exchange of gradients, made by ``Exchange.gradients``: the rounds of ``rows``, with the directions turned round.

    Per piece, in the order of ``pieces``, also for those without rows: write the gradients of its rows into ``buffer``, then
    ``send`` them. Leaving the context waits for what is still under way.
    """

    def __init__(
        self, exchange: Exchange, lists: HaloLists, targets: tuple[Tensor, ...], beside_rows: bool, exact: Container[int]
    ) -> None:
        self._exchange, self._targets = exchange, targets
        self._layout = layout = Layout.of(targets, exchange.wire, exact)
        self._wide_slot = int(beside_rows)
        self._depth = 0 if beside_rows else exchange.prefetch_depth
        self._first_slot = 1 + exchange.prefetch_depth if beside_rows else 0
        self._width, self._unit = layout.width, targets[0].new_empty(0, dtype=layout.unit)
        self._rounds = lists.rounds(exchange.group.rank)
        self._number = {now.piece: r for r, now in enumerate(self._rounds)}
        self._largest_in = max((len(r.send) for r in self._rounds), default=0) * self._width
        self._largest_out = max((r.receive_rows for r in self._rounds), default=0) * self._width
        self._incoming: dict[int, tuple[Tensor, Work]] = {}
        self._outgoing: dict[int, tuple[Work, int]] = {}  # by slot, as in ``Exchange.rows``
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
        message = self._exchange.buffer("halo", self._first_slot + slot, self._largest_out, rows * self._width, self._unit)
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
            copy_sections(written, sections)
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
                message = self._exchange.buffer("own", slot, self._largest_in, numel, self._unit)
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
                    self._exchange.moves.add(target, now.send, section)
        self._post_until(r + 2 + self._depth)
