"""Stand-ins for ogbn-products and ogbn-papers100M: their nodes, edges, features, classes and label rates, made at any scale.

Nodes have a latent order. Runs of ``COMMUNITY`` nodes are communities, and nearby communities are of like classes. An edge
picks its first end in a random community. Its second end lies in the same community (``INSIDE``), in one whose
distance is drawn log-uniformly (``NEAR``), or in any. Inside a community the end is ``floor(size * u ** skew)`` for a uniform
u: a power law of popularity. Edges between communities are skewed more, so that a few hubs carry them. Original ids are
a random permutation of the latent order.

The versions have the same edges. Version 2 has labels, features and training nodes of ``generated.communities``. Version 1 is
easier: ``COMMUNITIES_PER_RUN`` communities are of one class, features are the class's direction, weakly, under Gaussian noise
of unit variance, training nodes lie anywhere, and ``LABEL_NOISE`` of the labels are random, which alone bounds the accuracy.

Every edge is a pure function of (seed, its number), drawn by Philox; edges are sorted bucket by bucket on disk. So memory
is bounded by a few integers per node and the result depends on neither chunk sizes nor threads.

Letters: N nodes, E directed edges, F features, C classes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.dataset import FORMAT_VERSION, Reader, describe, features_name
from sargnn.graph.edge_buckets import EdgeBuckets
from sargnn.graph.schema import UNLABELLED, Schema
from sargnn.graph.store import StoreWriter
from sargnn.native import Entry
from sargnn.rng import Purpose
from sargnn.sources.generated.communities import (
    SCALE,
    Communities,
    class_shares,
    class_signals,
    classes_of_runs,
    split_in_order,
    training_first,
)
from sargnn.sources.settings import LookalikeConfig
from sargnn.steps import step

COMMUNITY = 600
INSIDE, NEAR = 0.72, 0.18
INSIDE_SKEW, OUTSIDE_SKEW = 1.5, 8.0
COMMUNITIES_PER_RUN = 4
OVERDRAW = 1.2
"""Edges drawn for each one wanted: parallel edges and self-loops are dropped, then what is left is thinned to the number."""
LABEL_NOISE, FEATURE_SIGNAL = 0.15, 1.2
_SHAPE = COMMUNITY, INSIDE, NEAR, INSIDE_SKEW, OUTSIDE_SKEW
_DRAWN_EDGES, _BUCKET_EDGES, _FEATURE_ROWS = 1 << 22, 1 << 24, 1 << 16
_draw_edges = Entry(
    "draw_edges",
    "start int, seed int, tag int, num_nodes int, community int, inside float, near float, inside_skew float",
    "outside_skew float, id_of i N, first l E, second l E",
)


@dataclass(frozen=True)
class Shape:
    """A real graph's figures; ``symmetric``: its edges go both ways."""

    num_nodes: int
    num_edges: int
    symmetric: bool
    num_features: int
    num_classes: int
    split: dict[str, int]


SHAPES = {
    "products_like": Shape(2_449_029, 123_718_280, True, 100, 47, {"train": 196_615, "valid": 39_323, "test": 2_213_091}),
    "papers_like": Shape(111_059_956, 1_615_685_872, False, 128, 172, {"train": 1_207_179, "valid": 125_265, "test": 214_338}),
}


class Lookalike(Reader):
    """``SHAPES[config.name]`` with nodes and edges multiplied by ``config.scale``."""

    def __init__(self, config: LookalikeConfig) -> None:
        self.config = config
        self.shape = SHAPES[config.name]
        self.num_nodes = round(self.shape.num_nodes * config.scale)
        self.num_edges = round(self.shape.num_edges * config.scale)
        if self.num_nodes < 2 * COMMUNITY:
            smallest = 2 * COMMUNITY / self.shape.num_nodes
            raise DataError(
                "The graph would be too small for its communities.",
                given=f"dataset.scale={config.scale}, {self.num_nodes} nodes",
                allowed=f"dataset.scale of at least {smallest:.2g}",
            )

    def identity(self) -> dict[str, Any]:
        c = self.config
        flags: dict[str, Any] = {"scale": c.scale, "seed": c.seed, "normalize_features": c.normalize_features}
        if c.add_inverse_edges:
            flags["add_inverse_edges"] = True
        return {"generator": c.name, "version": c.version, **flags}

    def write(self, path: Path, buffer_bytes: int = 0) -> None:
        n, shape = self.num_nodes, self.shape
        id_of = np.arange(n, dtype=np.int32)
        self._rng("order").shuffle(id_of)
        with StoreWriter(path, "dataset", FORMAT_VERSION) as writer:
            with (
                tempfile.TemporaryDirectory(dir=writer.folder) as scratch,
                EdgeBuckets(Path(scratch), n, self.num_edges, _BUCKET_EDGES) as buckets,
            ):
                self._draw(id_of, buckets)
                rank_of = np.empty_like(id_of)
                rank_of[id_of] = np.arange(n, dtype=np.int32)
                del id_of
                self._thin(buckets, writer)
            draw = self._easy_nodes if self.config.version == 1 else self._hard_nodes
            draw(writer, np.minimum(rank_of // COMMUNITY, n // COMMUNITY - 1))
            describe(writer, self.config.title, shape.num_classes, Schema.homogeneous(n), self.identity())

    def _rng(self, purpose: str, chunk: int = 0) -> np.random.Generator:
        return np.random.default_rng([self.config.seed, *purpose.encode(), chunk])

    def _draw(self, id_of: np.ndarray, buckets: EdgeBuckets) -> None:
        directions, key = 2 if self.shape.symmetric else 1, (self.config.seed, int(Purpose.EDGES) << 24)
        to_draw = round(self.shape.num_edges * self.config.scale / directions * OVERDRAW)
        for start in range(0, to_draw, _DRAWN_EDGES):
            step("drawing edges", start, to_draw)
            count = min(_DRAWN_EDGES, to_draw - start)
            a, b = np.empty(count, np.int64), np.empty(count, np.int64)
            _draw_edges(start, *key, self.num_nodes, *_SHAPE, id_of, a, b)
            buckets.add(b, a)
            if directions == 2:
                buckets.add(a, b)

    def _thin(self, buckets: EdgeBuckets, writer: StoreWriter) -> None:
        """``indptr`` and ``indices``: without parallel edges and self-loops, thinned to E edges."""
        n, unique_edges = self.num_nodes, 0
        buckets.flush()
        for number in range(buckets.count):
            step("sorting edges", number, buckets.count)
            keys = buckets.keys(number)
            keys.sort()
            fresh = np.ones(len(keys), bool)
            fresh[1:] = keys[1:] != keys[:-1]
            keys = keys[fresh]
            keys = keys[keys // n != keys % n]
            unique_edges += len(keys)
            buckets.put(number, keys)
        share = self.shape.num_edges * self.config.scale / unique_edges
        if not self.config.add_inverse_edges:
            buckets.write(writer, keep=lambda destination, source: _pair_uniform(destination, source, n) < share)
            return
        with (
            tempfile.TemporaryDirectory(dir=writer.folder) as scratch,
            EdgeBuckets(Path(scratch), n, 2 * self.num_edges, _BUCKET_EDGES) as both,
        ):
            for keys in buckets.runs():
                for start in range(0, len(keys), _DRAWN_EDGES):
                    some = keys[start : start + _DRAWN_EDGES]
                    destination, source = some // n, some % n
                    kept = _pair_uniform(destination, source, n) < share
                    both.add(destination[kept], source[kept])
                    both.add(source[kept], destination[kept])
                del keys
            both.write(writer)

    def _easy_nodes(self, writer: StoreWriter, community: np.ndarray) -> None:
        """Labels, split and features of version 1, from each node's community, int32 [N]."""
        n, shape, rng = self.num_nodes, self.shape, self._rng("classes")
        shares = class_shares(shape.num_classes)
        runs = -(-(n // COMMUNITY) // COMMUNITIES_PER_RUN) + 1
        classes = classes_of_runs(rng, runs, shares)[community // COMMUNITIES_PER_RUN]

        labels = classes.astype(np.int64)
        noisy = np.flatnonzero(rng.random(n, dtype=np.float32) < LABEL_NOISE)
        labels[noisy] = rng.choice(shape.num_classes, size=len(noisy), p=shares)
        order = np.arange(n, dtype=np.int32)
        rng.shuffle(order)
        split = split_in_order(order, shape.split, self.config.scale)
        labels[split == 0] = UNLABELLED
        writer.put("labels", labels)
        writer.put("split", split)

        directions = rng.standard_normal((shape.num_classes, shape.num_features)) / np.sqrt(shape.num_features)
        signal = (FEATURE_SIGNAL * directions).astype(np.float32)
        features = writer.create(features_name(0), (n, shape.num_features), np.float32)
        for number, rows in enumerate(self._chunks()):
            self._draw_features(features, number, rows, signal[classes[rows]])
        features.flush()

    def _hard_nodes(self, writer: StoreWriter, community: np.ndarray) -> None:
        """As ``_easy_nodes``, of version 2."""
        n, classes, rng = self.num_nodes, self.shape.num_classes, self._rng("communities")
        drawn = Communities.draw(rng, n // COMMUNITY, COMMUNITIES_PER_RUN, classes)
        signal = class_signals(rng, classes, self.shape.num_features)
        order = np.arange(n, dtype=np.int32)
        self._rng("split").shuffle(order)
        training = max(1, round(self.shape.split["train"] * self.config.scale))
        order = training_first(order, drawn.known[community], training)
        split = split_in_order(order, self.shape.split, self.config.scale)
        writer.put("split", split)

        labels = writer.create("labels", (n,), np.int64)
        features = writer.create(features_name(0), (n, self.shape.num_features), np.float32)
        for number, rows in enumerate(self._chunks()):
            ids = np.arange(rows.start, rows.stop)
            drawn_labels, shown = drawn.nodes(ids, community[rows], self.config.seed)
            labels[rows] = np.where(split[rows] == 0, UNLABELLED, drawn_labels)
            self._draw_features(features, number, rows, signal[shown])
        labels.flush()
        features.flush()

    def _chunks(self) -> Iterator[slice]:
        for start in range(0, self.num_nodes, _FEATURE_ROWS):
            step("drawing features", start, self.num_nodes)
            yield slice(start, min(self.num_nodes, start + _FEATURE_ROWS))

    def _draw_features(self, features: np.ndarray, number: int, rows: slice, signal: np.ndarray) -> None:
        """Chunk ``number``: noise and ``signal`` [its rows, F]."""
        chunk = self._rng("features", number).standard_normal(signal.shape, dtype=np.float32)
        chunk += signal
        if self.config.version > 1:
            chunk *= np.float32(SCALE)
        if self.config.normalize_features:
            chunk /= np.maximum(np.abs(chunk).sum(1, keepdims=True), 1e-12)
        features[rows] = chunk


def _pair_uniform(a: np.ndarray, b: np.ndarray, num_nodes: int) -> np.ndarray:
    """A number in [0, 1) for each pair, the same for (a, b) and (b, a): the finaliser of SplitMix64."""
    x = (np.minimum(a, b) * num_nodes + np.maximum(a, b)).astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
