"""Scores of pairs whose two ends may be on different workers, and their gradients: rows travel piece by piece.

A pair is scored where its head is. Its tail's row is fetched with all others of that worker, each once however many pairs it
is in, scored and dropped; the backward pass fetches it again, scores the pair again and sends the row's gradient back. So a
worker holds its own rows, a piece of others' and a few thousand pairs' rows of scratch: this is algorithm 2 of SAR with a
decoder in the place of a message. Of a score s(h, t; w) with the gradient g of the loss,

    dL/dh = sum over pairs of h of g ds/dh      dL/dt = sum over pairs of t of g ds/dt      dL/dw = sum over all of g ds/dw

all in fixed order: own tails first, then the pieces in the order of the exchange. A score may be several numbers; g ds/dh
then is their sum. Who asks for a pair's score need not have its head: questions are sent to where it is, and scores come back.

Letters: N own rows, M output rows, F width of a row, S pairs that are scored here, A pairs that this worker asks for, P ranks,
C numbers of a score, D of what a pair itself has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sargnn.bf16 import wide
from sargnn.comm.collectives import swap
from sargnn.comm.directory import by_rank
from sargnn.comm.exchange import Exchange
from sargnn.comm.group import Group
from sargnn.comm.lists import HaloLists, Piece
from sargnn.native import Entry
from sargnn.tasks.decoders import Dot

_arrange = Entry(
    "arrange_pairs",
    "pairs i S 4, rank int, by_head int, order i S, heads i S, tails i S, relation l, wanted i S, counts l W",
)
_SCRATCH_NUMBERS = 1 << 17
"""Of the rows of pairs that are scored at a time."""
SCRATCH_BYTES = 8 * 4 * _SCRATCH_NUMBERS
"""Of these rows, what a decoder makes of them, and gradients, in fp32."""
PAIR_BYTES = 88
"""Of a pair while it is looked for who scores it, measured: more than its lists, score and gradient take later. What a step's
tables lie in is there meanwhile."""
HELD_BYTES = 20
"""Of a pair in ``PairLists``."""


@dataclass(frozen=True)
class PairLists:
    """The pairs that are scored on this worker, sorted by their tails' owner and row, and what travels for them.

    Attributes:
        heads: int32 [S], rows of the table that is scored.
        tails: int32 [S], rows of the same table of own tails, which come first; else places among all halo rows.
        relation: int64 [S].
        num_own: how many tails are own rows.
        lists: which rows travel.
        order: int32 [S], where each pair's score stands in what goes back: first what rank 0 asks for, and so on; of one
            worker empty.
        asked, given: how many each rank asks this one for, and this one each.
        back: int32 [A], where each answer stands among those of all ranks.
    """

    heads: Tensor
    tails: Tensor
    relation: Tensor
    num_own: int
    lists: HaloLists
    order: Tensor
    asked: tuple[int, ...]
    given: tuple[int, ...]
    back: Tensor

    def rows(self) -> np.ndarray:
        """int64 ascending: the own rows that any worker's pairs have at an end."""
        ends = [self.heads, self.tails[: self.num_own], *self.lists.send_rows]
        return np.unique(torch.cat(ends).cpu().numpy()).astype(np.int64)

    def among(self, output_rows: Tensor | None) -> PairLists:
        """The same pairs, rows numbered among output rows.

        ``output_rows``: int64 [M], distinct own rows, among them all that ``rows`` gives; None: all own rows, in their order.
        """
        if output_rows is None:
            return self
        rows = self.rows()
        place = torch.zeros(
            int(max(rows.max(initial=0), int(output_rows.max()) if len(output_rows) else 0)) + 1, dtype=torch.int64
        )
        place = place.to(output_rows.device)
        place[output_rows] = torch.arange(len(output_rows), device=output_rows.device)
        tails = torch.cat([place[self.tails[: self.num_own]], self.tails[self.num_own :]])
        send = tuple(place[rows].int() for rows in self.lists.send_rows)
        lists = HaloLists(send, self.lists.receive_rows, self.lists.message_rows, self.lists.near)
        return dataclasses.replace(self, heads=place[self.heads], tails=tails, lists=lists)

    def answer(self, group: Group, scores: Tensor) -> Tensor:
        """Scores [S] or [S, C] as they were asked for, [A] or [A, C]; all workers call it together."""
        if group.world == 1:
            return scores[self.back]
        ready = torch.empty_like(scores)
        ready[self.order] = scores
        answers = swap(group, [piece.cpu().numpy() for piece in ready.split(self.asked)], "sending scores")
        return torch.from_numpy(np.concatenate(answers)).to(scores.device)[self.back]

    def spread(self, group: Group, gradients: Tensor) -> Tensor:
        """Gradients of what was asked for, [A, ...], where the pairs are scored, [S, ...]: the transpose of ``answer``. It also
        takes features of pairs to where they are scored.
        """
        if group.world == 1:
            out = torch.empty_like(gradients)
            out[self.back] = gradients
            return out
        ready = torch.empty_like(gradients)
        ready[self.back] = gradients
        answers = swap(group, [piece.cpu().numpy() for piece in ready.split(self.given)], "sending gradients of scores")
        return torch.from_numpy(np.concatenate(answers)).to(gradients.device)[self.order]


def route(
    group: Group,
    asked: np.ndarray,
    head_ranks: np.ndarray,
    message_rows: int,
    near: range,
    device: torch.device,
    *,
    several: bool,
) -> PairLists:
    """Find who scores which pairs, and which rows travel for it. All workers must call it together.

    Args:
        asked: int32 [A, 4], pairs whose scores this worker asks for: the head's row where it is; the tail's rank and row there;
            the relation.
        head_ranks: int64 [A], whose rows the heads are.
        message_rows, near: as of ``HaloLists``.
        device: where rows lie.
        several: whether there may be several relations, the same on all workers.
    """
    rank, world = group.rank, group.world
    pieces, given = [asked], [len(asked)]
    if world > 1:
        by_head, places = by_rank(head_ranks, world)
        pieces, given = swap(group, [asked[piece] for piece in places], "asking for scores"), [len(piece) for piece in places]
    received = np.concatenate(pieces) if world > 1 else asked
    order, heads, tails, wanted = (np.empty(len(received), np.int32) for _ in range(4))
    relation, counts = np.empty(len(received) if several else 0, np.int64), np.empty(world, np.int64)
    num_own = _arrange(received, rank, world > 1, order, heads, tails, relation, wanted, counts)
    rows = np.split(wanted[: counts.sum()], np.cumsum(counts[:-1]))
    sends = swap(group, rows, "asking for rows of pairs") if world > 1 else rows
    asked_order = by_head if world > 1 else order  # world 1: what goes back is in the order in which it is scored
    back = np.empty(len(asked_order), np.int32)
    back[asked_order] = np.arange(len(back), dtype=np.int32)

    def on_device(array: np.ndarray, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.from_numpy(array).to(device, dtype)

    nothing = torch.zeros(1, dtype=torch.int64, device=device).expand(len(heads))
    return PairLists(
        heads=on_device(heads),
        tails=on_device(tails),
        relation=on_device(relation, torch.int64) if several else nothing,
        num_own=num_own,
        lists=HaloLists(tuple(on_device(rows) for rows in sends), tuple(counts.tolist()), message_rows, near),
        order=on_device(order if world > 1 else order[:0]),
        asked=tuple(map(len, pieces)),
        given=tuple(given),
        back=on_device(back),
    )


def score_pairs(
    exchange: Exchange,
    pairs: PairLists,
    rows: Tensor,
    decoder: nn.Module,
    features: Tensor | None = None,
    shape: tuple[int, ...] = (),
) -> Tensor:
    """The scores that this worker asks for, [A], in fp32 where rows are bf16; differentiable in the rows and the decoder.

    All workers must call it together, and its backward pass likewise.

    Args:
        pairs: numbered as the rows are.
        rows: [M, F].
        decoder: takes heads [n, F], tails [n, F], relations int64 [n] and, if there are some, features [n, D], and gives [n].
        features: [S, D], of the pairs that are scored here, without a gradient.
        shape: (C,) where it gives [n, C].
    """
    return _Scores.apply(rows, exchange, pairs, decoder, features, shape, *decoder.parameters())


def _runs(pairs: PairLists, rank: int, piece: Piece) -> Iterator[tuple[slice, int]]:
    """The pairs whose tails are in a piece, and what to take from their places to find them there."""
    if piece.peer == rank:
        yield slice(0, pairs.num_own), 0
        return
    places = pairs.tails[pairs.num_own :]
    now = next(now for now in pairs.lists.arrivals(rank) if now.piece == piece)
    for at, among in pairs.lists.places(now):
        first, last = torch.searchsorted(places, torch.tensor([among.start, among.stop], device=places.device)).tolist()
        yield slice(pairs.num_own + first, pairs.num_own + last), among.start - at.start


def _chunks(run: slice, width: int) -> Iterator[slice]:
    size = max(1, _SCRATCH_NUMBERS // max(1, width))
    for first in range(run.start, run.stop, size):
        yield slice(first, min(first + size, run.stop))


def _of(features: Tensor | None, chunk: slice) -> tuple[Tensor, ...]:
    return () if features is None else (features[chunk],)


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        exchange: Exchange,
        pairs: PairLists,
        decoder: nn.Module,
        features: Tensor | None,
        shape: tuple[int, ...],
        *parameters: Tensor,
    ) -> Tensor:
        dtype, rows = wide(rows.dtype), rows.detach()
        scores = torch.empty(len(pairs.heads), *shape, dtype=dtype, device=rows.device)
        for piece, (there,) in exchange.rows(pairs.lists, (rows,)):
            for run, shift in _runs(pairs, exchange.group.rank, piece):
                for chunk in _chunks(run, rows.shape[1]):
                    heads = rows.index_select(0, pairs.heads[chunk]).to(dtype)
                    tails = there.index_select(0, pairs.tails[chunk] - shift).to(dtype)
                    scores[chunk] = decoder(heads, tails, pairs.relation[chunk], *_of(features, chunk))
        ctx.exchange, ctx.pairs, ctx.decoder, ctx.features = exchange, pairs, decoder, features
        ctx.save_for_backward(rows, *parameters)
        return pairs.answer(exchange.group, scores)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        exchange, pairs, decoder, features = ctx.exchange, ctx.pairs, ctx.decoder, ctx.features
        rows, *parameters = ctx.saved_tensors
        dtype = wide(rows.dtype)
        weights = pairs.spread(exchange.group, grad.contiguous())
        d_rows = torch.zeros(rows.shape, dtype=dtype, device=rows.device)
        d_parameters = [torch.zeros_like(parameter) if parameter.requires_grad else None for parameter in parameters]
        trained = [d_parameter for d_parameter in d_parameters if d_parameter is not None]

        def add(run: slice, shift: int, there: Tensor, d_there: Tensor) -> None:
            for chunk in _chunks(run, rows.shape[1]):
                head_rows, tail_rows = pairs.heads[chunk], pairs.tails[chunk] - shift
                if type(decoder) is Dot:  # as below, without the rows in between; one that extends it may score otherwise
                    exchange.moves.add_scaled(d_rows, head_rows, weights[chunk], there, tail_rows)
                    exchange.moves.add_scaled(d_there, tail_rows, weights[chunk], rows, head_rows)
                    continue
                heads = rows.index_select(0, head_rows).to(dtype).requires_grad_()
                tails = there.index_select(0, tail_rows).to(dtype).requires_grad_()
                with torch.enable_grad():
                    # A number, since given gradients make PyTorch import a lot.
                    scores = decoder(heads, tails, pairs.relation[chunk], *_of(features, chunk))
                    total = torch.dot(scores.flatten(), weights[chunk].flatten())
                inputs = [heads, tails, *(p for p in parameters if p.requires_grad)]
                grads = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
                exchange.moves.add_each(d_rows, head_rows, grads[0])
                exchange.moves.add_each(d_there, tail_rows, grads[1])
                for gradient, given in zip(trained, grads[2:], strict=True):
                    gradient += given

        with exchange.gradients(pairs.lists, (d_rows,), beside_rows=True) as returning:
            for piece, (there,) in exchange.rows(pairs.lists, (rows,), before=returning.ready):
                if piece.peer == exchange.group.rank:
                    for run, shift in _runs(pairs, exchange.group.rank, piece):
                        add(run, shift, there, d_rows)
                    returning.begin()
                    continue
                (d_there,) = returning.buffer(piece)
                d_there.zero_()
                for run, shift in _runs(pairs, exchange.group.rank, piece):
                    add(run, shift, there, d_there)
                returning.send(piece)
        return (d_rows.to(rows.dtype), None, None, None, None, None, *d_parameters)
