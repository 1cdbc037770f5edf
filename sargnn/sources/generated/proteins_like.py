"""A stand-in for ogbn-proteins: its nodes, edges, features of edges, labels and split, made at any scale.

It is made so that a model needs the features of edges: only they say which neighbours tell something. A node is a protein of a
species and of one of ``FAMILIES`` families, which are alike in all species. In each species the families are paired anew. Half
of a protein's edges go to proteins of its own family and species, the others to the paired family there: an assay takes the two
for each other. So both families of a pair have the same neighbours, and who does not read edges cannot tell them apart, however
many layers there are. An edge e between a and b has ``KINDS`` kinds of evidence in [0, 1],

    f_e[:2] = MEANT + NOISE n_e  where a and b share a family, else 1 - MEANT + NOISE n_e,  n_e ~ N(0, I)
    f_e[2:] = (q_s(a) + q_s(b)) / 2 + NOISE n_e

    q_k   what evidence of family k looks like, uniform in [0, 1], the same in all species
    s(v)  the family that v seems to be of: its own with probability ``CLEAR``, else any

and nodes have no features but the mean of their in-edges', as in OGB. Own features show s(v), which is often wrong; a mean over
all neighbours shows both families of the pair; that over neighbours with strong evidence of the first kinds shows the own one.
A family has each of the 112 labels with probability ``LABELLED``; a protein has those of its family with probability ``HAS``,
the others with probability ``STRAY``. Six species train, one validates, another one tests, so what is learned of one species is
asked of another.

Pairs of nodes are joined as often at any scale up to 1: of scale times as many nodes, each has scale times as many neighbours.
Above 1 nodes have as many as at 1. Edges come pair of families by pair, each drawn by a generator of its own; memory is bounded
by those of one pair and by a reader's buffer.

Letters: N nodes, E directed edges, D features of edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.edge_columns import ATTR, EdgeColumns, EdgePiece, attr_form
from sargnn.sources.generated.communities import split_in_order
from sargnn.sources.settings import ProteinsLikeConfig
from sargnn.sources.streamed import StreamedReader

SPLIT = {"train": 86_619, "valid": 21_236, "test": 24_679}
NUM_EDGES, NUM_LABELS, KINDS = 79_122_504, 112, 8
SPECIES = {"train": 6, "valid": 1, "test": 1}
FAMILIES, SMALLEST_FAMILY = 16, 8
POPULARITY = 1.3
"""Members of a family are drawn as ``floor(size * u ** POPULARITY)`` of a uniform u: some have more edges."""
MEANT, NOISE, CLEAR = 0.75, 0.15, 0.4
LABELLED, HAS, STRAY = 0.25, 0.9, 0.02
_VERSION = 1


class ProteinsLike(StreamedReader):
    """ogbn-proteins' shape with nodes multiplied by ``config.scale``."""

    add_inverse_edges = True
    nodes_have_means = True
    num_features = KINDS
    forms = {ATTR: attr_form(KINDS)}
    label_bytes = NUM_LABELS

    def __init__(self, config: ProteinsLikeConfig) -> None:
        self.config, self.name = config, config.name
        self.normalize_features = config.normalize_features
        self.features_source = self.labels_source = self.edge_features_source = config.name
        scale = config.scale
        sizes = [size for part, count in SPECIES.items() for size in _equal(round(SPLIT[part] * scale), count)]
        if min(sizes) < SMALLEST_FAMILY * FAMILIES:
            least = SMALLEST_FAMILY * FAMILIES * SPECIES["train"] / SPLIT["train"]
            raise DataError(
                "The graph would be too small for its families.",
                given=f"dataset.scale={scale}, {sum(sizes)} nodes",
                allowed=f"dataset.scale of at least {least:.2g}",
            )
        self.num_nodes = int(sum(sizes))
        self.num_rows = round(NUM_EDGES / 2 * scale * min(1.0, scale))
        # Nodes in a latent order: species by species, family by family.
        self._bounds = np.concatenate([[0], np.cumsum([_equal(size, FAMILIES) for size in sizes])])
        self._ids = self._rng("order").permutation(self.num_nodes)

    def identity(self) -> dict[str, Any]:
        c = self.config
        return {
            "generator": c.name,
            "version": _VERSION,
            "scale": c.scale,
            "seed": c.seed,
            "normalize_features": c.normalize_features,
        }

    def _rng(self, purpose: str, number: int = 0) -> np.random.Generator:
        return np.random.default_rng([self.config.seed, *purpose.encode(), number])

    def _family(self) -> np.ndarray:
        """int64 [N], in the latent order."""
        return np.repeat(np.arange(len(self._bounds) - 1) % FAMILIES, np.diff(self._bounds))

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        rng, family = self._rng("families"), self._family()
        seems = np.where(rng.random(self.num_nodes) < CLEAR, family, rng.integers(FAMILIES, size=self.num_nodes))
        looks = rng.random((FAMILIES, KINDS - 2), dtype=np.float32)[seems]
        pairs = [
            (FAMILIES * species + a, FAMILIES * species + b)
            for species in range(sum(SPECIES.values()))
            for a, b in rng.permutation(FAMILIES).reshape(-1, 2)
        ]
        members = np.array([sum(self._bounds[k + 1] - self._bounds[k] for k in pair) for pair in pairs])
        ends = np.concatenate([[0], np.round(self.num_rows * np.cumsum(members) / members.sum())]).astype(np.int64)
        for number, pair in enumerate(pairs):
            rng = self._rng("edges", number)
            first, second, shared = self._pair(rng, *pair, int(ends[number + 1] - ends[number]))
            evidence = rng.standard_normal((len(first), KINDS), dtype=np.float32)
            evidence *= NOISE
            evidence[:, :2] += np.where(shared, MEANT, 1 - MEANT)[:, None]
            evidence[:, 2:] += (looks[first] + looks[second]) / 2
            np.clip(evidence, 0, 1, out=evidence)
            for start in range(0, len(first), rows):
                some = slice(start, start + rows)
                yield self._ids[first[some]], self._ids[second[some]], EdgeColumns.of({ATTR: evidence[some]})

    def _pair(self, rng: np.random.Generator, a: int, b: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Two families' edges in any order, none twice: both ends in the latent order, and whether they share a family."""
        runs, across = [slice(*self._bounds[k : k + 2]) for k in (a, b)], count // 2
        first = _distinct_pairs(rng, runs[0], runs[0], (count - across) // 2)
        second = _distinct_pairs(rng, runs[1], runs[1], count - across - len(first))
        pairs = np.concatenate([first, second, _distinct_pairs(rng, runs[0], runs[1], across)])
        order = rng.permutation(count)
        return pairs[order, 0], pairs[order, 1], order < count - across

    def labels(self) -> np.ndarray:
        rng, labels = self._rng("labels"), np.empty((self.num_nodes, NUM_LABELS), np.int8)
        of_family = rng.random((FAMILIES, NUM_LABELS)) < LABELLED
        drawn = rng.random((self.num_nodes, NUM_LABELS), dtype=np.float32)
        labels[self._ids] = drawn < np.where(of_family, np.float32(HAS), np.float32(STRAY))[self._family()]
        return labels

    def split(self) -> np.ndarray:
        return split_in_order(self._ids, SPLIT, self.config.scale)


def _equal(total: int, count: int) -> np.ndarray:
    """``count`` sizes that differ by at most 1, int64."""
    return np.diff(total * np.arange(count + 1) // count)


def _distinct_pairs(rng: np.random.Generator, first: slice, second: slice, count: int) -> np.ndarray:
    """Different pairs of different nodes, int64 [count, 2]: a node of each run; of the same run twice in either order."""
    keys = np.empty(0, np.int64)
    while len(keys) < count:
        ends = [
            run.start + ((run.stop - run.start) * rng.random(2 * (count - len(keys))) ** POPULARITY).astype(np.int64)
            for run in (first, second)
        ]
        low, high = np.minimum(*ends), np.maximum(*ends)
        keys = np.unique(np.concatenate([keys, (low << 32 | high)[low != high]]))
    keys = rng.permutation(keys)[:count]
    return np.stack([keys >> 32, keys & 0xFFFFFFFF], 1)
