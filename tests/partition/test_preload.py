"""What servers hold: all that their nodes depend on, each copy once, work shared out; bounded by hops and neighbours."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.config.partitioner import PartitionerConfig
from sargnn.errors import StoreError
from sargnn.graph.dataset import Dataset, group_by, induced
from sargnn.graph.store import StoreWriter
from sargnn.partition.metis import assign as metis
from sargnn.partition.part import Part
from sargnn.partition.preload import Bounds, find_hops, write_preloaded
from sargnn.partition.simple import assign_in_servers, assign_random, assign_range
from sargnn.partition.store import FORMAT_VERSION, open_part
from tests.graphs import assign, nasty_graph, typed_graph, with_weights

GRAPHS = {"nasty": nasty_graph(), "typed": typed_graph(), "weights": with_weights(nasty_graph())}
METIS = PartitionerConfig(name="metis", seed=0, order="original")


def stored(folder: Path, dataset: Dataset, assignment: np.ndarray, world: int, servers: int, bounds: Bounds) -> list[Part]:
    offsets, nodes = group_by(assignment, world)
    with StoreWriter(folder / "parts", "partition", FORMAT_VERSION) as writer:
        _, stats = write_preloaded(writer, dataset, offsets, nodes, servers, bounds)
        weights = {} if dataset.columns.weight is None else {"edge_weights": [0, 1]}
        writer.meta = {"schema": dataset.schema.to_json(), "num_classes": 5, "preload": {}, **weights}
    assert len(stats) == servers
    return [open_part(folder / "parts", rank) for rank in range(world)]


def hops_of(dataset: Dataset, inner: set[int], most: int) -> dict[int, int]:
    """Node -> hops from ``inner``, in plain Python."""
    found, frontier = dict.fromkeys(inner, 0), set(inner)
    for hop in range(1, most + 1):
        sources = {int(s) for v in frontier for s in dataset.indices[dataset.indptr[v] : dataset.indptr[v + 1]]}
        frontier = sources - set(found)
        found |= dict.fromkeys(frontier, hop)
    return found


def edges_of(part: Part, rank: int, size: int) -> list[tuple[int, int]]:
    """(source, destination) of a part's edges, by original ids."""
    found = []
    for peer in range(size):
        halo = part.halo_ids[part.halo_offsets[peer] : part.halo_offsets[peer + 1]]
        ids = part.node_ids if peer == rank % size else halo
        for relation in range(len(part.schema.relations)):
            src, dst = part.edges(peer, relation)
            found += list(zip(ids[src].tolist(), part.node_ids[dst].tolist(), strict=True))
    return found


@pytest.mark.parametrize(("world", "servers"), [(4, 2), (6, 3), (3, 3)])
@pytest.mark.parametrize("kind", GRAPHS)
def test_all_that_is_needed(tmp_path: Path, kind: str, world: int, servers: int) -> None:
    """Nodes within three hops, the in-edges of those within two; each on one worker of a server; copies know owners."""
    dataset, size = GRAPHS[kind], world // servers
    assignment = assign(dataset, "metis", world)
    parts = stored(tmp_path, dataset, assignment, world, servers, Bounds(3))
    rows = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    for server in range(servers):
        own = parts[server * size : (server + 1) * size]
        hops = hops_of(dataset, set(np.flatnonzero(assignment // size == server).tolist()), 3)
        held = np.concatenate([part.node_ids for part in own])
        assert sorted(held.tolist()) == sorted(hops)
        want = [(int(s), int(d)) for s, d in zip(dataset.indices, rows, strict=True) if hops.get(int(d), 3) < 3]
        got = [edge for k, part in enumerate(own) for edge in edges_of(part, server * size + k, size)]
        loops = [] if dataset.schema.typed else [(int(d), int(d)) for s, d in zip(dataset.indices, rows, strict=True)
                                                 if s == d and hops.get(int(d)) == 3]  # fmt: skip
        assert sorted(got) == sorted(want + loops)
    for rank, part in enumerate(parts):
        inner = np.asarray(part.node_ids)[part.inner]
        assert sorted(inner.tolist()) == np.flatnonzero(assignment == rank).tolist()
        for a, b in zip(part.row_bounds, part.row_bounds[1:], strict=False):
            kinds = part.inner[a:b]
            assert not kinds.any() or kinds[: kinds.sum()].all()  # copies stand behind
        assert (np.asarray(part.in_degrees) == np.diff(dataset.indptr)[part.node_ids]).all()
        for owner, other in enumerate(parts):
            assert part.copies is not None and other.copies is not None
            mine = part.copies.rows[part.copies.offsets[owner] : part.copies.offsets[owner + 1]]
            theirs = other.copies.copied_rows[other.copies.copied_offsets[rank] : other.copies.copied_offsets[rank + 1]]
            assert (np.asarray(part.node_ids)[mine] == np.asarray(other.node_ids)[theirs]).all()
            assert other.inner[theirs].all() and (owner // size != rank // size or not len(mine))


def test_work_is_shared_out(tmp_path: Path) -> None:
    """Of a graph whose closure is large, no worker of a server has much more to compute than another."""
    dataset = nasty_graph(3000)
    parts = stored(tmp_path, dataset, assign(dataset, "metis", 8), 8, 2, Bounds(3))
    for server in range(2):
        edges = [len(part.edge_src) for part in parts[4 * server : 4 * server + 4]]
        rows = [len(part.node_ids) for part in parts[4 * server : 4 * server + 4]]
        assert max(edges) < 1.25 * np.mean(edges) and max(rows) < 1.25 * np.mean(rows)


@pytest.mark.parametrize(("max_hop", "fanout"), [(1, None), (2, 2), (None, 1), (1, 1)])
def test_bounds(max_hop: int | None, fanout: int | None) -> None:
    """Never more hops or neighbours; what is chosen follows from ids and seed."""
    dataset = GRAPHS["nasty"]
    inner = np.flatnonzero(assign(dataset, "metis", 2) == 0)
    bounds = Bounds(3, max_hop, fanout, seed=5)
    hops, exact = find_hops(dataset, inner, bounds), find_hops(dataset, inner, Bounds(3))
    assert (hops[inner] == 0).all() and hops.max() <= (max_hop or 3)
    assert ((hops < 0) | (hops >= exact)).all() and ((exact >= 0) | (hops < 0)).all()
    if fanout is None:
        assert (hops == np.where(exact <= (max_hop or 3), exact, -1)).all()
        return
    assert not bounds.exact and (hops >= 0).sum() < (exact >= 0).sum()
    found = [set(np.flatnonzero(hops == hop).tolist()) for hop in range(4)]
    for hop in range(1, int(hops.max()) + 1):
        before = found[hop - 1]
        assert len(found[hop]) <= fanout * len(before)
        for node in found[hop]:
            readers = [v for v in before if node in dataset.indices[dataset.indptr[v] : dataset.indptr[v + 1]]]
            assert readers
    assert (hops == find_hops(dataset, np.random.default_rng(0).permutation(inner), bounds)).all()
    assert (hops != find_hops(dataset, inner, dataclasses.replace(bounds, seed=6))).any()


def test_neighbours_are_chosen_with_equal_chances() -> None:
    """A node with 12 in-neighbours elsewhere, of which 3 are preloaded: over 2,000 seeds each a quarter of the time."""
    indptr = np.concatenate([[0, 12], np.full(12, 12)])
    dataset = Dataset.homogeneous(
        "star", 2, np.zeros((13, 1), np.float32), np.zeros(13, np.int64), np.zeros(13, np.uint8), indptr, np.arange(1, 13)
    )
    counts = np.zeros(13)
    for seed in range(2000):
        counts += find_hops(dataset, np.array([0]), Bounds(1, 1, 3, seed)) == 1
    assert counts.sum() == 3 * 2000
    chi_squared = float(np.sum((counts[1:] - 500) ** 2 / (500 * 0.75)))
    assert chi_squared < 31.3  # 11 degrees of freedom, one in a thousand


def test_a_bounded_part_has_the_edges_between_its_nodes(tmp_path: Path) -> None:
    """And the degrees of these; edges between two inner nodes are never left out."""
    dataset = GRAPHS["nasty"]
    assignment = assign(dataset, "metis", 4)
    parts = stored(tmp_path, dataset, assignment, 4, 2, Bounds(3, 1, 1))
    rows = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    for server in range(2):
        own = parts[2 * server : 2 * server + 2]
        held = set(np.concatenate([part.node_ids for part in own]).tolist())
        want = [(int(s), int(d)) for s, d in zip(dataset.indices, rows, strict=True) if int(s) in held and int(d) in held]
        got = [edge for k, part in enumerate(own) for edge in edges_of(part, k, 2)]
        assert sorted(got) == sorted(want)
        for part in own:
            counts = np.bincount(np.asarray(part.edge_dst), minlength=len(part.node_ids))
            assert (counts == part.in_degrees).all()


@pytest.mark.parametrize("damage", ["copy_rows", "copied_offsets"])
def test_damaged_store(tmp_path: Path, damage: str) -> None:
    dataset = GRAPHS["nasty"]
    stored(tmp_path, dataset, assign(dataset, "metis", 4), 4, 2, Bounds(2))
    file = tmp_path / "parts" / "part_001" / f"{damage}.npy"
    array = np.load(file)
    np.save(file, array + 10**6)
    with pytest.raises(StoreError, match=damage):
        open_part(tmp_path / "parts", 1)


@pytest.mark.parametrize("cut", [metis, assign_random, assign_range])
@pytest.mark.parametrize("kind", ["nasty", "typed"])
def test_servers_first(cut: Any, kind: str) -> None:
    """The same servers whatever the number of their workers, all workers about as large."""
    dataset = GRAPHS[kind]
    one = partial(cut, config=METIS)
    wide, narrow = assign_in_servers(dataset, one, 8, 2), assign_in_servers(dataset, one, 2, 2)
    assert (wide // 4 == narrow).all()
    assert set(wide.tolist()) == set(range(8))
    sizes = np.bincount(wide, minlength=8)
    assert sizes.max() < 1.5 * sizes.mean()


def test_induced() -> None:
    dataset = GRAPHS["typed"]
    nodes = np.flatnonzero(np.random.default_rng(0).random(dataset.num_nodes) < 0.5)
    small = induced(dataset, nodes)
    rows = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    held = np.isin(rows, nodes) & np.isin(dataset.indices, nodes)
    got = np.repeat(np.arange(small.num_nodes), np.diff(small.indptr))
    assert (nodes[got] == rows[held]).all() and (nodes[small.indices] == np.asarray(dataset.indices)[held]).all()
    assert small.relation is not None and dataset.relation is not None
    assert (small.relation == dataset.relation[held]).all()
    assert (small.schema.types_of(np.arange(small.num_nodes)) == dataset.schema.types_of(nodes)).all()
