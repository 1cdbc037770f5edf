"""The stand-in for ogbn-mag: sizes, relations, what papers alone have, and that links tell something."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from sargnn.config.partitioner import PartitionerConfig
from sargnn.errors import DataError
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import SPLITS
from sargnn.partition.cut import cut
from sargnn.partition.metis import assign
from sargnn.partition.order import order_nodes
from sargnn.partition.quality import part_figures, partition_stats
from sargnn.sources.generated.mag_like import NODES, NUM_CLASSES, RELATIONS, SPLIT, MagLike
from sargnn.sources.settings import MagLikeConfig
from tests.sources.stores import edges_of

CONFIG = MagLikeConfig("mag_like", 0.01, 0, add_inverse_edges=True, homogenize=False, normalize_features=False,
                       version=2)  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> Dataset:
    return MagLike(CONFIG).read()


def test_proportions(graph: Dataset) -> None:
    schema = graph.schema
    assert schema.node_types == tuple(NODES) and len(schema.relations) == 8
    for node_type, (name, count) in enumerate(NODES.items()):
        assert schema.count(node_type) == round(0.01 * count)
        assert graph.features[node_type].shape[1] == (128 if name == "paper" else 0)
    for number, shape in enumerate(RELATIONS):
        edges = edges_of(graph, number)
        assert len(set(edges)) == len(edges)  # no parallel edges
        assert 0.85 * 0.01 * shape.num_edges <= len(edges) <= round(0.01 * shape.num_edges)
        assert edges_of(graph, number + 4) == sorted((b, a) for a, b in edges)
    papers = slice(*schema.offsets[3:5])
    for name, size in SPLIT.items():
        assert abs(int((graph.split[papers] == SPLITS[name]).sum()) - 0.01 * size) <= 1
    assert not graph.split[: papers.start].any() and (graph.labels[: papers.start] == -1).all()
    assert graph.num_classes == NUM_CLASSES and graph.labels.max() < NUM_CLASSES


def test_the_same_configuration_gives_the_same_graph(graph: Dataset) -> None:
    again, other = MagLike(CONFIG).read(), MagLike(dataclasses.replace(CONFIG, seed=1)).read()
    assert np.array_equal(again.indices, graph.indices) and np.array_equal(again.features[3], graph.features[3])
    assert not np.array_equal(other.features[3], graph.features[3])


def test_links_tell_a_papers_class(graph: Dataset) -> None:
    """Papers of one author are of one class far more often than two papers at random."""
    labels = graph.labels[graph.schema.offsets[3] :]
    of_author: dict[int, list[int]] = {}
    for author, paper in edges_of(graph, 1):
        if labels[paper] >= 0:
            of_author.setdefault(author, []).append(int(labels[paper]))
    pairs = [(a, b) for papers in of_author.values() for a, b in zip(papers, papers[1:], strict=False)]
    same = np.mean([a == b for a, b in pairs])
    known = labels[labels >= 0]
    rng = np.random.default_rng(0)
    by_chance = np.mean(known == rng.permutation(known))
    assert same > 3 * by_chance


def test_parts_are_balanced_in_every_type_and_cut_like_a_real_graph(graph: Dataset) -> None:
    config = PartitionerConfig("metis", 0, "locality")
    assignment = assign(graph, 4, config)
    assert np.array_equal(assignment, assign(graph, 4, config))
    figures = []
    for rank, part in enumerate(cut(graph, *order_nodes(graph, assignment, 4, "locality"))):
        figures.append(part_figures(rank, part))
        types = graph.schema.types_of(part.node_ids)
        assert (np.diff(types) >= 0).all()  # type by type
    stats = partition_stats(figures)
    assert max(stats.type_balance) < 1.1 and len(stats.type_balance) == 4
    assert 0.1 < stats.edge_cut < 0.4


def test_too_small() -> None:
    with pytest.raises(DataError, match="(?s)communities.*at least"):
        MagLike(dataclasses.replace(CONFIG, scale=1e-5))
