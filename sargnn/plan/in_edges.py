"""A part's edges by destination, whichever worker their sources are of: what samples are drawn from.

A source row is numbered n if it is the worker's own row n, and N + h if it is its halo row h.

Letters: N own rows, H halo rows, E edges, R relations, M rows, C chosen edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sargnn.partition.cut import Part
from sargnn.plan.draw_loops import choose_edges, count_in_edges, count_kept, has_parallel_edges, place_in_edges
from sargnn.plan.flow_loops import read_only
from sargnn.plan.load import check_edges
from sargnn.rng import Purpose


@dataclass(frozen=True)
class Sample:
    """Which in-edges a layer keeps of each destination and relation: those with the smallest Philox numbers of

        key     = (seed, sample)
        counter = (source id, destination id, number among parallel edges, purpose << 24 | layer << 16 | relation)

    which are the same on any number of workers. Every edge is as likely to be kept as any other, without replacement.

    Attributes:
        fanouts: per layer how many; -1: all. seed: of the run. number: of the sample, below 2**32.
    """

    fanouts: tuple[int, ...]
    seed: int
    number: int

    def tag(self, layer: int, relation: int) -> int:
        """The last counter word."""
        return (int(Purpose.SAMPLE) << 24) | (layer << 16) | relation


@dataclass(frozen=True)
class Chosen:
    """The edges that some rows keep of one relation.

    Attributes:
        offsets: int64 [M + 1], where each row's begin. sources: int32 [C].
        edges: int32 [C], their places in the part; without entries where edges carry nothing.
    """

    offsets: np.ndarray
    sources: np.ndarray
    edges: np.ndarray


class InEdges:
    """The edges into each own row.

    Args:
        part: the worker's part. rank: its number.
        own_loops: every row has exactly one edge from itself that the model has added; these are always kept.
    """

    def __init__(self, part: Part, rank: int, *, own_loops: bool) -> None:
        check_edges(part, rank)
        self._loops = int(own_loops)
        world, relations, bounds = len(part.halo_offsets) - 1, part.schema.relations, part.row_bounds
        src, dst = read_only(part.edge_src), read_only(part.edge_dst)
        shifts = len(part.node_ids) + np.asarray(part.halo_offsets)
        self.ids = np.concatenate([part.node_ids, part.halo_ids]).astype(np.uint32)
        self._runs: list[tuple[int, np.ndarray]] = []
        alone = world == 1  # its edges are sorted by relation and destination already
        sources = np.empty(0 if alone else len(src), np.int32)
        self._edges = np.empty(len(src) if part.columns else 0, np.int32)
        if part.columns and alone:
            self._edges = np.arange(len(src), dtype=np.int32)
        before = 0
        for number, relation in enumerate(relations):
            first, last = bounds[relation.destination], bounds[relation.destination + 1]
            begins = np.zeros(last - first + 1, np.int64)
            spans = [part.edge_span(q, number) for q in range(world)]
            for span in spans:
                count_in_edges(dst[span], first, begins)
            begins[0] = before
            np.cumsum(begins, out=begins)
            before = int(begins[-1])
            cursor = begins[:-1].copy()
            for q, span in enumerate(spans if not alone else ()):
                shift = 0 if q == rank else int(shifts[q])
                place_in_edges(src[span], dst[span], first, shift, span.start, cursor, sources, self._edges)
            self._runs.append((first, begins))
        self._sources = src if alone else read_only(sources)
        self._parallel = any(has_parallel_edges(begins, self._sources) for _, begins in self._runs)

    def choose(self, rows: np.ndarray, relation: int, layer: int, sample: Sample | None) -> Chosen:
        """The edges into own rows (int32 [M], of the relation's destination type) that a sample keeps; None: all edges."""
        first, begins = self._runs[relation]
        offsets = np.empty(len(rows) + 1, np.int64)
        fanout = -1 if sample is None else sample.fanouts[layer]
        count_kept(rows, first, begins, self._loops, fanout, offsets)
        sources = np.empty(offsets[-1], np.int32)
        edges = np.empty(offsets[-1] if len(self._edges) else 0, np.int32)
        seed, number, tag = (0, 0, 0) if sample is None else (sample.seed, sample.number, sample.tag(layer, relation))
        choose_edges(
            rows,
            first,
            begins,
            self._sources,
            self.ids,
            self._parallel,
            self._loops,
            np.uint64(seed),
            np.uint64(number),
            np.uint64(tag),
            offsets,
            sources,
            edges,
        )
        return Chosen(offsets, sources, self._edges[edges] if len(edges) else edges)
