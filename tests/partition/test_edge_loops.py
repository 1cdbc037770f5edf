"""Loops over edges that parts are cut with: nodes with many and with no edges, numbers of 32 and 64 bits, mapped files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sargnn.graph.dataset import Dataset, group_by
from sargnn.graph.edge_columns import WEIGHT, EdgeColumns
from sargnn.partition.ground import lay_ground
from sargnn.partition.kaminpar import goes_both_ways, rows_both_ways
from sargnn.partition.sort_edges import Wanted, sort_edges

N = 400


def graph(folder: Path, edges: int, dtype: type) -> Dataset:
    """A third of the edges end in node 7; rows do not ascend. Arrays are mapped read-only."""
    rng = np.random.default_rng(edges)
    destination = np.sort(np.where(rng.random(edges) < 0.3, 7, rng.integers(0, N, edges)))
    indptr = np.searchsorted(destination, np.arange(N + 1)).astype(np.int64)
    arrays: dict[str, np.ndarray] = {
        "indptr": indptr,
        "indices": rng.integers(0, N, edges).astype(dtype),
        "weight": rng.random(edges, np.float32),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    mapped = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in arrays}
    features, split = np.zeros((N, 1), np.float32), np.ones(N, np.uint8)
    columns = EdgeColumns.of({WEIGHT: mapped["weight"]})
    return Dataset.homogeneous("edges", 2, features, np.zeros(N, np.int64), split, mapped["indptr"], mapped["indices"], columns)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("edges", [0, 1, 9000])
def test_parts_edges_are_sorted(tmp_path: Path, edges: int, dtype: type) -> None:
    """By source part, destination and source; equal ones as they stood."""
    dataset = graph(tmp_path, edges, dtype)
    offsets, nodes = group_by(np.random.default_rng(0).integers(0, 3, N).astype(np.int32), 3)
    ground = lay_ground(dataset, offsets, nodes)
    source, destination = np.asarray(dataset.indices), np.repeat(np.arange(N), np.diff(dataset.indptr))
    assert (ground.out_degrees == np.bincount(source, minlength=N)).all()
    for p in range(3):
        own = nodes[offsets[p] : offsets[p + 1]]
        wanted = Wanted(own, np.arange(len(own)), ground.place, offsets)
        src, dst, bounds, columns = sort_edges(dataset, wanted, 1000, lambda _: None)
        mine = np.flatnonzero((ground.place[destination] >= offsets[p]) & (ground.place[destination] < offsets[p + 1]))
        position, row = ground.place[source[mine]], ground.place[destination[mine]] - offsets[p]
        part = np.searchsorted(offsets, position, side="right") - 1
        order = np.lexsort((position, row, part))
        assert (src == (position - offsets[part])[order]).all() and (dst == row[order]).all()
        assert (np.diff(bounds) == np.bincount(part, minlength=3)).all()
        assert (np.asarray(columns[WEIGHT]) == np.asarray(dataset.columns[WEIGHT])[mine[order]]).all()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("edges", [0, 1, 9000])
def test_rows_both_ways(tmp_path: Path, edges: int, dtype: type) -> None:
    dataset = graph(tmp_path, edges, dtype)
    source, destination = np.asarray(dataset.indices), np.repeat(np.arange(N), np.diff(dataset.indptr))
    dense = np.zeros((N, N), np.int64)
    np.add.at(dense, (destination, source), 1)
    dense += dense.T
    np.fill_diagonal(dense, 0)
    rows = list(rows_both_ways(dataset, tmp_path, 1 << 20))
    assert goes_both_ways(dataset) == (not dense.any())
    assert (np.concatenate([some.degrees for some in rows]) == (dense > 0).sum(1)).all()
    assert (np.concatenate([some.neighbours for some in rows]) == np.nonzero(dense)[1]).all()
    assert (np.concatenate([some.weights for some in rows]) == dense[dense > 0]).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_grouping(dtype: type) -> None:
    keys: np.ndarray = np.random.default_rng(1).integers(0, 5, 1000).astype(dtype)
    indptr, order = group_by(keys[::2], 6)  # not side by side
    assert (order == np.argsort(keys[::2], kind="stable")).all()
    assert (np.diff(indptr) == np.bincount(keys[::2], minlength=6)).all()
    indptr, order = group_by(keys[:0], 0)
    assert indptr.tolist() == [0] and not len(order)
