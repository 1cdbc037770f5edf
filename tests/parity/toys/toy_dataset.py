"""Rings of nodes with chords, whose label is their ring."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sargnn.config.fields import AT_LEAST_ONE
from sargnn.graph.dataset import Dataset, by_destination
from sargnn.sources.settings import InMemoryDataset


@dataclass(frozen=True)
class Rings(InMemoryDataset):
    """``rings`` rings of ``length`` nodes."""

    rings: int = field(metadata=AT_LEAST_ONE)
    length: int = field(metadata=AT_LEAST_ONE)

    def read(self) -> Dataset:
        n = self.rings * self.length
        ids = np.arange(n)
        ring, place = ids // self.length, ids % self.length
        steps = [ring * self.length + (place + distance) % self.length for distance in (1, 2, 5)]
        indptr, indices = by_destination(np.tile(ids, 3), np.concatenate(steps), n)
        rng = np.random.default_rng(0)
        features = (np.eye(self.rings, 7)[ring] + rng.standard_normal((n, 7))).astype(np.float32)
        split = rng.choice([1, 1, 2, 3], size=n).astype(np.uint8)
        return Dataset.homogeneous(self.name, self.rings, features, ring.astype(np.int64), split, indptr, indices)
