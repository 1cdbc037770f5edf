"""The small graph that steps are recorded on, on which all counts are different.

Node i of a type has edges from nodes i + 0, i + 1 and i + s of each source type, s being the type's own step. So what reaches
the targets, the first nodes of the labelled type, grows by a step with every layer, in every type by another one. The first
nodes have none from i + 1, so that nodes with as many edges are fewer than all.

A model that is asked computes all rows, and each is a table of all queries: its graph is smaller, and has links.
"""

from __future__ import annotations

import dataclasses
from itertools import count

import numpy as np

from sargnn.graph.edge_columns import ATTR, WEIGHT, EdgeColumns
from sargnn.graph.pairs import Known
from sargnn.graph.schema import SPLITS, Schema, zero_labels
from sargnn.models.inputs import GraphShape
from sargnn.partition.pairs import PartPairs
from sargnn.partition.part import Part, WeightedDegrees
from sargnn.tasks.kinds import make_split

_TARGETS, _BEYOND, _WITH_LESS = 1117, 331, 5
_NODES_ASKED = 145
"""About what a graph has, beside two steps, whose rows are tables of queries."""


def made_up_part(shape: GraphShape, layers: int, *, is_asked: bool = False) -> Part:
    """One worker's part: the first nodes of the labelled type are training nodes, others in no split.

    ``is_asked``: of few nodes, whose edges are dealt out among relations, so that there are few edges, too.
    """
    types = range(len(shape.schema.node_types))
    primes = (n for n in count(53) if all(n % k for k in range(2, int(n**0.5) + 1)))
    steps = [next(primes) for _ in types]
    least = _NODES_ASKED if is_asked else _TARGETS + _BEYOND
    sizes = [least + (layers + 1) * max(steps) + 7 * t for t in types]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    nodes = int(offsets[-1])
    sources, destinations, counts = [], [], []
    for number, relation in enumerate(shape.schema.relations):
        s, d = relation.source, relation.destination
        dst = np.repeat(np.arange(sizes[d]), 3)
        src = dst + np.tile([0, 1, steps[s]], sizes[d])
        kept = (src < sizes[s]) & ((dst >= _WITH_LESS) | (src != dst + 1))
        if is_asked:
            kept &= dst % len(shape.schema.relations) == number
        sources.append(src[kept] + offsets[s])
        destinations.append(dst[kept] + offsets[d])
        counts.append(int(kept.sum()))
    edge_src, edge_dst = (np.concatenate(ends).astype(np.int32) for ends in (sources, destinations))
    first = int(offsets[max(shape.labelled, 0)])
    weights = np.full(len(edge_src), 0.5, np.float32) if shape.weighted else None
    attr = np.ones((len(edge_src), shape.edge_width), np.float32) if shape.edge_width else None
    inward, outward = (np.bincount(ends, minlength=nodes) for ends in (edge_dst, edge_src))
    return Part(
        schema=Schema(shape.schema.node_types, tuple(int(offset) for offset in offsets), shape.schema.relations),
        features=tuple(np.ones((size, width), np.float32) for size, width in zip(sizes, shape.feature_widths, strict=True)),
        node_ids=np.arange(nodes),
        labels=zero_labels(shape.task, nodes, shape.num_classes),
        split=make_split(nodes, slice(first, first + _TARGETS)),
        in_degrees=inward,
        out_degrees=outward,
        edge_src=edge_src,
        edge_dst=edge_dst,
        edge_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        halo_ids=np.zeros(0, np.int64),
        halo_offsets=np.zeros(2, np.int64),
        send_rows=np.zeros(0, np.int32),
        send_offsets=np.zeros(2, np.int64),
        columns=EdgeColumns.of({WEIGHT: weights, ATTR: attr}),
        weights=None if weights is None else WeightedDegrees(0.5 * inward, 0.5 * outward),
    )


def with_links(part: Part, count: int) -> Part:
    """With so many training links, whose ends are of their relations' types."""
    schema, relation = part.schema, np.arange(count) % len(part.schema.relations)
    ends = np.array([(each.source, each.destination) for each in schema.relations])[relation].T
    offsets = np.asarray(schema.offsets)
    heads, tails = (offsets[types] + (np.arange(count) + by) % np.diff(offsets)[types] for by, types in enumerate(ends))
    known = Known.of(heads, tails, relation, len(part.node_ids))
    split = np.full(count, SPLITS["train"], np.uint8)
    return dataclasses.replace(part, pairs=PartPairs(heads.astype(np.int32), tails, split, known, True, relation))
