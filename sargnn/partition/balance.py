"""What a partitioner may use and what it balances over the parts; parts made even after a cut that balanced something else.

Letters: N nodes, P parts, K weights.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sargnn.graph.dataset import Dataset
from sargnn.native import Entry

_losses = Entry("find_losses", "indptr l N+1, indices *, nodes l n, part i N, world int, loss l n")
_move = Entry("even_out", "indptr l N+1, indices *, nodes l, part i N, weights l N K, loads d P K, caps d K, kind int")
ROW_EDGES = 32
"""What a row costs beside its edges, in edges: linear maps, norm and dropout of a layer of usual width."""


@dataclass(frozen=True)
class Room:
    """What a partitioner may use: a folder for files that are gone afterwards, memory for what is read or sorted at once."""

    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    buffer_bytes: int = 1 << 30


def trivial(num_nodes: int, world: int) -> np.ndarray | None:
    """The assignment, int32 [N], where there is nothing to cut: one part, or a node for each at most; else None."""
    return (np.arange(num_nodes) % world).astype(np.int32) if world == 1 or num_nodes <= world else None


def runs_of_nodes(num_nodes: int, world: int) -> np.ndarray:
    """The assignment of contiguous runs of original ids, sizes differing by at most one, int32 [N]."""
    return (np.arange(num_nodes, dtype=np.int64) * world // max(num_nodes, 1)).astype(np.int32)


def node_weights(dataset: Dataset, balance: str) -> np.ndarray | None:
    """Each node's share of the work, int64 [N]: in-edges and 1 (``edges``) or ``ROW_EDGES`` (``both``); None: all are alike."""
    if balance == "nodes":
        return None
    return np.diff(np.asarray(dataset.indptr)) + (1 if balance == "edges" else ROW_EDGES)


def weight_columns(dataset: Dataset, balance: str) -> np.ndarray:
    """What partitioners with few constraints balance: int64 [N, 1]; of a typed graph also the nodes of the labelled type."""
    weights = node_weights(dataset, balance)
    columns = [np.ones(dataset.num_nodes, np.int64) if weights is None else weights]
    if dataset.schema.typed:
        labelled = np.asarray(dataset.split) > 0
        node_type = int(dataset.schema.types_of(np.argmax(labelled, keepdims=True))[0]) if labelled.any() else 0
        columns.append((dataset.schema.types_of(np.arange(dataset.num_nodes)) == node_type).astype(np.int64))
    return np.stack(columns, 1)


def even_out(dataset: Dataset, part: np.ndarray, world: int, weights: np.ndarray, imbalance: float) -> None:
    """Move nodes out of parts that are too heavy, in place: first those that lose the fewest neighbours by it, each to where
    most of its neighbours are and room is left. The last weight is made even first, whatever becomes of the others, then each
    one before it, without making those behind it uneven again.

    Args:
        part: int32 [N].
        weights: int64 [N, K].
        imbalance: how much larger than the mean a part may be, in each.
    """
    loads = np.stack([np.bincount(part, weights=weights[:, k], minlength=world) for k in range(weights.shape[1])], 1)
    means = weights.sum(0) / world
    caps = np.ceil(means * (1 + imbalance))
    indptr, indices = np.asarray(dataset.indptr), np.asarray(dataset.indices)
    for k in reversed(range(weights.shape[1])):
        for p in np.flatnonzero(loads[:, k] > caps[k]):
            nodes = np.flatnonzero((part == p) & (weights[:, k] > 0))
            loss = np.empty(len(nodes), np.int64)
            _losses(indptr, indices, nodes, part, world, loss)
            _move(indptr, indices, nodes[np.argsort(loss, kind="stable")], part, weights, loads, caps, k)
