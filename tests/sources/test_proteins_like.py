"""The stand-in for ogbn-proteins: sizes, and that features of edges, and nothing else, tell which neighbours are alike."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from sargnn.errors import DataError
from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import ATTR
from sargnn.graph.schema import SPLITS
from sargnn.sources.generated.proteins_like import FAMILIES, KINDS, NUM_EDGES, NUM_LABELS, SPLIT, ProteinsLike
from sargnn.sources.settings import ProteinsLikeConfig
from tests.in_process import sargnn_here
from tests.sources.stores import write_and_read

CONFIG = ProteinsLikeConfig("proteins_like", scale=0.012, seed=0, normalize_features=False)


@pytest.fixture(scope="module")
def graph() -> Dataset:
    return write_and_read(ProteinsLike(CONFIG))


def ends(graph: Dataset) -> tuple[np.ndarray, np.ndarray]:
    return graph.indices, np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))


def test_proportions(graph: Dataset) -> None:
    for name, size in SPLIT.items():
        assert (graph.split == SPLITS[name]).sum() == round(size * CONFIG.scale)
    assert graph.num_edges == 2 * round(NUM_EDGES / 2 * CONFIG.scale**2)
    source, destination = ends(graph)
    pairs = set(zip(source.tolist(), destination.tolist(), strict=True))
    assert len(pairs) == graph.num_edges and all((b, a) in pairs and a != b for a, b in pairs)
    assert (graph.split[source] == graph.split[destination]).all()  # none between species
    assert graph.labels.shape == (graph.num_nodes, NUM_LABELS) and graph.task == "multilabel"


def test_real_size() -> None:
    reader = ProteinsLike(dataclasses.replace(CONFIG, scale=1.0))
    assert reader.num_nodes == sum(SPLIT.values()) == 132_534 and reader.num_edges == NUM_EDGES == 79_122_504


def test_features_are_the_means_of_in_edges(graph: Dataset) -> None:
    numbers, (_, destination) = np.asarray(graph.columns[ATTR]), ends(graph)
    assert numbers.min() >= 0 and numbers.max() <= 1
    sums = np.zeros((graph.num_nodes, KINDS))
    np.add.at(sums, destination, numbers)
    wanted = sums / np.maximum(np.bincount(destination, minlength=graph.num_nodes), 1)[:, None]
    assert np.allclose(graph.features[0], wanted, atol=1e-6)


def test_the_first_kinds_say_which_neighbours_are_alike(graph: Dataset) -> None:
    numbers, (source, destination) = np.asarray(graph.columns[ATTR]), ends(graph)
    same = (graph.labels[source] == graph.labels[destination]).mean(1)
    strong = numbers[:, :2].sum(1) > 1
    assert 0.45 < strong.mean() < 0.55
    assert same[strong].mean() > same[~strong].mean() + 0.1
    # No node has more evidence than another: half of its edges are strong.
    degrees = np.maximum(np.bincount(destination, minlength=graph.num_nodes), 1)
    share = np.bincount(destination, strong, graph.num_nodes) / degrees
    assert abs(np.corrcoef(share, graph.labels.sum(1))[0, 1]) < 0.15


def test_the_same_configuration_gives_the_same_graph(graph: Dataset) -> None:
    again, other = ProteinsLike(CONFIG), ProteinsLike(dataclasses.replace(CONFIG, seed=1))
    pieces, others = write_and_read(again, 1 << 16), write_and_read(other)
    assert np.array_equal(pieces.indices, graph.indices) and np.array_equal(pieces.labels, graph.labels)
    assert np.array_equal(pieces.columns[ATTR], graph.columns[ATTR])
    assert not np.array_equal(others.labels, graph.labels)


def test_too_small() -> None:
    with pytest.raises(DataError, match="at least 0.0089"):
        ProteinsLike(dataclasses.replace(CONFIG, scale=0.005))
    assert FAMILIES * 8 * 8 <= ProteinsLike(dataclasses.replace(CONFIG, scale=0.009)).num_nodes


def test_a_model_trains_on_it(tmp_path: Path) -> None:
    words = ["dataset=proteins_like", "dataset.scale=0.009", "model=gin", "model.hidden=8", "world=2", "partitioner=random"]
    done = sargnn_here(tmp_path, "train", *words, "epochs=2", "tracking=none")
    assert done.returncode == 0, done.stderr
    assert "8 features each" in done.stderr + done.stdout and "test rocauc" in done.stdout
