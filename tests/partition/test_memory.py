"""Cutting within a buffer: estimates, refusals, and that a store cut piece by piece is the same as one cut in memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from sargnn.errors import ConfigError
from sargnn.graph.dataset import by_destination, write_dataset
from sargnn.graph.store import StoreWriter
from sargnn.partition import cut as cutting
from sargnn.partition.cut import cut
from sargnn.partition.memory import check, entries_of
from sargnn.partition.order import order_nodes
from sargnn.partition.part import PART_ARRAYS
from sargnn.partition.prepare import prepare_partition
from sargnn.partition.store import FORMAT_VERSION, open_part
from tests.configs import config
from tests.graphs import assign, nasty_graph, typed_graph
from tests.partition.cuts import write_parts


@pytest.mark.parametrize("chunk", [1, 50, 10**6])
@pytest.mark.parametrize("partitioner", ["random", "empty", "apart"])
@pytest.mark.parametrize("kind", ["homogeneous", "typed"])
def test_pieces_of_any_size_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, partitioner: str, chunk: int
) -> None:
    graph = typed_graph() if kind == "typed" else nasty_graph()
    ends = order_nodes(graph, assign(graph, partitioner, 4), 4, "original")
    whole = list(cut(graph, *ends))
    monkeypatch.setattr(cutting, "_CHUNK_EDGES", chunk)
    monkeypatch.setattr(cutting, "_PIECE_BYTES", chunk)
    with StoreWriter(tmp_path / "store", "partition", FORMAT_VERSION) as writer:
        stats = write_parts(writer, graph, *ends)
        writer.meta = {"schema": graph.schema.to_json(), "num_classes": graph.num_classes}
    assert sum(stats.edges) == graph.num_edges and stats.halo_rows == [len(part.halo_ids) for part in whole]
    for rank, want in enumerate(whole):
        part = open_part(tmp_path / "store", rank)
        assert part.schema == want.schema
        for name in PART_ARRAYS:
            one, other = getattr(part, name), getattr(want, name)
            assert np.array_equal(one, other) and one.dtype == other.dtype, name
        for rows, wanted in zip(part.features, want.features, strict=True):
            assert np.array_equal(rows, wanted) and rows.shape == wanted.shape


def test_entries_of_the_symmetric_graph() -> None:
    rng = np.random.default_rng(0)
    graph = nasty_graph()
    a, b = np.unique(rng.integers(300, size=(2, 900)), axis=1)
    a, b = a[a < b], b[a < b]
    indptr, indices = by_destination(a, b, 300)
    one_way = dataclasses.replace(graph, indptr=indptr, indices=indices)
    indptr, indices = by_destination(np.concatenate([a, b]), np.concatenate([b, a]), 300)
    two_ways = dataclasses.replace(graph, indptr=indptr, indices=indices)
    assert entries_of(one_way) == 2 * len(a) and entries_of(two_ways) == 2 * len(a)


def test_what_does_not_fit_is_refused_with_what_does(tmp_path: Path) -> None:
    graph = nasty_graph()
    with pytest.raises(ConfigError, match="(?s)METIS would need.*partitioner=random"):
        check(graph, "metis", "locality", 4, 40_000)
    with pytest.raises(ConfigError, match="(?s)locality would need.*partitioner.order=original"):
        check(graph, "random", "locality", 4, 40_000)
    with pytest.raises(ConfigError, match="(?s)edges of a part.*more workers"):
        check(graph, "random", "original", 4, 1_000)
    check(graph, "random", "original", 4, 40_000)
    write_dataset(tmp_path / "store", graph, {})
    fits = config("world=4", f"store_dir={tmp_path / 'stores'}")
    assert prepare_partition(fits, tmp_path / "store").stats.nodes
