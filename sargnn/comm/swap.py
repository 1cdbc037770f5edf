"""Arrays of any length from every rank to every other one, as plans are made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sargnn.comm.group import Group

_TAG = 6


def swap(group: Group, arrays: Sequence[np.ndarray], doing: str) -> list[np.ndarray]:
    """Send every peer an array, and get one from each; all ranks must call it together.

    Args:
        arrays: per peer, of one dtype, and of one shape but for the length; the own rank's stays here.
        doing: for the error when a peer is lost.

    Returns:
        Per peer what it sent.
    """
    rank, world = group.rank, group.world
    sizes = [lengths.tolist() for lengths in group.gather(torch.tensor([len(array) for array in arrays]))]
    received = [np.empty((sizes[q][rank], *arrays[q].shape[1:]), arrays[q].dtype) for q in range(world)]
    received[rank] = arrays[rank]
    works = []
    for k in range(1, world):
        to, source = (rank + k) % world, (rank - k) % world
        if len(received[source]):
            works.append((group.receive(torch.from_numpy(received[source]), source, _TAG), source))
        if len(arrays[to]):
            works.append((group.send(torch.from_numpy(np.ascontiguousarray(arrays[to])), to, _TAG), to))
    for work, peer in works:
        group.wait(work, peer, doing)
    return received
