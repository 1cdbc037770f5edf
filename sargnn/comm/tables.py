"""Whole tables from the rows that ranks own, chunk by chunk.

Letters: N own rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.group import Group

_TAG = 3
_CHUNK_ROWS = 1 << 16
Create = Callable[[tuple[int, ...], np.dtype], np.ndarray]


def gather_table(group: Group, own: Tensor, rows_of_whole: np.ndarray, create: Create, doing: str) -> None:
    """Rank 0 writes the whole table; all ranks must call it. Nobody holds more than a chunk of others' rows.

    Args:
        own: [N, ...]. rows_of_whole: int64 [N], which rows of the whole table they are; all ranks together name every row once.
        create: makes the table of a shape and a dtype, such as a memory-mapped file; on rank 0 only.
        doing: for the error when a peer is lost.
    """
    counts = [int(count) for count in group.gather(torch.tensor(len(own)))]
    chunks = [(first, min(first + _CHUNK_ROWS, len(own))) for first in range(0, len(own), _CHUNK_ROWS)]
    if group.rank != 0:
        where = torch.from_numpy(rows_of_whole)
        for first, last in chunks:
            for piece in (where, own):
                group.wait(group.send(piece[first:last].contiguous(), 0, _TAG), 0, doing)
        return
    table = create((sum(counts), *own.shape[1:]), own.numpy().dtype)
    for first, last in chunks:
        table[rows_of_whole[first:last]] = own[first:last].numpy()
    for first in range(0, max(counts), _CHUNK_ROWS):
        for rank in range(1, group.world):  # in turn, so that none waits for long
            if first >= counts[rank]:
                continue
            size = min(_CHUNK_ROWS, counts[rank] - first)
            rows, values = torch.empty(size, dtype=torch.int64), own.new_empty(size, *own.shape[1:])
            for piece in (rows, values):
                group.wait(group.receive(piece, rank, _TAG), rank, doing)
            table[rows.numpy()] = values.numpy()
