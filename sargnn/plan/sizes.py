"""The numbers of rows and edges of a view's layers, by what they count: known before its plans are made.

Letters: N own rows, L layers, T node types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sargnn.partition.part import Part
from sargnn.plan.layer_plan import LayerPlan, RowCounts
from sargnn.plan.mfg import FlowLayer

OTHER_ORDER = 4
"""Bytes of an edge among those of its source."""
Key = tuple[str, int, int]
"""What is counted, of which layer, of which node type; -1: of all."""


@dataclass(frozen=True)
class Sizes:
    """Counts of one view on one worker.

    Attributes:
        edges: per layer.
        halo: per layer, halo rows.
        edge_bytes: of an edge in both orders, with its weight where it has one.
        results: per layer, partial results that are computed for other workers, or by them; (): none.
    """

    counts: dict[Key, int]
    edges: tuple[int, ...]
    halo: tuple[int, ...]
    edge_bytes: int = 8
    results: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        own: int,
        targets: int,
        rows: Sequence[Sequence[int]],
        out: Sequence[Sequence[int]],
        edges: Sequence[int],
        halo: Sequence[int],
        edge_bytes: int = 8,
    ) -> Sizes:
        """From what each layer has.

        Args:
            own: N.
            targets: rows whose outputs are wanted.
            rows: per layer and node type, rows that it reads [L, T].
            out: likewise, rows that it computes.
        """
        counts: dict[Key, int] = {("own", -1, -1): own, ("targets", -1, -1): targets}
        for kind, by_layer in (("rows", rows), ("out", out)):
            for layer, by_type in enumerate(by_layer):
                counts[kind, layer, -1] = sum(by_type)
                counts.update({(kind, layer, t): count for t, count in enumerate(by_type)})
        counts.update({("edges", layer, -1): count for layer, count in enumerate(edges)})
        return cls(counts, tuple(edges), tuple(halo), edge_bytes)

    @property
    def flow_bytes(self) -> int:
        """Of the view's plans: ids, degrees and ranks of rows, and edges in both orders (``backends.block``)."""
        return self.bytes_of_plans([True] * len(self.edges))

    def bytes_of_plans(self, goes_back: Sequence[bool]) -> int:
        """The same where gradients go back through some layers' edges only, so that others have them in one order."""
        total = 0
        for layer, (edges, halo) in enumerate(zip(self.edges, self.halo, strict=True)):
            rows, out = self.counts["rows", layer, -1] + halo, self.counts["out", layer, -1]
            of_edge = self.edge_bytes - (0 if goes_back[layer] else OTHER_ORDER)
            total += of_edge * edges + rows * (8 + 4 + 8 + 4) + out * (8 + 8 + 8 + 4 + 8)
        return total


@dataclass(frozen=True)
class Groups:
    """Micro-batches before their message flows are made.

    Attributes:
        of: int32, each target's micro-batch.
        counts: of each, per layer over all workers.
    """

    of: np.ndarray
    sizes: tuple[Sizes, ...]
    counts: tuple[tuple[RowCounts, ...], ...]


def sizes_of_plans(plans: Sequence[LayerPlan], num_rows: int, targets: int) -> Sizes:
    """Of a view whose plans are there. ``num_rows``: N. ``targets``: training rows."""
    rows = [np.diff(plan.row_bounds).tolist() for plan in plans]
    out = [np.diff(plan.out_bounds).tolist() for plan in plans]
    lists = [None if plan.partials is None else plan.partials.lists for plan in plans]
    results = tuple(0 if own is None else (own.all_wanted + own.all_served) // 2 for own in lists)
    sizes = Sizes.of(num_rows, targets, rows, out, [plan.num_edges for plan in plans], [plan.halo_rows for plan in plans])
    return dataclasses.replace(sizes, results=results)


def sizes_of_layers(layers: Sequence[FlowLayer], part: Part, targets: int, weight_bytes: int) -> Sizes:
    """Of a view before its plans are made. ``weight_bytes``: of an edge's weight, where the part has any."""
    rows = [[len(of_type) for of_type in layer.inputs] for layer in layers]
    out = [[len(of_type) for of_type in layer.outputs] for layer in layers]
    halo = [int(layer.halo.sum()) for layer in layers]
    edge_bytes = 8 + (weight_bytes if part.weighted else 0)
    return Sizes.of(len(part.node_ids), targets, rows, out, [layer.edges for layer in layers], halo, edge_bytes)
