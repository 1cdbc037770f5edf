"""Labels of edges that come with an own graph, in every form: what is read, how they are split, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sargnn.errors import ConfigError, DataError
from sargnn.graph.dataset import Dataset
from sargnn.graph.pairs import Pairs
from sargnn.graph.schema import SPLITS
from sargnn.sources.links import draw_labelled
from tests.in_process import sargnn_here
from tests.sources.own import given
from tests.sources.own.small import GRAPH, of_folder, of_object
from tests.sources.pair_sets import edges_of, pairs_of
from tests.sources.stores import write_and_read

EDGES = np.array([[4, 0, 1, 2, 0, 3, 5], [5, 1, 2, 3, 1, 4, 0]])
"""The second is there twice."""
LABELLED: given.Arrays = {
    "edge_index": EDGES,
    "x": GRAPH["x"],
    "edge_attr": np.arange(14, dtype=np.float32).reshape(7, 2),
    "edge_y": np.array([2, 0, -1, 1, 1, 0, 0]),
    "edge_train_mask": np.array([1, 1, 0, 0, 0, 0, 0], bool),
    "edge_val_mask": np.array([0, 0, 0, 1, 0, 0, 0], bool),
    "edge_test_mask": np.array([0, 0, 0, 0, 1, 1, 0], bool),
}
MASKS = ("edge_train_mask", "edge_val_mask", "edge_test_mask")
UNSPLIT = {name: value for name, value in LABELLED.items() if name not in MASKS}


def stored(value: Any, **changes: Any) -> tuple[Dataset, Pairs]:
    """What the reader of a graph writes."""
    dataset = write_and_read(of_folder(value, **changes) if isinstance(value, Path) else of_object(value, **changes))
    assert dataset.pairs is not None
    return dataset, dataset.pairs


def test_all_edges_in_their_order(tmp_path: Path) -> None:
    """Repeats stay, those without a label are there, features go with them, and the graph keeps all edges."""
    dataset, pairs = stored(given.save_arrays(tmp_path, LABELLED))
    assert np.array_equal([pairs.heads, pairs.tails], EDGES) and pairs.outputs == 3 and pairs.relation is None
    assert pairs.labels is not None and pairs.labels.tolist() == LABELLED["edge_y"].tolist()
    assert pairs.features is not None and np.array_equal(pairs.features, LABELLED["edge_attr"])
    assert [pairs_of(pairs, split) for split in SPLITS] == [[(4, 5), (0, 1)], [(2, 3)], [(0, 1), (3, 4)]]
    assert edges_of(dataset) == sorted(map(tuple, EDGES.T.tolist())) and not len(pairs.known.tails)
    assert (dataset.labels == -1).all() and not dataset.split.any()


def test_labels_of_nodes_beside_them(tmp_path: Path) -> None:
    """Both are read: the task says which are predicted."""
    dataset, pairs = stored(given.save_arrays(tmp_path, GRAPH | LABELLED))
    assert dataset.labels.tolist() == GRAPH["y"].tolist() and dataset.split.any() and pairs.labels is not None


@pytest.mark.parametrize(
    ("task", "labels", "dtype"),
    [
        ("classes", [0.0, 1, np.nan, 2, 0, 0, 0], np.int64),
        ("regression", [0.5, 1, np.nan, 2, 0, 0, 0], np.float32),
        ("multilabel", np.array([[0, 1], [1, 1], [-1, -1], [0, 0], [-1, 1], [0, 1], [1, 0]]), np.int8),
    ],
)
def test_kinds_of_labels(task: str, labels: Any, dtype: type) -> None:
    _, pairs = stored(LABELLED | {"edge_y": labels}, task=task)
    assert pairs.labels is not None and pairs.labels.dtype == dtype
    assert pairs.outputs == {"classes": 3, "regression": 1, "multilabel": 2}[task]
    wanted = np.asarray(labels, np.float64).reshape(7, -1)
    known = pairs.labels.reshape(7, -1).astype(np.float64)
    assert np.allclose(np.where(known == -1, np.nan, known), np.where(wanted == -1, np.nan, wanted), equal_nan=True)


def as_dgl(arrays: given.Arrays) -> Any:
    import torch

    graph = given.as_dgl({name: arrays[name] for name in ("edge_index", "x")})
    of_edges = {"feat": "edge_attr", "edge_y": "edge_y", "train_mask": MASKS[0], "val_mask": MASKS[1], "test_mask": MASKS[2]}
    graph.edata.update({name: torch.as_tensor(arrays[used]) for name, used in of_edges.items()})
    return graph


def as_pyg(arrays: given.Arrays) -> Any:
    import torch
    from torch_geometric.data import Data

    return Data(**{name: torch.as_tensor(value) for name, value in arrays.items()})


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("form", ["folder", "npz", "csv", "parquet", "mapping", "other names", "dgl", "pyg"])
def test_every_form_is_the_same(form: str, tmp_path: Path) -> None:
    wanted, _ = stored(LABELLED)
    value: Any = LABELLED
    if form == "folder":
        value = given.save_arrays(tmp_path / "graph", LABELLED)
    elif form == "npz":
        value = given.write_npz(tmp_path / "graph", LABELLED, np.savez)
    elif form in ("csv", "parquet"):
        value = given.save_arrays(tmp_path / "graph", {"x": LABELLED["x"]})
        columns = {"source": EDGES[0], "edge_y": LABELLED["edge_y"].astype(float), "target": EDGES[1]}
        columns["edge_y"][2] = np.nan
        columns |= {f"edge_attr_{k}": LABELLED["edge_attr"][:, k] for k in (0, 1)} | {name: LABELLED[name] for name in MASKS}
        frame = pd.DataFrame(columns)
        if form == "csv":
            frame.to_csv(value / "edges.csv", index=False)
        else:
            frame.to_parquet(value / "edges.parquet")
    elif form == "other names":
        value = {{"edge_y": "edge_label", "edge_val_mask": "edge_valid_mask"}.get(k, k): v for k, v in LABELLED.items()}
    elif form == "dgl":
        pytest.importorskip("dgl")
        value = as_dgl(LABELLED)
    elif form == "pyg":
        pytest.importorskip("torch_geometric")
        value = as_pyg(LABELLED)
    assert stored(value)[0].content_hash == wanted.content_hash


def test_undirected_edges_of_networkx() -> None:
    """Each is one edge to predict, though messages go both ways; one without the attribute has no label."""
    networkx = pytest.importorskip("networkx")
    graph = networkx.Graph()
    graph.add_nodes_from((node, {"x": [float(node)]}) for node in range(4))
    graph.add_edges_from([(0, 1, {"edge_y": 1}), (1, 2, {"edge_y": 0}), (2, 3)])
    dataset, pairs = stored(graph)
    assert pairs.labels is not None and pairs.labels.tolist() == [1, 0, -1, -1, -1, -1] and dataset.num_edges == 6
    assert pairs.undrawn


TYPED: given.Arrays = {
    "edge_index": {
        ("user", "rates", "item"): np.array([[0, 0, 1, 2], [0, 1, 1, 2]]),
        ("user", "sees", "item"): np.array([[0, 0, 1], [0, 1, 1]]),
        ("item", "of", "item"): np.array([[0], [1]]),
    },
    "edge_attr": {("user", "rates", "item"): np.arange(4, dtype=np.float32)},
    "x": {"user": np.ones((4, 2)), "item": np.ones((3, 2))},
    "edge_y": {("user", "rates", "item"): np.array([4, 1, -1, 3]), ("user", "sees", "item"): np.array([0, 0, 1])},
    "edge_train_mask": {("user", "rates", "item"): np.array([1, 0, 0, 0]), ("user", "sees", "item"): np.array([0, 0, 1])},
    "edge_val_mask": {("user", "rates", "item"): np.array([0, 1, 0, 0]), ("user", "sees", "item"): np.array([0, 0, 0])},
}


@pytest.mark.parametrize("form", ["folder", "mapping"])
@pytest.mark.parametrize("inverse", [False, True])
def test_typed(form: str, inverse: bool, tmp_path: Path) -> None:
    """Relation after relation; one without features has zeros; inverse relations are none to predict; items come first."""
    value: Any = given.save_arrays(tmp_path, TYPED) if form == "folder" else TYPED
    dataset, pairs = stored(value, add_inverse_edges=inverse)
    names = [relation.name for relation in dataset.schema.relations][:3]
    assert names == ["of", "rates", "sees"] and pairs.relation is not None and pairs.relation.tolist() == [1] * 4 + [2] * 3
    assert pairs.heads.tolist() == [3, 3, 4, 5, 3, 3, 4] and pairs.tails.tolist() == [0, 1, 1, 2, 0, 1, 1]
    assert pairs.labels is not None and pairs.labels.tolist() == [4, 1, -1, 3, 0, 0, 1] and pairs.outputs == 5
    assert pairs.features is not None and pairs.features[:, 0].tolist() == [0, 1, 2, 3, 0, 0, 0]
    assert dataset.num_edges == 8 * (1 + inverse)
    flat, same = stored(value, homogenize=True)
    assert not flat.schema.typed and same.relation is None and same.heads.tolist() == pairs.heads.tolist()


def test_a_hetero_graph_of_pyg() -> None:
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch_geometric.data").HeteroData()
    for node_type, rows in TYPED["x"].items():
        data[node_type].x = torch.as_tensor(rows)
    for name in ("edge_index", "edge_attr", "edge_y", "edge_train_mask", "edge_val_mask"):
        for triplet, array in TYPED[name].items():
            called = {"edge_train_mask": "train_mask"}.get(name, name)
            data[triplet][called] = torch.as_tensor(array)
    assert stored(data)[0].content_hash == stored(TYPED)[0].content_hash


def test_labelled_edges_that_are_no_messages() -> None:
    """They leave the graph in both directions; those without a label stay."""
    arrays = LABELLED | {"edge_index": np.concatenate([EDGES[:, :6], [[2], [1]]], 1)}
    arrays["edge_y"] = np.array([2, 0, -1, 1, 1, -1, -1])
    arrays["edge_test_mask"] = np.array([0, 0, 0, 0, 1, 0, 0], bool)
    dataset, pairs = stored(arrays, link_messages=False, add_inverse_edges=True)
    assert edges_of(dataset) == [(1, 2), (1, 2), (2, 1), (2, 1), (3, 4), (4, 3)] and len(pairs.heads) == 7


def drawn(value: Any, **changes: Any) -> Pairs:
    base, _ = stored(value)
    config = dataclasses.replace(of_object(value).config, link_split=[0.5, 0.2, 0.2], **changes)
    pairs = draw_labelled(base, config).pairs
    assert pairs is not None
    return pairs


def test_a_drawn_split() -> None:
    """By the ids of both ends: repeats and inverses go together, and the order of a file does not matter."""
    rng = np.random.default_rng(0)
    once = rng.integers(0, 300, (2, 1000))
    edges = np.concatenate([once, once[::-1], once[:, :50]], 1)
    labels = np.asarray(rng.integers(-1, 3, edges.shape[1]))
    pairs = drawn({"edge_index": edges, "edge_y": labels, "num_nodes": 300})
    assert not pairs.split[labels < 0].any() and (pairs.split[labels >= 0] == 0).mean() == pytest.approx(0.1, abs=0.05)
    shares = [pairs.count(split) / (labels >= 0).sum() for split in SPLITS]
    assert shares == pytest.approx([0.5, 0.2, 0.2], abs=0.07)
    by_ends: dict[tuple[int, int], set[int]] = {}
    for head, tail, label, split in zip(edges[0], edges[1], labels, pairs.split, strict=True):
        if label >= 0:
            by_ends.setdefault((min(head, tail), max(head, tail)), set()).add(int(split))
    assert max(map(len, by_ends.values())) == 1
    order = rng.permutation(edges.shape[1])
    again = drawn({"edge_index": edges[:, order], "edge_y": labels[order], "num_nodes": 300})
    assert np.array_equal(again.split, pairs.split[order])
    other = drawn({"edge_index": edges, "edge_y": labels, "num_nodes": 300}, link_seed=1)
    assert not np.array_equal(other.split, pairs.split)


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(ConfigError, match="link_relations"):
        drawn(UNSPLIT, link_relations=["edge"])
    with pytest.raises(DataError, match="labelled edges"):
        drawn({"edge_index": [[0], [1]], "edge_y": [-1], "num_nodes": 2})


def test_labels_decide_the_store() -> None:
    other = LABELLED | {"edge_y": np.array([2, 0, -1, 1, 1, 0, 1])}
    masks = LABELLED | {"edge_train_mask": np.array([1, 0, 0, 0, 0, 0, 0], bool)}
    keys = [of_object(value).identity() for value in (LABELLED, UNSPLIT, other, masks)]
    keys.append(of_object(LABELLED, link_messages=False).identity())
    assert len({json.dumps(key) for key in keys}) == len(keys)


def test_the_commands(tmp_path: Path) -> None:
    """prepare and check say what there is; another task than that of the labels is refused."""
    given.save_arrays(tmp_path / "mine", UNSPLIT)
    words = ["dataset=arrays", "dataset.root=mine"]
    done = sargnn_here(tmp_path, "prepare", *words, "dataset.link_split=[0.5,0.3,0.2]")
    assert done.returncode == 0 and "labelled edges: train " in done.stderr, done.stderr
    done = sargnn_here(tmp_path, "check", *words)
    assert done.returncode == 0 and "6 (task classes)" in done.stdout and "none: dataset.link_split" in done.stdout, done.stdout
    done = sargnn_here(tmp_path, "check", *words, "json=true")
    assert json.loads(done.stdout)["pairs"]["labelled"] == [6, "classes"]
    store = next(path for path in (tmp_path / "stores" / "datasets").glob("*"))
    done = sargnn_here(tmp_path, "prepare", "dataset=stored", f"dataset.root={store}", "task=regression")
    assert done.returncode == 1 and "allowed: task=classes" in done.stderr, done.stderr


WRONG: dict[str, tuple[given.Arrays, dict[str, Any], tuple[str, ...]]] = {
    "few labels": ({"edge_y": [0, 1]}, {}, ("edge_y.npy", "shape [2], 7 edges")),
    "labels that are fractions": (
        {"edge_y": np.linspace(0, 1, 7)},
        {},
        ("edge_y.npy", "at edge 1", "without a label", "dataset.task=regression"),
    ),
    "several labels": ({"edge_y": np.ones((7, 2), int)}, {}, ("for each edge", "dataset.task=multilabel")),
    "labels of 2": (
        {"edge_y": np.full((7, 2), 2)},
        {"task": "multilabel"},
        (
            "neither 0 nor 1",
            "at edge 0",
        ),
    ),
    "infinite numbers": (
        {"edge_y": np.full(7, np.inf)},
        {"task": "regression"},
        (
            "not finite",
            "at edge 0",
        ),
    ),
    "few in a mask": ({"edge_val_mask": [True]}, {}, ("edge_val_mask.npy", "shape [1], 7 edges")),
    "a mask of twos": ({"edge_val_mask": np.full(7, 2)}, {}, ("edge_val_mask.npy", "mask of edges")),
    "two splits": ({"edge_val_mask": LABELLED["edge_train_mask"]}, {}, ("edge_val_mask.npy", "another split", "edge 0")),
    "no label": ({"edge_test_mask": LABELLED["edge_y"] < 0}, {}, ("no label", "edge 2", "1 in all")),
    "masks alone": ({"edge_y": None}, {}, ("no labels", "'edge_y'")),
    "no training mask": ({"edge_train_mask": None}, {}, ("trained on", "'edge_train_mask'")),
    "an empty training mask": ({"edge_train_mask": np.zeros(7, bool)}, {}, ("no training edges",)),
    "two names": ({"edge_label": [0] * 7}, {}, ("'edge_label'", "'edge_y'", "mean the same")),
    "two masks": ({"edge_valid_mask": [0] * 7}, {}, ("twice", "edge_valid_mask")),
    "a name misspelt": ({"edge_test_mask": None, "edge_tests_mask": [0] * 7}, {}, ("'edge_tests_mask'", "edge_test_mask")),
    "pairs beside labels": (
        {"test_pairs": [[0], [1]]},
        {},
        (
            "pairs to predict",
            "labels of edges",
        ),
    ),
    "nothing left": (
        {"edge_y": np.ones(7, int)},
        {"link_messages": False},
        ("No edge of", "dataset.link_messages=true"),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_labels(case: str, tmp_path: Path) -> None:
    changes, settings, words = WRONG[case]
    arrays = {name: value for name, value in (LABELLED | changes).items() if value is not None}
    with pytest.raises(DataError) as caught:
        stored(given.save_arrays(tmp_path, arrays), **settings)
    for word in words:
        assert word in str(caught.value), caught.value


WRONG_TYPED: dict[str, tuple[given.Arrays, tuple[str, ...]]] = {
    "a relation that there is not": ({"edge_y": {("user", "rate", "item"): [0]}}, ("'edge_y' of a relation", "user rate item")),
    "several widths": (
        {"edge_y": TYPED["edge_y"] | {("user", "sees", "item"): np.ones((3, 2), int)}},
        ("of several widths",),
    ),
    "masks of some": (
        {
            name: {("user", "rates", "item"): TYPED[name]["user", "rates", "item"]}
            for name in ("edge_train_mask", "edge_val_mask")
        },
        ("some relations", "for all of them"),
    ),
    "no relation": ({"edge_y": [0, 1, 2, 3]}, ("has types", "(source, relation, destination)")),
}


@pytest.mark.parametrize("case", WRONG_TYPED)
def test_wrong_labels_of_typed_graphs(case: str) -> None:
    changes, words = WRONG_TYPED[case]
    with pytest.raises(DataError) as caught:
        stored(TYPED | changes)
    for word in words:
        assert word in str(caught.value), caught.value


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("source,target,edge_y\n0,1,fraud\n1,2,fine\n", ("edge_y, holds no numbers", "'fraud'", "np.unique")),
        ("source,target,edge_y\n0,1,0.5\n1,2,1\n", ("edge_y,", "at edge 0", "0.5")),
    ],
)
def test_wrong_columns(content: str, words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text(content)
    with pytest.raises(DataError) as caught:
        stored(tmp_path)
    for word in words:
        assert word in str(caught.value), caught.value


def test_labels_in_two_places(tmp_path: Path) -> None:
    np.save(tmp_path / "edge_y.npy", [0, 1])
    (tmp_path / "edges.csv").write_text("source,target,edge_y\n0,1,0\n1,2,1\n")
    with pytest.raises(DataError, match="mean the same"):
        stored(tmp_path)


def test_tables_of_pairs_have_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A column edge_y of a table of pairs is named as not read."""
    given.save_arrays(tmp_path, {"edge_index": EDGES, "x": GRAPH["x"]})
    (tmp_path / "test_pairs.csv").write_text("source,target,edge_y\n0,1,0\n")
    stored(tmp_path)
    assert "edge_y" in caplog.text and "not read" in caplog.text
