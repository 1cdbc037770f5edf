"""The way back of the row exchange: gradients of rows return to their owners, round by round.

Letters: N own rows, F features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from torch import Tensor

from sargnn.comm.group import Expected, Work
from sargnn.comm.lists import Arrival, HaloLists, Layout, Piece, Round, copy_sections, most_rows
from sargnn.comm.near import Near
from sargnn.profile import PACKING

if TYPE_CHECKING:
    from sargnn.comm.exchange import Exchange

GRADIENTS_TAG = 2


class GradientRounds:
    """One exchange of gradients, made by ``Exchange.gradients``: the rounds of ``rows``, with the directions turned round.

    ``begin``; then per piece, in the order of ``pieces``, also for those without rows: write the gradients of its rows into
    ``buffer``, then ``send`` them. Leaving the context waits for what is still under way.
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
        self._rounds, self._lists = lists.rounds(exchange.group.rank), lists
        self.arrivals = {now.piece: now for now in lists.arrivals(exchange.group.rank)}
        largest = most_rows(lists, exchange.group.rank)
        self._largest_out, self._largest_in, self._largest_near, self._largest_joined = largest
        self._near_slot = int(beside_rows)
        self._left = Counter(now.to for now in self._rounds if now.send_rows)  # messages to come, by rank
        self._incoming: dict[int, Expected] = {}
        self._outgoing: dict[int, tuple[Work, int]] = {}  # by slot, as in ``Exchange.rows``
        self._sections: tuple[Tensor, ...] = ()
        self._message: Tensor | None = None
        self._written: tuple[Tensor, ...] = ()
        self._posted = self._added = 0
        self.pieces = tuple(self.arrivals)

    def __enter__(self) -> GradientRounds:
        self._held = self._exchange.under_way()
        self._held.__enter__()
        self._exchange.group.traffic.begun += 1
        self._near = Near(self._exchange.group, self._lists, self._targets, self._exchange._show)
        self._post_until(1 + self._depth)
        return self

    def begin(self) -> None:
        """From now on others' gradients are added to ``targets``, to which all of the own shard have been written."""
        self._near.own.pass_turn(self._exchange.group.rank)

    def ready(self, piece: Piece) -> None:
        """Wait until gradients of the piece's rows may be added where their owners run in this process."""
        now = self.arrivals[piece]
        if now.near:
            if piece.peer > self._exchange.group.rank:
                self._add_until(len(self._rounds))  # those of other processes come before these
            self._near.wait_for_turn(now)

    def buffer(self, piece: Piece) -> tuple[Tensor, ...]:
        """Where the gradients of the piece's rows go: [rows, F_t] for each tensor, to be overwritten."""
        self.ready(piece)
        now, like = self.arrivals[piece], self._targets[0]
        if now.joins:
            self._written = self._exchange._joined(self._wide_slot, self._layout, self._largest_joined, now, like)
            return self._written
        if now.near:
            numel = now.rows * self._width
            self._message = self._exchange._near_buffer(self._near_slot, self._largest_near * self._width, numel, self._unit)
        else:
            self._message = self._leaving(now.rounds[0], now.rows)
        self._written = self._sections = self._layout.sections(self._message, now.rows)
        if self._layout.rounds:
            room = self._exchange._room(self._wide_slot, self._layout, self._lists, now, like)
            self._written = self._layout.wide(self._sections, room)
        return self._written

    def _leaving(self, r: int, rows: int) -> Tensor:
        slot = r % (1 + self._depth)
        if slot in self._outgoing:
            self._exchange.group.wait(*self._outgoing.pop(slot), "sending gradients")
        numel, largest = rows * self._width, self._largest_out * self._width
        return self._exchange.outgoing("halo", self._first_slot + slot, largest, numel, self._unit)

    def send(self, piece: Piece) -> None:
        """Start sending what was written to ``buffer(piece)``; add what has arrived ``depth`` rounds ago."""
        now, group, message = self.arrivals[piece], self._exchange.group, self._message
        if message is not None and message.numel():
            copy_sections(self._written, self._sections)
            if now.near:
                self._add_near(now, self._sections)
        for r, (run, at) in zip(now.rounds, now.places(), strict=False):
            if run.rows and self._width:
                if now.joins:
                    message = self._leaving(r, run.rows)
                    with group.profile.span(PACKING):
                        copy_sections([table[at] for table in self._written], self._layout.sections(message, run.rows))
                assert message is not None
                self._outgoing[r % (1 + self._depth)] = group.hand(message, run.peer, GRADIENTS_TAG, r), run.peer
            group.end_round(GRADIENTS_TAG, r)
            self._add_until(r + 1 - self._depth)
        self._message = None
        self._written = self._sections = ()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            return
        self._add_until(len(self._rounds))
        self._near.wait_for_all(self._exchange.group.world)
        for work, peer in self._outgoing.values():
            self._exchange.group.wait(work, peer, "sending gradients")
        self._outgoing.clear()
        self._held.__exit__(None, None, None)
        self._near.leave()

    def _post_until(self, count: int) -> None:
        while self._posted < min(count, len(self._rounds)):
            r, now = self._posted, self._rounds[self._posted]
            self._posted += 1
            numel = now.send_rows * self._width
            if numel:
                slot = self._first_slot + r % (1 + self._depth)
                room = partial(self._exchange.buffer, "own", slot, self._largest_in * self._width, numel, self._unit)
                self._incoming[r] = self._exchange.group.expect(room, numel, self._unit, now.to, GRADIENTS_TAG, r)

    def _add_until(self, count: int) -> None:
        while self._added < count:
            r, now = self._added, self._rounds[self._added]
            self._added += 1
            if r in self._incoming:
                self._add(now, self._incoming.pop(r))
            self._post_until(r + 2 + self._depth)

    def _add(self, now: Round, expected: Expected) -> None:
        group, turn = self._exchange.group, (now.to - self._exchange.group.rank) % self._exchange.group.world
        self._near.wait_for_all(turn)
        message = group.take(expected, "receiving gradients")
        with group.profile.span(PACKING):
            group.profile.work(PACKING, 3 * message.numel() * message.element_size())
            for target, section in zip(self._targets, self._layout.sections(message, now.send_rows), strict=True):
                self._exchange.moves.add(target, now.send, section)
        group.leave(expected)
        self._left[now.to] -= 1
        if not self._left[now.to]:
            self._near.own.pass_turn(group.rank)

    def _add_near(self, now: Arrival, sections: tuple[Tensor, ...]) -> None:
        group = self._exchange.group
        with group.profile.span(PACKING):
            owners, runs, chosen = self._near.rows_of(now)
            group.traffic.sent_bytes += now.rows * self._layout.row_bytes
            group.profile.work(PACKING, 3 * now.rows * self._layout.row_bytes)
            for t, section in enumerate(sections):
                self._exchange.moves.add_runs([owner.tensors[t] for owner in owners], runs, chosen, section)
            for owner, run in zip(owners, now.runs, strict=True):
                if run.ends:
                    owner.pass_turn(run.peer)
