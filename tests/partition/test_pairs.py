"""Labelled edges in the parts of a store: a few at a time, mapped, and given back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sargnn.graph.pairs import Known, Pairs
from sargnn.graph.store import Store, StoreWriter
from sargnn.partition import pairs as pairs_module
from sargnn.partition.pairs import PairCutter, open_pairs, put_pairs

N, P = 30, 200


def test_labels_and_features_of_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    heads, tails = rng.integers(0, N, (2, P))
    split, labels = rng.integers(0, 4, P).astype(np.uint8), rng.integers(0, 3, P)
    features = rng.normal(size=(P, 5)).astype(np.float32)
    whole = Pairs(heads, tails, split, Known.none(N), labels=labels, outputs=3, features=features)
    nodes, offsets = rng.permutation(N), np.array([0, 12, 12, N])
    cutter = PairCutter(whole, offsets, nodes)
    parts = [cutter.part(p) for p in range(3)]
    monkeypatch.setattr(pairs_module, "_PIECE", 16)
    with StoreWriter(tmp_path / "store", "parts", 1) as writer:
        writer.meta = put_pairs(writer, whole, offsets, nodes)
    store = Store(tmp_path / "store", "parts", 1)
    for p, part in enumerate(parts):
        stored, ids = open_pairs(store, p, int(offsets[p + 1] - offsets[p])), nodes[offsets[p] : offsets[p + 1]]
        assert stored is not None and stored.features is not None and part.numbers is not None and stored.outputs == 3
        assert np.array_equal(ids[stored.heads], heads[part.numbers]) and np.array_equal(
            stored.features, features[part.numbers]
        )
        for name in ("heads", "tails", "split", "labels", "numbers", "features"):
            own, wanted = getattr(stored, name), getattr(part, name)
            assert own.dtype == wanted.dtype and np.array_equal(own, wanted), name
        assert not len(ids) or isinstance(stored.features, np.memmap)
        stored.release()  # what is mapped is read again
        assert np.array_equal(stored.features, features[part.numbers])
