"""The same graph in every form makes the same store."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.errors import DataError
from sargnn.graph.dataset import Dataset, open_dataset, write_dataset
from sargnn.graph.edge_columns import ATTR, EdgeColumns
from sargnn.sources.ogb.named import ogb_dir
from sargnn.sources.own.folder import arrays_reader
from sargnn.sources.own.reader import object_reader
from sargnn.sources.prepare import key_of
from sargnn.sources.settings import ArraysConfig, OgbDirConfig, PythonConfig
from tests.graphs import nasty_graph, typed_graph, with_weights
from tests.sources.own import given

OWN: dict[str, Any] = {
    "add_inverse_edges": False, "normalize_features": False, "homogenize": False, "split": None, "split_seed": 0,
}  # fmt: skip


def hash_of_folder(tmp_path: Path, root: Path, buffer_bytes: int = 256 * 10**6, **changes: Any) -> str:
    reader = arrays_reader(ArraysConfig("arrays", **(OWN | changes), root=str(root)))
    return hash_of(reader, tmp_path, buffer_bytes)


def hash_of_object(tmp_path: Path, value: Any, **changes: Any) -> str:
    config = PythonConfig("python", **(OWN | changes), args={})
    return hash_of(object_reader(value, config, "graph", "the graph", None), tmp_path)


def hash_of(reader: Any, tmp_path: Path, buffer_bytes: int = 256 * 10**6) -> str:
    path = tmp_path / "own-store"
    reader.write(path, buffer_bytes)
    return open_dataset(path, verify=True).content_hash


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "weighted"])
def graph(request: pytest.FixtureRequest) -> Dataset:
    """With a label for every node of the split, and none for some others; parallel edges have one weight."""
    return labelled(weighted=request.param)


def labelled(*, weighted: bool) -> Dataset:
    nasty = nasty_graph()
    labels = np.where(nasty.split == 0, -1, nasty.labels)
    destination = np.repeat(np.arange(nasty.num_nodes), np.diff(nasty.indptr))
    weights = ((nasty.indices * 31 + destination * 7) % 23 - 3.5).astype(np.float32) / 10
    return dataclasses.replace(nasty, labels=labels, columns=EdgeColumns.of({"weight": weights if weighted else None}))


@pytest.fixture
def wanted(graph: Dataset, tmp_path: Path) -> str:
    write_dataset(tmp_path / "wanted", graph, {})
    return open_dataset(tmp_path / "wanted", verify=True).content_hash


FOLDERS: dict[str, Callable[[Path, Any], Path]] = {
    "npy": given.save_arrays,
    "npy fortran": lambda folder, arrays: given.save_arrays(folder, arrays | {"x": np.asfortranarray(arrays["x"])}),
    "npy narrow": lambda folder, arrays: given.save_arrays(
        folder, arrays | {"edge_index": arrays["edge_index"].astype(np.uint16)}
    ),
    "node numbers": lambda folder, arrays: given.save_arrays(folder, given.with_numbers(arrays)),
    "labels of floats": lambda folder, arrays: given.save_arrays(
        folder, arrays | {"y": np.where(arrays["y"] < 0, np.nan, arrays["y"])[:, None]}
    ),
    "csv": given.write_csv,
    "csv of a spreadsheet": lambda folder, arrays: given.write_csv(folder, arrays, header="\ufeff", separator='","', quote='"'),
    "csv with blanks": lambda folder, arrays: given.write_csv(folder, arrays, header="\n", separator="  "),
    "csv with a third column": lambda folder, arrays: given.write_csv(folder, arrays, more=",0.5"),
    "csv with a header": lambda folder, arrays: given.write_csv(folder, arrays, header="source;target\n", separator=";"),
    "parquet": given.write_parquet,
    "npz": lambda folder, arrays: given.write_npz(folder, arrays, np.savez),
    "npz, deflated": lambda folder, arrays: given.write_npz(folder, arrays, np.savez_compressed),
}


def featured(graph: Dataset) -> Dataset:
    """Parallel edges have the same two features, which fp32 holds in few digits."""
    destination = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    features = np.stack([(graph.indices * 3 + destination) % 17 / 4, destination - 8.0 * graph.indices], 1)
    return dataclasses.replace(graph, columns=graph.columns.put(ATTR, features.astype(np.float32)))


def wide(arrays: given.Arrays) -> given.Arrays:
    return arrays | {"edge_attr": np.asfortranarray(arrays["edge_attr"].astype(np.float64))}


OF_EDGES: dict[str, Callable[[Path, Any], Any]] = {
    "npy": given.save_arrays,
    "npy fortran fp64": lambda folder, arrays: given.save_arrays(folder, wide(arrays)),
    "npz": lambda folder, arrays: given.write_npz(folder, arrays, np.savez),
    "csv": lambda folder, arrays: given.write_csv(folder, arrays, weight="w"),
    "parquet": given.write_parquet,
    "mapping": lambda _, arrays: {name.replace("attr", "features"): value for name, value in arrays.items()},
    "DGLGraph": lambda _, arrays: given.as_dgl(arrays),
    "Data": lambda _, arrays: given.as_pyg(arrays),
    "networkx": lambda _, arrays: given.as_networkx(arrays),
}


@pytest.mark.parametrize("form", OF_EDGES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_edge_features(form: str, tmp_path: Path) -> None:
    """Also read in many pieces, where edges are sorted on disk."""
    graph = featured(labelled(weighted=True))
    write_dataset(tmp_path / "wanted", graph, {})
    value = OF_EDGES[form](tmp_path / "given", given.arrays_of(graph))
    for buffer_bytes in (256 * 10**6, 20_000):
        folder = tmp_path / str(buffer_bytes)
        is_folder = isinstance(value, Path)
        content = hash_of_folder(folder, value, buffer_bytes) if is_folder else hash_of_object(folder, value)
        assert content == open_dataset(tmp_path / "wanted", verify=True).content_hash


@pytest.mark.parametrize("kind", [np.int64, np.uint8, bool, np.float16])
def test_edge_features_of_whole_numbers_and_flags(kind: Any, tmp_path: Path) -> None:
    """[E] is one feature; 300 are as good as one."""
    arrays = given.arrays_of(labelled(weighted=False))
    for shape in ((), (300,)):
        numbers = (np.arange(arrays["edge_index"].shape[1] * 300).reshape(-1, 300) % 3).astype(kind)
        numbers = numbers if shape else numbers[:, 0]
        wanted = hash_of_object(tmp_path / f"wanted{shape}", arrays | {"edge_attr": numbers.astype(np.float32)})
        assert hash_of_object(tmp_path / f"given{shape}", arrays | {"edge_attr": numbers}) == wanted
        graph = open_dataset(tmp_path / f"given{shape}" / "own-store", verify=True)
        assert graph.columns.forms[ATTR] == np.dtype((np.float32, shape or (1,)))


def test_edge_features_decide_the_store(tmp_path: Path) -> None:
    """Other numbers are another dataset, and so are the same ones as weights."""
    arrays = given.arrays_of(labelled(weighted=True))
    numbers, config = arrays.pop("edge_weight"), PythonConfig("python", **OWN, args={})
    others: list[Any] = [{}, {"edge_weight": numbers}, {"edge_attr": numbers}, {"edge_attr": numbers + 1}]
    identities = [object_reader(arrays | more, config, "graph", "the graph", None).identity() for more in others]
    assert len({key_of(identity) for identity in identities}) == len(others)


def in_one_format(name: str, arrays: Any) -> Any:
    return given.as_dgl(arrays).formats(name)


OBJECTS: dict[str, Callable[[Any], Any]] = {
    "mapping": lambda arrays: arrays,
    "other names": lambda arrays: (
        {"edges": tuple(arrays["edge_index"]), "feat": arrays["x"], "label": arrays["y"]}
        | {name: value for name, value in arrays.items() if name in given.MASKS}
        | ({"edge_weights": arrays["edge_weight"]} if "edge_weight" in arrays else {})
    ),
    "lists": given.as_lists,
    "fp64 and short names": lambda arrays: (
        ({"w": arrays["edge_weight"].astype(np.float64)[:, None]} if "edge_weight" in arrays else {})
        | {name: value for name, value in arrays.items() if name != "edge_weight"}
    ),
    "DGLGraph": given.as_dgl,
    "Data": given.as_pyg,
    "networkx": given.as_networkx,
    "SciPy": given.as_matrix,
    **{f"a DGLGraph, {one} alone": partial(in_one_format, one) for one in ("coo", "csr", "csc")},
    **{f"torch.sparse_{one}": partial(given.as_sparse_tensor, layout=one) for one in ("coo", "csr", "csc")},
}


@pytest.mark.parametrize("form", FOLDERS)
def test_a_folder(form: str, graph: Dataset, wanted: str, tmp_path: Path) -> None:
    root = FOLDERS[form](tmp_path / "given", given.arrays_of(graph))
    assert hash_of_folder(tmp_path, root) == wanted


@pytest.mark.parametrize("form", OBJECTS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:Sparse")
def test_an_object(form: str, graph: Dataset, wanted: str, tmp_path: Path) -> None:
    if form == "lists":  # of fp64
        graph = dataclasses.replace(graph, features=(graph.features[0].round(2),))
        write_dataset(tmp_path / "rounded", graph, {})
        wanted = open_dataset(tmp_path / "rounded", verify=True).content_hash
    assert hash_of_object(tmp_path, OBJECTS[form](given.arrays_of(graph))) == wanted


def test_ogbs_layout(graph: Dataset, wanted: str, tmp_path: Path) -> None:
    from sargnn.sources.ogb.export import export

    export(graph, tmp_path / "ogb", "csv", symmetric=False)
    config = OgbDirConfig("ogb_dir", str(tmp_path / "ogb"), add_inverse_edges=False, normalize_features=False)
    assert hash_of(ogb_dir(config), tmp_path) == wanted


def test_a_column_of_weights(tmp_path: Path) -> None:
    graph = labelled(weighted=True)
    write_dataset(tmp_path / "wanted", graph, {})
    wanted = open_dataset(tmp_path / "wanted", verify=True).content_hash
    arrays = given.arrays_of(graph)
    assert hash_of_folder(tmp_path, given.write_csv(tmp_path / "given", arrays, weight="Weight", separator="\t")) == wanted
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    shutil.rmtree(tmp_path / "own-store")
    (tmp_path / "given" / "edges.csv").unlink()
    columns = {"w": arrays["edge_weight"], "dst": arrays["edge_index"][1], "src": arrays["edge_index"][0]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "given" / "edges.parquet", row_group_size=100)
    assert hash_of_folder(tmp_path, tmp_path / "given", buffer_bytes=20_000) == wanted


@pytest.mark.parametrize("kind", [np.int64, np.uint8, bool])
def test_weights_of_whole_numbers_and_flags(kind: Any, tmp_path: Path) -> None:
    arrays = given.arrays_of(labelled(weighted=True))
    weights = (np.arange(len(arrays["edge_weight"])) % 3).astype(kind)
    wanted = hash_of_object(tmp_path / "numbers", arrays | {"edge_weight": weights.astype(np.float32)})
    assert hash_of_object(tmp_path / "others", arrays | {"edge_weight": weights}) == wanted


def test_values_of_a_sparse_tensor(tmp_path: Path) -> None:
    """PyG's, transposed, where its class is not installed: what is asked of it."""
    graph = labelled(weighted=True)
    write_dataset(tmp_path / "wanted", graph, {})
    arrays = given.arrays_of(graph)

    class Sparse:
        sparse_sizes = len

        def coo(self) -> Any:
            return arrays["edge_index"][1], arrays["edge_index"][0], arrays["edge_weight"]

    others = {name: value for name, value in arrays.items() if name not in given.OF_EDGES}
    found = hash_of_object(tmp_path, others | {"edge_index": Sparse()})
    assert found == open_dataset(tmp_path / "wanted", verify=True).content_hash


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
@pytest.mark.parametrize("kind", ["bool", "float16", "bfloat16", "int64"])
def test_a_sparse_tensor_of_ones_has_no_weights(layout: str, kind: str, tmp_path: Path) -> None:
    import torch

    graph = labelled(weighted=False)
    write_dataset(tmp_path / "wanted", graph, {})
    matrix, others = given.as_sparse_tensor(given.arrays_of(graph), layout, getattr(torch, kind))
    found = hash_of_object(tmp_path, others | {"edge_index": matrix})
    assert found == open_dataset(tmp_path / "wanted", verify=True).content_hash


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:Sparse")
@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_a_transposed_sparse_tensor_of_pyg(layout: str, graph: Dataset, wanted: str, tmp_path: Path) -> None:
    """``adj_t``, as ``ToSparseTensor`` makes it: its rows are the edges' destinations. It is not called unread."""
    arrays = given.arrays_of(graph)
    turned = given.as_sparse_tensor(arrays | {"edge_index": arrays["edge_index"][::-1].copy()}, layout)[0]
    data = given.as_pyg({name: value for name, value in arrays.items() if name not in given.OF_EDGES})
    data.adj_t = turned
    assert hash_of_object(tmp_path, data) == wanted


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_tensor_of_blocks_is_answered(tmp_path: Path) -> None:
    arrays = given.arrays_of(labelled(weighted=False))
    import torch

    blocks = torch.eye(4).to_sparse_bsr((2, 2))
    with pytest.raises(DataError, match="'edge_index'.*sparse tensor.*\n.*sparse_bsr.*\n.*sparse_csr"):
        hash_of_object(tmp_path, arrays | {"edge_index": blocks})


def test_weights_of_some_relations(tmp_path: Path) -> None:
    """The edges of the others have weight 1."""
    arrays = given.typed_arrays_of(typed_graph())
    chosen = ("author", "writes", "paper")
    weights = {chosen: np.linspace(0.1, 2, arrays["edge_index"][chosen].shape[1])}
    hash_of_object(tmp_path, arrays | {"edge_weight": weights})
    found = open_dataset(tmp_path / "own-store", verify=True)
    assert found.columns.weight is not None and found.relation is not None
    number = [one.name for one in found.schema.relations].index("writes")
    own = np.asarray(found.relation) == number
    assert (found.columns.weight[~own] == 1).all() and np.isclose(np.sort(found.columns.weight[own]), weights[chosen]).all()


def test_edge_features_of_some_relations(tmp_path: Path) -> None:
    """The edges of the others carry zeros."""
    arrays = given.typed_arrays_of(typed_graph())
    chosen = ("author", "writes", "paper")
    features = np.arange(3.0 * arrays["edge_index"][chosen].shape[1]).reshape(-1, 3) + 1
    hash_of_object(tmp_path, arrays | {"edge_attr_dict": {chosen: features}})
    graph = open_dataset(tmp_path / "own-store", verify=True)
    assert graph.relation is not None
    own = np.asarray(graph.relation) == [relation.name for relation in graph.schema.relations].index("writes")
    numbers = np.asarray(graph.columns[ATTR])
    assert not numbers[~own].any() and np.array_equal(np.sort(numbers[own], 0), features)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", ["folder", "npz", "mapping", "DGLGraph", "HeteroData"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_typed(form: str, weighted: bool, tmp_path: Path) -> None:
    """Types and relations are taken in sorted order, whatever order they come in."""
    graph = featured(with_weights(typed_graph())) if weighted else typed_graph()
    arrays = given.typed_arrays_of(graph)
    relations = sorted(arrays["edge_index"])
    schema = graph.schema
    from sargnn.graph.schema import Relation
    from sargnn.graph.typed import Edges, typed_dataset

    types, weights, features = schema.node_types, arrays.get("edge_weight", {}), arrays.get("edge_attr", {})
    edges = []
    for a, r, b in relations:
        sources, destinations = arrays["edge_index"][a, r, b]
        columns = EdgeColumns.of({"weight": weights.get((a, r, b)), ATTR: features.get((a, r, b))})
        edges.append(Edges(Relation(types.index(a), r, types.index(b)), sources, destinations, columns))
    labelled = types.index("paper")
    own = slice(*schema.offsets[labelled : labelled + 2])
    sorted_graph = typed_dataset(
        "typed", graph.num_classes, types, graph.features, edges, labelled, graph.labels[own], graph.split[own]
    )  # fmt: skip
    write_dataset(tmp_path / "wanted", sorted_graph, {})
    wanted = open_dataset(tmp_path / "wanted", verify=True).content_hash
    if form == "folder":
        assert hash_of_folder(tmp_path, given.save_arrays(tmp_path / "given", arrays)) == wanted
    elif form == "npz":
        flat = {"/".join([name, "___".join(key) if isinstance(key, tuple) else key]): one
                for name, value in arrays.items() for key, one in value.items()}  # fmt: skip
        assert hash_of_folder(tmp_path, given.write_npz(tmp_path / "given", flat, np.savez)) == wanted
    else:
        convert: Any = {"mapping": lambda one: one, "DGLGraph": given.as_typed_dgl, "HeteroData": given.as_hetero}[form]
        assert hash_of_object(tmp_path, convert(arrays)) == wanted


def test_inverse_edges_and_normalised_rows(graph: Dataset, tmp_path: Path) -> None:
    arrays = given.arrays_of(graph)
    both = arrays | {"edge_index": np.concatenate([arrays["edge_index"], arrays["edge_index"][::-1]], 1)}
    if "edge_weight" in arrays:
        both["edge_weight"] = np.concatenate([arrays["edge_weight"]] * 2)
        arrays["edge_attr"] = arrays["edge_weight"][:, None] * [1, 2, 3]
        both["edge_attr"] = np.concatenate([arrays["edge_attr"]] * 2)
    sums = np.maximum(np.abs(arrays["x"]).sum(1, keepdims=True), 1e-12)
    wanted = hash_of_object(tmp_path, both | {"x": arrays["x"] / sums})
    (tmp_path / "own-store").rename(tmp_path / "by-hand")
    assert hash_of_object(tmp_path, arrays, add_inverse_edges=True, normalize_features=True) == wanted


def test_an_undirected_graph_of_networkx_goes_both_ways(tmp_path: Path) -> None:
    import networkx

    graph = networkx.karate_club_graph()
    for number, (_, data) in enumerate(graph.nodes(data=True)):
        data.update(x=[1.0, number], y=int(data["club"] == "Officer"), train_mask=True)
    for _, _, data in graph.edges(data=True):
        data["edge_attr"] = data["weight"] + 0.5
    hash_of_object(tmp_path, graph)
    found = open_dataset(tmp_path / "own-store", verify=True)
    assert (found.num_nodes, found.num_edges, found.num_classes) == (34, 2 * graph.number_of_edges(), 2)
    weights = networkx.to_numpy_array(graph)
    destination = np.repeat(np.arange(34), np.diff(found.indptr))
    assert found.columns.weight is not None and np.array_equal(found.columns.weight, weights[found.indices, destination])
    assert np.array_equal(found.columns[ATTR], found.columns.weight[:, None] + 0.5)
    (_, _, data), *_ = graph.edges(data=True)
    del data["weight"]
    hash_of_object(tmp_path / "less", graph)
    assert open_dataset(tmp_path / "less" / "own-store", verify=True).columns.weight is not None  # 1 where an edge has none


def test_a_drawn_split_goes_by_node_number(graph: Dataset, tmp_path: Path) -> None:
    """Also where other nodes have no label; the shares are met as independent draws meet them."""
    rng = np.random.default_rng(0)
    arrays = {"edge_index": np.zeros((2, 1), np.int64), "x": np.ones((20000, 1)), "y": rng.integers(3, size=20000)}

    def split_of(changed: Any, **changes: Any) -> np.ndarray:
        hash_of_object(tmp_path, changed, **changes)
        path = tmp_path / "own-store"
        found = np.array(open_dataset(path, verify=True).split)
        shutil.rmtree(path)
        return found

    split = split_of(arrays, split=[0.6, 0.2, 0.1])
    assert np.allclose(np.bincount(split) / 20000, [0.1, 0.6, 0.2, 0.1], atol=0.015)
    fewer = {name: value[:, :1] if name == "edge_index" else value[:5000] for name, value in arrays.items()}
    assert np.array_equal(split_of(fewer, split=[0.6, 0.2, 0.1]), split[:5000])
    unlabelled = arrays | {"y": np.where(np.arange(20000) < 100, -1, arrays["y"])}
    assert np.array_equal(split_of(unlabelled, split=[0.6, 0.2, 0.1]), np.where(np.arange(20000) < 100, 0, split))
    assert not np.array_equal(split_of(arrays, split=[0.6, 0.2, 0.1], split_seed=1), split)


def test_a_small_buffer_makes_the_same_store(graph: Dataset, wanted: str, tmp_path: Path) -> None:
    root = given.save_arrays(tmp_path / "given", given.arrays_of(graph))
    assert hash_of_folder(tmp_path, root, buffer_bytes=20_000) == wanted
