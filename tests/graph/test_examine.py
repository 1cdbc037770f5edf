"""A graph looked over: figures of graphs made by hand, what is said of them, and ``sargnn check``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sargnn.graph import examine_edges as edges_module
from sargnn.graph.dataset import Dataset, by_destination
from sargnn.graph.edge_columns import ATTR, EdgeColumns
from sargnn.graph.examine import Findings, examine, examine_features
from sargnn.graph.remarks import Remark, make_remarks
from sargnn.graph.schema import Relation
from sargnn.graph.typed import Edges, typed_dataset
from sargnn.sources.ogb.export import export
from tests.graphs import nasty_graph, typed_graph
from tests.in_process import sargnn_here

FLAGS = {"add_inverse_edges": False, "normalize_features": False}
EDGES = [(0, 1), (1, 0), (0, 1), (1, 2), (2, 2), (2, 3), (3, 2), (0, 3), (0, 3), (0, 3), (4, 0)]
"""Node 4 has no in-edge, node 5 no edge at all; a repeat of 0-1, two of 0-3, a loop at 2; five of ten edges have an inverse."""
FEATURES = [[1, 0, 7], [2, 0, 7], [3, 0, 7], [4, 0, 7], [5, 0, 7], [6, 0, 7]]


def graph(edges: Sequence[tuple[int, int]] = EDGES, features: object = FEATURES, **others: np.ndarray) -> Dataset:
    table = np.array(features, np.float32)
    n = len(table)
    ends = np.array(edges, np.int64).reshape(-1, 2).T
    indptr, indices = by_destination(ends[0], ends[1], n)
    labels = others.get("labels", np.array([0, 0, 0, 1, 3, -1]))
    split = others.get("split", np.array([1, 1, 1, 2, 3, 0], np.uint8))
    width = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
    return Dataset.homogeneous("small", width, table, labels, split, indptr, indices)


def look(dataset: Dataset, folder: Path, **flags: bool) -> tuple[Findings, list[Remark]]:
    found = examine(dataset, folder, 10**9)
    return found, make_remarks(found, FLAGS | flags)


def said(remarks: list[Remark], *words: str) -> Remark:
    """The one remark with these words."""
    (one,) = (remark for remark in remarks if all(word in remark.text for word in words))
    return one


def test_nodes_and_edges(tmp_path: Path) -> None:
    found, remarks = look(graph(), tmp_path)
    nodes, (edges,) = found.nodes["node"], found.edges
    assert (nodes.count, nodes.in_median, nodes.in_max) == (6, 2, 4)
    assert (nodes.out_median, nodes.out_max) == (1.5, 5)
    assert (nodes.without_edges, nodes.without_in_edges, nodes.split_without_in_edges) == (1, 2, 1)
    assert (edges.count, edges.loops, edges.repeats, edges.with_inverse) == (11, 1, 3, 0.5)
    assert said(remarks, "1 node (16.7%)", "no edge at")
    assert said(remarks, "no in-edges").setting == "dataset.add_inverse_edges=true"
    assert said(remarks, "3 edges (27.3%)", "repeat").setting == ""
    assert said(remarks, "symmetric", "50.0%").setting == "dataset.add_inverse_edges=true"
    (tmp_path / "array.npy").write_bytes(bytes(100))
    assert look(graph(), tmp_path)[0].sizes == dataclasses.replace(
        found.sizes, features_bytes=72, edges_bytes=11 * 4 + 7 * 8, store_bytes=100, hidden_bytes=6 * 1024
    )


def test_classes_and_features(tmp_path: Path) -> None:
    found, remarks = look(graph(), tmp_path)
    classes = found.labels.classes
    assert classes is not None and (classes.nodes, classes.training, classes.evaluated) == (
        [3, 1, 0, 1], [3, 0, 0, 0], [0, 1, 0, 1],
    )  # fmt: skip
    assert (classes.largest, classes.of_training, classes.of_test) == (0, 1.0, 0.0)
    assert found.labels.labelled == 5 and found.labels.split == {"train": 3, "valid": 1, "test": 1}
    assert said(remarks, "2 classes (1, 3)", "no training", "2 validation or test")
    assert said(remarks, "Class 2", "no nodes")
    assert said(remarks, "Class 0", "100% of the training", "0% on test")
    features = found.features["node"]
    assert (features.width, features.constant, features.zero_rows, features.largest) == (3, [1, 2], 0, 7)
    assert features.smallest_column == (0, 6) and features.largest_column == (2, 7)
    assert said(remarks, "2 feature columns of 3", "one value", "(1, 2;")


def test_homophily(tmp_path: Path) -> None:
    """Of ten edges without loops four are inside class 0."""
    near = look(graph(), tmp_path)[0].homophily
    assert near is not None and (near.edges, near.same) == (10, 0.4)
    # Sources: class 0 eight times, 1 and 3 once each; destinations: class 0 six times, class 1 four times.
    assert near.chance == pytest.approx((8 * 6 + 1 * 4) / 100)
    rng = np.random.default_rng(0)
    ends = rng.integers(6, size=(200, 2))
    mixed, remarks = look(graph([tuple(pair) for pair in ends.tolist()], labels=np.array([0, 1, 0, 1, 0, 1])), tmp_path)
    assert mixed.homophily is not None and mixed.homophily.same < mixed.homophily.chance + 0.05
    assert "model=mlp" in said(remarks, "by chance").text


def test_against_a_slow_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random directed graph with repeats and loops, in pieces of any size."""
    dataset = nasty_graph()
    pairs = list(zip(dataset.indices.tolist(), np.repeat(np.arange(300), np.diff(dataset.indptr)).tolist(), strict=True))
    there, plain = set(pairs), [(a, b) for a, b in pairs if a != b]
    same = [dataset.labels[a] == dataset.labels[b] for a, b in plain]
    for piece in (1, 50, 1 << 22):
        monkeypatch.setattr(edges_module, "_PIECE", piece)
        found = examine(dataset, tmp_path, 10**9)
        (edges,), near, nodes = found.edges, found.homophily, found.nodes["node"]
        assert (edges.repeats, edges.loops) == (len(pairs) - len(there), len(pairs) - len(plain))
        assert edges.with_inverse == pytest.approx(sum((b, a) in there for a, b in plain) / len(plain)) and not edges.about
        assert near is not None and near.same == pytest.approx(np.mean(same))
        inward, outward = np.diff(dataset.indptr), np.bincount(dataset.indices, minlength=300)
        assert (nodes.in_median, nodes.out_median) == (np.median(inward), np.median(outward))
        assert nodes.without_edges == ((inward == 0) & (outward == 0)).sum() >= 30
    monkeypatch.setattr(edges_module, "_SAMPLE", 400)  # a graph that is larger than the buffer
    (sampled,) = examine(dataset, tmp_path, 100).edges
    assert sampled.about and sampled.with_inverse == pytest.approx(edges.with_inverse, abs=0.1)


def test_typed_graphs(tmp_path: Path) -> None:
    """A repeat is one within a relation; an inverse is one in any."""
    sources, destinations = np.array([0, 1, 1, 1]), np.array([0, 1, 1, 0])
    writes = Edges(Relation(0, "writes", 1), sources, destinations)
    likes = Edges(Relation(0, "likes", 1), sources[:1], destinations[:1])
    back = Edges(Relation(1, "of", 0), np.array([0]), np.array([0]))
    features = [np.zeros((3, 0), np.float32), np.array([[1.0], [2.0]], np.float32)]
    dataset = typed_dataset(
        "typed", 2, ["author", "paper"], features, [writes, likes, back], 1, np.array([0, 1]), np.array([1, 2], np.uint8)
    )
    found, remarks = look(dataset, tmp_path)
    assert [(one.name, one.count, one.loops, one.repeats, one.with_inverse) for one in found.edges] == [
        ("writes", 4, 0, 1, 0.25), ("likes", 1, 0, 0, 1.0), ("of", 1, 0, 0, 1.0),
    ]  # fmt: skip
    author, paper = found.nodes["author"], found.nodes["paper"]
    assert (author.count, author.without_edges, author.without_in_edges) == (3, 1, 2) and found.homophily is None
    assert (paper.in_max, paper.out_max, paper.split_without_in_edges) == (3, 1, 0)
    assert said(remarks, "no edge at", "type 'author'", "learned")
    assert said(remarks, "author writes paper").setting == "dataset.add_inverse_edges=true"
    assert found.features["author"].width == 0 and not [one for one in remarks if "missing" in one.text]
    total = look(typed_graph(), tmp_path)[0]
    assert sum(one.count for one in total.edges) == typed_graph().num_edges and total.edges[1].repeats >= 30


def test_doubled_edges_and_empty_parts_of_the_split(tmp_path: Path) -> None:
    both = [(0, 1), (1, 0), (2, 3), (3, 2)] * 2
    split = np.array([1, 1, 1, 1, 1, 0], np.uint8)
    remarks = look(graph(both, split=split), tmp_path, add_inverse_edges=True)[1]
    assert said(remarks, "4 of 8 edges", "twice").setting == "dataset.add_inverse_edges=false"
    assert said(remarks, "no validation nodes") and said(remarks, "no test nodes")
    assert said(look(graph([]), tmp_path)[1], "There are no edges")


def test_features_of_different_scales(tmp_path: Path) -> None:
    table = np.array([[0.5, 4000, 0], [-1, 3, 0], [0, 0, 0]], np.float32)
    for piece in (1, 10**6):
        found = examine_features(table, piece)
        assert found.smallest_column == (0, 1) and found.largest_column == (1, 4000)
        assert (found.constant, found.zero_rows) == ([2], 1)
    remarks = look(graph(features=[[5 + k, 4000 + k, k * 0.6] for k in range(6)]), tmp_path)[1]
    assert said(remarks, "Feature columns", "scale", "column 1 reaches 4e+03", "column 2 only 3")
    large = look(graph(features=[[k * 900.0] for k in range(6)]), tmp_path)[1]
    assert said(large, "reach 4.5e+03").setting == "dataset.normalize_features=true"
    assert said(large, "nothing but zeros")
    normalized = look(graph(features=[[k * 900.0] for k in range(6)]), tmp_path, normalize_features=True)[1]
    assert not said(normalized, "reach 4.5e+03").setting
    assert said(look(graph(features=[[1.0]] * 6), tmp_path)[1], "Features", "the same")


def test_several_labels(tmp_path: Path) -> None:
    labels = np.array([[1, 0, 1], [1, 0, 0], [-1, 0, 1], [0, 1, 1], [0, 0, 0], [-1, -1, -1]], np.int8)
    found, remarks = look(graph(labels=labels), tmp_path)
    assert [(one.known, one.positives) for one in found.labels.columns] == [(2, 2), (3, 0), (3, 2)]
    assert found.labels.labelled == 5 and found.labels.classes is None and found.homophily is None
    assert said(remarks, "Label 1", "no training") and said(remarks, "Label 0", "without it")


def test_edge_weights(tmp_path: Path) -> None:
    def weighted(weights: Sequence[float]) -> tuple[Findings, list[Remark]]:
        return look(dataclasses.replace(graph(), columns=EdgeColumns.of({"weight": np.array(weights, np.float32)})), tmp_path)

    found, remarks = weighted([-2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2])
    assert dataclasses.asdict(found)["weights"] == {"smallest": -2, "largest": 2, "zeros": 2, "negative": 1}
    assert said(remarks, "2 edges (18.2%)", "weight 0")
    assert said(remarks, "1 edge (9.1%)", "negative weight", "from -2").setting == "dataset.edge_weights=false"
    assert said(weighted([0.0] * 11)[1], "All edge weights are 0").setting == "dataset.edge_weights=false"
    assert weighted([1.0] * 11)[1] == look(graph(), tmp_path)[1]
    assert said(weighted([2e4] * 11)[1], "Edge weights reach 2e+04")
    found, remarks = look(
        dataclasses.replace(graph(), columns=EdgeColumns.of({"weight": np.zeros(11, np.float32)})), tmp_path, edge_weights=False
    )
    assert found.sizes.edges_bytes == 11 * 8 + 7 * 8 and not [one for one in remarks if "dge weights" in one.text]


def test_edge_features(tmp_path: Path) -> None:
    def featured(features: object) -> tuple[Findings, list[Remark]]:
        columns = EdgeColumns.of({ATTR: np.array(features, np.float32)})
        return look(dataclasses.replace(graph(), columns=columns), tmp_path)

    found, remarks = featured([[k, 7, 5000 * k - 2000] for k in range(11)])
    assert found.edge_features is not None
    assert (found.edge_features.width, found.edge_features.constant, found.edge_features.largest) == (3, [1], 48000)
    assert found.sizes.edges_bytes == 11 * (8 + 8) + 7 * 8
    assert said(remarks, "1 column of 3 edge features", "one value", "(1;")
    assert said(remarks, "Columns of edge features", "column 2 reaches 4.8e+04", "column 1 only 7")
    assert said(featured([[2e4 * k] for k in range(11)])[1], "Edge features reach 2e+05", "scale").setting == ""
    assert featured([[k] for k in range(11)])[1] == look(graph(), tmp_path)[1]


def test_numbers(tmp_path: Path) -> None:
    labels = np.array([[1, 100, 7], [-1, 300, 7], [np.nan, 200, 7], [5, 5, 5], [5, 5, 5], [np.nan] * 3], np.float32)
    found, remarks = look(graph(labels=labels), tmp_path)
    means = [(one.known, one.mean, one.deviation) for one in found.labels.columns]
    assert means == [(2, 0, 1), (3, 200, pytest.approx(np.std([100, 200, 300]))), (3, 7, 0)]
    assert said(remarks, "Target 1", "scale", "(1: mean 200")
    assert said(remarks, "Target 2", "one number")


def test_check_prints_figures_and_advice(tmp_path: Path) -> None:
    nasty = nasty_graph()
    columns = EdgeColumns.of({ATTR: np.ones((nasty.num_edges, 3), np.float32)})
    export(dataclasses.replace(nasty, columns=columns), tmp_path / "graph", "csv", symmetric=False)
    words = ("check", "dataset=ogb_dir", f"dataset.root={tmp_path / 'graph'}", "dataset.add_inverse_edges=false")
    done = sargnn_here(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    for text in (
        "graph  ",
        "300 nodes",
        "self-loops ",
        "edge features ",
        " 3, up to 1 in size",
        "What matters for training:\n- ",
        "\n  dataset.add_inverse_edges=true\n",
    ):
        assert text in done.stdout, done.stdout
    assert len(list((tmp_path / "stores/datasets").iterdir())) == 1
    found = json.loads(sargnn_here(tmp_path, *words, "json=true").stdout)
    assert found["nodes"]["node"]["count"] == 300 and len(found["labels"]["classes"]["nodes"]) == 5
    assert {"text", "setting"} == set(found["remarks"][0]) and found["sizes"]["hidden_bytes"] == 300 * 1024
    assert sargnn_here(tmp_path, "check", "dataset=ogb_dir", "dataset.root=nowhere").returncode == 1


def test_a_graph_with_nothing_to_remark(tmp_path: Path) -> None:
    words = ("dataset.num_nodes=400", "dataset.mean_degree=30", "dataset.power=8", "dataset.num_classes=3", "dataset.seed=1")
    done = sargnn_here(tmp_path, "check", *words)
    assert done.returncode == 0 and "Nothing to remark" in done.stdout, done.stdout
