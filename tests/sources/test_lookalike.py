"""The stand-ins for the real graphs: their figures, their shape under METIS, and that chunk sizes change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.config.partitioner import PartitionerConfig
from sargnn.errors import DataError
from sargnn.graph.dataset import Dataset, open_dataset
from sargnn.graph.schema import SPLITS, UNLABELLED
from sargnn.partition.cut import parts_of
from sargnn.partition.metis import assign
from sargnn.sources.generated import lookalike
from sargnn.sources.generated.lookalike import SHAPES, Lookalike
from sargnn.sources.settings import LookalikeConfig


def make(folder: Path, name: str, scale: float) -> Dataset:
    path = folder / f"{name}-{scale}"
    config: Any = LookalikeConfig(name=name, scale=scale, seed=0, normalize_features=False, version=2)
    Lookalike(config).write(path)
    return open_dataset(path, verify=True)


@pytest.mark.parametrize(("name", "scale"), [("products_like", 0.003), ("papers_like", 0.0004)])
def test_figures_of_the_real_graph(tmp_path: Path, name: str, scale: float) -> None:
    dataset, shape = make(tmp_path, name, scale), SHAPES[name]
    n = dataset.num_nodes
    assert n == round(shape.num_nodes * scale)
    assert abs(dataset.num_edges - shape.num_edges * scale) < 0.01 * shape.num_edges * scale
    assert dataset.features[0].shape == (n, shape.num_features) and dataset.num_classes == shape.num_classes
    destination = np.repeat(np.arange(n), np.diff(dataset.indptr))
    source = np.asarray(dataset.indices).astype(np.int64)
    keys = destination * n + source
    assert (np.diff(keys) > 0).all()  # sorted, no parallel edges
    assert (destination != source).all()
    assert np.array_equal(np.sort(source * n + destination), keys) == shape.symmetric
    for split, size in shape.split.items():
        assert abs(int((dataset.split == SPLITS[split]).sum()) - size * scale) <= 2
    assert ((dataset.labels == UNLABELLED) == (dataset.split == 0)).all()
    assert dataset.labels.max() < shape.num_classes


def test_chunks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make(tmp_path / "whole", "products_like", 0.001)
    monkeypatch.setattr(lookalike, "_DRAWN_EDGES", 10_007)
    monkeypatch.setattr(lookalike, "_BUCKET_EDGES", 20_011)
    pieces = make(tmp_path / "pieces", "products_like", 0.001)
    assert whole.content_hash == pieces.content_hash


def test_metis_finds_the_promised_cut(tmp_path: Path) -> None:
    """At scale 0.04 and 8 parts: edge cut 0.15 to 0.25, halo rows 1.5 to 3 times a part's own rows."""
    dataset = make(tmp_path, "products_like", 0.04)
    assignment = assign(dataset, 8, PartitionerConfig(name="metis", seed=0, order="original"))
    cut = 0
    for rank, part in enumerate(parts_of(dataset, assignment, 8)):
        cut += len(part.edge_src) - int(part.edge_offsets[rank + 1] - part.edge_offsets[rank])
        assert 1.5 < len(part.halo_ids) / len(part.node_ids) < 3
    assert 0.15 < cut / dataset.num_edges < 0.25


def test_too_small_a_scale_is_answered() -> None:
    config = LookalikeConfig(name="products_like", scale=1e-5, seed=0, normalize_features=False, add_self_loops=None)
    with pytest.raises(DataError, match="at least"):
        Lookalike(config)
