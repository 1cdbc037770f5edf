"""The exchange of partial results: who owns the sources of an edge aggregates it, and sends the result.

A worker whose output rows have edges from a peer's rows asks the peer for the partial results of some of them, and says what
these depend on (a score, the gradient of the output); the peer computes them from its own rows and answers. Requests and
answers may be empty: a sum needs no request, its gradient no answer.

In step k = 1 .. P - 1 of rank p it computes for p + k, and p - k computes for it. Long lists go in pieces, one a round.
Requests are posted d rounds before the results are computed, and these d rounds before they are merged (d = prefetch depth), so
that both are on their way while others are computed. No deadlock, for the reason that ``comm.exchange`` gives.

Memory: 1 + d buffers each for requests that go out and come in, and for answers, of the largest piece
(``PartialLists.buffer_bytes``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from sargnn.comm.exchange import Exchange
from sargnn.comm.group import Work
from sargnn.comm.lists import Columns, Layout, PartialLists, PartialRound, Piece, copy_sections
from sargnn.profile import PACKING

ASK_TAG, ANSWER_TAG = 4, 5
Tensors = tuple[Tensor, ...]
Ask = Callable[[PartialRound, Tensors], None]
"""Writes the request for a round's ``wanted`` rows: [rows, width] for each column."""
Serve = Callable[[Piece, Tensors, Tensors], None]
"""Computes the answers for a piece of a peer's rows, from its requests: [rows, width] for each column, to be overwritten."""


class PartialRounds:
    """One exchange: ``begin``, then iterate to the end.

    Args:
        asked, answered: what travels for each row: requests and answers; () for nothing.
        ask, serve: see their types; called in the order of the rounds.
        like: any tensor on the device of the rows.
    """

    def __init__(
        self, exchange: Exchange, lists: PartialLists, asked: Columns, answered: Columns, ask: Ask, serve: Serve, like: Tensor
    ) -> None:
        self._exchange, self._group, self._depth = exchange, exchange.group, exchange.prefetch_depth
        self._rounds = lists.rounds(exchange.group.rank)
        self._asked, self._answered = (
            _Messages(exchange, columns, kind, self._rounds, like)
            for columns, kind in ((asked, "request"), (answered, "answer"))
        )
        self._ask, self._serve = ask, serve
        self._requests: dict[int, tuple[Tensor, Work]] = {}
        self._answers: dict[int, tuple[Tensor, Work]] = {}
        self._num_asked = self._num_served = 0

    def begin(self, *, serve: bool) -> None:
        """Post what comes first. ``serve``: also compute what peers get first; else only requests are sent."""
        self._group.traffic.begun += 1
        if serve:
            self._serve_until(self._depth)
        self._ask_until(self._num_served + self._depth)

    def __iter__(self) -> Iterator[tuple[PartialRound, Tensors]]:
        """Compute what peers ask for, and yield every round with the answers for its ``wanted`` rows, where there are any:
        [rows, width] for each column. Valid until the next step.
        """
        for r, now in enumerate(self._rounds):
            self._serve_until(r + 1 + self._depth)
            self._ask_until(self._num_served + self._depth)
            if r in self._answers:
                message, work = self._answers.pop(r)
                self._group.wait(work, now.piece.peer, "receiving partial results")
                yield now, self._answered.read(message, len(now.wanted))
        for messages in (self._asked, self._answered):
            messages.finish()

    def _ask_until(self, count: int) -> None:
        while self._num_asked < min(count, len(self._rounds)):
            r, self._num_asked = self._num_asked, self._num_asked + 1
            if not self._asked.layout:
                continue
            now, slot = self._rounds[r], r % (1 + self._depth)
            if now.served:
                message = self._asked.arriving(slot, now.served)
                self._requests[r] = message, self._group.receive(message, now.to.peer, ASK_TAG, r)
            if len(now.wanted):
                message, sections = self._asked.leaving(slot, len(now.wanted))
                with self._group.profile.span(PACKING):
                    self._group.profile.work(PACKING, 2 * message.numel() * message.element_size())
                    self._ask(now, sections)
                self._asked.send(r, message, sections, now.piece.peer, ASK_TAG)
            self._group.end_round(ASK_TAG, r)

    def _serve_until(self, count: int) -> None:
        while self._num_served < min(count, len(self._rounds)):
            self._ask_until(self._num_served + 1 + self._depth)  # no more than there are buffers
            r, self._num_served = self._num_served, self._num_served + 1
            now, slot = self._rounds[r], r % (1 + self._depth)
            if self._answered.layout and len(now.wanted):
                message = self._answered.arriving(slot, len(now.wanted))
                self._answers[r] = message, self._group.receive(message, now.piece.peer, ANSWER_TAG, r)
            if not now.served:
                self._group.end_round(ANSWER_TAG, r)
                continue
            requests: Tensors = ()
            if r in self._requests:
                message, work = self._requests.pop(r)
                self._group.wait(work, now.to.peer, "receiving requests")
                requests = self._asked.read(message, now.served)
            if self._answered.layout:
                message, sections = self._answered.leaving(slot, now.served)
                self._serve(now.to, requests, sections)
                self._answered.send(r, message, sections, now.to.peer, ANSWER_TAG)
                self._group.end_round(ANSWER_TAG, r)
            else:
                self._serve(now.to, requests, ())


class _Messages:
    """The requests or the answers of an exchange: their buffers, and what is still being sent."""

    def __init__(self, exchange: Exchange, columns: Columns, kind: str, rounds: list[PartialRound], like: Tensor) -> None:
        self._exchange, self._kind = exchange, kind
        self.layout = Layout.of_columns(columns, exchange.wire) if columns else None
        served, wanted = max((r.served for r in rounds), default=0), max((len(r.wanted) for r in rounds), default=0)
        self._most_in, self._most_out = (served, wanted) if kind == "request" else (wanted, served)
        self._like = like.new_empty(0, dtype=torch.uint8)  # layers with other formats use the same buffers
        self._sent: dict[int, tuple[Work, int]] = {}

    def arriving(self, slot: int, rows: int) -> Tensor:
        assert self.layout is not None
        width = self.layout.row_bytes
        return self._exchange.buffer(f"{self._kind} in", slot, self._most_in * width, rows * width, self._like)

    def read(self, message: Tensor, rows: int) -> Tensors:
        """What has arrived, as it is computed with."""
        assert self.layout is not None
        sections = self.layout.sections(message, rows)
        if not self.layout.rounds:
            return sections
        wide = self._wide(sections, rows)
        copy_sections(sections, wide)
        return wide

    def leaving(self, slot: int, rows: int) -> tuple[Tensor, Tensors]:
        """A message to be sent, and where its parts are written."""
        assert self.layout is not None
        if slot in self._sent:
            self._exchange.group.wait(*self._sent.pop(slot), f"sending {self._kind}s")
        width = self.layout.row_bytes
        message = self._exchange.buffer(f"{self._kind} out", slot, self._most_out * width, rows * width, self._like)
        sections = self.layout.sections(message, rows)
        return message, self._wide(sections, rows) if self.layout.rounds else sections

    def send(self, r: int, message: Tensor, written: Tensors, peer: int, tag: int) -> None:
        assert self.layout is not None
        if self.layout.rounds:
            copy_sections(written, self.layout.sections(message, len(written[0])))
        slot = r % (1 + self._exchange.prefetch_depth)
        self._sent[slot] = self._exchange.group.send(message, peer, tag, r), peer

    def finish(self) -> None:
        for work, peer in self._sent.values():
            self._exchange.group.wait(work, peer, f"sending {self._kind}s")
        self._sent.clear()

    def _wide(self, sections: Tensors, rows: int) -> Tensors:
        """Room for what is rounded on its way; one for requests and one for answers, in use from one call to the next."""
        assert self.layout is not None
        width, most = self.layout.rounded_width, max(self._most_in, self._most_out)
        like = self._like.new_empty(0, dtype=torch.float32)
        room = self._exchange.buffer(f"wide {self._kind}", 0, most * width, rows * width, like)
        return self.layout.wide(sections, room)
