"""Sums and gathers over ranks, made of messages; arrays of any length from every rank to every other one; whole tables.

Ranks of one server (all ranks, where there is one) sum a table in pieces: rank j adds up piece j of all of them, and gives the
sum to the others: 2 (G - 1) / G of the table's bytes leave each of G ranks. With several servers rank j adds to its piece what
the ranks j of the other servers have found for theirs. With B bytes each server sends (S - 1) B to the others while that is
little, and 2 (S - 1) / S of B where pieces are cut once more. Terms are added in the order of ranks, then of servers, so that
every rank gets the same bits.

Letters: S servers, G ranks of a server, N own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from sargnn.comm.group import Group

_TABLE_TAG, _SWAP_TAG, _TAG = 3, 6, 7
_CHUNK_ROWS = 1 << 16
_CUT_BYTES = 1 << 16
"""From here on what crosses is cut into a piece for each server: two trips in place of one, and fewer bytes."""
Combine = Callable[[Sequence[Tensor]], Tensor]
Create = Callable[[tuple[int, ...], np.dtype], np.ndarray]


def sum_by_messages(group: Group, tensor: Tensor) -> Tensor:
    """Sum a tensor, of the same shape on each rank, in place."""
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
    """The first plus the second, plus the third, and so on."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def swap(group: Group, arrays: Sequence[np.ndarray], doing: str) -> list[np.ndarray]:
    """Send every peer an array, of one dtype and of one shape but for the length, and get one from each; the own rank's stays
    here. All ranks must call it together. ``doing``: for the error when a peer is lost.
    """
    rank, world = group.rank, group.world
    sizes = [lengths.tolist() for lengths in group.gather(torch.tensor([len(array) for array in arrays]))]
    received = [np.empty((sizes[q][rank], *arrays[q].shape[1:]), arrays[q].dtype) for q in range(world)]
    received[rank] = arrays[rank]
    works = []
    for k in range(1, world):
        to, source = (rank + k) % world, (rank - k) % world
        if len(received[source]):
            works.append((group.receive(torch.from_numpy(received[source]), source, _SWAP_TAG), source))
        if len(arrays[to]):
            works.append((group.send(torch.from_numpy(np.ascontiguousarray(arrays[to])), to, _SWAP_TAG), to))
    for work, peer in works:
        group.wait(work, peer, doing)
    return received


def gather_table(group: Group, own: Tensor, rows_of_whole: np.ndarray, create: Create, doing: str) -> None:
    """Rank 0 writes the whole table; all ranks must call it. Nobody holds more than a chunk of others' rows.

    Args:
        own: [N, ...].
        rows_of_whole: int64 [N], which rows of the whole table they are; all ranks together name every row once.
        create: makes the table of a shape and a dtype, such as a memory-mapped file; on rank 0 only.
    """
    counts = [int(count) for count in group.gather(torch.tensor(len(own)))]
    chunks = [(first, min(first + _CHUNK_ROWS, len(own))) for first in range(0, len(own), _CHUNK_ROWS)]
    if group.rank != 0:
        where = torch.from_numpy(rows_of_whole)
        for first, last in chunks:
            for piece in (where, own):
                group.wait(group.send(piece[first:last].cpu().contiguous(), 0, _TABLE_TAG), 0, doing)
        return
    table = create((sum(counts), *own.shape[1:]), own[:0].cpu().numpy().dtype)
    for first, last in chunks:
        table[rows_of_whole[first:last]] = own[first:last].cpu().numpy()
    for first in range(0, max(counts), _CHUNK_ROWS):
        for rank in range(1, group.world):  # in turn, so that none waits for long
            if first >= counts[rank]:
                continue
            size = min(_CHUNK_ROWS, counts[rank] - first)
            rows, values = torch.empty(size, dtype=torch.int64), torch.empty((size, *own.shape[1:]), dtype=own.dtype)
            for piece in (rows, values):
                group.wait(group.receive(piece, rank, _TABLE_TAG), rank, doing)
            table[rows.numpy()] = values.numpy()


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
    """Send each of ``ranks`` a contiguous tensor, and get one of the shape in ``like`` from each, in their order; from this
    rank what it has for itself.
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
