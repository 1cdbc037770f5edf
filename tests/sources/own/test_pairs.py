"""Pairs that come with an own graph, in every form: what is read, which edges stay, what is known, and what is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.errors import DataError
from sargnn.graph.dataset import Dataset, open_dataset
from sargnn.graph.pairs import Pairs
from sargnn.graph.schema import SPLITS
from tests.in_process import sargnn_here
from tests.sources.own import given
from tests.sources.own.small import GRAPH, N, changed, of_folder, of_object
from tests.sources.pair_sets import edges_in_order, edges_of, known_of, pairs_of, turned
from tests.sources.stores import write_and_read

RING = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3), (3, 3)]
"""Undirected: an edge is there in both directions; 0 to 1 twice."""
BOTH = np.array([*RING, *[(b, a) for a, b in RING], (0, 1)]).T
HELD = {"valid_pairs": np.array([[2], [1]]), "test_pairs": np.array([[0, 3], [4, 3], [1, 5]])}
"""The first is an edge the other way round; of the others two are edges, and one is none."""
LINKED: given.Arrays = {"edge_index": BOTH, "x": GRAPH["x"], **HELD}


def stored(value: Any, **changes: Any) -> tuple[Dataset, Pairs]:
    """What the reader of a graph writes."""
    dataset = write_and_read(of_folder(value, **changes) if isinstance(value, Path) else of_object(value, **changes))
    assert dataset.pairs is not None
    return dataset, dataset.pairs


def test_training_pairs_are_the_edges_that_stay(tmp_path: Path) -> None:
    """No edge between the ends of a held pair, in whichever direction; each undirected edge is one pair; loops are none."""
    dataset, pairs = stored(given.save_arrays(tmp_path, LINKED))
    held = {(2, 1), (0, 3), (4, 3), (1, 5)}
    wanted = [edge for edge in map(tuple, BOTH.T.tolist()) if edge not in held | turned(held)]
    assert edges_of(dataset) == sorted(wanted) and (3, 3) in wanted and wanted.count((0, 1)) == 2
    assert pairs.both_ways and pairs.relation is None and pairs.weights is None and not pairs.negatives
    assert set(pairs_of(pairs, "train")) == {(0, 1), (0, 5), (2, 3), (4, 5)} and pairs.count("train") == 4
    assert pairs_of(pairs, "valid") == [(2, 1)] and pairs_of(pairs, "test") == [(0, 3), (4, 3), (1, 5)]
    links = {edge for edge in RING if edge[0] != edge[1]} | held
    assert known_of(pairs) == links | turned(links)


def test_neither_labels_nor_split(tmp_path: Path) -> None:
    dataset, _ = stored(given.save_arrays(tmp_path, LINKED))
    assert dataset.task == "classes" and dataset.num_classes == 1
    assert (dataset.labels == -1).all() and not dataset.split.any()
    labels = {name: GRAPH[name] for name in ("y", "train_mask", "val_mask", "test_mask")}
    both, _ = stored(given.save_arrays(tmp_path / "both", LINKED | labels))
    assert both.labels.tolist() == GRAPH["y"].tolist() and both.num_classes == 2 and np.count_nonzero(both.split) == 5


@pytest.mark.parametrize(
    ("arrays", "words"), [({"y": GRAPH["y"]}, "y.npy"), ({"train_mask": GRAPH["train_mask"]}, "train_mask.npy")]
)
def test_half_of_what_nodes_are_trained_on(arrays: Any, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Is left out, and that is said."""
    dataset, _ = stored(given.save_arrays(tmp_path, LINKED | arrays))
    assert (dataset.labels == -1).all() and not dataset.split.any()
    assert any("not read" in record.message and words in record.message for record in caplog.records)


def test_directed_edges(tmp_path: Path) -> None:
    """A pair and its inverse are two, and both directions of a held one leave the graph."""
    edges = np.array([[0, 1, 2, 3, 4], [1, 0, 3, 4, 5]])
    dataset, pairs = stored(given.save_arrays(tmp_path, {"edge_index": edges, "x": GRAPH["x"], "test_pairs": [[0], [1]]}))
    assert not pairs.both_ways and edges_of(dataset) == [(2, 3), (3, 4), (4, 5)]
    assert pairs_of(pairs, "train") == [(2, 3), (3, 4), (4, 5)] and pairs_of(pairs, "test") == [(0, 1)]
    assert known_of(pairs) == {(0, 1), (1, 0), (2, 3), (3, 4), (4, 5)}
    both, same = stored(tmp_path, add_inverse_edges=True)
    assert same.both_ways and edges_of(both) == sorted([*edges_of(dataset), *turned(edges_of(dataset))])


def test_training_pairs_that_are_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They stay edges, or leave with dataset.link_messages=false; repeats and inverses are one, weights added up."""
    train = {"train_pairs": [[0, 1], [5, 4], [1, 0], [2, 5]], "train_pair_weights": [1.0, 2, 0.25, 4]}
    dataset, pairs = stored(given.save_arrays(tmp_path, LINKED | train))
    assert set(edges_of(dataset)) == {(0, 1), (1, 0), (2, 3), (3, 2), (4, 5), (5, 4), (5, 0), (0, 5), (3, 3)}
    assert pairs_of(pairs, "train") == [(0, 1), (5, 4), (2, 5)]
    assert pairs.weights is not None and pairs.weights.tolist() == [1.25, 2, 4, 1, 1, 1, 1]
    assert {(2, 5), (5, 2)} <= known_of(pairs) and not caplog.records
    without, same = stored(tmp_path, link_messages=False)
    assert edges_of(without) == [(0, 5), (2, 3), (3, 2), (3, 3), (3, 3), (5, 0)] and known_of(same) == known_of(pairs)
    stored(given.save_arrays(tmp_path / "told", LINKED | {"train_pairs": [[1, 2]]}))
    assert "1 training pairs" in caplog.text and "test pairs, too" in caplog.text


def test_what_pairs_are_measured_against(tmp_path: Path) -> None:
    others = {"valid_negatives": [[0, 2], [1, 4], [5, 5]], "test_candidates": [[5, 2], [0, 1], [3, 3]]}
    _, pairs = stored(given.save_arrays(tmp_path, LINKED | others))
    assert pairs.negatives["valid"].tolist() == others["valid_negatives"] and list(pairs.negatives) == ["valid"]
    assert pairs.candidates["test"].tolist() == others["test_candidates"] and list(pairs.candidates) == ["test"]
    twice = LINKED | {"test_pairs": [[0, 3], [0, 3], [4, 3]], "test_candidates": others["test_candidates"]}
    _, once = stored(given.save_arrays(tmp_path / "twice", twice))
    assert pairs_of(once, "test") == [(0, 3), (4, 3)] and once.candidates["test"].tolist() == [[5, 2], [3, 3]]


def test_every_form_is_the_same(tmp_path: Path) -> None:
    """Pairs [2, P] or [P, 2], under both names, in tables and archives; and given as objects."""
    arrays = LINKED | {"train_pairs": BOTH[:, :3], "train_pair_weights": np.array([1.0, 2, 3])}
    wanted, _ = stored(given.save_arrays(tmp_path / "wanted", arrays))
    renamed = {"val_pairs" if name == "valid_pairs" else name: value for name, value in arrays.items()}
    tables = given.save_arrays(
        tmp_path / "tables", {name: value for name, value in arrays.items() if not name.startswith(("train_", "valid_"))}
    )
    (tables / "train_pairs.csv").write_text("source,target,weight\n0,1,1\n1,2,2\n2,3,3\n")
    (tables / "valid_pairs.csv").write_text("2,1\n")
    forms: list[Any] = [
        given.save_arrays(tmp_path / "names", renamed | {"train_pairs": BOTH[:, :3].T}),
        given.write_npz(tmp_path / "npz", arrays, np.savez_compressed),
        tables,
        arrays,
        {name: value.tolist() for name, value in arrays.items()},
    ]
    for form in forms:
        assert stored(form)[0].content_hash == wanted.content_hash


def test_nothing_but_edges(tmp_path: Path) -> None:
    """Nodes that only pairs name count; so does num_nodes."""
    dataset, _ = stored(given.save_arrays(tmp_path, {"edge_index": [[0, 1], [1, 2]], "test_pairs": [[0, 7]]}))
    assert dataset.num_nodes == 8 and dataset.feature_widths == (0,)
    np.save(tmp_path / "num_nodes.npy", 10)
    assert stored(tmp_path)[0].num_nodes == 10


def test_edges_that_stay_carry_what_they_carried(tmp_path: Path) -> None:
    weights = np.arange(BOTH.shape[1], dtype=np.float32)
    dataset, _ = stored(given.save_arrays(tmp_path, LINKED | {"edge_weight": weights}))
    wanted = {(a, b, w) for (a, b), w in zip(BOTH.T.tolist(), weights.tolist(), strict=True)}
    assert dataset.columns.weight is not None and dataset.num_edges == 11
    assert {(*e, w) for e, w in zip(edges_in_order(dataset), dataset.columns.weight.tolist(), strict=True)} <= wanted


def test_pairs_decide_the_store(tmp_path: Path) -> None:
    folder = given.save_arrays(tmp_path, LINKED)
    keys = [of_folder(folder).identity(), of_folder(folder, link_messages=False).identity(), of_object(LINKED).identity()]
    np.save(folder / "valid_pairs.npy", [[5], [4]])
    keys += [of_folder(folder).identity(), of_object(LINKED | {"valid_pairs": [[5], [4]]}).identity()]
    assert len({json.dumps(key) for key in keys}) == len(keys)


TYPED: given.Arrays = {
    "edge_index": {
        ("user", "likes", "item"): np.array([[0, 0, 1, 2], [0, 1, 1, 2]]),
        ("item", "rev_likes", "user"): np.array([[0, 1, 1, 2], [0, 0, 1, 2]]),
        ("user", "sees", "item"): np.array([[0, 0, 1], [0, 1, 1]]),
    },
    "x": {"user": np.ones((4, 2)), "item": np.ones((3, 2))},
    "test_pairs": {("user", "likes", "item"): np.array([[0, 1]])},
    "test_candidates": {("user", "likes", "item"): np.array([[2, 0]])},
}


@pytest.mark.parametrize("form", ["folder", "mapping"])
def test_typed(form: str, tmp_path: Path) -> None:
    """Numbers within types; a held pair's edge leaves its relation and rev_ of it, and no other; items come first."""
    value: Any = given.save_arrays(tmp_path, TYPED) if form == "folder" else TYPED
    dataset, pairs = stored(value)
    names = [relation.name for relation in dataset.schema.relations]
    assert dataset.relation is not None and pairs.relation is not None and names == ["rev_likes", "likes", "sees"]
    assert np.bincount(dataset.relation).tolist() == [3, 3, 3] and not pairs.both_ways
    assert set(pairs.relation.tolist()) == {names.index("likes")}
    assert pairs_of(pairs, "train") == [(3, 0), (4, 1), (5, 2)] and pairs_of(pairs, "test") == [(3, 1)]
    assert pairs.candidates["test"].tolist() == [[2, 0]] and known_of(pairs) == {(3, 0), (3, 1), (4, 1), (5, 2)}
    flat, same = stored(value, homogenize=True)
    assert not flat.schema.typed and same.relation is None and pairs_of(same, "test") == [(3, 1)]
    assert edges_of(flat) == edges_of(dataset)


def test_a_typed_graph_whose_links_are_drawn(tmp_path: Path) -> None:
    """Neither labels nor a split: it is stored, and pairs are drawn of it."""
    given.save_arrays(tmp_path / "mine", {name: TYPED[name] for name in ("edge_index", "x")})
    done = sargnn_here(tmp_path, "prepare", "dataset=arrays", "dataset.root=mine", "dataset.link_split=[0.9,0,0]")
    assert done.returncode == 0, done.stderr
    graphs = [open_dataset(path, verify=True) for path in tmp_path.glob("stores/datasets/*")]
    assert sorted(graph.pairs is not None for graph in graphs) == [False, True]


def splits_of_pyg(*, directed: bool = False, hetero: bool = False, **settings: Any) -> tuple[Any, ...]:
    pytest.importorskip("torch_geometric")
    import torch
    from torch_geometric import seed_everything
    from torch_geometric.transforms import RandomLinkSplit

    seed_everything(0)
    rng = np.random.default_rng(0)
    edges = np.unique(rng.integers(0, 30, (2, 150)), axis=1)
    edges = edges[:, edges[0] < edges[1]]
    if hetero:
        relations = {"edge_types": ("a", "to", "a"), "rev_edge_types": ("a", "rev_to", "a")}
        graph = given.as_hetero(
            {
                "edge_index": {("a", "to", "a"): edges, ("a", "rev_to", "a"): edges[::-1].copy()},
                "num_nodes": {"a": 30},
                **{name: {} for name in ("x", "y", *given.MASKS)},
            }
        )
        split: tuple[Any, ...] = RandomLinkSplit(0.1, 0.2, **relations, **settings)(graph)
        return split
    data = given.as_pyg({"edge_index": edges if directed else np.concatenate([edges, edges[::-1]], 1)})
    data.x = torch.ones(30, 3)
    split = RandomLinkSplit(0.1, 0.2, is_undirected=not directed, **settings)(data)
    return split


@pytest.mark.parametrize("form", ["tuple", "list", "mapping"])
@pytest.mark.parametrize("directed", [False, True])
def test_splits_of_pyg(form: str, directed: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Edges are those of training; links have the label 1; that training negatives are left out is said."""
    parts = splits_of_pyg(directed=directed)
    value = {"tuple": parts, "list": [*parts], "mapping": dict(zip(("train", "val", "test"), parts, strict=True))}[form]
    dataset, pairs = stored(value)
    assert edges_of(dataset) == sorted(map(tuple, parts[0].edge_index.T.tolist())) and pairs.both_ways is not directed
    for split, part in zip(SPLITS, parts, strict=True):
        links = part.edge_label_index[:, part.edge_label == 1].T.tolist()
        assert pairs_of(pairs, split) == [*map(tuple, links)]
        if split != "train":
            assert pairs.negatives[split].tolist() == part.edge_label_index[:, part.edge_label == 0].T.tolist()
    links = {tuple(pair) for part in parts for pair in part.edge_label_index[:, part.edge_label == 1].T.tolist()}
    assert known_of(pairs) == (links if directed else links | turned(links))
    (record,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert "negatives of train.edge_label_index" in record.message and "new ones" in record.message


def test_splits_of_pyg_that_are_typed() -> None:
    parts = splits_of_pyg(hetero=True, add_negative_train_samples=False)
    dataset, pairs = stored(parts)
    to = ("a", "to", "a")
    assert [relation.name for relation in dataset.schema.relations] == ["rev_to", "to"]
    assert dataset.num_edges == 2 * parts[0][to].edge_index.shape[1] and set(pairs.relation.tolist()) == {1}  # type: ignore[union-attr]
    assert pairs_of(pairs, "test") == [*map(tuple, parts[2][to].edge_label_index.T[parts[2][to].edge_label == 1].tolist())]


def test_one_graph_of_pyg_has_training_pairs() -> None:
    data = splits_of_pyg(add_negative_train_samples=False)[0]
    _, pairs = stored(data)
    assert pairs_of(pairs, "train") == [*map(tuple, data.edge_label_index.T.tolist())] and not pairs.count("test")


def as_dgl(**masks: Any) -> Any:
    graph = given.as_dgl({"edge_index": BOTH, "x": GRAPH["x"]})
    import torch

    graph.edata.update({name: torch.as_tensor(mask) for name, mask in masks.items()})
    return graph


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_masks_of_dgls_edges(caplog: pytest.LogCaptureFixture) -> None:
    """Both directions of a held edge have the mask; they are one pair."""
    of_edge = [min(edge) * N + max(edge) for edge in BOTH.T.tolist()]
    masks = {
        "train_mask": np.isin(of_edge, [0 * N + 1, 4 * N + 5]),
        "val_mask": np.isin(of_edge, [1 * N + 2]),
        "test_mask": np.isin(of_edge, [2 * N + 3, 0 * N + 3]),
    }
    dataset, pairs = stored(as_dgl(**masks))
    assert pairs.both_ways and not caplog.records
    assert pairs_of(pairs, "train") == [(0, 1), (4, 5)] and pairs_of(pairs, "valid") == [(1, 2)]
    assert pairs_of(pairs, "test") == [(2, 3), (0, 3)]
    assert set(edges_of(dataset)) == {(a, b) for a, b in map(tuple, BOTH.T.tolist())} - {
        *[(1, 2), (2, 3), (0, 3)], *[(2, 1), (3, 2), (3, 0)]
    }  # fmt: skip


def test_the_commands(tmp_path: Path) -> None:
    """prepare makes the store; check says how many pairs each split has."""
    given.save_arrays(tmp_path / "mine", LINKED | {"test_candidates": [[5, 2], [0, 1], [3, 3]], "valid_negatives": [[0, 2]]})
    done = sargnn_here(tmp_path, "prepare", "dataset=arrays", "dataset.root=mine")
    assert done.returncode == 0 and "6 nodes, 11 directed edges" in done.stderr, done.stderr
    done = sargnn_here(tmp_path, "check", "dataset=arrays", "dataset.root=mine")
    assert done.returncode == 0 and "train 4, valid 1, test 3" in done.stdout and "both ways" in done.stdout
    assert "1 negatives" in done.stdout and "2 tails" in done.stdout and "labelled" not in done.stdout
    assert "validation nodes" not in done.stdout
    done = sargnn_here(tmp_path, "check", "dataset=arrays", "dataset.root=mine", "json=true")
    wanted = {"train": 4, "valid": 1, "test": 3}
    assert json.loads(done.stdout)["pairs"] == {
        "split": wanted, "both_ways": True, "weighted": False, "labelled": None,
        "negatives": {"valid": 1}, "candidates": {"test": 2},
    }  # fmt: skip
    done = sargnn_here(tmp_path, "train", "dataset=arrays", "dataset.root=mine", "epochs=1")
    assert done.returncode == 1 and "no training nodes" in done.stderr and "task=links" in done.stderr


WRONG: dict[str, tuple[given.Arrays, tuple[str, ...]]] = {
    "a head that is no node": (
        {"valid_pairs": [[0, 1], [9, 2], [3, 4]]},
        ("valid_pairs.npy", "pair 1", "given:   9", "0 to 5"),
    ),
    "a tail below all": ({"test_pairs": [[0, 1], [0, -1], [3, 4]]}, ("test_pairs.npy", "pair 1", "given:   -1")),
    "pairs of fractions": ({"valid_pairs": [[0.5, 1.0]]}, ("valid_pairs.npy", "whole numbers", "float64")),
    "pairs of three": ({"valid_pairs": np.zeros((3, 3), int)}, ("valid_pairs.npy", "[3, 3]", "[2, number of pairs]")),
    "flat pairs": ({"valid_pairs": np.zeros(4, int)}, ("valid_pairs.npy", "[4]", "head")),
    "a negative that is no node": ({"valid_negatives": [[0, 6]]}, ("valid_negatives.npy", "pair 0", "given:   6")),
    "few candidates": ({"test_candidates": [[0, 1]]}, ("test_candidates.npy", "int64 [1, 2], 3 pairs", "[3, 1 or more]")),
    "no candidates": ({"test_candidates": np.zeros((3, 0), int)}, ("test_candidates.npy", "[3, 0]")),
    "a candidate that is no node": ({"test_candidates": [[0], [7], [1]]}, ("test_candidates.npy", "pair 1", "[7]", "0 to 5")),
    "candidates of fractions": ({"test_candidates": np.ones((3, 2))}, ("test_candidates.npy", "float64")),
    "candidates and negatives": (
        {"test_candidates": [[0], [1], [2]], "test_negatives": [[0, 1]]},
        ("test_candidates.npy", "test_negatives.npy", "leave one out"),
    ),
    "negatives alone": ({"valid_pairs": None, "valid_negatives": [[0, 1]]}, ("valid_negatives.npy", "'valid_pairs'")),
    "weights alone": ({"train_pair_weights": [1.0]}, ("train_pair_weights.npy", "'train_pairs'")),
    "few weights": (
        {"train_pairs": [[0, 1], [4, 5], [5, 0]], "train_pair_weights": [1.0]},
        ("train_pair_weights.npy", "1 weights, 3 edges in", "train_pairs.npy"),
    ),
    "a weight that is none": (
        {"train_pairs": [[0, 1], [4, 5], [5, 0]], "train_pair_weights": [1, np.nan, 2]},
        ("train_pair_weights.npy", "not finite", "pair 1", "nan"),
    ),
    "a negative weight": ({"train_pairs": [[0, 1]], "train_pair_weights": [-1.0]}, ("weight", "negative")),
    "two names": ({"val_pairs": [[0, 1]]}, ("'valid_pairs'", "'val_pairs'", "mean the same")),
    "a name misspelt": ({"test_pairs": None, "test_pair": [[0, 1]]}, ("'test_pair'", "test_pairs")),
    "every edge is held": ({"edge_index": [[0], [3]]}, ("no training pairs",)),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_pairs(case: str, tmp_path: Path) -> None:
    changes, words = WRONG[case]
    arrays = {name: value for name, value in (LINKED | changes).items() if value is not None}
    given.save_arrays(tmp_path / "mine", arrays)
    done = sargnn_here(tmp_path, "prepare", "dataset=arrays", "dataset.root=mine")
    assert done.returncode == 1 and not done.stdout and not list(tmp_path.glob("stores/datasets/*"))
    assert done.stderr.startswith("sargnn: ") and all(word in done.stderr for word in words), done.stderr


def test_no_labels_and_no_pairs(tmp_path: Path) -> None:
    """What is said has not changed; and links that are drawn need no more than edges."""
    given.save_arrays(tmp_path / "mine", changed(y=None, train_mask=None, x=None, val_mask=None, test_mask=None))
    done = sargnn_here(tmp_path, "prepare", "dataset=arrays", "dataset.root=mine")
    assert done.returncode == 1 and "lacks x.npy, y.npy, train_mask.npy" in done.stderr
    done = sargnn_here(tmp_path, "prepare", "dataset=arrays", "dataset.root=mine", "dataset.link_split=[1,0,0]")
    assert done.returncode == 0, done.stderr
    given.save_arrays(tmp_path / "mine", HELD)
    done = sargnn_here(tmp_path, "prepare", "dataset=arrays", "dataset.root=mine", "dataset.link_split=[1,0,0]")
    assert done.returncode == 1 and "dataset.link_split" in done.stderr


def test_wrong_typed_pairs() -> None:
    likes, sees = ("user", "likes", "item"), ("user", "sees", "item")
    pair = np.array([[0, 1]])
    for changes, words in (
        ({"test_pairs": {("user", "like", "item"): pair}}, ("no edges", "user like item", "user likes item")),
        ({"test_pairs": pair}, ("'test_pairs'", "(source, relation, destination)")),
        ({"test_pairs": {likes: pair, sees: pair}}, ("several relations", "candidates", "0, 2")),
        (
            {"test_pairs": {likes: pair, sees: pair}, "test_candidates": None, "test_negatives": {likes: pair}},
            ("several relations", "negatives", "'test_candidates'"),
        ),
        ({"test_pairs": {likes: np.array([[0, 3]])}}, ("'test_pairs' of", "destination", "pair 0", "0 to 2")),
    ):
        with pytest.raises(DataError) as caught:
            write_and_read(of_object({name: value for name, value in (TYPED | changes).items() if value is not None}))
        assert all(word in str(caught.value) for word in words), caught.value


def test_wrong_labels_of_pyg() -> None:
    parts = splits_of_pyg()
    label = parts[1].edge_label.clone()
    parts[1].edge_label[2] = 2
    with pytest.raises(DataError, match=r"valid.edge_label .*neither 0 nor 1.*pair 2"):
        of_object(parts)
    parts[1].edge_label = label[:-1]
    with pytest.raises(DataError, match="valid.edge_label .*each pair"):
        of_object(parts)
    parts[1].edge_label, parts[1].edge_label_index = label, parts[1].edge_label_index.T
    with pytest.raises(DataError, match="valid.edge_label_index .*two rows"):
        of_object(parts)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_wrong_masks_of_dgls_edges() -> None:
    flags = np.arange(BOTH.shape[1]) < 2
    with pytest.raises(DataError, match=r"edata\['test_mask'\] .*mask"):
        of_object(as_dgl(test_mask=flags * 2))
    with pytest.raises(DataError, match="mean the same"):
        of_object(as_dgl(val_mask=flags, valid_mask=flags))
