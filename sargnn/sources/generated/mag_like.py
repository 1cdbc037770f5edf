"""A stand-in for ogbn-mag: its four node types, four relations, features, classes and label rates, made at any scale.

As in ``lookalike``, nodes have a latent order, here one per type, and communities are intervals of it, the same ones for all
types. An edge picks a community for its source; its destination lies in the same community, in one whose distance is drawn
log-uniformly, or anywhere. Inside a community, and in the whole of a type, ends follow a power law of popularity. Only papers
have features and labels, so authors, institutions and fields of study tell about a paper only by how they link it to others.

The versions have the same edges. Version 2 has labels and features of ``generated.communities``; training nodes lie anywhere,
for they are six of seven papers. Version 1 is easier: features are the class's direction under Gaussian noise, and
``LABEL_NOISE`` of the labels are random.

Letters: N nodes of a type, E edges of a relation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.dataset import Dataset, InMemoryReader
from sargnn.graph.schema import UNLABELLED, Relation
from sargnn.graph.typed import Edges, homogenize, typed_dataset
from sargnn.sources.generated.communities import (
    SCALE,
    Communities,
    class_shares,
    class_signals,
    classes_of_runs,
    split_in_order,
)
from sargnn.sources.settings import MagLikeConfig
from sargnn.steps import step

NODES = {"author": 1_134_649, "field_of_study": 59_965, "institution": 8_740, "paper": 736_389}
NUM_FEATURES, NUM_CLASSES = 128, 349
SPLIT = {"train": 629_571, "valid": 64_879, "test": 41_939}
COMMUNITY_PAPERS = 300
COMMUNITIES_PER_RUN = 2
OVERDRAW = 1.25
LABEL_NOISE, FEATURE_SIGNAL = 0.15, 1.0


@dataclass(frozen=True)
class _Shape:
    """A relation of the real graph: its ends, E, and how its edges are drawn.

    Attributes:
        inside, near: shares of edges within a community, and to a near one.
        skew: of popularity where the destination may lie anywhere.
    """

    source: str
    name: str
    destination: str
    num_edges: int
    inside: float
    near: float
    skew: float


RELATIONS = (
    _Shape("author", "affiliated_with", "institution", 1_043_998, 0.6, 0.25, 2.0),
    _Shape("author", "writes", "paper", 7_145_660, 0.75, 0.18, 1.5),
    _Shape("paper", "cites", "paper", 5_416_271, 0.6, 0.25, 4.0),
    _Shape("paper", "has_topic", "field_of_study", 7_505_078, 0.4, 0.25, 4.0),
)
_PAPER = list(NODES).index("paper")


class MagLike(InMemoryReader):
    """ogbn-mag's shape with nodes and edges multiplied by ``config.scale``."""

    def __init__(self, config: MagLikeConfig) -> None:
        self.config = config
        self.counts = [max(1, round(n * config.scale)) for n in NODES.values()]
        if self.counts[_PAPER] < 2 * COMMUNITY_PAPERS:
            raise DataError(
                "The graph would be too small for its communities.",
                given=f"dataset.scale={config.scale}, {self.counts[_PAPER]} papers",
                allowed=f"dataset.scale of at least {2 * COMMUNITY_PAPERS / NODES['paper']:.2g}",
            )
        self.communities = self.counts[_PAPER] // COMMUNITY_PAPERS

    def identity(self) -> dict[str, Any]:
        c = self.config
        flags: dict[str, Any] = {"add_inverse_edges": c.add_inverse_edges, "homogenize": c.homogenize}
        flags |= {"scale": c.scale, "seed": c.seed, "normalize_features": c.normalize_features}
        return {"generator": c.name, "version": c.version, **flags}

    def read(self) -> Dataset:
        places = [self._rng(f"order {t}").permutation(n) for t, n in enumerate(self.counts)]  # latent rank -> number
        relations = []
        for number, shape in enumerate(RELATIONS):
            step("drawing edges", number, len(RELATIONS))
            relations.append(self._relation(shape, places))
        if self.config.add_inverse_edges:
            relations += [edges.inverse() for edges in relations]
        features, labels, split = self._papers(places[_PAPER])
        every = [features if t == _PAPER else np.zeros((n, 0), np.float32) for t, n in enumerate(self.counts)]
        dataset = typed_dataset(self.config.title, NUM_CLASSES, list(NODES), every, relations, _PAPER, labels, split)
        return homogenize(dataset) if self.config.homogenize else dataset

    def _rng(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self.config.seed, *purpose.encode()])

    def _relation(self, shape: _Shape, places: list[np.ndarray]) -> Edges:
        """Distinct pairs, thinned to the number wanted."""
        types = list(NODES)
        source_type, destination_type = types.index(shape.source), types.index(shape.destination)
        n_source, n_destination = self.counts[source_type], self.counts[destination_type]
        wanted = max(1, round(shape.num_edges * self.config.scale))
        rng, k = self._rng(shape.name), self.communities
        count = round(wanted * OVERDRAW)
        here = rng.integers(k, size=count)
        kind, distance = rng.random(count), (k / 2.0) ** rng.random(count)
        sign = rng.choice(np.array([-1, 1]), size=count)
        there = np.where(kind < shape.inside, here, (here + sign * distance.astype(np.int64)) % k)
        source = _member(here, rng.random(count), k, n_source)
        destination = _member(there, rng.random(count), k, n_destination)
        anywhere = kind >= shape.inside + shape.near
        popular = (n_destination * rng.random(count) ** shape.skew).astype(np.int64)
        # The popular ones are spread over the latent order by a stride that shares no factor with their number.
        destination = np.where(anywhere, _spread(popular, n_destination), destination)
        keys = np.unique(source * n_destination + destination)
        if source_type == destination_type:
            keys = keys[keys // n_destination != keys % n_destination]
        if len(keys) > wanted:
            keys = np.sort(rng.choice(keys, size=wanted, replace=False))
        relation = Relation(source_type, shape.name, destination_type)
        return Edges(relation, places[source_type][keys // n_destination], places[destination_type][keys % n_destination])

    def _papers(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features float32 [N, F], labels int64 [N] and split uint8 [N]."""
        rank = np.empty(self.counts[_PAPER], np.int64)
        rank[places] = np.arange(len(rank))
        community = rank * self.communities // len(rank)
        features, labels, split = (self._easy_papers if self.config.version == 1 else self._hard_papers)(community)
        labels[split == 0] = UNLABELLED
        if self.config.normalize_features:
            features /= np.maximum(np.abs(features).sum(1, keepdims=True), 1e-12)
        return features, labels, split

    def _easy_papers(self, community: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Version 1, from each paper's community, int64 [N]."""
        n, rng, shares = len(community), self._rng("papers"), class_shares(NUM_CLASSES)
        of_run = classes_of_runs(rng, -(-self.communities // COMMUNITIES_PER_RUN), shares)
        classes = of_run[community // COMMUNITIES_PER_RUN]
        noisy = rng.random(n) < LABEL_NOISE
        labels = np.where(noisy, rng.choice(NUM_CLASSES, size=n, p=shares), classes).astype(np.int64)
        split = split_in_order(rng.permutation(n), SPLIT, self.config.scale)
        directions = rng.standard_normal((NUM_CLASSES, NUM_FEATURES)) / np.sqrt(NUM_FEATURES)
        features = rng.standard_normal((n, NUM_FEATURES), dtype=np.float32)
        features += (FEATURE_SIGNAL * directions).astype(np.float32)[classes]
        return features, labels, split

    def _hard_papers(self, community: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n, rng = len(community), self._rng("communities")
        drawn = Communities.draw(rng, self.communities, COMMUNITIES_PER_RUN, NUM_CLASSES)
        signal = class_signals(rng, NUM_CLASSES, NUM_FEATURES)
        labels, shown = drawn.nodes(np.arange(n), community, self.config.seed)
        features = rng.standard_normal((n, NUM_FEATURES), dtype=np.float32)
        features += signal[shown]
        features *= np.float32(SCALE)
        return features, labels, split_in_order(rng.permutation(n), SPLIT, self.config.scale)


def _member(community: np.ndarray, u: np.ndarray, communities: int, size: int) -> np.ndarray:
    """Latent ranks of a type's nodes in communities, by a power law; a type may have fewer nodes than communities."""
    return np.minimum(((community + u**1.5) / communities * size).astype(np.int64), size - 1)


def _spread(ranks: np.ndarray, size: int) -> np.ndarray:
    """A fixed permutation of [0, size)."""
    stride = max(1, round(size * 0.618))
    while np.gcd(stride, size) != 1:
        stride += 1
    return ranks * stride % size
