"""The embedded graph is what its description says."""

from __future__ import annotations

import dataclasses

import numpy as np

from sargnn.sources.generated.synthetic import Synthetic
from sargnn.sources.settings import SyntheticConfig
from tests.configs import config


def settings() -> SyntheticConfig:
    dataset = config().dataset
    assert isinstance(dataset, SyntheticConfig)
    return dataset


def test_reproducible() -> None:
    one, two = Synthetic(settings()).read(), Synthetic(settings()).read()
    assert np.array_equal(one.indices, two.indices) and np.array_equal(one.features[0], two.features[0])
    other = Synthetic(dataclasses.replace(settings(), seed=1)).read()
    assert not np.array_equal(one.labels, other.labels)


def test_symmetric_simple_and_heavy_tailed() -> None:
    graph = Synthetic(settings()).read()
    destination = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    keys = graph.indices.astype(np.int64) * graph.num_nodes + destination
    assert len(np.unique(keys)) == graph.num_edges
    assert np.array_equal(np.sort(keys), np.sort(destination * np.int64(graph.num_nodes) + graph.indices))
    assert (graph.indices != destination).all()
    degrees = np.diff(graph.indptr)
    assert 0.7 * settings().mean_degree < degrees.mean() <= settings().mean_degree
    assert degrees.max() > 15 * degrees.mean()


def test_features_alone_do_clearly_worse_than_with_neighbours() -> None:
    graph = Synthetic(settings()).read()
    destination = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    gathered = np.zeros_like(graph.features[0])
    np.add.at(gathered, destination, graph.features[0][graph.indices])
    gathered /= np.maximum(np.diff(graph.indptr), 1)[:, None]

    def linear_accuracy(x: np.ndarray) -> float:
        x = np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1)
        train, test = graph.split == 1, graph.split == 3
        weights = np.linalg.lstsq(x[train], np.eye(graph.num_classes)[graph.labels[train]], rcond=None)[0]
        return float(((x[test] @ weights).argmax(1) == graph.labels[test]).mean())

    alone, together = linear_accuracy(graph.features[0]), linear_accuracy(np.concatenate([graph.features[0], gathered], 1))
    assert 1.5 / graph.num_classes < alone < together - 0.15
