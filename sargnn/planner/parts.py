"""What each worker owns and reads, counted from a partition store without opening its parts, or estimated.

Letters: T node types, R relations, P parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sargnn.data.dataset import Dataset
from sargnn.data.schema import Schema
from sargnn.partition.blocks import in_edge_blocks
from sargnn.partition.store import PartitionInfo, array_of
from sargnn.planner.cut_edges import Messages
from sargnn.tasks.kinds import in_split
from sargnn.training.account.sizes import Key, Sizes


@dataclass(frozen=True)
class PartSizes:
    """One worker's part.

    Attributes:
        rows: own rows of each type [T]. edges: into them by relation [R]. halo: rows of others that they read.
        sent: own rows that others read. targets: training rows. split: rows of any split.
        crossing: those of the edges whose source is another's row; None: not counted.
        inner: own rows of each type that are no copies [T]; None: all.
    """

    rows: tuple[int, ...]
    edges: tuple[int, ...]
    halo: int
    sent: int
    targets: int
    split: int
    crossing: int | None = None
    inner: tuple[int, ...] | None = None

    def view(
        self, schema: Schema, layers: int, labelled: int, *, loops: bool, halo: tuple[int, ...], results: tuple[int, ...] = ()
    ) -> Sizes:
        """The sizes of a view of all rows, whose last layer computes those of the labelled type.

        Args:
            layers: L. loops: the model adds a loop to each node. halo: rows of others that each layer reads [L].
            results: partial results of each layer [L], as of ``Sizes``.
        """
        total = sum(self.rows)
        counts: dict[Key, int] = {("own", -1, -1): total, ("targets", -1, -1): self.targets}
        edges = []
        for layer in range(layers):
            out = self.rows
            into = self.edges
            if layer == layers - 1 and schema.typed:
                out = tuple(rows if t == labelled else 0 for t, rows in enumerate(self.rows))
                into = tuple(
                    e if relation.destination == labelled else 0
                    for e, relation in zip(self.edges, schema.relations, strict=True)
                )
            for kind, sizes in (("rows", self.rows), ("out", out)):
                counts[kind, layer, -1] = sum(sizes)
                counts.update({(kind, layer, t): size for t, size in enumerate(sizes)})
            edges.append(sum(into) + (total if loops else 0))
            counts["edges", layer, -1] = edges[-1]
        return Sizes(counts, tuple(edges), halo, results=results)


def parts_of_store(info: PartitionInfo) -> list[PartSizes]:
    """Of a partition store; exact."""
    relations = len(info.schema.relations)
    parts = []
    for rank in range(info.world):
        offsets = np.asarray(array_of(info.path, rank, "edge_offsets"))
        by_peer = np.diff(offsets).reshape(-1, relations)
        by_relation = by_peer.sum(0)
        split = np.asarray(array_of(info.path, rank, "split"))
        parts.append(
            PartSizes(
                _by_type(info.schema, array_of(info.path, rank, "node_ids")),
                tuple(int(count) for count in by_relation),
                len(array_of(info.path, rank, "halo_ids")),
                len(array_of(info.path, rank, "send_rows")),
                int(in_split(split, "train").sum()),
                int((split > 0).sum()),
                int(by_relation.sum() - by_peer[rank].sum()),
            )
        )
    return parts


def parts_of_assignment(dataset: Dataset, part: np.ndarray, world: int, halo: Messages) -> list[PartSizes]:
    """Of an assignment, int32 [N], whose halo rows are counted in all: every worker has as many as the mean of its edges."""
    schema, split = dataset.schema, np.asarray(dataset.split)
    degrees = np.diff(np.asarray(dataset.indptr))
    relation = None if dataset.relation is None else np.asarray(dataset.relation)
    crossing, parts = _crossing(dataset, part, world), []
    for rank in range(world):
        own = np.flatnonzero(part == rank)
        edges = [int(degrees[own].sum())]
        if relation is not None:
            at = np.repeat(part == rank, degrees)
            edges = np.bincount(relation[at], minlength=len(schema.relations)).tolist()
        share = degrees[own].sum() / max(1, dataset.num_edges)
        rows = int(halo.rows * share)
        parts.append(
            PartSizes(
                _by_type(schema, own),
                tuple(edges),
                rows,
                rows,
                int(in_split(split[own], "train").sum()),
                int((split[own] > 0).sum()),
                int(crossing[rank]),
            )
        )
    return parts


def _crossing(dataset: Dataset, part: np.ndarray, world: int) -> np.ndarray:
    """Edges into each part from others, int64 [P]."""
    counts = np.zeros(world, np.int64)
    for first, indptr, indices in in_edge_blocks(dataset, "counting edges between parts"):
        own = np.repeat(part[first : first + len(indptr) - 1], np.diff(indptr))
        counts += np.bincount(own[part[indices] != own], minlength=world)
    return counts


def _by_type(schema: Schema, node_ids: np.ndarray) -> tuple[int, ...]:
    bounds = schema.bounds(np.asarray(node_ids))
    return tuple(int(b - a) for a, b in zip(bounds, bounds[1:], strict=False))
