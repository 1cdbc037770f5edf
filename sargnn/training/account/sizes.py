"""The numbers of rows and edges that tensors of a step are made of, by what they count.

Letters: N own rows, L layers, T node types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sargnn.partition.cut import Part
from sargnn.shards.drawn import DrawnLayer
from sargnn.shards.mfg import Reach
from sargnn.shards.plan import LayerPlan, RowCounts

Key = tuple[str, int, int]
"""What is counted, of which layer, of which node type; -1: of all."""


@dataclass(frozen=True)
class Sizes:
    """Counts of one view on one worker.

    Attributes:
        counts: by what they count. edges: per layer. halo: per layer, halo rows.
        results: per layer, partial results that are computed for other workers, or by them; (): none.
        edge_bytes: of an edge in both orders, with its weight where it has one.
    """

    counts: dict[Key, int]
    edges: tuple[int, ...]
    halo: tuple[int, ...]
    edge_bytes: int = 8
    results: tuple[int, ...] = ()

    @property
    def flow_bytes(self) -> int:
        """Of the view's plans: ids, degrees and ranks of rows, and edges in both orders (``kernels.block``)."""
        total = 0
        for layer, (edges, halo) in enumerate(zip(self.edges, self.halo, strict=True)):
            rows, out = self.counts["rows", layer, -1] + halo, self.counts["out", layer, -1]
            total += self.edge_bytes * edges + rows * (8 + 4 + 8 + 4) + out * (8 + 8 + 8 + 4 + 8)
        return total


@dataclass(frozen=True)
class Groups:
    """Micro-batches before their message flows are made.

    Attributes:
        of: int32, each target's micro-batch. sizes: of each on this worker. counts: of each, per layer over all workers.
    """

    of: np.ndarray
    sizes: tuple[Sizes, ...]
    counts: tuple[tuple[RowCounts, ...], ...]


def sizes_of_plans(plans: Sequence[LayerPlan], num_rows: int, targets: int) -> Sizes:
    """Of a view whose plans are there. ``num_rows``: N. ``targets``: training rows."""
    counts: dict[Key, int] = {("own", -1, -1): num_rows, ("targets", -1, -1): targets}
    for layer, plan in enumerate(plans):
        for kind, bounds in (("rows", plan.row_bounds), ("out", plan.out_bounds)):
            counts[kind, layer, -1] = bounds[-1]
            for t in range(len(bounds) - 1):
                counts[kind, layer, t] = bounds[t + 1] - bounds[t]
        counts["edges", layer, -1] = plan.num_edges
    lists = [None if plan.partials is None else plan.partials.lists for plan in plans]
    results = tuple(0 if own is None else (own.all_wanted + own.all_served) // 2 for own in lists)
    edges, halo = tuple(plan.num_edges for plan in plans), tuple(plan.halo_rows for plan in plans)
    return Sizes(counts, edges, halo, results=results)


def sizes_of_reach(reach: Reach, part: Part, targets: int, weight_bytes: int) -> Sizes:
    """The same of a view before its plans are made. ``weight_bytes``: of an edge's weight, where the part has any."""
    schema, node_ids = part.schema, part.node_ids
    types = schema.types_of(node_ids)
    counts: dict[Key, int] = {("own", -1, -1): len(node_ids), ("targets", -1, -1): targets}
    for layer in range(len(reach.marks)):
        for kind, least in (("rows", layer), ("out", layer + 1)):
            by_type = np.bincount(types[reach.depth >= least], minlength=len(schema.node_types))
            counts[kind, layer, -1] = int(by_type.sum())
            counts.update({(kind, layer, t): int(count) for t, count in enumerate(by_type)})
        counts["edges", layer, -1] = reach.edges[layer]
    halo = tuple(int(mark.halo.sum()) for mark in reach.marks)
    return Sizes(counts, reach.edges, halo, 8 + (weight_bytes if part.weighted else 0))


def sizes_of_drawn(layers: Sequence[DrawnLayer], part: Part, targets: int, weight_bytes: int) -> Sizes:
    """The same of a view that is drawn, before its plans are made."""
    counts: dict[Key, int] = {("own", -1, -1): len(part.node_ids), ("targets", -1, -1): targets}
    for number, layer in enumerate(layers):
        for kind, rows in (("rows", layer.inputs), ("out", layer.outputs)):
            counts[kind, number, -1] = sum(map(len, rows))
            counts.update({(kind, number, t): len(own) for t, own in enumerate(rows)})
        counts["edges", number, -1] = layer.edges
    edges, halo = tuple(layer.edges for layer in layers), tuple(int(layer.halo.sum()) for layer in layers)
    return Sizes(counts, edges, halo, 8 + (weight_bytes if part.weighted else 0))
