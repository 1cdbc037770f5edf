"""The stand-ins' second version: the first one's bits and edges stay, and methods differ by what each of them can see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from sargnn.graph.dataset import Dataset, open_dataset
from sargnn.graph.schema import SPLITS
from sargnn.sources.generated import lookalike
from sargnn.sources.generated.communities import KNOWN, LABEL_NOISE, Communities, training_first
from sargnn.sources.generated.lookalike import COMMUNITIES_PER_RUN
from sargnn.sources.settings import LookalikeConfig, MagLikeConfig

CONTENT = {
    ("products_like", 0.001, 1): "f6ce6efd056d836b",
    ("papers_like", 0.0002, 1): "50888bc91198600d",
    ("mag_like", 0.005, 1): "41f109a226200c05",
    ("products_like", 0.001, 2): "cd7091317024cbee",
    ("papers_like", 0.0002, 2): "9974ea3b978a87be",
    ("mag_like", 0.005, 2): "896de4c91d980497",
}


def make(folder: Path, name: str, scale: float, version: int, seed: int = 0) -> Dataset:
    path = folder / f"{name}-{scale}-{version}"
    common: dict[str, Any] = {"normalize_features": False, "version": version}
    if name == "mag_like":
        MagLikeConfig(name, scale, seed, add_inverse_edges=True, homogenize=False, **common).reader().write(path, 0)
    else:
        LookalikeConfig(name, scale, seed, **common).reader().write(path, 0)
    return open_dataset(path, verify=True)


@pytest.mark.parametrize(("name", "scale", "version"), CONTENT)
def test_content_is_what_it_was(tmp_path: Path, name: str, scale: float, version: int) -> None:
    """Hashes of before there were versions, and of the second one when it was made."""
    assert make(tmp_path, name, scale, version).content_hash == CONTENT[name, scale, version]


@pytest.mark.parametrize(("name", "scale"), [("products_like", 0.002), ("papers_like", 0.0002), ("mag_like", 0.005)])
def test_versions_differ_in_labels_features_and_name_only(tmp_path: Path, name: str, scale: float) -> None:
    old, new = make(tmp_path, name, scale, 1), make(tmp_path, name, scale, 2)
    assert np.array_equal(old.indptr, new.indptr) and np.array_equal(old.indices, new.indices)
    assert old.num_classes == new.num_classes and old.feature_widths == new.feature_widths
    for code in SPLITS.values():
        assert (old.split == code).sum() == (new.split == code).sum()
    assert not np.array_equal(old.labels, new.labels)
    assert (old.name, new.name) == (f"{name}-v1", name)


def test_chunks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make(tmp_path / "whole", "products_like", 0.001, 2)
    monkeypatch.setattr(lookalike, "_DRAWN_EDGES", 10_007)
    monkeypatch.setattr(lookalike, "_BUCKET_EDGES", 20_011)
    pieces = make(tmp_path / "pieces", "products_like", 0.001, 2)
    assert whole.content_hash == pieces.content_hash


def test_nodes_are_drawn_by_id_alone() -> None:
    drawn = Communities.draw(np.random.default_rng(1), 40, 4, 47)
    ids = np.arange(5000)
    community = ids % 40
    labels, shown = drawn.nodes(ids, community, seed=3)
    some = np.random.default_rng(2).permutation(ids)[:700]
    again, shown_again = drawn.nodes(some, community[some], seed=3)
    assert np.array_equal(again, labels[some]) and np.array_equal(shown_again, shown[some])
    assert not np.array_equal(drawn.nodes(ids, community, seed=4)[0], labels)


def test_every_class_that_occurs_is_known_somewhere() -> None:
    drawn = Communities.draw(np.random.default_rng(0), 4000, COMMUNITIES_PER_RUN, 172)
    assert set(drawn.main[drawn.known]) == set(drawn.main) == set(range(172))
    assert abs(drawn.known.mean() - KNOWN) < 0.05
    group = drawn.main % 43
    assert (group.reshape(-1, COMMUNITIES_PER_RUN) == group[::COMMUNITIES_PER_RUN, None]).all()  # a run is of one group
    assert (drawn.minor % 43 == group).all()


def test_training_nodes_come_first_and_others_only_where_they_are_too_few() -> None:
    order = np.random.default_rng(0).permutation(100)
    may = np.arange(100) < 30
    some = training_first(order, may, 20)
    assert may[some[:20]].all() and np.array_equal(np.sort(some), np.arange(100))
    assert np.array_equal(some[:20], order[may[order]][:20])
    many = training_first(order, may, 40)
    assert may[many[:30]].all() and not may[many[30:40]].any() and np.array_equal(np.sort(many), np.arange(100))


def test_methods_differ_by_what_they_see(tmp_path: Path) -> None:
    """The nearest class mean instead of networks: own features < neighbours' < their labels too; labels alone are behind.

    Neighbours' features count through what each tells alone. Means of features would show which community a node is in.
    """
    graph = make(tmp_path, "products_like", 0.02, 2)
    found = scores_of(graph)
    assert 0.2 < found["features"] and found["features"] + 0.1 < found["neighbours"], found
    assert max(found["neighbours"], found["labels alone"]) + 0.05 < found["labels too"] < 1 - LABEL_NOISE, found


def scores_of(graph: Dataset) -> dict[str, float]:
    """Test accuracies of methods that see more and more."""
    n, classes = graph.num_nodes, graph.num_classes
    ones = np.ones(len(graph.indices), np.float32)
    adjacency = csr_matrix((ones, np.array(graph.indices), np.array(graph.indptr)), (n, n))
    degree = torch.from_numpy(np.diff(graph.indptr)).float().clamp(min=1)
    labels, split = torch.from_numpy(np.array(graph.labels)), torch.from_numpy(np.array(graph.split))
    train, test = (split == SPLITS["train"]).nonzero()[:, 0], (split == SPLITS["test"]).nonzero()[:, 0]
    wanted = torch.zeros(n, classes)
    wanted[train, labels[train]] = 1.0
    counts = wanted.sum(0)

    def mean(rows: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(adjacency @ rows.numpy()) / degree[:, None]

    def nearest(rows: torch.Tensor) -> torch.Tensor:
        """Log posteriors [N, C] under one normal distribution for each class, of one variance."""
        centre = wanted.T @ rows / counts.clamp(min=1)[:, None]
        variance = (rows[train] - centre[labels[train]]).square().mean()
        return (counts / counts.sum()).log() - torch.cdist(rows, centre).square() / (2 * variance)

    def spread(rows: torch.Tensor) -> torch.Tensor:
        out = rows
        for _ in range(10):
            out = 0.8 * mean(out) + 0.2 * rows
        return out

    def accuracy(rows: torch.Tensor) -> float:
        return float((rows[test].argmax(1) == labels[test]).float().mean())

    x = torch.from_numpy(np.array(graph.features[0]))
    own = nearest(x)
    neighbours = own + 10 * mean(mean(own))
    of_labels = mean(mean(wanted))
    of_labels /= of_labels.sum(1, keepdim=True).clamp(min=1e-6)
    return {
        "features": accuracy(own),
        "neighbours": accuracy(neighbours),
        "labels too": accuracy(neighbours + 10 * (of_labels + 0.05).log()),
        "labels alone": accuracy(spread(wanted)),
    }
