"""Clusters of a graph on disk, their graph, and the way back, against matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from sargnn.graph.dataset import Dataset
from sargnn.interop.kaminpar import GraphFile, Rows, write_graph
from sargnn.partition import kaminpar
from sargnn.partition.balance import Room
from sargnn.partition.kaminpar import clusters_graph, find_clusters, refine, rows_both_ways
from sargnn.partition.metis import symmetric
from tests.graphs import nasty_graph
from tests.partition.cuts import config, cut_of, matrix, two_ways

GRAPHS = {"one way": nasty_graph(1500), "both ways": two_ways()}


def write(graph: Dataset, folder: Path, weights: np.ndarray | None) -> GraphFile:
    path = folder / "graph.parhip"
    write_graph(path, graph.num_nodes, rows_both_ways(graph, folder, 1 << 20), weights)
    return GraphFile(path)


def own_weights(graph: Dataset, weighted: bool) -> np.ndarray | None:
    return np.random.default_rng(1).integers(1, 9, graph.num_nodes) if weighted else None


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_file_as_it_was_written(name: str, weighted: bool, tmp_path: Path) -> None:
    graph, want = GRAPHS[name], matrix(GRAPHS[name])
    weights = own_weights(graph, weighted)
    file = write(graph, tmp_path, weights)
    addresses, base, neighbours, entries, nodes = file.arrays
    assert np.array_equal((np.asarray(addresses).astype(np.int64) - base) // 4, want.indptr)
    assert np.array_equal(neighbours, want.indices) and file.entries == want.nnz
    ratio = want.data / entries if len(entries) else want.data
    assert (ratio == ratio[0]).all() and len(nodes) == (graph.num_nodes if weighted else 0)
    assert np.array_equal(file.weights_of_nodes(), np.ones(graph.num_nodes) if weights is None else weights)
    assert file.most_neighbours() == np.diff(want.indptr).max()
    for first in (0, 7, graph.num_nodes - 1):
        last = file.row_after(first, 30)
        assert want.indptr[last] - want.indptr[first] <= 30 or last == first
        assert last == graph.num_nodes or want.indptr[last + 1] - want.indptr[first] > 30


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("block", [64, 1 << 22])
def test_the_graph_of_clusters_is_a_product(
    weighted: bool, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S^T A S without its diagonal, for the matrix S of who is in which cluster; clusters are no heavier than they may be."""
    monkeypatch.setattr(kaminpar, "_BLOCK_ENTRIES", block)
    monkeypatch.setattr(kaminpar, "_ROOM", 1)
    graph = GRAPHS["one way"]
    weights = own_weights(graph, weighted)
    file = write(graph, tmp_path, weights)
    cluster = find_clusters(file, 2, 0)
    count = int(cluster.max()) + 1
    assert np.array_equal(np.unique(cluster), np.arange(count)) and count < graph.num_nodes / 2
    mine = np.ones(graph.num_nodes, np.int64) if weights is None else weights
    loads = np.bincount(cluster, weights=mine)
    assert loads.max() <= max(mine.sum() / np.sqrt(file.entries), mine.max())
    of, rows = clusters_graph(file, cluster)
    assert np.array_equal(of, loads)
    found = list(rows)
    assert len(found) > 1 if block == 64 else len(found) == 1
    members = sparse.csr_array((np.ones(len(cluster), np.int64), (np.arange(len(cluster)), cluster)))
    want = (members.T @ stored(file) @ members).toarray()
    np.fill_diagonal(want, 0)
    degrees = np.concatenate([one.degrees for one in found])
    neighbours, sums = (np.concatenate([getattr(one, what) for one in found]) for what in ("neighbours", "weights"))
    got = sparse.csr_array((sums, neighbours, np.concatenate([[0], np.cumsum(degrees)])), shape=(count, count))
    assert np.array_equal(got.toarray(), want)


def stored(file: GraphFile) -> sparse.csr_array:
    addresses, base, neighbours, entries, _ = file.arrays
    values = np.asarray(entries).astype(np.int64) if len(entries) else np.ones(file.entries, np.int64)
    indptr = (np.asarray(addresses).astype(np.int64) - base) // 4
    return sparse.csr_array((values, np.asarray(neighbours).astype(np.int64), indptr), shape=(file.num_nodes,) * 2)


@pytest.mark.parametrize("weighted", [False, True])
def test_moving_nodes_cuts_less_and_keeps_the_balance(weighted: bool, tmp_path: Path) -> None:
    graph = GRAPHS["one way"]
    weights = own_weights(graph, weighted)
    file = write(graph, tmp_path, weights)
    part = np.random.default_rng(0).integers(4, size=graph.num_nodes).astype(np.int32)
    before, mine = part.copy(), file.weights_of_nodes()
    loads = np.bincount(part, weights=mine, minlength=4)
    refine(file, part, 4, 0.1)
    assert cut_of(graph, part) < 0.8 * cut_of(graph, before)
    assert np.bincount(part, weights=mine, minlength=4).max() <= max(loads.max(), np.ceil(1.1 * loads.mean()))


@pytest.mark.parametrize(("coarsen", "calls"), [("always", 1), ("never", 0), ("auto", 1)])
def test_what_is_given_to_kaminpar(coarsen: Any, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph of clusters, unless it is told otherwise or that is hardly smaller; the same seed gives the same."""
    graph = GRAPHS["one way"]
    sizes: list[int] = []
    monkeypatch.setattr(kaminpar, "_cut_whole", _counted(kaminpar._cut_whole, sizes))
    room = Room(tmp_path)
    settings = config("kaminpar", coarsen=coarsen)
    part = kaminpar.assign(graph, 4, settings, room)
    assert (sizes[0] < graph.num_nodes) == (coarsen == "always")  # by chance only: a random graph has no communities
    assert np.array_equal(part, kaminpar.assign(graph, 4, settings, room))
    assert np.bincount(part, minlength=4).max() <= 1.03 * graph.num_nodes / 4 + 1
    assert not list(tmp_path.iterdir())
    if coarsen == "auto":
        monkeypatch.setattr(kaminpar, "MOST_LEFT", 1.0)
        sizes.clear()
        kaminpar.assign(graph, 4, settings, room)
        assert sizes[0] < graph.num_nodes


def test_what_does_not_fit_is_made_smaller_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters of clusters, until there is room; auto does so where the whole graph has none."""
    graph = GRAPHS["one way"]
    sizes: list[int] = []
    monkeypatch.setattr(kaminpar, "_cut_whole", _counted(kaminpar._cut_whole, sizes))
    monkeypatch.setattr(kaminpar, "LEAST_NODES", 2)
    monkeypatch.setattr(kaminpar, "_too_large", lambda path: GraphFile(path).num_nodes > 300)
    part = kaminpar.assign(graph, 4, config("kaminpar"), Room(tmp_path))
    assert sizes[0] <= 300
    assert np.bincount(part, minlength=4).max() <= 1.03 * graph.num_nodes / 4 + 20
    assert cut_of(graph, part) < 0.72


def _counted(run: Any, sizes: list[int]) -> Any:
    def counted(path: Path, *rest: Any) -> np.ndarray:
        sizes.append(GraphFile(path).num_nodes)
        found: np.ndarray = run(path, *rest)
        return found

    return counted


def test_communities_are_found_in_the_graph_of_clusters(tmp_path: Path) -> None:
    """As good a cut as of the whole graph where nodes have communities, which a random graph of blocks shows."""
    rng = np.random.default_rng(5)
    n, blocks = 6000, 60
    source = rng.integers(n, size=60000)
    size = n // blocks
    near = rng.random(len(source)) < 0.8
    other = np.where(near, source // size * size + rng.integers(size, size=len(source)), rng.integers(n, size=len(source)))
    keep = source != other
    entries = symmetric(sparse.csr_array((np.ones(keep.sum(), np.int32), (source[keep], other[keep])), shape=(n, n)))
    path = tmp_path / "graph.parhip"
    write_graph(path, n, iter([Rows(0, np.diff(entries.indptr), entries.indices, entries.data)]))
    cluster = find_clusters(GraphFile(path), 6, 0)
    inside = np.mean([len(np.unique(np.arange(n)[cluster == c] // size)) for c in range(0, int(cluster.max()) + 1, 7)])
    assert inside < 1.5  # nearly every cluster lies in one block
    part = kaminpar._cut(path, 6, config("kaminpar", coarsen="always"))
    coordinates = entries.tocoo()
    assert (part[coordinates.row] != part[coordinates.col]).mean() < 0.22


def test_components_that_are_clusters_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of triangles has no edge between clusters: parts are even, and none is cut."""
    n = 1800
    first = np.repeat(np.arange(0, n, 3), 6)
    source, destination = first + np.tile([0, 0, 1, 1, 2, 2], n // 3), first + np.tile([1, 2, 0, 2, 0, 1], n // 3)
    entries = sparse.csr_array((np.ones(len(source), np.int32), (source, destination)), shape=(n, n))
    entries.sort_indices()
    path = tmp_path / "graph.parhip"
    write_graph(path, n, iter([Rows(0, np.diff(entries.indptr), entries.indices, entries.data)]))
    monkeypatch.setattr(kaminpar, "_cut_whole", lambda *_: pytest.fail("cut"))
    part = kaminpar._cut(path, 4, config("kaminpar"))
    assert (part[source] == part[destination]).all() and np.bincount(part, minlength=4).max() <= n / 4 + 3
