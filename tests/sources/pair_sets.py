"""A dataset's edges and pairs as lists and sets of two numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from sargnn.graph.dataset import Dataset
from sargnn.graph.pairs import Pairs
from sargnn.graph.schema import SPLITS

Ends = set[tuple[int, int]]


def edges_of(dataset: Dataset) -> list[tuple[int, int]]:
    return sorted(edges_in_order(dataset))


def edges_in_order(dataset: Dataset) -> list[tuple[int, int]]:
    destination = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    return list(zip(dataset.indices.tolist(), destination.tolist(), strict=True))


def pairs_of(pairs: Pairs, split: str) -> list[tuple[int, int]]:
    own = pairs.split == SPLITS[split]
    return list(zip(pairs.heads[own].tolist(), pairs.tails[own].tolist(), strict=True))


def known_of(pairs: Pairs) -> Ends:
    heads = np.repeat(np.arange(len(pairs.known.indptr) - 1), np.diff(pairs.known.indptr))
    return set(zip(heads.tolist(), pairs.known.tails.tolist(), strict=True))


def turned(ends: Any) -> Ends:
    return {(b, a) for a, b in ends}
