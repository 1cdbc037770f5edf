"""Sums and gathers over ranks, made of messages: terms are added in the order of ranks, so that every rank gets the same bits.

Ranks of one server (all ranks, where there is one) sum a table in pieces: rank j adds up piece j of all of them, and gives the
sum to the others: 2 (G - 1) / G of the table's bytes leave each of G ranks. With several servers little crosses from one to
another: rank j of a server adds to its piece what the ranks j of the other servers have found for theirs. So every rank of a
server sends its share of what crosses: over S servers, with B bytes, each server sends (S - 1) B to the others while that is
little, and 2 (S - 1) / S of B where pieces are cut once more. Terms are added in the order of ranks, then of servers.

Letters: S servers, G ranks of a server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sargnn.comm.group import Group

_TAG = 7
_CUT_BYTES = 1 << 16
"""From here on what crosses is cut into a piece for each server: two trips in place of one, and fewer bytes."""
Combine = Callable[[Sequence[Tensor]], Tensor]


def sum_by_messages(group: Group, tensor: Tensor) -> Tensor:
    """Sum a tensor over all ranks, in place.

    Args:
        tensor: of the same shape on each rank.
    """
    flat = tensor.reshape(-1)
    mates, partners = group.mates, group.partners
    pieces = list(flat.tensor_split(len(mates)))
    own = _sum_piece(group, mates, pieces)
    if len(partners) > 2 and own.numel() * own.element_size() > _CUT_BYTES:
        parts = list(own.tensor_split(len(partners)))
        _give_all(group, partners, parts, _sum_piece(group, partners, parts))
    elif len(partners) > 1:
        own.copy_(sum_in_order(_swap(group, partners, [own] * len(partners), [own] * len(partners))))
    _give_all(group, mates, pieces, own)
    if flat.data_ptr() != tensor.data_ptr():
        tensor.copy_(flat.view_as(tensor))
    return tensor


def gather_by_messages(group: Group, tensor: Tensor) -> list[Tensor]:
    """Every rank's tensor, in rank order. Each crosses to each other server once."""
    tensor = tensor.contiguous()
    mates, partners = group.mates, group.partners
    column = torch.stack(_swap(group, partners, [tensor] * len(partners), [tensor] * len(partners)))
    columns = _swap(group, mates, [column] * len(mates), [column] * len(mates))
    return [columns[mate][server] for server in range(len(partners)) for mate in range(len(mates))]


def fold_in_servers(group: Group, tensor: Tensor, combine: Combine) -> Tensor:
    """``combine`` of each server's tensors in rank order, then of the servers' results: one tensor a server crosses."""
    tensor = tensor.contiguous()
    mates, partners = group.mates, group.partners
    combined = combine(_swap(group, mates, [tensor] * len(mates), [tensor] * len(mates))).contiguous()
    if len(partners) == 1:
        return combined
    leader = mates[0]
    every = [torch.empty_like(combined) for _ in partners]
    if group.rank == leader:
        every = _swap(group, partners, [combined] * len(partners), [combined] * len(partners))
        works = [(group.send_quietly(torch.stack(every), mate, _TAG), mate) for mate in mates[1:]]
    else:
        room = torch.stack(every)
        works = [(group.receive(room, leader, _TAG), leader)]
    group.wait_all(works)
    return combine(every if group.rank == leader else list(room))


def sum_in_order(parts: Sequence[Tensor]) -> Tensor:
    """The sum of tensors of one shape: the first plus the second, plus the third, and so on."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def _sum_piece(group: Group, ranks: Sequence[int], pieces: list[Tensor]) -> Tensor:
    """This rank's piece, summed over ``ranks``, in place."""
    own = pieces[ranks.index(group.rank)]
    if len(ranks) > 1:
        own.copy_(sum_in_order(_swap(group, ranks, pieces, [own] * len(ranks))))
    return own


def _give_all(group: Group, ranks: Sequence[int], pieces: list[Tensor], own: Tensor) -> None:
    """Each rank's piece to all ``ranks``, into ``pieces``."""
    if len(ranks) > 1:
        for piece, received in zip(pieces, _swap(group, ranks, [own] * len(ranks), pieces), strict=True):
            if piece is not received:
                piece.copy_(received)


def _swap(group: Group, ranks: Sequence[int], outgoing: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """Send each of ``ranks`` a tensor, and get one from each.

    Args:
        outgoing: contiguous, one for each rank. like: of the shape that comes from each.

    Returns:
        What came, in the order of ``ranks``; from this rank what it has for itself.
    """
    me = list(ranks).index(group.rank)
    received = [tensor if k == me else torch.empty_like(tensor) for k, tensor in enumerate(like)]
    received[me] = outgoing[me]
    works = []
    for k, rank in enumerate(ranks):
        if k != me and received[k].numel():
            works.append((group.receive(received[k], rank, _TAG), rank))
        if k != me and outgoing[k].numel():
            works.append((group.send_quietly(outgoing[k], rank, _TAG), rank))
    group.wait_all(works)
    return received
