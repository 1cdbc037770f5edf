"""Cutting loses nothing; partitioners are balanced and reproducible; statistics equal a count by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from sargnn.errors import ConfigError, StoreError
from sargnn.graph.dataset import Dataset, group_by, open_dataset
from sargnn.graph.schema import Relation
from sargnn.graph.typed import Edges, typed_dataset
from sargnn.partition import PARTITIONERS
from sargnn.partition.cut import cut, parts_of
from sargnn.partition.order import order_nodes
from sargnn.partition.part import Part
from sargnn.partition.prepare import prepare_partition
from sargnn.partition.quality import part_figures, partition_stats
from sargnn.partition.store import open_part
from sargnn.sources.generated.lookalike import Lookalike
from sargnn.sources.prepare import prepare_dataset
from sargnn.sources.settings import LookalikeConfig
from tests.configs import config
from tests.graphs import assign, nasty_graph, typed_graph

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


@pytest.mark.parametrize("order", ["original", "locality"])
@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("partitioner", [*PARTITIONERS, "empty", "apart", "by_type"])
def test_cutting_a_typed_graph_loses_nothing(partitioner: str, world: int, order: str) -> None:
    typed = typed_graph()
    schema, relation = typed.schema, typed.relation
    assert relation is not None
    destination = np.repeat(np.arange(typed.num_nodes), np.diff(typed.indptr))
    parts = list(cut(typed, *order_nodes(typed, assign(typed, partitioner, world), world, order)))
    assert sorted(np.concatenate([p.node_ids for p in parts]).tolist()) == list(range(typed.num_nodes))
    for r in range(len(schema.relations)):
        found = []
        for rank, part in enumerate(parts):
            for q in range(world):
                sources = part.node_ids if q == rank else part.halo_ids[part.halo_offsets[q] : part.halo_offsets[q + 1]]
                src, dst = part.edges(q, r)
                assert (np.diff(dst) >= 0).all()
                found += list(zip(sources[src].tolist(), part.node_ids[dst].tolist(), strict=True))
        own = relation == r
        assert sorted(found) == sorted(zip(typed.indices[own].tolist(), destination[own].tolist(), strict=True))
    for part in parts:
        for t, (first, last) in enumerate(zip(part.row_bounds, part.row_bounds[1:], strict=False)):
            ids = part.node_ids[first:last]
            assert ((ids >= schema.offsets[t]) & (ids < schema.offsets[t + 1])).all()
            assert np.array_equal(part.features[t], typed.features[t][ids - schema.offsets[t]])
        for q in range(world):
            halo = part.halo_ids[part.halo_offsets[q] : part.halo_offsets[q + 1]]
            assert (np.diff(schema.types_of(halo)) >= 0).all()  # a type's rows are a run of every message


def test_metis_balances_every_type() -> None:
    typed = typed_graph()
    assignment = assign(typed, "metis", 4)
    assert np.array_equal(assignment, assign(typed, "metis", 4))
    types = typed.schema.types_of(np.arange(typed.num_nodes))
    for t in range(len(typed.schema.node_types)):
        counts = np.bincount(assignment[types == t], minlength=4)
        assert counts.max() <= np.ceil(1.1 * counts.mean()) + 1  # small types: a node more


@pytest.mark.parametrize(
    ("sizes", "world"), [([500, 3, 1, 1000], 8), ([5000, 2, 10000], 4), ([500, 2, 1000], 32), ([700, 9], 2)]
)
def test_small_types_do_not_upset_metis(sizes: list[int], world: int) -> None:
    """Types with about as many nodes as parts, or fewer: none can be balanced, all parts still get their share."""
    rng = np.random.default_rng(0)
    relations = [
        Edges(Relation(s, f"r{s}{d}", d), rng.integers(a, size=4 * max(a, b)), rng.integers(b, size=4 * max(a, b)))
        for s, a in enumerate(sizes)
        for d, b in enumerate(sizes)
        if s < d
    ]
    features = [np.zeros((n, 3), np.float32) for n in sizes]
    labels, split = np.zeros(sizes[0], np.int64), np.ones(sizes[0], np.uint8)
    names = [f"t{t}" for t in range(len(sizes))]
    typed = typed_dataset("small", 2, names, features, relations, 0, labels, split)
    assignment = assign(typed, "metis", world)
    assert np.bincount(assignment, minlength=world).max() <= 1.15 * sum(sizes) / world + 1
    for t, size in enumerate(sizes):
        counts = np.bincount(assignment[typed.schema.offsets[t] : typed.schema.offsets[t + 1]], minlength=world)
        assert counts.max() <= max(-(-size // world), 1.1 * size / world)


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
    stats = partition_stats([part_figures(rank, part) for rank, part in enumerate(parts_of(GRAPH, assignment, 3))])
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


def prepare_store(tmp_path: Path, *overrides: str) -> Path:
    run = dataclasses.replace(config(*SMALL, *overrides), store_dir=str(tmp_path))
    return prepare_partition(run, prepare_dataset(run.dataset, run.store_dir)).path


def test_stores_are_reused_when_they_match_and_only_then(tmp_path: Path) -> None:
    first = prepare_store(tmp_path)
    stamp = (first / "manifest.json").stat().st_mtime_ns
    assert prepare_store(tmp_path, "model=gcn", "mode=one_shot", "seed=9") == first
    assert (first / "manifest.json").stat().st_mtime_ns == stamp
    others = ["world=3", "partitioner.seed=4", "partitioner=random", "partitioner.order=original", "dataset.seed=2"]
    assert len({first, *(prepare_store(tmp_path, other) for other in others)}) == 1 + len(others)


def test_a_damaged_part_is_named_and_not_opened(tmp_path: Path) -> None:
    path = prepare_store(tmp_path)
    file = path / "part_002" / "edge_src.npy"
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)
    open_part(path, 1)
    with pytest.raises(StoreError, match="part_002/edge_src.npy"):
        open_part(path, 2)


def test_more_workers_than_nodes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"world=401(.|\n)*at most \d+"):
        prepare_store(tmp_path, "world=401")
