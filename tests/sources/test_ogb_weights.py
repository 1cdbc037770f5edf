"""Edge weights and features in OGB's layouts, and through the sorting on disk."""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.errors import DataError
from sargnn.graph.check import weight_range
from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_buckets import EdgeBuckets
from sargnn.graph.edge_columns import ATTR, EdgeColumns
from sargnn.sources.ogb.export import export
from sargnn.sources.ogb.named import ogb_dir
from sargnn.sources.prepare import key_of
from sargnn.sources.settings import OgbDirConfig
from tests.graphs import nasty_graph, typed_graph, with_weights
from tests.in_process import sargnn_here
from tests.sources.stores import write_and_read


def graph_of(layout: str) -> Dataset:
    """The features of an edge go by its ends and its weight."""
    graph = with_weights(typed_graph() if layout == "typed" else nasty_graph(), lowest=-1)
    assert graph.columns.weight is not None
    destination = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    features = np.stack([graph.indices / 7, destination * 1e-6, graph.columns.weight * 3], 1).astype(np.float32)
    return dataclasses.replace(graph, columns=graph.columns.put(ATTR, features))


def reader_of(folder: Path, **changes: Any) -> Any:
    settings: dict[str, Any] = {"add_inverse_edges": False, "normalize_features": False} | changes
    return ogb_dir(OgbDirConfig("ogb_dir", str(folder), **settings))


def edges_of(dataset: Dataset) -> list[tuple[int, int, str, list[float]]]:
    """Source, destination, relation, and weight and features of every edge."""
    assert dataset.columns.weight is not None
    destination = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    relation = np.zeros(dataset.num_edges, int) if dataset.relation is None else np.asarray(dataset.relation)
    names = [dataset.schema.relations[r].name for r in relation]
    weights = dataset.columns.weight[:, None]
    carried = np.concatenate([weights, np.asarray(dataset.columns[ATTR])], 1) if ATTR in dataset.columns else weights
    columns = dataset.indices.tolist(), destination.tolist(), names, carried.tolist()
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("layout", ["csv", "binary", "typed"])
def test_what_is_exported_comes_back(layout: str, tmp_path: Path) -> None:
    graph = graph_of(layout)
    export(graph, tmp_path / "raw", layout, symmetric=False)
    found = write_and_read(reader_of(tmp_path / "raw"))
    assert found.stored_weights == weight_range(graph)
    if layout == "typed":  # relations come back in the order of their names
        assert sorted(edges_of(found)) == sorted(edges_of(graph))
    else:
        assert np.array_equal(found.indptr, graph.indptr) and edges_of(found) == edges_of(graph)
    small = write_and_read(reader_of(tmp_path / "raw"), buffer_bytes=20_000)
    assert edges_of(small) == edges_of(found)


@pytest.mark.parametrize("layout", ["csv", "binary", "typed"])
def test_inverse_edges_have_the_weights_of_those_they_turn_round(layout: str, tmp_path: Path) -> None:
    graph = graph_of(layout)
    export(graph, tmp_path / "raw", layout, symmetric=False)
    found = write_and_read(reader_of(tmp_path / "raw", add_inverse_edges=True))
    prefix = "rev_" if layout == "typed" else ""
    turned = [(b, a, prefix + name, weight) for a, b, name, weight in edges_of(graph)]
    assert sorted(edges_of(found)) == sorted(edges_of(graph) + turned)


def test_a_symmetric_graph_is_written_once(tmp_path: Path) -> None:
    pairs = {(a, b) for a, b, *_ in edges_of(graph_of("csv")) if a < b}
    ends = np.array(sorted(pairs)).T
    weights = np.linspace(0.5, 3, len(pairs)).astype(np.float32)
    from sargnn.graph.dataset import group_by

    source, destination, both = np.concatenate([ends[0], ends[1]]), np.concatenate([ends[1], ends[0]]), np.tile(weights, 2)
    order = np.lexsort((source, destination))
    indptr, _ = group_by(destination, 300)
    graph = dataclasses.replace(
        nasty_graph(), indptr=indptr, indices=source[order].astype(np.int32), columns=EdgeColumns.of({"weight": both[order]})
    )
    for layout in ("csv", "binary"):
        export(graph, tmp_path / layout, layout, symmetric=True)
        assert write_and_read(reader_of(tmp_path / layout)).num_edges == len(pairs)
        assert edges_of(write_and_read(reader_of(tmp_path / layout, add_inverse_edges=True))) == edges_of(graph)


def test_the_command_exports_them(tmp_path: Path) -> None:
    export(graph_of("csv"), tmp_path / "raw", "csv", symmetric=False)
    words = ("dataset=ogb_dir", f"dataset.root={tmp_path / 'raw'}", "dataset.add_inverse_edges=false", "layout=binary")
    done = sargnn_here(tmp_path, "export-ogb", *words, "out=again")
    assert done.returncode == 0, done.stderr
    assert edges_of(write_and_read(reader_of(tmp_path / "again"))) == edges_of(graph_of("csv"))


@pytest.mark.parametrize("layout", ["csv", "binary", "typed"])
def test_a_folder_without_weights_keeps_its_key(layout: str, tmp_path: Path) -> None:
    graph = graph_of(layout)
    keys = []
    for name, one in (("with", graph), ("without", dataclasses.replace(graph, columns=EdgeColumns()))):
        export(one, tmp_path / name, layout, symmetric=False)
        identity = reader_of(tmp_path / name).identity()
        keys.append(key_of(identity))
        assert ("edge_weights" in identity) == (name == "with" and layout != "typed")
    assert keys[0] != keys[1]
    assert write_and_read(reader_of(tmp_path / "without")).columns.weight is None


def write(text: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with gzip.open(path, "wt") as file:
            file.write(text)

    return change


ONES = "1\n" * 1134
WRONG: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "too few": (write(ONES), ["1134 rows", "1135 rows"]),
    "too many": (write(ONES + "1\n2\n"), ["1136 rows", "1135 rows"]),
    "two columns": (write("1,2\n" * 1135), ["2 columns", "1 columns"]),
    "a word": (write(ONES + "much\n"), ["row 1135", "much"]),
    "nothing in a row": (write("1\nnan\n" + "1\n" * 1133), ["not finite", "row 2"]),
    "infinite": (write(ONES + "inf\n"), ["not finite", "row 1135", "inf"]),
    "empty": (write(""), ["is empty"]),
}


def test_files_of_other_features(tmp_path: Path) -> None:
    """What is wrong is found as with weights, beside which features are read."""
    export(graph_of("csv"), tmp_path / "raw", "csv", symmetric=False)
    path = tmp_path / "raw" / "raw" / "edge-feat.csv.gz"
    for text, words in (
        ("1,2\n" * 1134, "1134 rows.*1135 rows"),
        ("1,2\n" * 1134 + "1\n", "1135 rows|row 1135, feature 2|1 columns in row 1135"),
        ("1,2\n" * 1134 + "1,1e39\n", "too large in row 1135, feature 2"),
    ):
        write(text)(path)
        for buffer_bytes in (10**9, 20_000):
            with pytest.raises(DataError, match=f"(?s)edge-feat.csv.gz.*({words})"):
                write_and_read(reader_of(tmp_path / "raw"), buffer_bytes)


def test_relations_with_features_of_two_widths(tmp_path: Path) -> None:
    export(graph_of("typed"), tmp_path / "raw", "typed", symmetric=False)
    path = tmp_path / "raw" / "raw" / "relations" / "author___writes___paper" / "edge-feat.csv.gz"
    write("1,2\n" * 350)(path)
    with pytest.raises(DataError, match="different widths.*\n.*author writes paper: 2"):
        reader_of(tmp_path / "raw").read()
    path.unlink()
    graph = reader_of(tmp_path / "raw").read()
    own = np.asarray(graph.relation) == [relation.name for relation in graph.schema.relations].index("writes")
    assert not graph.columns[ATTR][own].any() and graph.columns[ATTR][~own].any(1).all()


@pytest.mark.parametrize("case", WRONG)
def test_files_of_other_weights(case: str, tmp_path: Path) -> None:
    export(graph_of("csv"), tmp_path / "raw", "csv", symmetric=False)
    change, words = WRONG[case]
    change(tmp_path / "raw" / "raw" / "edge-weight.csv.gz")
    for buffer_bytes in (10**9, 20_000):
        with pytest.raises(DataError) as caught:
            write_and_read(reader_of(tmp_path / "raw"), buffer_bytes)
        assert all(word in str(caught.value) for word in ["edge-weight.csv.gz", *words]), str(caught.value)


def test_a_relation_with_other_weights(tmp_path: Path) -> None:
    export(graph_of("typed"), tmp_path / "raw", "typed", symmetric=False)
    path = tmp_path / "raw" / "raw" / "relations" / "author___writes___paper" / "edge-weight.csv.gz"
    write("1\n" * 349 + "inf\n")(path)
    with pytest.raises(DataError, match="author___writes___paper/edge-weight.csv.gz.*not finite, of row 350"):
        reader_of(tmp_path / "raw").read()
    write("1\n" * 349)(path)
    with pytest.raises(DataError, match="(?s)edge-weight.csv.gz.*349 rows"):
        reader_of(tmp_path / "raw").read()


def test_parallel_edges_keep_their_order_on_disk(tmp_path: Path) -> None:
    """Where buckets are divided, too."""
    rng = np.random.default_rng(0)
    source, destination = rng.integers(5, size=3000), rng.integers(8, size=3000)
    weights = np.arange(3000, dtype=np.float32)
    with EdgeBuckets(tmp_path, 1000, 3000, 500, {"weight": np.dtype(np.float32)}) as buckets:
        for first in range(0, 3000, 701):
            piece = slice(first, first + 701)
            buckets.add(destination[piece], source[piece], EdgeColumns.of({"weight": weights[piece]}))
        buckets.flush()
        runs = np.concatenate(list(buckets.runs()))
    order = np.lexsort((source, destination))
    assert np.array_equal(runs["key"], (destination * 1000 + source)[order]) and np.array_equal(
        runs["edge_weight"], weights[order]
    )
