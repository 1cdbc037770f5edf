"""The sampler by itself: which edges it keeps, how often, and what it costs nobody to ask for."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from sargnn.graph.edge_columns import EdgeColumns
from sargnn.graph.schema import Schema
from sargnn.partition.part import Part, WeightedDegrees
from sargnn.plan.drawn import InEdges, Sample
from sargnn.rng import Purpose, philox


def part_of(edges: list[tuple[int, int]], num_nodes: int, weights: bool = False) -> Part:
    """A whole graph on one worker; edges are (source, destination)."""
    order = sorted(edges, key=lambda one: (one[1], one[0]))
    src, dst = (np.array([one[k] for one in order], np.int32) for k in (0, 1))
    inward, nothing = np.bincount(dst, minlength=num_nodes), np.zeros(0, np.int64)
    return Part(
        Schema.homogeneous(num_nodes + 1000), (), np.arange(num_nodes) + 1000, nothing, nothing.astype(np.uint8), inward,
        inward, src, dst, np.array([0, len(src)]), nothing, np.zeros(2, np.int64), nothing.astype(np.int32),
        np.zeros(2, np.int64),
        columns=EdgeColumns.of({"weight": np.arange(len(src), dtype=np.float32) if weights else None}),
        weights=WeightedDegrees(inward.astype(float), inward.astype(float)) if weights else None,
    )  # fmt: skip


def numbers(sources: np.ndarray, row: int, sample: Sample) -> list[int]:
    """The Philox numbers of a row's edges, sources ascending, by plain tensor operations."""
    parallel = [int((sources[:k] == sources[k]).sum()) for k in range(len(sources))]
    ids = torch.from_numpy(sources.astype(np.int64)) + 1000
    tags = torch.full_like(ids, int(Purpose.SAMPLE) << 24)
    words = philox(
        ids, torch.full_like(ids, row + 1000), torch.tensor(parallel, dtype=torch.int64), tags, sample.seed, sample.number
    )
    return [(int(a) << 32) | int(b) for a, b in zip(words[0], words[1], strict=True)]


@pytest.mark.parametrize("fanout", [1, 2, 7, 40, 64, 65, 150, 199, 200, 300, -1])
def test_the_smallest_numbers_are_kept(fanout: int) -> None:
    """Of rows with 0 to 400 edges, parallel ones and loops of the data among them."""
    draw = np.random.default_rng(0)
    degrees = [0, 1, 2, 10, 50, 64, 65, 66, 130, 200, 400]
    edges = [(int(s), row) for row, degree in enumerate(degrees) for s in draw.integers(0, 60, degree)]
    part = part_of(edges, 60, weights=True)
    sample = Sample((fanout,), 5, 9)
    rows = np.array([10, 3, 7, 0, 1, 2, 4, 5, 6, 8, 9, 20], np.int32)
    chosen = InEdges(part, 0, own_loops=False).choose(rows, 0, 0, sample)
    for number, row in enumerate(rows):
        own = np.flatnonzero(part.edge_dst == row)
        sources = part.edge_src[own]
        keys = numbers(sources, int(row), sample)
        kept = sorted(sorted(range(len(keys)), key=keys.__getitem__)[: fanout if fanout >= 0 else None])
        found = slice(chosen.offsets[number], chosen.offsets[number + 1])
        np.testing.assert_array_equal(chosen.sources[found], sources[kept])
        np.testing.assert_array_equal(chosen.edges[found], own[kept])


def test_loops_of_the_model_are_kept_and_not_counted() -> None:
    edges = [(s, row) for row in range(5) for s in range(30)]  # each has one from itself
    inner = InEdges(part_of(edges, 30), 0, own_loops=True)
    for fanout in (1, 3, 29, 40):
        chosen = inner.choose(np.arange(5, dtype=np.int32), 0, 0, Sample((fanout,), 0, 0))
        for row in range(5):
            own = chosen.sources[chosen.offsets[row] : chosen.offsets[row + 1]]
            assert row in own and len(own) == min(fanout, 29) + 1 and len(set(own)) == len(own)


def test_every_neighbour_is_equally_likely() -> None:
    """Chi-squared over 20,000 samples: each of 12 neighbours, and each of the 66 pairs that a fan-out of 2 can give."""
    edges = [(s, 0) for s in range(1, 13)]
    inner, row = InEdges(part_of(edges, 13), 0, own_loops=False), np.zeros(1, np.int32)
    samples, pairs = 20_000, Counter[tuple[int, ...]]()
    for number in range(samples):
        own = inner.choose(row, 0, 0, Sample((2,), 7, number)).sources
        assert len(set(own)) == 2  # without replacement
        pairs[tuple(sorted(own))] += 1
    singles = Counter(one for pair, count in pairs.items() for one in pair for _ in range(count))
    assert len(pairs) == 66 and len(singles) == 12
    for counts, cells in ((pairs, 66), (singles, 12)):
        mean = sum(counts.values()) / cells
        chi = sum((one - mean) ** 2 / mean for one in counts.values())
        assert chi < cells + 4 * np.sqrt(2 * cells)  # four standard deviations


@pytest.mark.parametrize("fanout", [10, 80])
def test_large_rows_are_sampled_evenly(fanout: int) -> None:
    """Where a part of the numbers is ruled out unseen, and where they are partitioned."""
    edges = [(s, 0) for s in range(1, 501)]
    inner, row = InEdges(part_of(edges, 501), 0, own_loops=False), np.zeros(1, np.int32)
    counts = np.zeros(501)
    for number in range(4000):
        own = inner.choose(row, 0, 0, Sample((fanout,), 1, number)).sources
        assert len(own) == len(set(own)) == fanout
        counts[own] += 1
    mean = 4000 * fanout / 500
    chi = ((counts[1:] - mean) ** 2 / mean).sum() / (1 - fanout / 500)
    assert chi < 500 + 4 * np.sqrt(1000)


def test_layers_and_samples_differ() -> None:
    """Each layer, sample, seed and relation has a draw of its own; the same ones give the same again."""
    edges = [(s, 0) for s in range(1, 201)]
    inner, row = InEdges(part_of(edges, 201), 0, own_loops=False), np.zeros(1, np.int32)
    found = [
        tuple(inner.choose(row, 0, layer, Sample((10, 10), seed, number)).sources)
        for layer, seed, number in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0))
    ]
    assert found[0] == found[4] and len(set(found)) == 4
