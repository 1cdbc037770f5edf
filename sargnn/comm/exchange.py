"""The row exchange: rows travel to the peers that need them, errors travel home.

Round k = 1 .. P - 1 of rank p: rows go to rank p + k and come from p - k; their errors later go to p - k and come from
p + k. Sends and receives are posted together and ``prefetch_depth`` rounds ahead, so the wire works while the kernel
computes. Several tensors of one exchange (a row and its attention score, say) share one message per peer.

No deadlock: every transfer is posted without waiting, and a rank waits only for transfers of its current or earlier
rounds; whoever is in the lowest round waits for peers that have all posted theirs.

Memory: 1 + d buffers for the rows of a peer (rows coming in, or their errors going out) and as many for own rows (rows
going out, or errors coming in), each of the largest message, reused over layers and epochs (d = prefetch depth). Where
rows are fetched while errors go home, one more of each. ``HaloLists.buffer_bytes`` says how much that is. The
consumer's rows are valid until it asks for the next ones.

Letters: N own rows, H halo rows, F features, P ranks, d prefetch depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.comm.rows import add_rows

ROWS_TAG, ERRORS_TAG = 1, 2


@dataclass(frozen=True)
class HaloLists:
    """Who needs which rows of whom.

    Attributes:
        send_rows: per peer, int32 own rows that it needs, ascending; empty for the own rank.
        receive_rows: per peer, how many of its rows are needed here; 0 for the own rank.
    """

    send_rows: tuple[Tensor, ...]
    receive_rows: tuple[int, ...]

    @property
    def halo_rows(self) -> int:
        """H, all peers together."""
        return sum(self.receive_rows)

    @property
    def sent_rows(self) -> int:
        """Rows that this rank sends in one exchange, all peers together."""
        return sum(len(rows) for rows in self.send_rows)

    def buffer_bytes(self, width: int, itemsize: int, prefetch_depth: int, *, refetch: bool = False) -> int:
        """Bytes that an exchange of rows ``width`` wide holds at most.

        Args:
            refetch: the backward pass fetches rows again, while errors go home (case 2).
        """
        slots = min(1 + prefetch_depth, len(self.send_rows) - 1)
        if refetch and slots:
            slots += 1
        largest = max(self.receive_rows) + max(len(rows) for rows in self.send_rows)
        return slots * largest * width * itemsize


class Exchange:
    """Moves rows and errors between the ranks of a group.

    Args:
        group: the ranks.
        prefetch_depth: d, how many rounds are posted ahead of the one being consumed; 0 overlaps nothing.
    """

    def __init__(self, group: Group, prefetch_depth: int) -> None:
        self.group = group
        self.prefetch_depth = prefetch_depth
        self._buffers: dict[tuple[str, int, torch.dtype], Tensor] = {}

    def held_bytes(self) -> int:
        """Bytes of all buffers held at present."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self._buffers.values())

    def rows(
        self, lists: HaloLists, tensors: Sequence[Tensor], *, keep: bool = False
    ) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """Each peer's rows in turn, the own rows first.

        Args:
            tensors: [N, F_t] each, contiguous, of one dtype.
            keep: give every peer's rows memory of their own, so that they outlive the iteration.

        Yields:
            (peer, rows): for the own rank ``tensors`` themselves, then per peer one [H_peer, F_t] for each tensor, also
            where H_peer is 0. Valid until the next step of the iteration, unless ``keep``.
        """
        group, depth = self.group, self.prefetch_depth
        tensors = tuple(tensors)
        width = sum(t.shape[1] for t in tensors)
        largest_in = max(lists.receive_rows) * width
        largest_out = max(len(rows) for rows in lists.send_rows) * width
        incoming: dict[int, tuple[Tensor, dist.Work | None]] = {}
        outgoing: dict[int, tuple[dist.Work, int]] = {}  # by slot: a slot's last send may lie several rounds back

        def post(k: int) -> None:
            to, source = (group.rank + k) % group.world, (group.rank - k) % group.world
            slot = k % (1 + depth)
            numel = lists.receive_rows[source] * width
            if keep:
                message = tensors[0].new_empty(numel)
            else:
                message = self._buffer("halo", slot, largest_in, numel, tensors[0])
            incoming[k] = (message, group.receive(message, source, ROWS_TAG) if numel else None)
            rows = lists.send_rows[to]
            if len(rows):
                if slot in outgoing:
                    group.wait(*outgoing.pop(slot), "sending rows")
                message = self._buffer("own", slot, largest_out, len(rows) * width, tensors[0])
                for tensor, section in zip(tensors, _sections(message, len(rows), tensors), strict=True):
                    torch.index_select(tensor, 0, rows, out=section)
                outgoing[slot] = (group.send(message, to, ROWS_TAG), to)

        posted = 0
        while posted < min(depth, group.world - 1):
            posted += 1
            post(posted)
        yield group.rank, tensors
        for k in range(1, group.world):
            while posted < min(k + depth, group.world - 1):
                posted += 1
                post(posted)
            source = (group.rank - k) % group.world
            message, work = incoming.pop(k)
            if work is not None:
                group.wait(work, source, "receiving rows")
            yield source, _sections(message, lists.receive_rows[source], tensors)
            del message
        for work, peer in outgoing.values():
            group.wait(work, peer, "sending rows")

    def errors(self, lists: HaloLists, targets: Sequence[Tensor], *, beside_rows: bool = False) -> ErrorRounds:
        """Send errors home round by round and add those of the own rows to ``targets``; use as a context manager.

        Args:
            targets: [N, F_t] each; errors from the peers are added, in the order of the rounds.
            beside_rows: rows are fetched at the same time: errors then take buffers of their own and do not run ahead.
        """
        return ErrorRounds(self, lists, tuple(targets), beside_rows)

    def all_rows(self, lists: HaloLists, tensors: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        """All peers' rows in one round.

        Args:
            tensors: [N, F_t] each. outs: [H, F_t] each, written; rows by peer in rank order.
        """
        to_send = [
            tuple(torch.index_select(tensor, 0, rows) for tensor in tensors) if len(rows) else () for rows in lists.send_rows
        ]
        to_fill = [tuple(out[start:end] for out in outs) for start, end in _spans(lists.receive_rows)]
        self._one_round(to_send, to_fill, ROWS_TAG, "exchanging rows")

    def all_errors(self, lists: HaloLists, errors: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """The adjoint of ``all_rows``: halo errors go home in one round and are added to ``targets`` in rank order.

        Args:
            errors: [H, F_t] each, by peer in rank order. targets: [N, F_t] each.
        """
        to_send = [tuple(e[start:end] for e in errors) if end > start else () for start, end in _spans(lists.receive_rows)]
        to_fill = [tuple(t.new_empty(len(rows), t.shape[1]) for t in targets) for rows in lists.send_rows]
        self._one_round(to_send, to_fill, ERRORS_TAG, "exchanging errors")
        for rows, received in zip(lists.send_rows, to_fill, strict=True):
            if len(rows):
                for target, error in zip(targets, received, strict=True):
                    add_rows(target, rows, error)

    def _one_round(self, to_send: list[tuple[Tensor, ...]], to_fill: list[tuple[Tensor, ...]], tag: int, doing: str) -> None:
        group = self.group
        works: list[tuple[dist.Work, int]] = []
        arrivals: list[tuple[Tensor, tuple[Tensor, ...]]] = []
        for k in range(1, group.world):
            to, source = (group.rank + k) % group.world, (group.rank - k) % group.world
            fill = to_fill[source]
            if fill and fill[0].shape[0]:
                message = fill[0]
                if len(fill) > 1 or not message.is_contiguous():
                    message = fill[0].new_empty(sum(f.numel() for f in fill))
                    arrivals.append((message, fill))
                works.append((group.receive(message, source, tag), source))
            if to_send[to]:
                parts = to_send[to]
                message = parts[0].contiguous() if len(parts) == 1 else torch.cat([p.reshape(-1) for p in parts])
                works.append((group.send(message, to, tag), to))
        for work, peer in works:
            group.wait(work, peer, doing)
        for message, fill in arrivals:
            for target, section in zip(fill, _sections(message, fill[0].shape[0], fill), strict=True):
                target.copy_(section)

    def _buffer(self, kind: str, slot: int, largest: int, numel: int, like: Tensor) -> Tensor:
        key = (kind, slot, like.dtype)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < largest:
            self._buffers.pop(key, None)  # freed before its successor is allocated
            buffer = self._buffers[key] = like.new_empty(largest)
        return buffer[:numel]


class ErrorRounds:
    """One exchange of errors, made by ``Exchange.errors``.

    Per peer, in the order of the rounds (``peers``): write the peer's errors into ``buffer``, then ``send`` them.
    Leaving the context waits for what is still under way.
    """

    def __init__(self, exchange: Exchange, lists: HaloLists, targets: tuple[Tensor, ...], beside_rows: bool) -> None:
        self._exchange, self._lists, self._targets = exchange, lists, targets
        self._depth = 0 if beside_rows else exchange.prefetch_depth
        self._first_slot = 1 + exchange.prefetch_depth if beside_rows else 0
        group = exchange.group
        self._width = sum(t.shape[1] for t in targets)
        self._largest_in = max(len(rows) for rows in lists.send_rows) * self._width
        self._largest_out = max(lists.receive_rows) * self._width
        self._incoming: dict[int, tuple[Tensor, dist.Work | None]] = {}
        self._outgoing: dict[int, tuple[dist.Work, int]] = {}  # by slot, as in ``Exchange.rows``
        self._messages: dict[int, Tensor] = {}
        self._posted = self._added = 0
        self.peers = tuple((group.rank - k) % group.world for k in range(1, group.world))

    def __enter__(self) -> ErrorRounds:
        self._post_until(1 + self._depth)
        return self

    def buffer(self, peer: int) -> tuple[Tensor, ...]:
        """Where the errors of ``peer``'s rows go: [H_peer, F_t] for each tensor, to be overwritten."""
        group = self._exchange.group
        k = self._round(peer)
        slot = k % (1 + self._depth)
        if slot in self._outgoing:
            group.wait(*self._outgoing.pop(slot), "sending errors")
        rows = self._lists.receive_rows[peer]
        message = self._exchange._buffer(
            "halo", self._first_slot + slot, self._largest_out, rows * self._width, self._targets[0]
        )
        self._messages[k] = message
        return _sections(message, rows, self._targets)

    def send(self, peer: int) -> None:
        """Start sending what was written to ``buffer(peer)``; add what has arrived ``depth`` rounds ago."""
        k = self._round(peer)
        message = self._messages.pop(k)
        if message.numel():
            work = self._exchange.group.send(message, peer, ERRORS_TAG)
            self._outgoing[k % (1 + self._depth)] = (work, peer)
        if k > self._depth:
            self._add_next()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            return
        group = self._exchange.group
        while self._added < group.world - 1:
            self._add_next()
        for work, peer in self._outgoing.values():
            group.wait(work, peer, "sending errors")

    def _round(self, peer: int) -> int:
        return (self._exchange.group.rank - peer) % self._exchange.group.world

    def _post_until(self, last: int) -> None:
        group = self._exchange.group
        while self._posted < min(last, group.world - 1):
            self._posted += 1
            k = self._posted
            source = (group.rank + k) % group.world
            numel = len(self._lists.send_rows[source]) * self._width
            slot = self._first_slot + k % (1 + self._depth)
            message = self._exchange._buffer("own", slot, self._largest_in, numel, self._targets[0])
            self._incoming[k] = (message, group.receive(message, source, ERRORS_TAG) if numel else None)

    def _add_next(self) -> None:
        group = self._exchange.group
        self._added += 1
        k = self._added
        message, work = self._incoming.pop(k)
        if work is not None:
            source = (group.rank + k) % group.world
            group.wait(work, source, "receiving errors")
            rows = self._lists.send_rows[source]
            for target, section in zip(self._targets, _sections(message, len(rows), self._targets), strict=True):
                add_rows(target, rows, section)
        self._post_until(k + 1 + self._depth)


def _sections(message: Tensor, rows: int, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Contiguous [rows, F_t] views of a flat message, one for each tensor of ``like``."""
    if len(like) == 1:
        return (message.view(rows, like[0].shape[1]),)
    sections, start = [], 0
    for tensor in like:
        numel = rows * tensor.shape[1]
        sections.append(message[start : start + numel].view(rows, tensor.shape[1]))
        start += numel
    return tuple(sections)


def _spans(counts: Sequence[int]) -> list[tuple[int, int]]:
    spans, start = [], 0
    for count in counts:
        spans.append((start, start + count))
        start += count
    return spans
