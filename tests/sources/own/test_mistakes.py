"""What is wrong with an own graph is said in one message, which names the user's file, and the line where there is one."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.in_process import sargnn_here
from tests.sources.own.given import Arrays, save_arrays
from tests.sources.own.small import GRAPH, N, changed


def at(name: str, place: Any, value: Any) -> Arrays:
    """The graph with one entry changed."""
    array = GRAPH[name].copy()
    array[place] = value
    return changed(**{name: array})


def refused(folder: Path, *words: str) -> str:
    """What is said of a command that is wrong; nothing of this project's own code is in it."""
    done = sargnn_here(folder, "prepare", *words)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith("sargnn: ") and "Traceback" not in done.stderr and "sargnn/" not in done.stderr
    assert not list(folder.glob("stores/datasets/*"))
    return done.stderr


FOLDERS: dict[str, tuple[Arrays, tuple[str, ...]]] = {
    "float edges": (changed(edge_index=GRAPH["edge_index"] * 1.0), ("edge_index.npy", "whole numbers", "float64")),
    "edges on their side": (changed(edge_index=GRAPH["edge_index"].T), ("edge_index.npy", "[5, 2]", "edge_index.T")),
    "one row of edges": (changed(edge_index=GRAPH["edge_index"][0]), ("edge_index.npy", "shape [5]")),
    "an edge to nowhere": (at("edge_index", (1, 4), N), ("edge_index.npy", "destination", "edge 4", f"given:   {N}", "0 to 5")),
    "an edge from nowhere": (at("edge_index", (0, 2), -1), ("edge_index.npy", "source", "edge 2", "-1")),
    "a short mask": (changed(val_mask=GRAPH["val_mask"][:5]), ("val_mask.npy", "5 rows", "x.npy", "has 6")),
    "masks that overlap": (at("val_mask", 1, True), ("train_mask.npy", "val_mask.npy", "overlap", "node 1")),
    "numbers for a mask": (changed(train_mask=np.array([0, 2, 0, 0, 0, 0])), ("train_mask.npy", "node 1", "train_idx")),
    "many masks": (changed(train_mask=np.zeros((N, 10), bool)), ("train_mask.npy", "10 splits", "dataset.split_column=0")),
    "a mask and numbers": (changed(train_idx=np.array([0])), ("train_mask.npy", "train_idx.npy", "leave one out")),
    "a number of no node": (changed(train_mask=None, train_idx=np.array([0, 9])), ("train_idx.npy", "entry 1", "9", "0 to 5")),
    "float numbers": (changed(train_mask=None, train_idx=np.array([0.0])), ("train_idx.npy", "float64")),
    "no label in a split": (at("y", 3, -1), ("y.npy", "no label", "node 3")),
    "a negative class": (at("y", 1, -7), ("y.npy", "node 1", "-7")),
    "no class": (changed(y=np.array([0, 1, 0.5, 0, 1, 0])), ("y.npy", "node 2", "0.5", "task=regression")),
    "several labels": (changed(y=np.zeros((N, 3), int)), ("y.npy", "[6, 3]", "task=multilabel", "argmax")),
    "a class far away": (at("y", 0, 10**6), ("y.npy", "1000000", "number the classes")),
    "text labels": (changed(y=np.array(list("abacab"))), ("y.npy", "no numbers", "np.unique")),
    "objects": (changed(y=np.array([0, 1, 0, 1, None, 1], object)), ("y.npy", "Python objects")),
    "a feature that is none": (at("x", (4, 1), np.nan), ("x.npy", "node 4, column 2", "nan")),
    "a huge feature": (at("x", (0, 0), 1e30), ("x.npy", "node 0, column 1", "too large")),
    "features of a cube": (changed(x=np.zeros((N, 2, 2))), ("x.npy", "[6, 2, 2]", "[N, F]")),
    "fewer features than labels": (changed(x=GRAPH["x"][:4]), ("y.npy", "6 rows", "x.npy", "has 4")),
    "nobody to train on": (changed(train_mask=np.zeros(N, bool)), ("train_mask.npy", "no node")),
    "features on their side": (changed(x=np.ones((2, N))), ("y.npy", "x.npy", "its side", "x.T")),
    "an adjacency matrix": (changed(edge_index=np.eye(N, dtype=int)), ("edge_index.npy", "np.nonzero")),
    "counted from 1": (at("edge_index", (1, 4), N), ("counted from 1",)),
    "nothing at all": (changed(x=None, y=None, train_mask=None), ("x.npy, y.npy, train_mask.npy", "edge_index.npy   whole")),
    "a name misspelt": (changed(train_mask=None, train_maks=GRAPH["train_mask"]), ("'train_maks'", "train_mask")),
    "two masks": (changed(valid_mask=GRAPH["val_mask"]), ("val_mask.npy", "valid_mask.npy", "twice")),
    "a number alone": (changed(train_mask=None, train_idx=np.array(0)), ("train_idx.npy", "single number")),
    "a short list of weights": (changed(edge_weight=np.ones(4)), ("edge_weight.npy", "4 weights, 5 edges", "edge_index.npy")),
    "weights of two columns": (changed(edge_weight=np.ones((5, 2))), ("edge_weight.npy", "[5, 2]", "edge_weight[:, 0]")),
    "a weight that is none": (changed(weight=np.array([1, 2, np.nan, 1, 1])), ("weight.npy", "not finite", "edge 2", "nan")),
    "an infinite weight": (changed(w=np.array([1, 2, 3, 4, -np.inf])), ("w.npy", "not finite", "edge 4", "-inf")),
    "a huge weight": (changed(w=np.array([1, 1e31, 3, 4, 5])), ("w.npy", "too large", "edge 1", "1e+31")),
    "text weights": (changed(edge_weight=np.array(list("abcde"))), ("edge_weight.npy", "no numbers", "astype(np.float32)")),
    "few edge features": (changed(edge_attr=np.ones((4, 2))), ("edge_attr.npy", "4 features, 5 edges", "[5, 2]")),
    "surplus edge features": (changed(edge_feat=np.ones(6)), ("edge_feat.npy", "6 features, 5 edges", "edge_index.npy")),
    "edge features of a cube": (changed(edge_attr=np.ones((5, 2, 2))), ("edge_attr.npy", "[5, 2, 2]", "reshape(5, -1)")),
    "edge features of no column": (changed(edge_attr=np.ones((5, 0))), ("edge_attr.npy", "[5, 0]", "leave it out")),
    "an edge feature that is none": (
        changed(edge_attr=np.array([[1, 1], [1, 1], [1, np.nan], [1, 1], [1, 1]])),
        ("edge_attr.npy", "not finite", "edge 2", "feature 2", "nan"),
    ),
    "a huge edge feature": (changed(edge_attr=np.array([1, 1e39, 3, 4, 5])), ("too large", "edge 1", "feature 1", "1e+39")),
    "an edge feature that fp32 rounds": (
        changed(edge_attr=np.array([1, 2, 3, 4, -(2**24) - 1])), ("edge_attr.npy", "edge 4", "-16777217", "16777216")
    ),
    "complex edge features": (changed(edge_attr=np.ones(5, complex)), ("edge_attr.npy", "no numbers", "complex128")),
    "text edge features": (changed(edge_attr=np.array(list("abcde"))), ("edge_attr.npy", "no numbers", "np.unique")),
    "edge features twice": (changed(edge_attr=np.ones(5), edge_feat=np.ones(5)), ("'edge_attr'", "mean the same")),
    "a weight alone": (changed(edge_weight=np.array(2.0)), ("edge_weight.npy", "single number", "each edge")),
    "weights twice": (changed(edge_weight=np.ones(5), w=np.ones(5)), ("'edge_weight'", "'w'", "mean the same")),
    "two names": (changed(label=GRAPH["y"]), ("'y'", "'label'", "mean the same")),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_of_arrays(case: str, tmp_path: Path) -> None:
    arrays, wanted = FOLDERS[case]
    save_arrays(tmp_path / "mine", arrays)
    said = refused(tmp_path, "dataset=arrays", "dataset.root=mine")
    assert all(text in said for text in (str(tmp_path / "mine"), *wanted)), said


def broken_csv(folder: Path, text: str, **more: np.ndarray) -> None:
    save_arrays(folder, changed(edge_index=None, **more))
    (folder / "edges.csv").write_text(text)


def broken_archive(folder: Path) -> None:
    folder.mkdir()
    (folder / "graph.npz").write_bytes(b"no")


def two_labelled_types(folder: Path) -> None:
    others = {name: {"a": value, "b": value} for name, value in GRAPH.items() if name != "edge_index"}
    save_arrays(folder, {"edge_index": {"a___to___b": GRAPH["edge_index"]}, **others})


FILES: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "a word in a CSV": (lambda folder: broken_csv(folder, "0,1\n1,x\n"), ("edges.csv", "line 2", "1,x")),
    "a word below a header": (lambda folder: broken_csv(folder, "src,dst\n0,1\n\n,2\n"), ("edges.csv", "line 4")),
    "one column": (lambda folder: broken_csv(folder, "0\n1\n"), ("edges.csv", "one column")),
    "three columns": (lambda folder: broken_csv(folder, "a,b,c\n0,1,2\n"), ("edges.csv", "source and destination")),
    "a first line that is broken": (lambda folder: broken_csv(folder, "NA,1\n0,1\n"), ("edges.csv", "line 1", "NA,1")),
    "a node too many in a CSV": (lambda folder: broken_csv(folder, "src,dst\n0,1\n3,6\n"), ("edges.csv", "line 3", "6")),
    "a weight that is a word": (
        lambda folder: broken_csv(folder, "source,target,weight\n0,1,2\n1,2,much\n"),
        ("edges.csv", "line 3", "1,2,much", "a weight"),
    ),
    "a weight left out": (
        lambda folder: broken_csv(folder, "source,target,weight\n0,1,2\n\n1,2,\n"), ("edges.csv", "'weight'", "line 4", "nan")
    ),
    "an edge feature that is a word": (
        lambda folder: broken_csv(folder, "source,target,edge_attr_a,edge_attr_b\n0,1,2,3\n1,2,3,much\n"),
        ("edges.csv", "line 3", "1,2,3,much", "2 numbers, features"),
    ),
    "an edge feature left out": (
        lambda folder: broken_csv(folder, "source,target,edge_attr\n0,1,2\n\n1,2,\n"),
        ("edges.csv", "an edge feature", "line 4", "feature 1", "nan"),
    ),
    "columns of edge features and a file": (
        lambda folder: broken_csv(folder, "source,target,edge_attr\n0,1,2\n", edge_attr=np.ones(1)),
        ("edges.csv", "edge_attr.npy", "leave one out"),
    ),
    "two columns of weights": (
        lambda folder: broken_csv(folder, "source,target,weight,w\n0,1,2,2\n"), ("edges.csv", "several columns", "weight, w")
    ),
    "a column of weights and a file": (
        lambda folder: broken_csv(folder, "source,target,weight\n0,1,2\n", edge_weight=np.ones(1)),
        ("edges.csv", "edge_weight.npy", "leave one out"),
    ),
    "half an array": (
        lambda folder: save_arrays(folder, GRAPH) and (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:140]),
        ("x.npy", "cannot be read"),
    ),
    "no archive": (broken_archive, ("graph.npz", "cannot be read")),
    "an empty CSV": (lambda folder: broken_csv(folder, "\n"), ("edges.csv", "empty")),
    "an edge's type": (
        lambda folder: save_arrays(folder, changed(edge_index={"author_paper": GRAPH["edge_index"]})),
        ("author_paper", "SOURCE___RELATION___DESTINATION"),
    ),
    "labels of two types": (two_labelled_types, ("several node types", "a, b")),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_a_file(case: str, tmp_path: Path) -> None:
    make, wanted = FILES[case]
    make(tmp_path / "mine")
    root = "mine/graph.npz" if case == "no archive" else "mine"
    said = refused(tmp_path, "dataset=arrays", f"dataset.root={root}")
    assert all(text in said for text in (str(tmp_path / "mine"), *wanted)), said


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    said = refused(tmp_path, "dataset=arrays", "dataset.root=nowhere")
    assert "does not exist" in said and str(tmp_path / "nowhere") in said and "edge_index.npy" in said


@pytest.mark.parametrize("split", ["[0.9,0.2,0.2]", "[0.5,0.5]", "[-0.1,0.5,0.5]", "[0,0.5,0.5]"])
def test_shares_that_are_none(split: str, tmp_path: Path) -> None:
    save_arrays(tmp_path / "mine", GRAPH)
    said = refused(tmp_path, "dataset=arrays", "dataset.root=mine", f"dataset.split={split}")
    assert "dataset.split" in said and "[0.6,0.2,0.2]" in said


BODY = """
    import numpy as np
    G = {"edge_index": np.array([[0, 1], [1, 2]]), "x": np.ones((3, 2)), "y": np.array([0, 1, 0]),
         "train_mask": np.array([True, True, False])}
"""
FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "nothing": ("def graph():\n    G", ("returns", "None", "return graph", "line 5, graph")),
    "a number": ("def graph():\n    return 7", ("no graph", "int", "DGLGraph", "line 5, graph")),
    "a list of graphs": ("def graph():\n    return [G]", ("list", "dataset[0]")),
    "an error": ("def graph():\n    return G['z']", ("KeyError: 'z'", "line 6")),
    "its end": ("def graph():\n    raise SystemExit(3)", ("SystemExit", "line 6")),
    "an argument": ("def graph(root):\n    return G", ("missing", "root", "line 5", "dataset.args.KEY=VALUE")),
    "no function": ("graph = 7", ("cannot be called", "int")),
    "another name": ("def graphs():\n    return G", ("names nothing", "graphs")),
    "a syntax error": ("def graph(:\n    return G", ("SyntaxError", "line 5")),
    "a key misspelt": (
        "def graph():\n    return {**G, 'train_mask': None, 'tran_mask': G['train_mask']}",
        ("'tran_mask'", "train_mask", "line 5"),
    ),
    "no edges": ("def graph():\n    return {k: v for k, v in G.items() if k != 'edge_index'}", ("no edges", "line 5, graph")),
    "no labels": ("def graph():\n    return {**G, 'y': None}", ("no labels", "line 5, graph")),
    "no split": ("def graph():\n    return {**G, 'train_mask': None}", ("train on", "dataset.split", "line 5")),
    "text features": ("def graph():\n    return {**G, 'x': [['a'], ['b'], ['c']]}", ("'x'", "no numbers", "line 5")),
    "ragged features": ("def graph():\n    return {**G, 'x': [[1], [1, 2]]}", ("'x'", "no numbers", "line 5")),
    "a far feature": (
        "def graph():\n    return {**G, 'x': np.array([[1.0], [np.inf], [1]])}", ("'x'", "node 1", "line 5, graph")
    ),
    "a far edge": (
        "def graph():\n    return {**G, 'edge_index': [[0, 1], [1, 3]]}",
        ("'edge_index'", "edge 1", "line 5, graph"),
    ),
    "text weights": ("def graph():\n    return {**G, 'w': ['a', 'b']}", ("'w'", "no numbers", "np.float32", "line 5, graph")),
    "a matrix and weights": (
        "def graph():\n    import scipy.sparse as s\n"
        "    return {**G, 'edge_index': s.csr_matrix(np.eye(3) * 2), 'w': np.ones(3)}",
        ("values of 'edge_index'", "'w'", "leave one out", "line 5, graph"),
    ),
    "weights of no type": (
        "def graph():\n    e = {('a', 'to', 'b'): G['edge_index']}\n"
        "    return {'edge_index': e, 'edge_weight': np.ones(2), 'x': {'a': G['x']}, 'y': {'a': G['y']}}",
        ("'edge_weight'", "of which", "(source, relation, destination)", "line 5, graph"),
    ),
    "edge features of two widths": (
        "def graph():\n    e = {('a', 'to', 'b'): G['edge_index'], ('b', 'of', 'a'): G['edge_index']}\n"
        "    f = {('a', 'to', 'b'): np.ones((2, 2)), ('b', 'of', 'a'): np.ones((2, 3))}\n"
        "    return {'edge_index': e, 'edge_attr': f, 'y': {'a': G['y']}}",
        ("different widths", "a to b: 2", "b of a: 3", "line 5, graph"),
    ),
    "edge features of networkx that some edges lack": (
        "def graph():\n    import networkx as nx\n    g = nx.path_graph(3)\n    g.edges[1, 2]['edge_attr'] = [1, 2]\n"
        "    return g, {'x': np.ones((3, 1)), 'y': [0, 1, 0]}",
        ("edge attribute 'edge_attr'", "for all edges", "edge (0, 1): nothing", "shape [2]"),
    ),
    "weights of another relation": (
        "def graph():\n    e = {('a', 'to', 'b'): G['edge_index']}\n"
        "    return {'edge_index': e, 'edge_weight': {('a', 'too', 'b'): np.ones(2)}, 'y': {'a': G['y']}}",
        ("no edges", "a too b", "a to b", "line 5, graph"),
    ),
    "weights of networkx that are words": (
        "def graph():\n    import networkx as nx\n    g = nx.path_graph(3)\n    nx.set_edge_attributes(g, 'x', 'weight')\n"
        "    nx.set_node_attributes(g, 0, 'y')\n    nx.set_node_attributes(g, True, 'train_mask')\n    return g",
        ("edge attribute 'weight'", "no numbers", "line 5, graph"),
    ),
    "an oblong matrix": ("def graph():\n    import scipy.sparse as s\n    return s.csr_matrix((3, 2)), G", ("square",)),
    "nodes without features": (
        "def graph():\n    import networkx as nx\n    g = nx.path_graph(3)\n    g.nodes[0]['x'] = [1.0]\n"
        "    nx.set_node_attributes(g, 0, 'y')\n    nx.set_node_attributes(g, True, 'train_mask')\n    return g",
        ("node attribute 'x'", "node 1", "line 5, graph"),
    ),
    "a type that has two": (
        "def graph():\n    e = {('a', 'to', 'b'): G['edge_index']}\n"
        "    return {'edge_index': e, 'x': {'a': G['x']}, 'y': G['y'], 'train_mask': {'a': G['train_mask']}}",
        ("'y'", "of which", "line 5, graph"),
    ),
    "a split of another type": (
        "def graph():\n    e = {('a', 'to', 'b'): G['edge_index']}\n"
        "    return {'edge_index': e, 'y': {'a': G['y']}, 'num_nodes': {'a': 3, 'b': 3}, 'train_mask': {'b': G['train_mask']}}",
        ("train_mask", "'b'", "'a' has the labels", "line 5, graph"),
    ),
    "a type misspelt": (
        "def graph():\n    e = {('author', 'to', 'b'): G['edge_index']}\n"
        "    return {'edge_index': e, 'x': {'autor': G['x']}, 'y': {'b': G['y']}, 'train_mask': {'b': G['train_mask']}}",
        ("'x'", "autor", "author", "line 5, graph"),
    ),
    "a relation of two": (
        "def graph():\n    return {**G, 'edge_index': {('a', 'b'): G['edge_index']}}", ("edge_index", "('a', 'b')", "'writes'")
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FUNCTIONS)
def test_a_function(case: str, tmp_path: Path) -> None:
    text, wanted = FUNCTIONS[case]
    (tmp_path / "load.py").write_text(f"{textwrap.dedent(BODY)}{text}\n")
    said = refused(tmp_path, "dataset=python", "dataset.target=load.py:graph")
    assert all(one in said for one in (str(tmp_path / "load.py"), *wanted)), said


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    said = refused(tmp_path, "dataset=python", "dataset.target=nowhere.py:graph")
    assert str(tmp_path / "nowhere.py") in said and "does not exist" in said


def test_a_graph_of_dgl_without_features_under_their_name(tmp_path: Path) -> None:
    """Its error says what there is of DGL's own names."""
    (tmp_path / "load.py").write_text(
        "def graph():\n    import dgl, torch\n    g = dgl.graph(([0, 1], [1, 2]))\n"
        "    g.ndata['lable'] = torch.zeros(3).long()\n"
        "    g.ndata['train_mask'] = torch.ones(3, dtype=torch.bool)\n    return g\n"
    )
    said = refused(tmp_path, "dataset=python", "dataset.target=load.py:graph")
    assert "ndata['lable']" in said and "label" in said and "line 1, graph" in said


def test_a_column_of_whole_numbers_that_fp32_rounds(tmp_path: Path) -> None:
    """Also beside a column of fractions, with which it is one table."""
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    save_arrays(tmp_path / "graph", changed(edge_index=None))
    source, target = GRAPH["edge_index"]
    columns = {"src": source, "dst": target, "edge_attr_time": np.arange(5) + 2**24 - 2, "edge_attr_km": np.ones(5)}
    parquet.write_table(pyarrow.table(columns), tmp_path / "graph" / "edges.parquet", row_group_size=2)
    text = refused(tmp_path, "dataset=arrays", "dataset.root=graph")
    assert all(word in text for word in ("edges.parquet", "edge 3 (counted from 0), 'edge_attr_time'", "16777217")), text
