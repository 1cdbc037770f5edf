"""Cutting loses nothing; partitioners are balanced and reproducible; statistics equal a count by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from sargnn.config import LookalikeConfig
from sargnn.data.dataset import Dataset, group_by, open_dataset
from sargnn.data.lookalike import Lookalike
from sargnn.data.prepare import prepare_dataset
from sargnn.errors import ConfigError, StoreError
from sargnn.partition import PARTITIONERS
from sargnn.partition.cut import Part, cut, parts_of
from sargnn.partition.order import order_nodes
from sargnn.partition.prepare import prepare_partition
from sargnn.partition.stats import StatsCollector
from sargnn.partition.store import open_part
from tests.graphs import assign, nasty_graph
from tests.test_config import config

GRAPH = nasty_graph()


def all_edges(dataset: Dataset) -> list[tuple[int, int]]:
    destination = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    return sorted(zip(dataset.indices.tolist(), destination.tolist(), strict=True))


def original_edges(part: Part, rank: int) -> list[tuple[int, int]]:
    """A part's edges in original ids."""
    edges = []
    for q in range(len(part.edge_offsets) - 1):
        block = slice(part.edge_offsets[q], part.edge_offsets[q + 1])
        sources = part.node_ids if q == rank else part.halo_ids[part.halo_offsets[q] : part.halo_offsets[q + 1]]
        edges += list(zip(sources[part.edge_src[block]].tolist(), part.node_ids[part.edge_dst[block]].tolist(), strict=True))
    return edges


@pytest.mark.parametrize("order", ["original", "locality"])
@pytest.mark.parametrize("world", [1, 2, 4, 7])
@pytest.mark.parametrize("partitioner", [*PARTITIONERS, "empty", "apart"])
def test_cutting_loses_nothing(partitioner: str, world: int, order: str) -> None:
    assignment = assign(GRAPH, partitioner, world)
    parts = list(cut(GRAPH, *order_nodes(GRAPH, assignment, world, order)))
    assert sorted(np.concatenate([p.node_ids for p in parts]).tolist()) == list(range(GRAPH.num_nodes))
    edges = [edge for rank, part in enumerate(parts) for edge in original_edges(part, rank)]
    assert sorted(edges) == all_edges(GRAPH)
    out_degrees = np.bincount(GRAPH.indices, minlength=GRAPH.num_nodes)
    for rank, part in enumerate(parts):
        assert (assignment[part.node_ids] == rank).all()
        assert np.array_equal(part.features[0], GRAPH.features[0][part.node_ids])
        assert np.array_equal(part.in_degrees, np.diff(GRAPH.indptr)[part.node_ids])
        assert np.array_equal(part.out_degrees, out_degrees[part.node_ids])
        for q, peer in enumerate(parts):
            halo = part.halo_ids[part.halo_offsets[q] : part.halo_offsets[q + 1]]
            sent = peer.send_rows[peer.send_offsets[rank] : peer.send_offsets[rank + 1]]
            assert np.array_equal(halo, peer.node_ids[sent])  # both sides agree on rows and their order
            assert (np.diff(sent) > 0).all()


def test_locality_brings_neighbours_together(tmp_path: Path) -> None:
    """Edges between rows less than a cluster apart: few in the random original order, most in clusters."""
    config = LookalikeConfig(name="products_like", scale=0.01, seed=0, normalize_features=False, add_self_loops=None)
    Lookalike(config).write(tmp_path / "store")
    dataset = open_dataset(tmp_path / "store", verify=False)
    near = {}
    for how in ("original", "locality"):
        _, nodes = order_nodes(dataset, np.zeros(dataset.num_nodes, np.int32), 1, how)
        position = np.argsort(nodes)
        destination = position[np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))]
        near[how] = float((np.abs(destination - position[dataset.indices]) < 1000).mean())
    assert near["original"] < 0.1 and near["locality"] > 0.5


def test_statistics_equal_a_count_by_hand() -> None:
    assignment = assign(GRAPH, "random", 3)
    collector = StatsCollector()
    for rank, part in enumerate(parts_of(GRAPH, assignment, 3)):
        collector.add(rank, part)
    stats = collector.finish()
    crossing = [(a, b) for a, b in all_edges(GRAPH) if assignment[a] != assignment[b]]
    assert stats.cut_edges == len(crossing) and stats.edge_cut == len(crossing) / GRAPH.num_edges
    assert stats.halo_rows == [len({a for a, b in crossing if assignment[b] == p}) for p in range(3)]
    assert stats.volume_rows == sum(stats.halo_rows)
    assert stats.nodes == np.bincount(assignment).tolist()
    assert stats.node_balance == max(stats.nodes) / (GRAPH.num_nodes / 3)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_balanced_and_reproducible(partitioner: str) -> None:
    one, two = assign(GRAPH, partitioner, 4), assign(GRAPH, partitioner, 4)
    assert np.array_equal(one, two)
    assert np.bincount(one, minlength=4).max() <= 1.1 * GRAPH.num_nodes / 4


def test_metis_cuts_far_less_than_random() -> None:
    destination = np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr))
    cuts = {}
    for name in ("metis", "random"):
        assignment = assign(GRAPH, name, 4)
        cuts[name] = (assignment[GRAPH.indices] != assignment[destination]).mean()
    assert cuts["metis"] < 0.5 * cuts["random"]


def test_group_by_is_a_stable_sort() -> None:
    keys = np.random.default_rng(0).integers(7, size=200)
    indptr, order = group_by(keys, 9)
    assert np.array_equal(order, np.argsort(keys, kind="stable"))
    assert np.array_equal(np.diff(indptr), np.bincount(keys, minlength=9))


SMALL = ("dataset.num_nodes=400", "partitioner=metis")


def prepared(tmp_path: Path, *overrides: str) -> Path:
    run = dataclasses.replace(config(*SMALL, *overrides), store_dir=str(tmp_path))
    return prepare_partition(run, prepare_dataset(run.dataset, run.store_dir)).path


def test_stores_are_reused_when_they_match_and_only_then(tmp_path: Path) -> None:
    first = prepared(tmp_path)
    stamp = (first / "manifest.json").stat().st_mtime_ns
    assert prepared(tmp_path, "model=gcn", "mode=one_shot", "seed=9") == first
    assert (first / "manifest.json").stat().st_mtime_ns == stamp
    others = ["world=3", "partitioner.seed=4", "partitioner=random", "partitioner.order=original", "dataset.seed=2"]
    assert len({first, *(prepared(tmp_path, other) for other in others)}) == 1 + len(others)


def test_a_damaged_part_is_named_and_not_opened(tmp_path: Path) -> None:
    path = prepared(tmp_path)
    file = path / "part_002" / "edge_src.npy"
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)
    open_part(path, 1)
    with pytest.raises(StoreError, match="part_002/edge_src.npy"):
        open_part(path, 2)


def test_more_workers_than_nodes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="more workers than nodes"):
        prepared(tmp_path, "world=401")
