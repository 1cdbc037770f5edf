"""A small graph on which everything that can be counted has another number.

Node i of a type has edges from nodes i + 0, i + 1 and i + s of each source type, s being the type's own step. So what reaches
the first W nodes of the labelled type grows by a step with every layer, in every type by another one. The first nodes have
none from i + 1, so that nodes with as many edges are fewer than all.

Letters: W target nodes, N nodes, T node types, R relations.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from sargnn.data.labels import task_of, zero_labels
from sargnn.data.schema import Schema
from sargnn.partition.cut import Part
from sargnn.tasks.kinds import in_split, make_split

_TARGETS, _BEYOND, _WITH_LESS = 1117, 331, 5


def _primes(least: int) -> Iterator[int]:
    return (n for n in count(least) if all(n % k for k in range(2, int(n**0.5) + 1)))


def made_up_part(part: Part, num_classes: int, layers: int, labelled: int) -> Part:
    """A part of one worker like ``part``: its schema, feature widths, task and whether edges have weights.

    Args:
        layers: L. labelled: the node type that has labels; its first W nodes are training nodes, the others in no split.
    """
    schema, types = part.schema, len(part.schema.node_types)
    primes = _primes(53)
    steps = [next(primes) for _ in range(types)]
    sizes = [_TARGETS + (layers + 1) * max(steps) + _BEYOND + 7 * t for t in range(types)]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    nodes = int(offsets[-1])
    sources, destinations, counts = [], [], []
    for relation in schema.relations:
        s, d = relation.source, relation.destination
        dst = np.repeat(np.arange(sizes[d]), 3)
        src = dst + np.tile([0, 1, steps[s]], sizes[d])
        kept = (src < sizes[s]) & ((dst >= _WITH_LESS) | (src != dst + 1))
        sources.append(src[kept] + offsets[s])
        destinations.append(dst[kept] + offsets[d])
        counts.append(int(kept.sum()))
    edge_src, edge_dst = (np.concatenate(ends).astype(np.int32) for ends in (sources, destinations))
    first = int(offsets[labelled])
    weights = np.full(len(edge_src), 0.5, np.float32) if part.weighted else None
    inward, outward = (np.bincount(ends, minlength=nodes) for ends in (edge_dst, edge_src))
    return Part(
        schema=Schema(schema.node_types, tuple(int(offset) for offset in offsets), schema.relations),
        features=tuple(np.ones((size, table.shape[1]), np.float32) for size, table in zip(sizes, part.features, strict=True)),
        node_ids=np.arange(nodes),
        labels=zero_labels(task_of(part.labels.dtype), nodes, num_classes),
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
        edge_weight=weights,
        in_weights=None if weights is None else 0.5 * inward,
        out_weights=None if weights is None else 0.5 * outward,
    )


def target_rows(part: Part) -> np.ndarray:
    """int64, its training nodes."""
    return np.flatnonzero(in_split(part.split, "train"))
